"""The merge of files: those of several epochs become fewer, partition by partition.

Spark rewrites Parquet and ORC; JSON and CSV files are concatenated. Large files, and a single small file of a
partition, are linked. The result is checked: by Spark's row count, or by the number of bytes.
"""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import NotSupported
from holdfast.repository.files import hadoop_address, replace_durably
from holdfast.sinks.compaction._errors import failed, spark_errors
from holdfast.sinks.compaction.runs import is_small
from holdfast.sinks.compaction.trees import like, link, own_like
from holdfast.sinks.files.epoch_folders import KEY_FILE, EpochFolder, KeyRecord, compression_of, ending, is_data, leaves
from holdfast.sinks.staging import below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPRESSIONS = {"": "none", "gz": "gzip", "br": "brotli", "lz4raw": "lz4_raw", "lz4hadoop": "lz4"}
_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class Merge:
    """The merge of one run: from the folders of its epochs into one new folder."""

    root: Path  # of the sink
    folders: Sequence[EpochFolder]
    target: Path
    scratch: Path
    format: str
    target_bytes: int
    spark: SparkSession | None
    options: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> KeyRecord:
        """Write the folder, check it, and write its record. If this fails, the folder has no record."""
        last = self.folders[-1]
        like(self.root / last.name, self.target)
        for leaf, sources in self._leaves().items():
            made = self._leaf(leaf)
            small = [each for each in sources if is_small(each.stat().st_size, self.target_bytes)]
            alone = small if len(small) == 1 else []
            for source in sources:
                if source not in small or alone:
                    self._link(source, made)
            if not alone and small:
                self._write(small, made)
                for path in made.iterdir():
                    if path.is_file() and path.stat().st_nlink == 1:  # written, not linked
                        own_like(small[-1], path)
        self._check()
        sizes = {str(path.relative_to(self.target)): path.stat().st_size for path in self._made()}
        record = KeyRecord(
            pipeline=last.record.pipeline,
            uid=last.record.uid,
            stream=last.record.stream,
            timeline=last.timeline,
            epoch=last.epoch,
            attempt=0,
            lease=0,
            rows=self._rows,
            files=sizes,
            first=self.folders[0].first,
            epochs=sum(each.record.epochs for each in self.folders),
            shape=last.record.shape,
            options=last.record.options,
        )
        replace_durably(self.target / KEY_FILE, record.sealed(), KEY_FILE)
        own_like(self.root / last.name / KEY_FILE, self.target / KEY_FILE)
        return record

    @property
    def _rows(self) -> int:
        return sum(each.record.rows for each in self.folders)

    def _leaves(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for each in self.folders:
            for leaf, names in leaves(each.record.files).items():
                found.setdefault(leaf, []).extend(self.root / each.name / name for name in names)
        return found

    def _leaf(self, leaf: str) -> Path:
        """Create the folder of a partition with its parents, with permissions as in the first epoch that has it."""
        made = self.target
        for part in Path(leaf).parts:
            made = made / part
            if not made.exists():
                inside = made.relative_to(self.target)
                found = (self.root / each.name / inside for each in self.folders)
                like(next(path for path in found if path.is_dir()), made)
        return made

    def _link(self, source: Path, folder: Path) -> None:
        name = source.name if not (folder / source.name).exists() else f"{uuid.uuid4().hex}-{source.name}"
        link(source, folder / name)
        checksum = source.with_name(f".{source.name}.crc")
        if checksum.exists():
            link(checksum, folder / f".{name}.crc")

    def _write(self, sources: Sequence[Path], folder: Path) -> None:
        if self.format in ("json", "csv"):
            for number, group in enumerate(_grouped(sources, self.target_bytes)):
                name = f"part-{number:05}-{uuid.uuid4()}-c000{ending(sources[0].name)}"
                _concatenate(group, folder / name, compressed=bool(compression_of(name, self.format)))
            return
        with spark_errors(self.root):
            self._rewrite(sources, folder)

    # --- with Spark ---

    def _rewrite(self, sources: Sequence[Path], folder: Path) -> None:
        """Link the files into a folder without partitions, rewrite that folder with Spark, and move the result."""
        places = [self.scratch / "read", self.scratch / "written"]
        for each in places:
            shutil.rmtree(each, ignore_errors=True)
        places[0].mkdir(parents=True)
        for source in sources:
            if self.format == "parquet":
                _refuse_encrypted(source)
            self._link(source, places[0])
        count = math.ceil(sum(each.stat().st_size for each in sources) / self.target_bytes)
        rows = self._read(places[0])
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        compression = compression_of(sources[-1].name, self.format)
        writer = rows.coalesce(max(count, 1)).write.format(self.format)
        writer = writer.option("compression", _COMPRESSIONS.get(compression, compression)).options(**self.options)
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.mode("errorifexists").save(hadoop_address(places[1]))
        for path in sorted(places[1].iterdir()):
            path.rename(folder / path.name)
        for each in places:
            shutil.rmtree(each)

    def _read(self, folder: Path) -> DataFrame:
        if self.spark is None:
            raise without_spark(self.format)
        reader = self.spark.read.format(self.format).option("recursiveFileLookup", "true")
        return reader.option("mergeSchema", "false").option("__globPaths__", "false").load(hadoop_address(folder))

    # --- the check ---

    def _made(self) -> list[Path]:
        return [path for path in below(self.target) if path.is_file() and path.name != KEY_FILE]

    def _check(self) -> None:
        """Refuse a merged folder that does not have as many rows, or bytes, as its epochs together."""
        if self.format in ("json", "csv"):
            expected = sum(size for each in self.folders for name, size in each.record.files.items() if is_data(name))
            found, what = sum(path.stat().st_size for path in self._made() if is_data(path.name)), "bytes"
        else:
            with spark_errors(self.root):
                expected, found, what = self._rows, self._read(self.target).count(), "rows"
        if expected != found:
            raise failed(self.root, f"{self.target.name} has {found} {what}, but its epochs have {expected}")

    def columns_of(self, folder: EpochFolder) -> str:
        """Return the columns of an epoch, read from its first file: records of earlier versions have none."""
        name = next(filter(is_data, sorted(folder.record.files)))
        with spark_errors(self.root):
            return str(self._read(self.root / folder.name / name).schema.simpleString())


def without_spark(format: str) -> NotSupported:
    """Return the error for a format that cannot be merged without a Spark session."""
    why = "only Spark can read and write this format"
    return NotSupported(what=f"merging {format} without Spark", why=why, do="pass a session")


def _grouped(sources: Sequence[Path], target_bytes: int) -> Iterator[list[Path]]:
    """Yield the files in groups of about the target size, in order."""
    group: list[Path] = []
    size = 0
    for each in sources:
        group.append(each)
        size += each.stat().st_size
        if size >= target_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _concatenate(sources: Sequence[Path], target: Path, *, compressed: bool) -> None:
    with target.open("xb") as writer:
        for source in sources:
            with source.open("rb") as reader:
                shutil.copyfileobj(reader, writer, _COPY_BYTES)
            if not compressed and writer.tell() and not _ends_a_line(source):
                raise failed(source.parent, f"{source} does not end with a newline")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as reader:
        return not reader.seek(0, os.SEEK_END) or (reader.seek(-1, os.SEEK_END) >= 0 and reader.read(1) == b"\n")


def _refuse_encrypted(path: Path) -> None:
    with path.open("rb") as reader:
        if reader.read(4) == b"PARE":
            raise NotSupported(what=f"compacting {path}", why="it is encrypted, and the merged file would not be")
