"""Manifest: the record of one checkpoint, JSON that a person can read and a machine can verify.

Rules:
- Version 1, the format of the system that preceded Holdfast, is read in full. Holdfast writes version 2, which begins
  with a digest of its own exact bytes (see `sealed_json`).
- Only `version`, `checkpoint_id`, `epoch` and `timestamp_ms` are required; other fields have defaults. `null` in place
  of a map or a number is an error; the four optional fields may be null.
- Unknown fields are preserved when a manifest is rewritten, verbatim except for white space.
- Operator states are stored inline or in the sidecar `state.bin` (see `sidecar`).

Not guaranteed: that a valid manifest can be restored. Recovery checks that every file it needs exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NoReturn

import msgspec

from holdfast._validation import checked_bytes
from holdfast.errors import BadValue, ManifestCorrupt, ManifestRefused, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.sealed_json import SealBroken, digest_of, is_sealed, seal
from holdfast.formats.sidecar import Buffer, OperatorState, read_state

VERSION = 2
DEFAULT_VNODE_COUNT = 256
_DIGEST = "digest"
_RANGES = {"u64": (0, (1 << 64) - 1), "i64": (-(1 << 63), (1 << 63) - 1), "u16": (0, (1 << 16) - 1)}


# --- the parts of a manifest -----------------------------------------------------------------------------------------


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
    kind: str  # quarantined, offsets or replay
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


# --- the manifest ----------------------------------------------------------------------------------------------------


INHERITED = {  # fields for tools of the preceding system; they repeat data of `streams`
    "epoch": "how many checkpoints this run had triggered; not an epoch of a stream: see streams",
    "source_offsets": "repeats the offsets in streams, by stream and number of the source",
    "table_offsets": "not used",
    "sink_epochs": "repeats the sink metadata in streams, by stream and sink",
    "sink_commit_statuses": "always Committed: a checkpoint contains only epochs that every sink has committed",
    "table_store_checkpoint_path": "not used",
    "watermark": "the earliest watermark of streams",
    "source_watermarks": "not used",
    "source_names": "the names in source_offsets",
    "sink_names": "the names in sink_epochs",
    "vnode_count": "not used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record of one checkpoint. Use `streams`; the fields in `INHERITED` exist for older tools.

    `extra` contains unknown fields, each as JSON text.
    """

    version: int = VERSION  # 2; version 1 is also read
    checkpoint_id: int  # its id
    epoch: int  # how many checkpoints this run had triggered; not an epoch of a stream: see `streams`
    timestamp_ms: int  # when it was started
    source_offsets: Mapping[str, ConnectorCheckpoint] = field(default_factory=dict)  # by source
    table_offsets: Mapping[str, ConnectorCheckpoint] = field(default_factory=dict)  # by lookup table
    sink_epochs: Mapping[str, int] = field(default_factory=dict)  # by sink: the last epoch committed to it
    sink_commit_statuses: Mapping[str, SinkStatus] = field(default_factory=dict)  # by sink
    operator_states: Mapping[str, OperatorState] = field(default_factory=dict)  # by operator: inline, or in the sidecar
    table_store_checkpoint_path: str | None = None
    watermark: int | None = None  # of the whole pipeline
    source_watermarks: Mapping[str, int] = field(default_factory=dict)  # by source
    source_names: tuple[str, ...] = ()
    sink_names: tuple[str, ...] = ()  # sorted
    pipeline_hash: int | None = None  # of the program, see `pipeline_hash`
    vnode_count: int = DEFAULT_VNODE_COUNT  # the number of parts into which state is divided
    state_checksum: str | None = None  # SHA-256 of the sidecar
    pipeline: str | None = None  # its name
    uid: str | None = None  # of its repository
    timeline: int = 0  # the timeline in which it was taken
    lease: int = 0  # of the driver that took it
    savepoint: str | None = None  # its name, if it is a savepoint
    parent: str | None = None  # the digest of the previous manifest: the history is a hash chain
    streams: Mapping[str, StreamCut] = field(default_factory=dict)  # the position of each stream, by name
    gaps: GapNotes | None = None  # up to the cut; None: written by a version that did not record gaps
    extra: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        kind = f"savepoint {self.savepoint!r}, " if self.savepoint else ""
        where = f" of pipeline {self.pipeline!r}, timeline {self.timeline}" if self.pipeline else ""
        epochs = ", ".join(f"{name} at epoch {cut.epoch}" for name, cut in self.streams.items())
        return f"<Manifest: {kind}checkpoint {self.checkpoint_id}{where}{': ' if epochs else ''}{epochs}>"

    def __post_init__(self) -> None:
        for what in ("source_names", "sink_names"):
            if not isinstance(getattr(self, what), list | tuple):
                raise BadValue(what=what, value=getattr(self, what), expected="a list of names")
        object.__setattr__(self, "source_names", tuple(self.source_names))
        object.__setattr__(self, "sink_names", tuple(sorted(self.sink_names, key=str)))

    def to_bytes(self) -> bytes:
        """Encode as version 2. Raises `BadValue` if the manifest could not be read back."""
        known: dict[str, Any] = {}
        for each in fields(self):
            if each.name != "extra":
                known[each.name] = _wire(getattr(self, each.name))
        known["version"] = VERSION
        clash = sorted(known.keys() & self.extra.keys())
        if clash:
            raise BadValue(what="extra fields", value=clash, why="a manifest has fields of these names")
        try:
            data = seal({**known, **_raw(self.extra)})
            same = Manifest.from_bytes(data) == replace(self, version=VERSION)
        except ManifestCorrupt as error:
            raise BadValue(what="manifest", value=self.checkpoint_id, why=error.why) from error
        except (TypeError, AttributeError, UnicodeError, msgspec.MsgspecError) as error:
            raise BadValue(what="manifest", value=self.checkpoint_id, why=str(error)) from error
        if not same:
            raise BadValue(what="manifest", value=self.checkpoint_id, why="a field has the wrong type")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Decode and check. Raises `ManifestCorrupt` for damage and `UnsupportedVersion` for a newer version."""
        data = checked_bytes("manifest", data)
        sealed = is_sealed(data)
        try:
            if sealed:
                digest_of(data)
            else:
                _refuse_duplicate_keys(data)
            raw = from_json(data, dict[str, msgspec.Raw])
            version = _integer("u64", raw.get("version"), "version")
            if version > VERSION:
                raise UnsupportedVersion(what="manifest", found=version, known="versions 1 and 2")
            if (version == VERSION) is not sealed or (not sealed and _DIGEST in raw):
                _refuse(f"version {version} {'with' if sealed or _DIGEST in raw else 'without'} a digest")
            raw.pop(_DIGEST, None)
            return _manifest(raw)
        except (SealBroken, Undecodable, ValueError, RecursionError) as broken:
            raise ManifestCorrupt(why=str(broken)) from broken

    def validate(
        self,
        expected_vnode_count: int = DEFAULT_VNODE_COUNT,
        *,
        sidecar_length: int | None = None,
        expected_pipeline_hash: int | None = None,
    ) -> list[Issue]:
        """Return every issue found; errors stop recovery.

        With `sidecar_length`, ranges are checked against it; with `expected_pipeline_hash`, the program is compared.
        """
        return [
            *self._zero_issues(),
            *self._vnode_issues(expected_vnode_count),
            *self._program_issues(expected_pipeline_hash),
            *self._topology_issues(),
            *self._state_issues(sidecar_length),
        ]

    def require_valid(
        self,
        expected_vnode_count: int = DEFAULT_VNODE_COUNT,
        *,
        sidecar_length: int | None = None,
        expected_pipeline_hash: int | None = None,
    ) -> list[Issue]:
        """Return the warnings, or raise `ManifestRefused` if there is an error."""
        issues = self.validate(
            expected_vnode_count, sidecar_length=sidecar_length, expected_pipeline_hash=expected_pipeline_hash
        )
        errors = tuple(str(issue) for issue in issues if issue.severity is Severity.ERROR)
        if errors:
            raise ManifestRefused(checkpoint=self.checkpoint_id, issues=errors)
        return issues

    def read_states(self, sidecar: Buffer | None = None) -> dict[str, memoryview]:
        """Check and return the state of every operator: views into the sidecar, not copies.

        Raises `ManifestCorrupt` if the sidecar as a whole is damaged, `OperatorStateCorrupt` if one state is.
        """
        if sidecar is not None and not isinstance(sidecar, bytes | bytearray | memoryview):
            raise BadValue(what="sidecar", value=sidecar, expected="the bytes of state.bin, in one piece")
        view = None if sidecar is None else memoryview(sidecar)
        if self.state_checksum is not None and view is None:
            raise ManifestCorrupt(why=f"the sidecar state.bin of checkpoint {self.checkpoint_id} is missing")
        states = {name: read_state(name, state, view) for name, state in self.operator_states.items()}
        if self.state_checksum is not None and hashlib.sha256(view or b"").hexdigest() != self.state_checksum:
            why = f"the sidecar state.bin of checkpoint {self.checkpoint_id} does not match its checksum"
            raise ManifestCorrupt(why=why)
        return states

    def _zero_issues(self) -> Iterable[Issue]:
        zeros = {
            IssueCode.VERSION_ZERO: self.version,
            IssueCode.CHECKPOINT_ID_ZERO: self.checkpoint_id,
            IssueCode.EPOCH_ZERO: self.epoch,
            IssueCode.TIMESTAMP_ZERO: self.timestamp_ms,
        }
        for code, value in zeros.items():
            if value == 0:
                what = code.removesuffix("-zero").replace("-", " ")
                yield Issue(code, Severity.ERROR, f"{what} is 0")

    def _vnode_issues(self, expected: int) -> Iterable[Issue]:
        if self.vnode_count == 0:
            # Early version 1 files did not record it, so a rewrite cannot know it either.
            yield Issue(IssueCode.VNODE_COUNT_ZERO, Severity.WARNING, "vnode count is 0 or was not recorded")
        elif self.vnode_count != expected:
            yield Issue(
                IssueCode.VNODE_COUNT_MISMATCH,
                Severity.ERROR,
                f"vnode count is {self.vnode_count}, expected {expected}",
            )

    def _program_issues(self, expected: int | None) -> Iterable[Issue]:
        if None not in (expected, self.pipeline_hash) and expected != self.pipeline_hash:
            yield Issue(
                IssueCode.PIPELINE_HASH_MISMATCH,
                Severity.WARNING,  # a plan reports what has changed and whether it matters
                f"the program was {self.pipeline_hash:#x} and is {expected:#x}",
            )

    def _topology_issues(self) -> Iterable[Issue]:
        if self.sink_commit_statuses:
            for sink in sorted(self.sink_epochs.keys() - self.sink_commit_statuses.keys()):
                yield Issue(
                    IssueCode.SINK_WITHOUT_STATUS,
                    Severity.WARNING,  # recovery inspects the sink itself
                    f"sink {sink!r} has an epoch but no commit status",
                )
        if self.source_names:
            for source in sorted(self.source_offsets.keys() - set(self.source_names)):
                yield Issue(
                    IssueCode.UNKNOWN_SOURCE,
                    Severity.ERROR,
                    f"there is an offset for source {source!r}, which is not in source_names",
                )

    def _state_issues(self, sidecar_length: int | None) -> Iterable[Issue]:
        ranges: list[tuple[int, int, str]] = []
        for name, state in self.operator_states.items():
            if state.external and state.state_b64 is not None:
                yield Issue(IssueCode.STATE_TWICE, Severity.ERROR, f"state of {name!r} is both inline and external")
            elif state.external:
                ranges.append((state.external_offset, state.external_offset + state.external_length, name))
            elif state.state_b64 is None:
                yield Issue(IssueCode.STATE_ABSENT, Severity.ERROR, f"state of {name!r} is neither inline nor external")
            if self.version >= VERSION and state.sha256 is None:  # for example, a rewritten version 1 manifest
                yield Issue(IssueCode.DIGEST_ABSENT, Severity.WARNING, f"state of {name!r} has no digest")
        if ranges and self.version >= VERSION and self.state_checksum is None:
            yield Issue(IssueCode.CHECKSUM_ABSENT, Severity.WARNING, "the sidecar has no checksum")
        yield from _range_issues(sorted(ranges), sidecar_length)


def _range_issues(ranges: list[tuple[int, int, str]], length: int | None) -> Iterable[Issue]:
    for _start, end, name in ranges:
        if length is not None and end > length:
            yield Issue(
                IssueCode.RANGE_OUTSIDE,
                Severity.ERROR,
                f"state of {name!r} ends at byte {end}, but the sidecar has {length} bytes",
            )
    reached, before = 0, ""
    for start, end, name in ranges:
        if start < reached and end > start:
            yield Issue(IssueCode.RANGE_OVERLAP, Severity.ERROR, f"states of {before!r} and {name!r} overlap")
        if end > reached:
            reached, before = end, name


# --- identity of the program -----------------------------------------------------------------------------------------


def pipeline_hash(description: Mapping[str, Any]) -> int:
    """Return the u64 that identifies a program: equal descriptions have the same hash on every run and machine.

    The description contains streams, sources, sinks, options (redacted), output modes and state schemas. It must not
    contain plan text, whose expression ids change with every run.
    """
    try:
        canonical = msgspec.json.encode(description, order="sorted")
    except (TypeError, UnicodeError) as error:
        raise BadValue(what="description", value=description, why=str(error)) from error
    return int.from_bytes(hashlib.sha256(canonical).digest()[:8], "little")


# --- reading the JSON ------------------------------------------------------------------------------------------------


def _refuse(why: str) -> NoReturn:
    raise ManifestCorrupt(why=why)


def _refuse_duplicate_keys(data: bytes) -> None:
    """Reject duplicate keys: parsers disagree on which value counts. A sealed text cannot have any."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(found)
        if len(unique) != len(found):
            _refuse("duplicate key")
        return unique

    try:
        json.loads(data.decode(), object_pairs_hook=pairs)
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        _refuse(str(error))


