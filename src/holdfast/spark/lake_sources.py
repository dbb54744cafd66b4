"""The lake tables that a stream reads: compared with its last epoch before a query starts.

Rules:
- Before a start and a restart, the table must be the one of the last decided epoch, and have the input after it.
  Otherwise an error is raised. A user can accept only what Spark's source is able to skip: versions of a Delta table
  that are no longer in its log, with `failOnDataLoss=false`. Such a gap is recorded in the gap ledger.
- With this option, Spark skips lost versions without an error. Then each epoch is compared again before it is decided.
- For a table that cannot be compared, a warning is logged: Spark's own source reports most of these losses, too. With
  this option it does not, so the option is refused there. While the facts about such a table cannot be read, the stream
  waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast._lake_tables import FAIL_ON_LOSS, LostTableInput, TableLossKind, is_of_table
from holdfast._redaction import redacted_text
from holdfast.errors import NotSupported, SourceGap, SourceUnavailable
from holdfast.errors.base import PROGRAM
from holdfast.spark import adapter
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.parts import StreamParts
from holdfast.spark.source_gaps import record_gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# At a start Spark asks for the versions of the last batch again. Where these are lost, the option alone is not enough.
_SETTING = "spark.databricks.delta.streaming.trailingCommitValidation.enabled"
_OPTION = f"the option {FAIL_ON_LOSS} of the source and the session's setting {_SETTING} set to false"
_ACCEPT = (
    f"restore the table's log; or continue without these versions, and record a gap: run with {_OPTION}, and "
    f"holdfast run {PROGRAM} --accept gaps, or pipeline.run(accept=['gaps'])"
)
_SET_OPTION = f"run with {_OPTION}, because Spark would fail; remove both after the next epoch"
_OTHER_TABLE = (
    "restore the table as it was; or read it from its beginning, in a stream with a new name and new targets: Spark's "
    "source cannot continue here, not even with accept=['gaps']"
)
_WITHOUT_OPTION = f"remove the option {FAIL_ON_LOSS}: Spark's source then reports lost versions; then run again"
_READ_AGAIN = (
    f"make the table readable for the driver, or remove the option {FAIL_ON_LOSS} of the source; then run again"
)
_log = logging.getLogger(__name__)


class LakeSources:
    """Compares the lake tables of one stream. It exists from the first recovery to the end of the run."""

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts
        self._inputs: Sequence[adapter.LakeInput | None] = ()

    def check(self, df: DataFrame, last: LastDecided) -> bool:
        """Compare the tables of a stream with its last epoch, before its query starts; return whether it has any."""
        self._inputs = adapter.lake_inputs(df)
        if any(map(is_of_table, last.ends)) and not any(self._inputs):
            self._warn("its tables", "the plan does not show which connector reads them")
        self._compare(last, [each is not None for each in self._inputs])
        return any(self._inputs)

    def check_again(self, last: LastDecided) -> None:
        """Compare the tables from which Spark would skip lost input without an error, before an epoch is decided."""
        self._compare(last, [each is not None and each.skips_loss for each in self._inputs])

    def _compare(self, last: LastDecided, wanted: Sequence[bool]) -> None:
        if not any(wanted) or not last.epoch:
            return
        ends = self._ends(last)
        if ends is None:
            self._cannot_compare("its tables", "Spark reads some of its sources as one", self._inputs)
            return
        for number, (table, end, is_wanted) in enumerate(zip(self._inputs, ends, wanted, strict=True)):
            if table is None or not is_wanted:
                continue
            try:
                lost = table.lost_after(end)
            except adapter.TableUnreadable as error:
                if table.skips_loss:
                    raise self._unreadable(number, table, str(error)) from error
                self._warn(_called(table), str(error))
                continue
            except adapter.NotComparable as error:
                self._cannot_compare(_called(table), str(error), [table])
                continue
            if lost is not None:
                self._accept(number, table, lost, last.epoch + 1)

    def _cannot_compare(self, what: str, why: str, tables: Iterable[adapter.LakeInput | None]) -> None:
        """Log a warning. Refuse a table from which Spark would skip lost input without an error."""
        if any(each is not None and each.skips_loss for each in tables):
            why = f"{what} cannot be compared with the last epoch ({why}), so lost versions would be skipped silently"
            what = f"{FAIL_ON_LOSS}=false in stream {self._parts.name!r}"
            raise NotSupported(what=what, why=why, do=_WITHOUT_OPTION)
        self._warn(what, why)

    def _unreadable(self, number: int, table: adapter.LakeInput, why: str) -> SourceUnavailable:
        why = f"{_called(table)} cannot be compared with the last epoch: {why}"
        return SourceUnavailable(stream=self._parts.name, source=number, why=why, do=_READ_AGAIN)

    def _warn(self, what: str, why: str) -> None:
        _log.warning("stream %s: %s: not compared with the last epoch: %s", self._parts.name, what, why)

    def _ends(self, last: LastDecided) -> Sequence[str | None] | None:
        """Return the end of the last epoch for each input. Spark reads a table that the plan has twice only once."""
        if len(last.ends) == len(self._inputs):
            return last.ends
        if len(last.ends) == len(set(self._inputs)) and None not in self._inputs:
            order = list(dict.fromkeys(self._inputs))
            return [last.ends[order.index(each)] for each in self._inputs]
        return None

    def _accept(self, number: int, table: adapter.LakeInput, lost: LostTableInput, epoch: int) -> None:
        """Raise, or record the gap if the user accepts it and Spark's source can continue."""
        name, what = self._parts.name, lost.summary
        can_skip = lost.kind is TableLossKind.EXPIRED and table.can_skip
        error = SourceGap(stream=name, epoch=epoch, source=number, what=what, do=_ACCEPT if can_skip else _OTHER_TABLE)
        if not can_skip or not self._parts.accepts("gaps"):
            raise error
        if not table.skips_loss:
            error.do = _SET_OPTION
            raise error
        record_gap(self._parts, epoch, error.summary, {"source": number, "lost": [lost.facts()]})
        _log.warning("%s; accepted and recorded", error.summary)


def _called(table: adapter.LakeInput) -> str:
    return f"table {redacted_text(table.name)!r}"
