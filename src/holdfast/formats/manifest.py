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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from holdfast._validation import checked_bytes
from holdfast.errors import BadValue, ManifestCorrupt, ManifestRefused, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest_json import integer_of, manifest_fields, raw_fields, refuse, refuse_duplicate_keys, wire
from holdfast.formats.manifest_parts import (
    CheckpointTimes,
    ConnectorCheckpoint,
    GapNotes,
    Issue,
    IssueCode,
    Severity,
    SinkStatus,
    StreamCut,
)
from holdfast.formats.sealed_json import SealBroken, digest_of, is_sealed, seal
from holdfast.formats.sidecar import Buffer, OperatorState, read_state

VERSION = 2
DEFAULT_VNODE_COUNT = 256
_DIGEST = "digest"


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
    request: str | None = None  # the id of the request of another process that it was taken for
    parent: str | None = None  # the digest of the previous manifest: the history is a hash chain
    streams: Mapping[str, StreamCut] = field(default_factory=dict)  # the position of each stream, by name
    gaps: GapNotes | None = None  # up to the cut; None: written by a version that did not record gaps
    times: CheckpointTimes | None = None  # how long it took; None: written by a version that did not record it
    extra: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        kind = f"savepoint {self.savepoint!r}, " if self.savepoint else ""
        where = f" of pipeline {self.pipeline!r}, timeline {self.timeline}" if self.pipeline else ""
        epochs = ", ".join(f"{name} at epoch {cut.epoch}" for name, cut in self.streams.items())
        return f"<Manifest: {kind}checkpoint {self.checkpoint_id}{where}{': ' if epochs else ''}{epochs}>"

    @property
    def title(self) -> str:
        """The checkpoint in a sentence: a savepoint by its name, another one by its id."""
        return f"savepoint {self.savepoint}" if self.savepoint else f"checkpoint {self.checkpoint_id}"

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
                known[each.name] = wire(getattr(self, each.name))
        known["version"] = VERSION
        clash = sorted(known.keys() & self.extra.keys())
        if clash:
            raise BadValue(what="extra fields", value=clash, why="a manifest has fields of these names")
        try:
            data = seal({**known, **raw_fields(self.extra)})
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
                refuse_duplicate_keys(data)
            raw = from_json(data, dict[str, msgspec.Raw])
            version = integer_of("u64", raw.get("version"), "version")
            if version > VERSION:
                raise UnsupportedVersion(what="manifest", found=version, known="versions 1 and 2")
            if (version == VERSION) is not sealed or (not sealed and _DIGEST in raw):
                refuse(f"version {version} {'with' if sealed or _DIGEST in raw else 'without'} a digest")
            raw.pop(_DIGEST, None)
            return cls(**manifest_fields(raw, [each.name for each in fields(cls) if each.name != "extra"]))
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
