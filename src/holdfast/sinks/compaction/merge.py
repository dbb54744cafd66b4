"""Files of several epochs become fewer, partition by partition.

Parquet and ORC go through Spark; lines of JSON and CSV are joined byte by byte. Files that are large already, and a
file that is alone in its partition, are linked. What comes out is proven: the rows by Spark's count, or the bytes.
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
from holdfast.sinks.compaction._errors import failed, of_spark
from holdfast.sinks.compaction.plan import is_small
from holdfast.sinks.compaction.trees import like, link, own_like
from holdfast.sinks.files.epoch_folders import KEY_FILE, EpochFolder, KeyRecord, compression_of, ending, is_data, leaves
from holdfast.sinks.staging import below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPRESSIONS = {"": "none", "gz": "gzip", "br": "brotli", "lz4raw": "lz4_raw", "lz4hadoop": "lz4"}
_AT_ONCE = 1 << 20


@dataclass(slots=True)
class Merge:
    """One run's merge: from the folders of its epochs into one new folder."""

    root: Path  # of the sink
    folders: Sequence[EpochFolder]
    target: Path
    scratch: Path
    format: str
    target_bytes: int
    spark: SparkSession | None
    options: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> KeyRecord:
        """Write the folder, prove it, and put its record into it. What fails leaves it without one."""
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
        self._prove()
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
        """Make a partition's folder with all above it, like the first one that was of this name."""
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
                _joined(group, folder / name, pressed=bool(compression_of(name, self.format)))
            return
        with of_spark(self.root):
            self._rewritten(sources, folder)

    # --- by Spark ---

    def _rewritten(self, sources: Sequence[Path], folder: Path) -> None:
        """Let Spark read links to the files in a folder without partitions, write beside it, and move what it wrote."""
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
        pressed = compression_of(sources[-1].name, self.format)
        writer = rows.coalesce(max(count, 1)).write.format(self.format)
        writer = writer.option("compression", _COMPRESSIONS.get(pressed, pressed)).options(**self.options)
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.mode("errorifexists").save(hadoop_address(places[1]))
        for path in sorted(places[1].iterdir()):
            path.rename(folder / path.name)
        for each in places:
            shutil.rmtree(each)

    def _read(self, folder: Path) -> DataFrame:
        if self.spark is None:
            raise NotSupported(what=f"merging {self.format} without Spark", why="only Spark reads and writes it here")
        reader = self.spark.read.format(self.format).option("recursiveFileLookup", "true")
        return reader.option("mergeSchema", "false").option("__globPaths__", "false").load(hadoop_address(folder))

    # --- proof ---

    def _made(self) -> list[Path]:
        return [path for path in below(self.target) if path.is_file() and path.name != KEY_FILE]

    def _prove(self) -> None:
        """Refuse what has not all rows, or bytes, of what it was made of."""
        if self.format in ("json", "csv"):
            due = sum(size for each in self.folders for name, size in each.record.files.items() if is_data(name))
            found, what = sum(path.stat().st_size for path in self._made() if is_data(path.name)), "bytes"
        else:
            with of_spark(self.root):
                due, found, what = self._rows, self._read(self.target).count(), "rows"
        if due != found:
            raise failed(self.root, f"{self.target.name} has {found} {what} where its epochs have {due}")


def schema_of(merge: Merge, folder: EpochFolder) -> str:
    """Return the columns of an epoch's files, read from the first of them, for records that do not tell."""
    name = next(filter(is_data, sorted(folder.record.files)))
    with of_spark(merge.root):
        return str(merge._read(merge.root / folder.name / name).schema.simpleString())


def _grouped(sources: Sequence[Path], target_bytes: int) -> Iterator[list[Path]]:
    """Give files in groups of about the target's size, in order."""
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


def _joined(sources: Sequence[Path], target: Path, *, pressed: bool) -> None:
    with target.open("xb") as writer:
        for source in sources:
            with source.open("rb") as reader:
                shutil.copyfileobj(reader, writer, _AT_ONCE)
            if not pressed and writer.tell() and not _ends_a_line(source):
                raise failed(source.parent, f"{source} does not end with the end of a line")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as reader:
        return not reader.seek(0, os.SEEK_END) or (reader.seek(-1, os.SEEK_END) >= 0 and reader.read(1) == b"\n")


def _refuse_encrypted(path: Path) -> None:
    with path.open("rb") as reader:
        if reader.read(4) == b"PARE":
            raise NotSupported(what=f"compacting {path}", why="it is encrypted, and the merged one would be in clear")
