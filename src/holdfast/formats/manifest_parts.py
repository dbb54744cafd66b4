"""The parts of a manifest as values, and the issues that its validation finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class ConnectorCheckpoint:
    """The position of one source. The format of the offsets depends on the connector: `{"partition-0": "1234"}`."""

    offsets: Mapping[str, str]
    epoch: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of a sink's commit: Pending, Committed, or Failed with the reason."""

    state: str
    why: str | None = None

    @classmethod
    def pending(cls) -> SinkStatus:
        """Prepared, not yet committed."""
        return cls("Pending")

    @classmethod
    def committed(cls) -> SinkStatus:
        """Committed."""
        return cls("Committed")

    @classmethod
    def failed(cls, why: str) -> SinkStatus:
        """The commit failed."""
        return cls("Failed", why)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCut:
    """The position of one stream at the cut, and the Spark files that are needed to start from there.

    `epoch` is the last epoch inside the cut; 0 means that the stream had not started. `offsets` are verbatim from
    Spark's offset log, by source. `rows` is the number of rows written to each sink since the stream's first epoch.
    `sinks` contains the metadata that each sink recorded. `files` is the digest of the file list, which is an object.
    """

    timeline: int  # the timeline of the epoch
    epoch: int
    offsets: tuple[str | None, ...] = ()
    watermark_ms: int = 0  # 0: none
    rows: int = 0
    output_mode: str = "append"  # append, update or complete
    reads: tuple[str, ...] = ()  # the streams of the same pipeline that it reads
    sources: tuple[str, ...] = ()  # Spark's descriptions of the sources
    state_format: str | None = None  # of Spark's state store; None: the stream is stateless
    confs: Mapping[str, str] = field(default_factory=dict)  # settings that Spark's offset log pins
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: str | None = None
    file_count: int = 0  # the number of files it needs
    file_bytes: int = 0  # their total size
    extra: Mapping[str, str] = field(default_factory=dict)  # unknown fields, each as JSON text

    def __post_init__(self) -> None:
        for what in ("offsets", "reads", "sources"):
            object.__setattr__(self, what, tuple(getattr(self, what)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GapNote:
    """One gap of a stream, from the gap ledger: input that reached no sink, or that may have been read twice."""

    stream: str
    timeline: int
    epoch: int
    kind: str  # quarantined, offsets, replay or source
    why: str
    at_ms: int  # when it was recorded
    facts: Mapping[str, Any] = field(default_factory=dict)  # empty if they are large: see the ledger
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GapNotes:
    """The gaps of all streams up to the cut: their number, and the newest of them."""

    total: int
    newest: tuple[GapNote, ...] = ()  # in the order of recording
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "newest", tuple(self.newest))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """When one stream reached the steps of a checkpoint: seconds since the checkpoint was started."""

    barrier: float = 0.0  # the barrier was sent to it
    acknowledged: float = 0.0  # it acknowledged
    linked: float = 0.0  # Spark had committed the epoch, and its files were linked
    held: float = 0.0  # its files were read and kept
    new_files: int = 0  # files that no earlier checkpoint of this run had kept
    new_bytes: int = 0  # their total size
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTimes:
    """How long a checkpoint took, up to the moment at which its manifest was put together."""

    seconds: float  # since it was started
    streams: Mapping[str, StreamTimes] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)


class Severity(StrEnum):
    """The severity of an issue: an error stops recovery; a warning is displayed."""

    ERROR = "error"
    WARNING = "warning"


class IssueCode(StrEnum):
    """The kinds of issues that validation reports."""

    VERSION_ZERO = "version-zero"
    CHECKPOINT_ID_ZERO = "checkpoint-id-zero"
    EPOCH_ZERO = "epoch-zero"
    TIMESTAMP_ZERO = "timestamp-zero"
    VNODE_COUNT_ZERO = "vnode-count-zero"
    VNODE_COUNT_MISMATCH = "vnode-count-mismatch"
    SINK_WITHOUT_STATUS = "sink-without-status"
    UNKNOWN_SOURCE = "unknown-source"
    STATE_ABSENT = "state-absent"
    STATE_TWICE = "state-inline-and-external"
    DIGEST_ABSENT = "state-digest-absent"
    CHECKSUM_ABSENT = "sidecar-checksum-absent"
    PIPELINE_HASH_MISMATCH = "pipeline-hash-mismatch"
    RANGE_OUTSIDE = "sidecar-range-outside"
    RANGE_OVERLAP = "sidecar-range-overlap"


@dataclass(frozen=True, slots=True)
class Issue:
    """One issue found by validation."""

    code: IssueCode
    severity: Severity
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.code}]"
