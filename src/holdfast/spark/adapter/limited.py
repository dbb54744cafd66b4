"""The base class of readers with a limit per batch, for the installed version of Spark."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.spark.adapter.versions import FACTS

_HOME, _NAME = (
    ("limits_of_spark", "SparkLimitedReader") if FACTS.passes_read_limits else ("limits_of_source", "SelfLimitedReader")
)
LimitedReader: Any = getattr(import_module(f"holdfast.spark.adapter.{_HOME}"), _NAME)  # 4.1 cannot import the first
