"""The result of an examination, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast import _figures as figures
from holdfast.doctor.findings import CheckpointFinding, FindingSeverity
from holdfast.formats.sealed_json import plain


@dataclass(frozen=True, slots=True)
class LogEntries:
    """The entries of the offset log or the commit log."""

    first: int | None  # the oldest batch
    last: int | None  # the newest batch
    count: int  # number of entries
    versions: tuple[str, ...]  # format versions that occur, such as v1


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where the last begun batch ends in one source."""

    source: str  # its number in the query; with named sources, its name
    kind: str  # files, kafka, delta, iceberg, holdfast log, number or unknown
    offset: str | None  # verbatim from the offset log; null before the first row
    position: str  # the offset in words
    log_entries: int | None  # of a file source: the number of entries in its log


@dataclass(frozen=True, slots=True)
class VersionSize:
    """The files of one version of an operator's state, over all partitions."""

    version: int  # batch id + 1
    files: int  # number of files with this version in their name
    bytes: int  # their size


@dataclass(frozen=True, slots=True)
class StateSize:
    """The state of one stateful operator."""

    operator: str  # its number in the query
    name: str | None  # Spark's name of the operator, if it is recorded
    provider: str | None  # hdfs or rocksdb
    format: int | None  # 1 or 2: spark.sql.streaming.stateStore.checkpointFormatVersion
    partitions: int  # partitions with files
    stores: int  # stores of all partitions together: a join has several per partition
    files: int  # number of files, without checksum files
    bytes: int  # their size
    needed_files: int  # files that the next start reads
    needed_bytes: int  # their size
    growth: tuple[VersionSize, ...]  # the newest versions, oldest first


@dataclass(frozen=True, slots=True)
class FolderSize:
    """The size of one folder of the checkpoint."""

    folder: str  # offsets, commits, sources, state; "." for files directly in the checkpoint folder
    files: int  # number of files, including hidden ones
    bytes: int  # their size


@dataclass(frozen=True, slots=True)
class Examination:
    """What a checkpoint folder contains, and what is wrong with it."""

    path: str  # the folder
    query: str | None  # the query's id
    mode: str  # micro-batch, asynchronous, continuous or real-time
    committed: int | None  # the last committed batch
    in_doubt: int | None  # the batch that was begun and not committed
    next_batch: int | None  # the batch that the next start runs first; null if it cannot start
    offsets: LogEntries  # the offset log
    commits: LogEntries  # the commit log
    watermark_ms: int | None  # event-time watermark of the last begun batch
    begun_at_ms: int | None  # when the last batch was begun
    written_at_ms: int | None  # when a file of the folder was last written
    live: bool | None  # whether files changed between two looks; null after one look
    looks: int  # how many times it was looked at
    sources: tuple[SourcePosition, ...]
    operators: tuple[StateSize, ...]
    folders: tuple[FolderSize, ...]
    settings: dict[str, str]  # Spark settings that the offset log pins: they override those of the session
    findings: tuple[CheckpointFinding, ...]  # errors first, then warnings and notices

    @property
    def ok(self) -> bool:
        """Whether there is no error and no warning; there may be notices."""
        return all(each.severity is FindingSeverity.NOTICE for each in self.findings)

    def count(self, severity: FindingSeverity) -> int:
        """Return the number of findings of one severity."""
        return sum(1 for each in self.findings if each.severity is severity)

    def summary(self) -> str:
        """Return the result as text: one line, and one more per finding."""
        last = "nothing committed" if self.committed is None else f"last committed batch {self.committed}"
        doubt = "" if self.in_doubt is None else f", batch {self.in_doubt} in doubt"
        files, size = sum(each.files for each in self.folders), sum(each.bytes for each in self.folders)
        head = f"{self.path} {self.verdict()} ({last}{doubt}; {figures.number(files)} files, {figures.size(size)})"
        return "\n".join([head, *(f"  {each}" for each in self.findings)])

    def verdict(self) -> str:
        """Return the result in a few words."""
        if self.count(FindingSeverity.ERROR):
            return "is damaged"
        return "needs attention" if self.count(FindingSeverity.WARNING) else "is sound"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {**plain(self), "ok": self.ok}
