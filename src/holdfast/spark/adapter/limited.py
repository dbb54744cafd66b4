"""The base class of Python sources with a limit per batch, for the installed version of Spark.

A subclass has plain methods, and the base class has those that Spark calls:

- `rows_per_batch`: the most rows of a batch, or `None`
- `first_offset()`: where a new stream begins; `last_offset()`: the current end
- `end_after(start, rows)`: the end of a batch that begins at `start` and has at most so many rows
- `end_here()`: from now on, `end_after` returns nothing after the current end
- `position(offset)`: a number by which offsets are compared; raises if the offset is not one of this source
- `inputs_between(start, end)`: the inputs of the tasks of a batch
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.spark.adapter.versions import FACTS

_HOME, _NAME = (
    ("limits_of_spark", "SparkLimitedReader") if FACTS.passes_read_limits else ("limits_of_source", "SelfLimitedReader")
)
LimitedReader: Any = getattr(import_module(f"holdfast.spark.adapter.{_HOME}"), _NAME)  # only one can be imported on 4.1
