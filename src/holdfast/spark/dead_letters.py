"""Dead letters: rows that fail a check go to a sink of their own, in the same decision as the other rows.

Rules:
- Every row goes either to the sinks of the stream or to the dead letter, never to both and never to none. The checks
  are evaluated once for each row, before the rows are frozen; both parts are read from the frozen rows.
- A check is a condition in Spark SQL over the columns of the stream. A row passes if it is true: null counts as failed.
- A sink may add checks of its own: conditions without which it would refuse the whole epoch.
- The dead letter has the columns of the stream and one more, with the names of the checks that the row failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import BadValue
from holdfast.sinks.base import Sink
from holdfast.sinks.rows import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON = "dead_letter_reason"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The sink for the rows that fail a check, and the checks of the user: by name, in Spark SQL."""

    sink: Sink
    valid: Mapping[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """The checks, as the description of the sink has them."""
        return {f"valid {name}": condition for name, condition in self.valid.items()}


def checked_dead_letter(stream: str, sink: object, valid: object) -> DeadLetter | None:
    """Return the dead letter of a stream: a sink, and a condition or a dict of them by name; `None` if neither."""
    if sink is None:
        if valid is None:
            return None
        why, do = "there is no sink for the rows that fail it", "pass dead_letter=hf.FileSink(...) too"
        raise BadValue(what=f"argument valid of stream {stream!r}", value=valid, why=why, do=do)
    if not isinstance(sink, Sink):
        raise BadValue(what=f"dead_letter of stream {stream!r}", value=sink, expected="a sink")
    conditions = {} if valid is None else {valid: valid} if isinstance(valid, str) else valid
    texts = isinstance(conditions, Mapping) and all(
        isinstance(each, str) and each.strip() for pair in conditions.items() for each in pair
    )
    if not isinstance(conditions, Mapping) or not texts:
        expected = "a condition in Spark SQL, or a dict of them by name"
        do = 'pass, for example, valid={"positive": "amount > 0"}'
        raise BadValue(what=f"argument valid of stream {stream!r}", value=valid, expected=expected, do=do)
    return DeadLetter(sink, dict(conditions))


def all_checks(dead: DeadLetter, sinks: Iterable[Sink]) -> dict[str, str]:
    """Return the checks of the user and those of the sinks, which must be open."""
    own = {f"{sink.name}: {name}": each for sink in sinks for name, each in sink.row_checks().items()}
    return {**dead.valid, **own}


def require_sound(stream: str, df: DataFrame, checks: Mapping[str, str]) -> None:
    """Refuse checks that are not conditions over the columns of a stream, and a column that the dead letter adds."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - an extra

    if REASON in (name.lower() for name in df.columns):
        why, do = f"the dead letter adds a column {REASON}", "rename the column of the stream"
        raise BadValue(what=f"columns of stream {stream!r}", value=df.columns, why=why, do=do)
    for name, condition in checks.items():
        try:
            _require_boolean(df, condition)
        except (AnalysisException, ParseException) as error:
            raise _bad_check(stream, name, condition, str(error).strip().split("\n", 1)[0]) from None
        except TypeError as error:
            raise _bad_check(stream, name, condition, str(error)) from None


def judged(df: DataFrame, checks: Mapping[str, str]) -> DataFrame:
    """Return the rows with one more column: the names of the checks that a row failed; empty if it passed all."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    failed = [f.when(~_passes(condition), f.lit(name)) for name, condition in checks.items()]
    return df.withColumn(REASON, f.concat_ws(", ", *failed))


def split(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the rows that passed all checks, with the columns of the stream, and the others, with the reason."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    reason = f.col(quoted(REASON))
    return rows.where(reason == "").drop(REASON), rows.where(reason != "")


def _passes(condition: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    return f.coalesce(f.expr(condition), f.lit(False))


def _require_boolean(df: DataFrame, condition: str) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    kind = df.withColumn(REASON, f.expr(condition)).schema[REASON].dataType.simpleString()
    if kind != "boolean":
        raise TypeError(f"it is of type {kind}, not boolean")


def _bad_check(stream: str, name: str, condition: str, why: str) -> BadValue:
    what = f"condition {name!r} of stream {stream!r}" if name != condition else f"condition of stream {stream!r}"
    return BadValue(what=what, value=condition, why=why, do="correct it: a condition over the columns of the stream")
