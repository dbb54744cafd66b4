"""The recovery plan of a stream: what a start must do before the first new epoch, decided from facts alone.

Rules, for each stream:
- Spark's logs and the decisions must agree. Spark runs an epoch, Holdfast decides it, Spark commits it. Therefore the
  last decision is of Spark's last commit or of the epoch after it, and Spark has the offsets of every decided epoch.
- Every sink must hold the last decision, regardless of what Spark's logs contain. A sink that lacks only that epoch is
  given it again from the staged output. A sink that lacks more was restored from an older copy, and is refused. A sink
  that holds more than was decided shows that the repository was restored from an older copy, and is refused too.
- Only the last epoch can be in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from holdfast._html import preformatted
from holdfast.epoch import Decision, Facts
from holdfast.errors import SinkAhead, SinkBehind, SinksChanged, SparkLogMismatch

__all__ = ["RecoveryPlan"]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a start does for one stream."""

    stream: str  # its name
    decided: int  # the last decided epoch; 0 is none
    replays: bool  # Spark will run that epoch again, because it has not committed it
    finish: tuple[str, ...]  # sinks that are given that epoch again
    stands: dict[str, int]  # by sink: the epoch that it reports as its last one, once that is done
    filled: tuple[str, ...] = ()  # new sinks that a backfill has filled
    replaced: tuple[str, ...] = ()  # sinks that the program lacks, as was accepted with the backfill

    def summary(self) -> str:
        """Return a one-line summary."""
        if not self.decided:
            return f"stream {self.stream!r} begins with epoch 1"
        text = f"stream {self.stream!r} continues after epoch {self.decided}"
        if self.finish:
            text += f"; epoch {self.decided} was decided but not yet in {', '.join(self.finish)}: committed now"
        if self.filled:
            text += f"; a backfill has filled {', '.join(self.filled)}"
        if self.replays:
            text += f"; Spark runs epoch {self.decided} again, without writing to a sink"
        return text

    def _repr_html_(self) -> str:
        """Return the plan as text, for notebooks."""
        return preformatted(self.summary())


@dataclass(frozen=True, slots=True)
class SparkPosition:
    """The last entries of Spark's logs, as epochs; 0 is none."""

    path: str
    offsets: int
    commits: int


def plan(
    stream: str,
    decision: Decision | None,
    spark: SparkPosition,
    holds: Mapping[str, int],
    *,
    new_sinks: bool,
    filled: Set[str] = frozenset(),
    replaced: Set[str] = frozenset(),
) -> RecoveryPlan:
    """Compare the last decision with Spark's logs and the sinks.

    `new_sinks`: the user accepts that they changed. `filled`: new sinks that a backfill has filled. `replaced`: the
    sinks that the program lacked at the backfill.
    """
    decided = decision.attempt.epoch if decision else 0
    facts = Facts.of(decision) if decision else None
    _check_spark(stream, decided, spark)
    replaced -= holds.keys()
    shares = facts.sinks if facts else {}
    if facts and shares:  # the base of a fork has no sinks: its streams begin with empty ones
        in_doubt = decided if decided > spark.commits and not facts.quarantined else 0
        _check_names(stream, shares.keys() - replaced, holds.keys() - filled, new_sinks=new_sinks, in_doubt=in_doubt)
    finish: list[str] = []
    stands: dict[str, int] = {}
    for sink, found in holds.items():
        share = shares.get(sink)
        stands[sink] = share.stands if share else found
        if found > (share.stands if share else decided):
            raise SinkAhead(stream=stream, sink=sink, holds=found, decided=decided)
        if share and found < share.stands:
            if found < share.before:
                held = share.stands if decided <= spark.commits else share.before  # the epoch that it must have held
                raise SinkBehind(stream=stream, sink=sink, holds=found, decided=held)
            if found > share.before:  # no epoch between the two was decided for it
                raise SinkAhead(stream=stream, sink=sink, holds=found, decided=share.before)
            finish.append(sink)
    return RecoveryPlan(
        stream,
        decided,
        decided > spark.commits,
        tuple(finish),
        stands,
        filled=tuple(sorted(filled)),
        replaced=tuple(sorted(replaced)),
    )


def _check_spark(stream: str, decided: int, spark: SparkPosition) -> None:
    why = None
    if spark.commits > decided:
        why = f"Spark has committed epoch {spark.commits}, but the last decision is of epoch {decided}"
    elif spark.offsets < decided:
        why = f"epoch {decided} is decided, but Spark's offsets end with epoch {spark.offsets}"
    elif decided > spark.commits + 1:
        why = f"epoch {decided} is decided, but Spark's commits end with epoch {spark.commits}"
    elif spark.offsets > decided + 1:
        why = f"Spark's offsets end with epoch {spark.offsets}, but the last decision is of epoch {decided}"
    if why:
        raise SparkLogMismatch(stream=stream, path=spark.path, why=why)


def _check_names(stream: str, before: Set[str], now: Set[str], *, new_sinks: bool, in_doubt: int) -> None:
    removed = tuple(sorted(before - now))
    if before != now and (not new_sinks or (removed and in_doubt)):
        added = tuple(sorted(now - before))
        raise SinksChanged(stream=stream, added=added, removed=removed, in_doubt=in_doubt if removed else 0)
