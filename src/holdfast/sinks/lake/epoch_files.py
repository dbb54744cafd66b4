"""The files of an epoch in a lake table: Spark writes them where they stay, and a commit only names them.

    <table>/hf/<uid>.<stream>/t<timeline>-<epoch>/<attempt>.<lease>/…       data files, with their partitions
    <table>/_holdfast/<uid>.<stream>/t<timeline>-<epoch>/<attempt>.<lease>.json   the record of one attempt

Rules:
- No reader of the table sees a file before the table's own metadata names it.
- A record lists the files of an attempt with their sizes, digests, row counts and statistics. The handle has the digest
  of the record. Records stay: a rewind finds the files of an epoch by them. Clean-ups of the table formats leave them
  alone, because their folder begins with `_`.
- A commit by the object that staged the files compares sizes only. Every other commit compares digests too.
- Committed files are data of the table. So only attempts that were never committed may be removed here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast import _figures as figures
from holdfast.errors import RecordCorrupt, SinkFailed, StagedDamaged, StagedGone
from holdfast.formats.sealed_json import Record, digest_of
from holdfast.sinks.base import EpochKey, EpochPlace, SinkContext, Staged, StreamIdentity
from holdfast.sinks.key_files import place as place_name
from holdfast.sinks.lake.null_counts import counted_nulls
from holdfast.sinks.lake.table_folder import TableFolder, partition_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA, RECORDS = "hf", "_holdfast"
_ATTEMPT = re.compile(r"(\d+)\.(\d+)(?:\.json)?")
_EPOCH = re.compile(r"t(\d+)-(\d{10,})")

Describe: TypeAlias = Callable[[Any, Mapping[str, int]], str]
"""Returns the statistics of a file as the table format writes them, from its Parquet metadata and the null counts of
the columns that must not be null."""


class LakeFile(msgspec.Struct, frozen=True):
    """A data file."""

    path: str  # relative to the table's folder, as it is on the disk or store
    size: int
    rows: int
    digest: str
    stats: str  # as `Describe` returned them
    partition: dict[str, str | None]


class EpochFiles(Record, frozen=True, kw_only=True):
    """The record of one attempt."""

    pipeline: str
    uid: str
    stream: str
    timeline: int
    epoch: int
    attempt: int
    lease: int
    rows: int
    written_ms: int  # when Spark had written the files, since 1970
    columns: str  # the schema of the rows, as Spark's JSON
    files: list[LakeFile]

    @property
    def place(self) -> EpochPlace:
        """Timeline and epoch."""
        return self.timeline, self.epoch


class LakeStaging:
    """The files of the attempts of one sink, and their records."""

    def __init__(self, sink: str, folder: TableFolder, data: str = DATA, records: str = RECORDS) -> None:
        self.sink = sink
        self.folder = folder
        self._data = data
        self._records = records
        self._staged: tuple[str, EpochFiles] | None = None  # the last record that this object has written
        self._session: object = None  # the Spark session that was last configured to write here

    def stage(
        self,
        df: DataFrame,
        key: EpochKey,
        context: SinkContext,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        describe: Describe = lambda *_: "",
        required: Collection[str] = (),
    ) -> Staged:
        """Write the rows of an attempt with Spark, and their record; nothing remains if there are no rows.

        Spark's `partitionBy` leaves the partition columns out of the files. `required` are the columns that must not be
        null: their nulls are counted even if the metadata of a file does not count them.
        """
        name = self.data_of(key)
        if self._session is not df.sparkSession:  # one for each query: its settings are set once
            df.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            df.sparkSession.conf.set("spark.sql.parquet.writeLegacyFormat", "false")
            self._session = df.sparkSession
        writer = df.write.format("parquet").options(**(options or {}))
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        self.folder.make_unused(name, context.folder_mode)
        writer.mode("append").save(self.folder.spark_address(name))
        context.reach("staging")
        files = self._written(name, partition_by, describe, required)
        rows = sum(each.rows for each in files)
        if not rows:
            self.folder.remove(name)
            return Staged({"rows": 0}, 0, trace=False)
        record = EpochFiles(
            pipeline=key.owner.pipeline,
            uid=key.owner.uid,
            stream=key.owner.stream,
            timeline=key.timeline,
            epoch=key.epoch,
            attempt=key.attempt.attempt,
            lease=key.lease or 0,
            rows=rows,
            written_ms=time.time_ns() // 1_000_000,
            columns=df.schema.json(),
            files=files,
        )
        data = record.sealed()
        self.folder.write(self.record_of(key), data)
        self._staged = digest_of(data), record
        handle = {"rows": rows, "files": len(files), "digest": digest_of(data)}
        paths = (*self.folder.unsynced(name), *self.folder.unsynced(self.record_of(key)))
        return Staged(handle, rows, tuple(dict.fromkeys(paths)))

    def _written(
        self, name: str, partition_by: Sequence[str], describe: Describe, required: Collection[str]
    ) -> list[LakeFile]:
        sizes = self.folder.files(name)
        digests = self.folder.digests(name, sizes)
        footers = self.folder.footers([f"{name}/{each}" for each in sizes], list(sizes.values()))
        return [
            LakeFile(
                path=f"{name}/{each}",
                size=size,
                rows=footer.num_rows,
                digest=digests[each],
                stats=describe(
                    footer, counted_nulls(footer, required, partial(self.folder.opened, f"{name}/{each}", size))
                ),
                partition=partition_values(each, partition_by),
            )
            for (each, size), footer in zip(sizes.items(), footers, strict=True)
            if footer.num_rows
        ]

    def proven(self, key: EpochKey, handle: Mapping[str, Any]) -> EpochFiles:
        """Return the record of an attempt after checking that its files are there, undamaged."""
        known = self._staged is not None and self._staged[0] == handle["digest"]
        record = self._staged[1] if known and self._staged else self._read(key, handle)
        name = self.data_of(key)
        expected = {each.path.removeprefix(f"{name}/"): each for each in record.files}
        sizes = self.folder.files(name)
        digests = {} if known else self.folder.digests(name, {each: file.size for each, file in expected.items()})
        for each, file in expected.items():
            if each not in sizes:
                if not sizes:
                    raise StagedGone(sink=self.sink, epoch=key.epoch)
                raise self._damaged(key, file, "it is missing")
            if sizes[each] != file.size:
                found, size = figures.number(sizes[each]), figures.number(file.size)
                raise self._damaged(key, file, f"it has {found} bytes, but {size} were staged")
            if not known and digests.get(each) != file.digest:
                raise self._damaged(key, file, "its digest is not the one that was recorded when it was staged")
        if sum(each.rows for each in record.files) != handle["rows"]:
            why = f"{record.rows} rows were staged, but the decision counts {handle['rows']}"
            raise SinkFailed(sink=self.sink, action=f"commit epoch {key.epoch}", why=why)
        return record

    def _read(self, key: EpochKey, handle: Mapping[str, Any]) -> EpochFiles:
        name = self.record_of(key)
        data = self.folder.read(name)
        if data is None:
            raise StagedGone(sink=self.sink, epoch=key.epoch)
        record = EpochFiles.unsealed(data, self._shown(name))
        if digest_of(data) != handle["digest"]:
            raise RecordCorrupt(key=self._shown(name), why="it is not the one that the decision names")
        return record

    def clear(self, key: EpochKey) -> None:
        """Remove the files of one attempt: under the key's lease or, if that is `None`, under any lease."""
        for attempt, lease in self._attempts(key.owner, key.place):
            if attempt == key.attempt.attempt and key.lease in (None, lease):
                self.remove(key.owner, key.place, attempt, lease)

    def has(self, key: EpochKey) -> bool:
        """Whether anything of an attempt is there: under the key's lease or, if that is `None`, under any lease."""
        found = self._attempts(key.owner, key.place)
        return any(attempt == key.attempt.attempt and key.lease in (None, lease) for attempt, lease in found)

    def is_named(self, key: EpochKey, paths: Iterable[str]) -> bool:
        """Whether one of these files belongs to an attempt: under its lease or, if that is `None`, under any."""
        start = self.data_of(key).rpartition(".")[0] + "."
        own = start if key.lease is None else f"{start}{key.lease}/"
        return any(path.startswith(own) for path in paths)

    def sweep(self, key: EpochKey) -> None:
        """Remove the files of other attempts at an epoch, after this attempt was committed, and not before."""
        for found in self._attempts(key.owner, key.place):
            if found != (key.attempt.attempt, key.lease):
                self.remove(key.owner, key.place, *found)

    def retire(self, owner: StreamIdentity, after: EpochPlace, before: EpochPlace) -> None:
        """Remove the files of all attempts at epochs between two places: none of them was committed, or can be."""
        for top in (self._data, self._records):
            for name in self.folder.names(f"{top}/{_owner(owner)}"):
                match = _EPOCH.fullmatch(name)
                if match and after < (int(match[1]), int(match[2])) < before:
                    self.folder.remove(f"{top}/{_owner(owner)}/{name}")

    def records(self, owner: StreamIdentity, after: EpochPlace, before: EpochPlace) -> list[EpochFiles]:
        """Return the records of all attempts at epochs between two places, in order. Some were never committed."""
        top = f"{self._records}/{_owner(owner)}"
        return sorted(self._records_in(top, after, before), key=lambda each: (each.place, each.attempt, each.lease))

    def _records_in(self, top: str, after: EpochPlace, before: EpochPlace) -> Iterator[EpochFiles]:
        for name in self.folder.flat(top):
            match = _EPOCH.fullmatch(name.partition("/")[0])
            if match and after < (int(match[1]), int(match[2])) < before and name.endswith(".json"):
                data = self.folder.read(f"{top}/{name}")
                if data is not None:
                    yield EpochFiles.unsealed(data, self._shown(f"{top}/{name}"))

    def data_of(self, key: EpochKey) -> str:
        """Return the folder of an attempt's data files."""
        return f"{self._data}/{_owner(key.owner)}/{place_name(*key.place)}/{key.attempt.attempt}.{key.lease or 0}"

    def record_of(self, key: EpochKey) -> str:
        """Return the name of an attempt's record."""
        name = f"{key.attempt.attempt}.{key.lease or 0}.json"
        return f"{self._records}/{_owner(key.owner)}/{place_name(*key.place)}/{name}"

    def place_of(self, path: str, owner: StreamIdentity) -> EpochPlace | None:
        """Return the epoch that a data file of the table was written for; `None` if it is not one of this owner."""
        parts = path.split("/")
        top = [*self._data.split("/"), _owner(owner)]
        match = _EPOCH.fullmatch(parts[len(top)]) if parts[: len(top)] == top and len(parts) > len(top) else None
        return (int(match[1]), int(match[2])) if match else None

    def own_part(self, address: str, owner: StreamIdentity) -> str:
        """Return the end of an address that may name a data file of this owner, in any folder; or ''."""
        _, found, rest = address.rpartition(f"/{self._data}/{_owner(owner)}/")
        return f"{found[1:]}{rest}" if found else ""

    def own_name(self, owner: StreamIdentity, name: str) -> str:
        """Return the name of another record of an owner, beside those of its epochs."""
        return f"{self._records}/{_owner(owner)}/{name}"

    def _attempts(self, owner: StreamIdentity, place: EpochPlace) -> list[tuple[int, int]]:
        names = [
            name
            for top in (self._data, self._records)
            for name in self.folder.names(f"{top}/{_owner(owner)}/{place_name(*place)}")
        ]
        return sorted({(int(found[1]), int(found[2])) for found in map(_ATTEMPT.fullmatch, names) if found})

    def remove(self, owner: StreamIdentity, place: EpochPlace, attempt: int, lease: int) -> None:
        """Remove the files of an attempt, then its record."""
        self.folder.remove(f"{self._data}/{_owner(owner)}/{place_name(*place)}/{attempt}.{lease}")
        self.folder.remove(f"{self._records}/{_owner(owner)}/{place_name(*place)}/{attempt}.{lease}.json")

    def _damaged(self, key: EpochKey, file: LakeFile, why: str) -> StagedDamaged:
        return StagedDamaged(sink=self.sink, epoch=key.epoch, path=self._shown(file.path), why=why)

    def _shown(self, name: str) -> str:
        return f"{self.folder.url}/{name}"


def _owner(owner: StreamIdentity) -> str:
    return f"{owner.uid}.{owner.stream}"