def _wire(value: Any) -> Any:
    match value:
        case SinkStatus(state="Failed"):
            return {"Failed": value.why or ""}
        case SinkStatus():
            return value.state
        case ConnectorCheckpoint() | OperatorState() | StreamCut() | GapNote() | GapNotes():
            own = {each.name: _wire(getattr(value, each.name)) for each in fields(value) if each.name != "extra"}
            return {**own, **_raw(value.extra)}
        case Mapping():
            return {name: _wire(each) for name, each in value.items()}
        case tuple():
            return [_wire(each) for each in value]
    return value


def _raw(extra: Mapping[str, str]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(text.encode()) for name, text in extra.items()}


def _extra(raw: dict[str, msgspec.Raw], known: Iterable[str]) -> dict[str, str]:
    unknown = raw.keys() - set(known)
    return {name: msgspec.json.format(raw[name], indent=-1).decode() for name in raw if name in unknown}


def _manifest(raw: dict[str, msgspec.Raw]) -> Manifest:
    def integer(kind: str, name: str) -> int:
        return _integer(kind, raw.get(name), name)

    def text(name: str) -> str | None:
        return _decode(raw[name], str | None, name) if name in raw else None

    def optional_integer(kind: str, name: str) -> int | None:
        return None if name not in raw or bytes(raw[name]) == b"null" else integer(kind, name)

    def named(name: str) -> dict[str, msgspec.Raw]:
        return _decode(raw[name], dict[str, msgspec.Raw], name) if name in raw else {}

    def integers(kind: str, name: str) -> dict[str, int]:
        return {key: _integer(kind, value, f"{name}.{key}") for key, value in named(name).items()}

    def names(name: str) -> tuple[str, ...]:
        return tuple(_decode(raw[name], list[str], name)) if name in raw else ()

    def connectors(name: str) -> dict[str, ConnectorCheckpoint]:
        return {key: _connector(value, f"{name}.{key}") for key, value in named(name).items()}

    return Manifest(
        version=integer("u64", "version"),
        checkpoint_id=integer("u64", "checkpoint_id"),
        epoch=integer("u64", "epoch"),
        timestamp_ms=integer("u64", "timestamp_ms"),
        source_offsets=connectors("source_offsets"),
        table_offsets=connectors("table_offsets"),
        sink_epochs=integers("u64", "sink_epochs"),
        sink_commit_statuses={
            key: _status(value, f"sink_commit_statuses.{key}") for key, value in named("sink_commit_statuses").items()
        },
        operator_states={
            key: _operator(value, f"operator_states.{key}") for key, value in named("operator_states").items()
        },
        table_store_checkpoint_path=text("table_store_checkpoint_path"),
        watermark=optional_integer("i64", "watermark"),
        source_watermarks=integers("i64", "source_watermarks"),
        source_names=names("source_names"),
        sink_names=names("sink_names"),
        pipeline_hash=optional_integer("u64", "pipeline_hash"),
        vnode_count=integer("u16", "vnode_count") if "vnode_count" in raw else 0,
        state_checksum=text("state_checksum"),
        pipeline=text("pipeline"),
        uid=text("uid"),
        timeline=integer("u64", "timeline") if "timeline" in raw else 0,
        lease=integer("u64", "lease") if "lease" in raw else 0,
        savepoint=text("savepoint"),
        parent=text("parent"),
        streams={key: _cut(value, f"streams.{key}") for key, value in named("streams").items()},
        gaps=_gaps(raw["gaps"], "gaps") if bytes(raw.get("gaps", b"null")) != b"null" else None,
        extra=_extra(raw, (each.name for each in fields(Manifest) if each.name != "extra")),
    )


