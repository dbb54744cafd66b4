"""Committing a decided epoch to its sinks: the same code at run time, in a replay and in recovery.

Rules:
- A sink that fails does not prevent the other sinks from committing.
- A failure that time or a restart may fix leaves the epoch `InDoubt`: it is decided, and is committed again later. A
  lock that another process holds is such a failure.
- An error that no later try can fix is raised as it is. If the staged output is gone, the sink is `SinkBehind`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from holdfast._error_text import one_line
from holdfast.epoch import Decision, EpochProgress, Facts, Move, Reach, Share
from holdfast.errors import InDoubt, SinkBehind, StagedGone
from holdfast.sinks.base import EpochKey, Link, Sink, StreamIdentity
from holdfast.spark.failures import is_final, to_report

_log = logging.getLogger(__name__)


def commit_to_sinks(
    owner: StreamIdentity,
    sinks: Sequence[Sink],
    decision: Decision,
    facts: Facts,
    *,
    progress: EpochProgress,
    reach: Reach,
    spark_committed: bool = False,
    took: Callable[[str, float], object] = lambda *_: None,
) -> None:
    """Commit a decided epoch to these sinks, in this order; raise if one of them could not commit.

    `spark_committed`: Spark has committed the epoch, so every sink has had it before. An epoch without sinks is
    skipped: it is quarantined. `took` is called with each sink that has committed, and its seconds.
    """
    failed: dict[str, Exception] = {}
    for number, sink in enumerate(sinks, 1):
        share = facts.sinks[sink.name]
        began = time.monotonic()
        try:
            with progress.inside(sink.name):
                sink.commit(_commit_key(owner, decision, share), share.handle)
        except StagedGone as error:
            failed[sink.name] = _behind(owner, sink, decision, share, committed=spark_committed, cause=error)
        except Exception as error:  # a user-defined sink may raise anything
            failed[sink.name] = error
        else:
            took(sink.name, time.monotonic() - began)
            is_last = number == len(sinks) and not failed
            progress.move(Move.COMMIT_LAST if is_last else Move.COMMIT)
            reach("committed")
    if failed:
        raise _outcome(owner, decision, failed, progress)
    if not sinks:
        progress.move(Move.SKIP)
    reach("all committed")


def _commit_key(owner: StreamIdentity, decision: Decision, share: Share) -> EpochKey:
    return EpochKey(owner, decision.attempt, decision.lease, Link(share.before, share.before_handle))


def _behind(
    owner: StreamIdentity, sink: Sink, decision: Decision, share: Share, *, committed: bool, cause: StagedGone
) -> SinkBehind:
    epoch = decision.attempt.epoch
    error = SinkBehind(stream=owner.stream, sink=sink.name, holds=share.before, decided=epoch, committed=committed)
    error.__cause__ = cause
    return error


def _outcome(
    owner: StreamIdentity, decision: Decision, failed: Mapping[str, Exception], progress: EpochProgress
) -> Exception:
    """Return the error to raise: one that no later try can fix, or `InDoubt`. The other failures are logged."""
    blamed = to_report(failed)
    progress.blame(blamed)
    for name, each in failed.items():
        if name != blamed:  # the supervisor reports the one that is raised
            _log.warning("stream %s epoch %d: %s", owner.stream, decision.attempt.epoch, one_line(each))
    if is_final(failed[blamed]):
        return failed[blamed]
    doubt = InDoubt(
        stream=owner.stream, epoch=decision.attempt.epoch, sinks=tuple(failed), why=one_line(failed[blamed])
    )
    doubt.__cause__ = failed[blamed]
    return doubt
