"""Whether the sources still have the input after a base, as far as this can be known without Spark.

- Files: those that the abandoned epochs have read are named in the source's log, and must still exist. If an entry of
  the log is not the one that was decided upon, it is damaged, and it is not known which files were read.
- An event log of this pipeline: its folder must exist. Its sequences are never reused.
- Kafka: its topics must be the same ones, and still have the records (see `topics`).
- A Delta table: it must be the same one, and its log must have the versions (see `lake_tables`).
- All others: unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast._lake_tables import DELTA, ICEBERG
from holdfast._topics import KAFKA
from holdfast.doctor.offsets import described
from holdfast.epoch import Decision, Facts
from holdfast.errors import Corrupt, StorageFailed, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest import Manifest
from holdfast.repository import Decisions, ObjectRepository, Repository
from holdfast.repository.files import failing_as
from holdfast.rewind.lake_tables import TableQuestions
from holdfast.rewind.plan import Readable, SourcePlan
from holdfast.rewind.topics import TopicQuestions
from holdfast.sparkfiles.folder import SparkFolder, files_in
from holdfast.sparkfiles.sourcelog import ENTRY, SOURCES, log_offset


class _SeenFile(msgspec.Struct):
    """One file in an entry of a source's log."""

    path: str
    batchId: int = -1  # noqa: N815 - Spark's name


class _LogOffset(msgspec.Struct):
    log: str


class EntryDigests:
    """What the decisions after a base recorded of the entries of the sources' logs."""

    def __init__(
        self, repository: Repository, stream: str, timeline: int, base_epoch: int, last: Decision | None
    ) -> None:
        self._repository = repository
        self._decisions = Decisions(repository)
        self._stream, self._timeline = stream, timeline
        self._epochs = range(last.attempt.epoch if last else 0, base_epoch, -1)

    def is_damaged(self, entry: str, data: bytes) -> bool:
        """Whether an entry, such as `0/9.compact`, has other bytes than a decision recorded. Reads the decisions.

        A decision that cannot be read is passed over, except on an object store during an outage.
        """
        for epoch in self._epochs:
            try:
                decision = self._decisions.committed(self._stream, self._timeline, epoch)
            except (Corrupt, UnsupportedVersion):
                continue
            except StorageFailed:
                if isinstance(self._repository, ObjectRepository):
                    raise
                continue
            recorded = Facts.of(decision).source_entries.get(entry) if decision else None
            if recorded is not None:
                return recorded != hashlib.sha256(data).hexdigest()
        return False


def inputs_after(
    ends: tuple[str | None, ...],
    now: tuple[str | None, ...],
    spark: SparkFolder,
    manifests: list[Manifest],
    *,
    entries: EntryDigests,
    topics: TopicQuestions,
    tables: TableQuestions,
) -> Iterator[SourcePlan]:
    """Yield each source of a stream: `ends` are its offsets in the base, `now` the ones of its last epoch.

    `spark` is the live folder of the stream, `manifests` name the event logs of the pipeline. `entries` knows what the
    logs of file sources contained, `topics` asks Kafka, and `tables` looks at lake tables.
    """
    logs = _logs(manifests)
    for number, end in enumerate(now):
        start = ends[number] if number < len(ends) else None
        kind, _ = described(end)
        if start == end:
            yield SourcePlan(source=str(number), kind=kind, readable=Readable.YES, why="nothing was read since")
        elif kind == "files":
            readable, why = _files(spark, str(number), log_offset(start), log_offset(end) or 0, entries)
            yield SourcePlan(source=str(number), kind=kind, readable=readable, why=why)
        elif kind == "holdfast log":
            readable, why = _log(end or "", logs)
            yield SourcePlan(source=str(number), kind=kind, readable=readable, why=why)
        elif kind == KAFKA:
            readable, why = topics.readable(number, start)
            yield SourcePlan(source=str(number), kind=kind, readable=readable, why=why)
        elif kind in (DELTA, ICEBERG):
            readable, why = tables.readable(number, kind, start, offsets=len(now))
            yield SourcePlan(source=str(number), kind=kind, readable=readable, why=why)
        else:
            why = "this cannot be checked here; check that the source still has the input after the base"
            yield SourcePlan(source=str(number), kind=kind, readable=Readable.UNKNOWN, why=why)


def _files(
    spark: SparkFolder, source: str, after: int | None, last: int, digests: EntryDigests
) -> tuple[Readable, str]:
    """Whether the files exist that the entries after one name, up to the last one."""
    first = -1 if after is None else after
    wanted = set(range(first + 1, last + 1))
    folder = f"{SOURCES}/{source}"
    try:
        names = [name for name in files_in(spark, folder) if ENTRY.fullmatch(name)]
        entries = [name for name in names if int(name.removesuffix(".compact")) > first]
        read = {key: data or b"" for key, data in spark.read_all(f"{folder}/{name}" for name in entries).items()}
        seen = [(file, key) for key, data in read.items() for file in _named(data)]
    except (StorageFailed, Undecodable):
        return Readable.UNKNOWN, "the log of the source cannot be read"
    for file, key in seen:
        if file.batchId in wanted or first < 0:
            path = _local(file.path)
            if path is None:
                return Readable.UNKNOWN, "its files are not on a local disk"
            readable, why = _exists(path)
            if readable is Readable.NO and digests.is_damaged(key.removeprefix(f"{SOURCES}/"), read[key]):
                return Readable.UNKNOWN, f"{key} is damaged, so it is not known which files were read"
            if readable is not Readable.YES:
                return readable, why
    if wanted - {file.batchId for file, _ in seen} - {int(name.removesuffix(".compact")) for name in entries}:
        return Readable.UNKNOWN, "the log of the source has no record of the files"
    return Readable.YES, ""


def _named(entry: bytes) -> Iterator[_SeenFile]:
    for line in entry.splitlines()[1:]:
        if line.strip():
            yield from_json(line, _SeenFile)


def _local(address: str) -> Path | None:
    parts = urlsplit(address)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    return Path(unquote(parts.path))


def _logs(manifests: list[Manifest]) -> Mapping[str, str]:
    """Return the folders of the event logs that sinks of the pipeline have marked, by the identity of the log."""
    marks = [note for each in manifests for cut in each.streams.values() for note in cut.sinks.values()]
    return {str(note["log"]): str(note["path"]) for note in marks if "log" in note and "path" in note}


def log_of(offset: str | None) -> str | None:
    """Return the identity of the event log that an offset is in; `None` for the offset of another source."""
    try:
        return from_json((offset or "").encode(), _LogOffset).log
    except Undecodable:
        return None


def _log(end: str, logs: Mapping[str, str]) -> tuple[Readable, str]:
    path = logs.get(log_of(end) or "")
    if path is None:
        return Readable.UNKNOWN, "no sink of the pipeline writes this log"
    return _exists(Path(path))


def _exists(path: Path) -> tuple[Readable, str]:
    """Whether a local file or folder exists; unknown if the disk or a permission prevents the answer."""
    try:
        with failing_as("look at", str(path)):
            return (Readable.YES, "") if path.exists() else (Readable.NO, f"{path} no longer exists")
    except StorageFailed as error:
        return Readable.UNKNOWN, error.summary