def _connector(raw: msgspec.Raw, where: str) -> ConnectorCheckpoint:
    found = _decode(raw, dict[str, msgspec.Raw], where)
    if "offsets" not in found:
        _refuse(f"{where}.offsets is missing")
    return ConnectorCheckpoint(
        offsets=_decode(found["offsets"], dict[str, str], f"{where}.offsets"),
        epoch=_integer("u64", found.get("epoch"), f"{where}.epoch"),
        metadata=_decode(found["metadata"], dict[str, str], f"{where}.metadata") if "metadata" in found else {},
        extra=_extra(found, ("offsets", "epoch", "metadata")),
    )


def _operator(raw: msgspec.Raw, where: str) -> OperatorState:
    found = _decode(raw, dict[str, msgspec.Raw], where)

    def text(name: str) -> str | None:
        return _decode(found[name], str | None, f"{where}.{name}") if name in found else None

    def integer(name: str) -> int:
        return _integer("u64", found[name], f"{where}.{name}") if name in found else 0

    return OperatorState(
        state_b64=text("state_b64"),
        external=_decode(found["external"], bool, f"{where}.external") if "external" in found else False,
        external_offset=integer("external_offset"),
        external_length=integer("external_length"),
        sha256=text("sha256"),
        extra=_extra(found, (each.name for each in fields(OperatorState) if each.name != "extra")),
    )


