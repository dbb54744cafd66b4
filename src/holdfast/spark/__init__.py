"""Pipelines on Spark: the epoch protocol, recovery and supervision. Only `adapter` uses Spark's internals.

Importing this package raises `MissingExtra` if PySpark is missing, and `NotSupported` for an unsupported version. The
public names are those of `__all__`, and those that `holdfast` exports; the modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._extras import require_pyspark
from holdfast._lazy import attach

require_pyspark()
_HOMES = {
    "spark.adopting": ["apply_adopt", "plan_adopt"],
    "spark.epoch_times": ["EpochTimes"],
    "spark.outages": ["Outage"],
    "spark.pipeline_status": ["CheckpointStatus"],
    "spark.statereader": ["diff_keys", "read_data"],
}
_getattr, __dir__, __all__ = attach("holdfast.spark", _HOMES, needs={})

if TYPE_CHECKING:
    from holdfast.spark.adopting import apply_adopt as apply_adopt
    from holdfast.spark.adopting import plan_adopt as plan_adopt
    from holdfast.spark.epoch_times import EpochTimes as EpochTimes
    from holdfast.spark.outages import Outage as Outage
    from holdfast.spark.pipeline_status import CheckpointStatus as CheckpointStatus
    from holdfast.spark.statereader import diff_keys as diff_keys
    from holdfast.spark.statereader import read_data as read_data
else:  # a type checker must see misspelt names
    __getattr__ = _getattr
