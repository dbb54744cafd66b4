"""The base of a rewind: the checkpoint that a user names, and where each stream stands in it.

Rules:
- A base lies on the current lineage. The rows of an abandoned branch are no longer in the sinks.
- The facts of a base decision come only from the manifest: old decisions may be pruned, and a savepoint keeps none.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.epoch import Facts
from holdfast.errors import BadValue, CheckpointMissing, RewindRefused
from holdfast.errors.base import PROGRAM
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.formats.sealed_json import digest_of
from holdfast.repository import Checkpoints, Lineage, Repository, Status, Summary
from holdfast.repository.base import now_ms
from holdfast.repository.checkpoints import LATEST
from holdfast.repository.lineage import FIRST
from holdfast.restore import RestorePlan, StreamRestore, plan_restore, stage_states
from holdfast.sinks.base import EpochPlace
from holdfast.sparkfiles.sourcelog import ENTRY

BEFORE = "before:"
TO_ANOTHER = f"go back to a checkpoint that is restorable (holdfast ls lists them): holdfast rewind {PROGRAM} --to ID"
_STAGE = "stage"  # suffix of a stream's name: the name of its stage in a manifest
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class RewindBase:
    """A checkpoint to go back to, with its files."""

    to: str  # as the user named it
    restore: RestorePlan
    digest: str  # of the manifest
    states: Mapping[str, bytes]  # by stream: the state of its stage

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint."""
        return self.restore.manifest

    def place(self, stream: str) -> EpochPlace:
        """Return the last epoch of a stream that the base keeps; epoch 0 for one that had not started."""
        cut = self.manifest.streams.get(stream)
        return (cut.timeline, cut.epoch) if cut and cut.epoch else (FIRST, 0)

    def facts(self, stream: str, stage_type: str | None) -> Facts | None:
        """Return the facts of a stream's base decision, without sinks; `None` for a stream that had not started."""
        cut = self.manifest.streams.get(stream)
        if cut is None or not cut.epoch:
            return None
        return _facts(cut, self.restore.streams[stream], self.states.get(stream), stage_type)


def find_base(repository: Repository, lineage: Lineage, to: int | str) -> RewindBase:
    """Return the base that a user names: an id, a savepoint, `latest`, or `before:<stream>:<epoch>`.

    Raises `CheckpointMissing`, `CheckpointDamaged`, or `RewindRefused` for a checkpoint of an abandoned branch.
    """
    checkpoints = Checkpoints(repository)
    restore = plan_restore(repository, _named(checkpoints, lineage, to))
    manifest = restore.manifest
    if not lineage.holds_checkpoint(manifest.timeline, manifest.checkpoint_id):
        problem = (
            f"it belongs to an abandoned branch, timeline {manifest.timeline}: its rows are no longer in the sinks"
        )
        raise RewindRefused(to=str(to), problems=(problem,), do=TO_ANOTHER)
    states = {
        name.removesuffix(f"/{_STAGE}"): state
        for name, state in stage_states(repository, restore).items()
        if name.endswith(f"/{_STAGE}")
    }
    digest = digest_of(repository.read(restore.place.manifest))
    return RewindBase(manifest.title, restore, digest, states)


def on_lineage(checkpoints: Checkpoints, lineage: Lineage) -> Iterator[Summary]:
    """Yield the restorable checkpoints and savepoints of the lineage, newest first. Reads checkpoints one by one."""
    saved = [
        each
        for each in checkpoints.savepoints()
        if each.status is Status.RESTORABLE and lineage.holds_checkpoint(each.timeline, each.checkpoint)
    ]
    saved.sort(key=_number, reverse=True)
    return heapq.merge(checkpoints.newest_first(lineage), saved, key=_number, reverse=True)


def _number(each: Summary) -> int:
    return each.checkpoint


def _named(checkpoints: Checkpoints, lineage: Lineage, to: int | str) -> int | str:
    if isinstance(to, int):
        return to
    if to == LATEST:
        return checkpoints.latest(lineage).checkpoint_id
    if to.startswith(BEFORE):
        return _before(checkpoints, lineage, to)
    if not (to.isascii() and to.isdecimal()):
        return to
    if len(to) > _MAX_DIGITS:
        raise BadValue(what="checkpoint", value=to, expected=f"an id of at most {_MAX_DIGITS} digits")
    return int(to)


def _before(checkpoints: Checkpoints, lineage: Lineage, to: str) -> int | str:
    """Return the newest checkpoint of the lineage that does not contain an epoch of a stream."""
    stream, _, number = to.removeprefix(BEFORE).rpartition(":")
    if not stream or not (number.isascii() and number.isdecimal()) or len(number) > _MAX_DIGITS:
        expected = "before:<stream>:<epoch>, for example before:orders:42"
        raise BadValue(what="base of a rewind", value=to, expected=expected)
    streams: set[str] = set()
    first: int | str | None = None
    oldest: Summary | None = None
    for each in on_lineage(checkpoints, lineage):
        oldest, epochs = each, each.epochs or {}
        streams |= epochs.keys()
        if first is None and epochs.get(stream, 0) < int(number):
            first = each.name
        if first is not None and stream in streams:
            return first
    if streams and stream not in streams:
        expected = f"a stream of a checkpoint: {', '.join(sorted(streams))}"
        raise BadValue(what="stream", value=stream, expected=expected)
    why = "" if oldest is None else f"the oldest one is {oldest.name}, at epoch {(oldest.epochs or {}).get(stream, 0)}"
    if oldest is not None and oldest.checkpoint > 1:
        why += "; earlier ones were pruned or deleted"
    asked = f"checkpoint without epoch {int(number)} of stream {stream!r}"
    raise CheckpointMissing(checkpoint=to, where=checkpoints.repository.where, why=why, asked=asked)


def _facts(cut: StreamCut, restore: StreamRestore, state: bytes | None, stage_type: str | None) -> Facts:
    files = {file.path: file.sha256 for file in restore.files.files}
    entries = {
        path.removeprefix("sources/"): digest
        for path, digest in files.items()
        if path.startswith("sources/") and path.count("/") == 2 and ENTRY.fullmatch(path.rpartition("/")[2])
    }
    last: dict[str, int] = {}
    for entry in entries:
        source, name = entry.split("/")
        last[source] = max(last.get(source, -1), int(name.removesuffix(".compact")))
    return Facts(
        start=list(cut.offsets),
        end=list(cut.offsets),
        offsets_digest=files.get(f"offsets/{cut.epoch - 1}", ""),
        source_log=last,
        source_entries=entries,
        sinks={},
        rows=0,
        watermark_ms=cut.watermark_ms,
        total_rows=cut.rows,
        stage=None if state is None else _stage(state, stage_type),
        decided_at_ms=now_ms(),
    )


def _stage(state: bytes, stage_type: str | None) -> dict[str, Any]:
    """Return the state of a stage as a decision stores it. The manifest does not record its type: the program does."""
    return {
        "type": stage_type or "",
        "size": len(state),
        "sha256": hashlib.sha256(state).hexdigest(),
        "inline": base64.b64encode(state).decode(),
    }