class _Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON types of the fields of a `StreamCut`."""

    timeline: int
    epoch: int
    offsets: list[str | None] = []
    watermark_ms: int = 0
    rows: int = 0
    output_mode: str = "append"
    reads: list[str] = []
    sources: list[str] = []
    state_format: str | None = None
    confs: dict[str, str] = {}
    sinks: dict[str, dict[str, Any]] = {}
    files: str | None = None
    file_count: int = 0
    file_bytes: int = 0


def _cut(raw: msgspec.Raw, where: str) -> StreamCut:
    found: _Cut = _decode(raw, _Cut, where)
    own = msgspec.structs.asdict(found)
    for name, value in own.items():
        if isinstance(value, int):
            _in_range("i64" if name == "watermark_ms" else "u64", value, f"{where}.{name}")
    return StreamCut(**own, extra=_extra(_decode(raw, dict[str, msgspec.Raw], where), own))


class _Gap(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON types of the fields of a `GapNote`."""

    stream: str
    timeline: int
    epoch: int
    kind: str
    why: str
    at_ms: int
    facts: dict[str, Any] = {}


def _gaps(raw: msgspec.Raw, where: str) -> GapNotes:
    found = _decode(raw, dict[str, msgspec.Raw], where)
    newest = _decode(found["newest"], list[msgspec.Raw], f"{where}.newest") if "newest" in found else []
    return GapNotes(
        total=_integer("u64", found.get("total"), f"{where}.total"),
        newest=tuple(_gap(each, f"{where}.newest.{number}") for number, each in enumerate(newest)),
        extra=_extra(found, ("total", "newest")),
    )


