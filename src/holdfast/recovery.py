"""What a start has to do before the first new epoch: decided here, from facts alone; others do it.

Rules, for each stream:
- Spark's logs and our decisions must tell one story. Spark runs an epoch, we decide it, Spark commits it: so the last
  decision is Spark's last commit or one after it, and Spark has the offsets of every decided epoch.
- Every sink must hold the last decision, whatever Spark says. One that is behind by just that is given it again, from
  what is staged; one that is further behind was restored from an older copy, and is refused. One that is ahead shows
  that this repository was.
- Only the last epoch can be in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from holdfast.epoch import Decision, Facts
from holdfast.errors import SinkAhead, SinkBehind, SinksChanged, SparkLogMismatch


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a start does for one stream."""

    stream: str  # its name
    decided: int  # the last decided epoch; 0 is none
    replays: bool  # Spark will run that epoch again, because it has not committed it
    finish: tuple[str, ...]  # sinks that are given that epoch again
    stands: dict[str, int]  # what each sink owns up to, once that is done

    def summary(self) -> str:
        """Say it."""
        if not self.decided:
            return f"stream {self.stream!r} begins with epoch 1"
        text = f"stream {self.stream!r} goes on after epoch {self.decided}"
        if self.finish:
            text += f"; epoch {self.decided} was decided and not yet in {', '.join(self.finish)}: committed now"
        if self.replays:
            text += f"; Spark runs epoch {self.decided} again, without writing to a sink"
        return text


@dataclass(frozen=True, slots=True)
class SparkPosition:
    """How far Spark's logs go, counted in epochs; 0 is nothing."""

    path: str
    offsets: int
    commits: int


def plan(
    stream: str, decision: Decision | None, spark: SparkPosition, holds: Mapping[str, int], *, new_sinks: bool
) -> RecoveryPlan:
    """Compare what was decided with what Spark and each sink hold. `new_sinks`: the user knows that they changed."""
    decided = decision.attempt.epoch if decision else 0
    facts = Facts.of(decision) if decision else None
    _check_spark(stream, decided, spark)
    shares = facts.sinks if facts else {}
    if facts:
        in_doubt = decided if decided > spark.commits and not facts.quarantined else 0
        _check_names(stream, shares.keys(), holds.keys(), new_sinks=new_sinks, in_doubt=in_doubt)
    finish: list[str] = []
    stands: dict[str, int] = {}
    for sink, found in holds.items():
        share = shares.get(sink)
        stands[sink] = share.stands if share else found
        if found > (share.stands if share else decided):
            raise SinkAhead(stream=stream, sink=sink, holds=found, decided=decided)
        if share and found < share.stands:
            if found < share.before:
                held = share.stands if decided <= spark.commits else share.before  # what it must have held
                raise SinkBehind(stream=stream, sink=sink, holds=found, decided=held)
            if found > share.before:  # between the two nothing was decided for it
                raise SinkAhead(stream=stream, sink=sink, holds=found, decided=share.before)
            finish.append(sink)
    return RecoveryPlan(stream, decided, decided > spark.commits, tuple(finish), stands)


def _check_spark(stream: str, decided: int, spark: SparkPosition) -> None:
    why = None
    if spark.commits > decided:
        why = f"Spark has committed epoch {spark.commits}, and the last decision is of epoch {decided}"
    elif spark.offsets < decided:
        why = f"epoch {decided} is decided, and Spark's offsets end with epoch {spark.offsets}"
    elif decided > spark.commits + 1:
        why = f"epoch {decided} is decided, and Spark's commits end with epoch {spark.commits}"
    elif spark.offsets > decided + 1:
        why = f"Spark's offsets go to epoch {spark.offsets}, and the last decision is of epoch {decided}"
    if why:
        raise SparkLogMismatch(stream=stream, path=spark.path, why=why)


def _check_names(stream: str, before: Set[str], now: Set[str], *, new_sinks: bool, in_doubt: int) -> None:
    removed = tuple(sorted(before - now))
    if before != now and (not new_sinks or (removed and in_doubt)):
        added = tuple(sorted(now - before))
        raise SinksChanged(stream=stream, added=added, removed=removed, in_doubt=in_doubt if removed else 0)
