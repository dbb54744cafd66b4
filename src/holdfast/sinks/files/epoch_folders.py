"""The contents of a FileSink's folder: names and records, read without Spark.

    _holdfast/owner.key                       the owner
    _holdfast/gate.lock                       locked by commits, and by a compaction while it swaps
    _holdfast/t<timeline>-<epoch>.key         the ledger of `flat`; in `epochs`, pointers: see `last_epoch`
    hf_epoch=t<timeline>-<epoch>/             the layout `epochs`: one epoch, or several merged ones
    hf_epoch=…/_holdfast.key                  the owner of the epoch, and its files with their sizes

A merged folder has the name of its last epoch, so names keep their order. `first` in its record is not 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias, get_args

from holdfast.errors import RecordCorrupt
from holdfast.formats.sealed_json import Record, digest_of
from holdfast.sinks.base import Link, StreamIdentity, handle_digest
from holdfast.sinks.key_files import place, places_in
from holdfast.sinks.staging import names_in

Format: TypeAlias = Literal["parquet", "json", "csv", "orc"]
"""The file formats that a `FileSink` writes."""
Layout: TypeAlias = Literal["epochs", "flat"]
"""Where a `FileSink` puts the files of an epoch; see `FileSink`."""
FORMATS: tuple[Format, ...] = get_args(Format)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
EPOCH_COLUMN = "hf_epoch"
LEDGER = "_holdfast"
KEY_FILE = "_holdfast.key"
EPOCH_FOLDER = re.compile(rf"{EPOCH_COLUMN}=t(\d+)-(\d+)")
_SHAPE = re.compile(r"layout (\w+), format (\w+), partitioned by \[.*\]")
_COUNTED = re.compile(r".*[.-]c\d+((?:\.\w+)+)")
_RECORDED_OPTIONS = ("compression", "codec", "header", "encoding", "charset", "linesep")


class KeyRecord(Record, frozen=True, kw_only=True):
    """The files of one attempt, or of several merged epochs: then `attempt` and `lease` are 0."""

    pipeline: str
    uid: str
    stream: str
    timeline: int
    epoch: int
    attempt: int
    lease: int
    rows: int
    files: dict[str, int]  # path inside the folder -> size
    first: int = 0  # the first merged epoch; 0: the files of one attempt
    epochs: int = 1  # number of epochs in it that left a trace
    shape: str = ""  # digest of columns and options; empty in records of earlier versions
    options: dict[str, str] | None = None  # of Spark's writer: values that a merge needs, otherwise only the names
    digests: dict[str, str] | None = None  # of one attempt: SHA-256 by file; None in records of earlier versions

    @property
    def owner(self) -> StreamIdentity:
        """The stream that wrote the files."""
        return StreamIdentity(self.pipeline, self.uid, self.stream)

    def holds(self, timeline: int, epoch: int) -> bool:
        """Whether this is the record of a merged folder that contains the epoch."""
        return bool(self.first) and self.timeline == timeline and self.first <= epoch <= self.epoch


@dataclass(frozen=True, slots=True)
class EpochFolder:
    """A folder of the layout `epochs`, with its record."""

    name: str
    record: KeyRecord
    digest: str

    @property
    def timeline(self) -> int:
        """Its timeline."""
        return self.record.timeline

    @property
    def epoch(self) -> int:
        """Its epoch; the last one if it is merged."""
        return self.record.epoch

    @property
    def first(self) -> int:
        """The first epoch in it."""
        return self.record.first or self.record.epoch


def folder_name(timeline: int, epoch: int) -> str:
    """Return the name of an epoch's folder."""
    return f"{EPOCH_COLUMN}={place(timeline, epoch)}"


def epochs_in(path: Path) -> list[tuple[int, int]]:
    """Return the epochs in a sink's folder. A folder of such a name without a key file is not an epoch."""
    return [(t, e) for t, e in places_in(path, EPOCH_FOLDER) if (path / folder_name(t, e) / KEY_FILE).exists()]


def last_epoch_in(path: Path, timeline: int) -> int:
    """Return the last epoch of a timeline, or 0, by listing the folder. Names are checked from the end."""
    start = f"{EPOCH_COLUMN}=t{timeline}-"
    for name in sorted(filter(lambda name: name.startswith(start), names_in(path)), key=len)[::-1]:
        match = EPOCH_FOLDER.fullmatch(name)
        if match and name == folder_name(timeline, int(match[2])) and (path / name / KEY_FILE).exists():
            return int(match[2])
    return 0


def link_at(key_file: Path, epoch: int) -> Link:
    """Return an epoch with the digest of its handle, recomputed from its key file. A merged epoch has no handle."""
    try:
        data = key_file.read_bytes()
    except FileNotFoundError:
        return Link(epoch, None)
    record = KeyRecord.unsealed(data, str(key_file))
    if record.first:
        return Link(epoch, None)
    return Link(epoch, handle_digest({"rows": record.rows, "files": len(record.files), "digest": digest_of(data)}))


def folder_of(path: Path, timeline: int, epoch: int) -> EpochFolder:
    """Read the record of an epoch's folder; raise `RecordCorrupt` if it is damaged or belongs to another epoch."""
    name = folder_name(timeline, epoch)
    where = path / name / KEY_FILE
    data = where.read_bytes()
    record = KeyRecord.unsealed(data, str(where))
    if (record.timeline, record.epoch) != (timeline, epoch):
        raise RecordCorrupt(key=str(where), why=f"it is the record of {place(record.timeline, record.epoch)}")
    return EpochFolder(name, record, digest_of(data))


def merged_over(path: Path, timeline: int, epoch: int) -> KeyRecord | None:
    """Return the record of the merged folder that contains an epoch, or `None`."""
    later = [found for t, found in epochs_in(path) if t == timeline and found >= epoch]
    if not later:
        return None
    record = folder_of(path, timeline, min(later)).record
    return record if record.holds(timeline, epoch) else None


def is_data(name: str) -> bool:
    """Whether a file holds rows: it is neither a record nor a Hadoop checksum."""
    return not PurePosixPath(name).name.startswith(("_", "."))


def leaves(files: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the files with rows, grouped by their folder: one for each partition."""
    found: dict[str, list[str]] = {}
    for name in sorted(filter(is_data, files)):
        found.setdefault(str(PurePosixPath(name).parent), []).append(name)
    return found


def ending(name: str) -> str:
    """Return the suffixes of a file name after Spark's counter: `.snappy.parquet`, `.json.gz`."""
    match = _COUNTED.fullmatch(name)
    return match[1] if match else "".join(PurePosixPath(name).suffixes[-2:])


def compression_of(name: str, format: str) -> str:
    """Return the compression in a file's name, such as `snappy`; an empty string if there is none."""
    return next((part for part in ending(name).split(".") if part and part != format), "")


def shape_of(layout: str, format: str, partition_by: Sequence[str]) -> str:
    """Return the shape of a folder, as its owner's record stores it."""
    return f"layout {layout}, format {format}, partitioned by {list(partition_by)}"


def layout_and_format(shape: str) -> tuple[str, str] | None:
    """Return layout and format from the shape in an owner's record."""
    match = _SHAPE.fullmatch(shape)
    return (match[1], match[2]) if match else None


def recorded_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the writer's options for a record: by lower-case name, most of them without their values."""
    return {name.lower(): str(value) if name.lower() in _RECORDED_OPTIONS else "" for name, value in options.items()}