def _gap(raw: msgspec.Raw, where: str) -> GapNote:
    own = msgspec.structs.asdict(_decode(raw, _Gap, where))
    for name in ("timeline", "epoch", "at_ms"):
        _in_range("u64", own[name], f"{where}.{name}")
    return GapNote(**own, extra=_extra(_decode(raw, dict[str, msgspec.Raw], where), own))


def _status(raw: msgspec.Raw, where: str) -> SinkStatus:
    match _decode(raw, object, where):
        case "Pending" | "Committed" as state:
            return SinkStatus(state)
        case {"Failed": str(why), **rest} if not rest:
            return SinkStatus.failed(why)
    return _refuse(f"{where} is not one of Pending, Committed and Failed")


def _integer(kind: str, raw: msgspec.Raw | None, where: str) -> int:
    if raw is None:
        _refuse(f"{where} is missing")
    return _in_range(kind, _decode(raw, int, where), where)


def _in_range(kind: str, value: int, where: str) -> int:
    low, high = _RANGES[kind]
    if not low <= value <= high:
        _refuse(f"{where} {value} does not fit {kind}")
    return value


def _decode(raw: msgspec.Raw, kind: Any, where: str) -> Any:
    try:
        return from_json(raw, kind)
    except Undecodable as error:
        raise ManifestCorrupt(why=f"{where}: {error}") from error
