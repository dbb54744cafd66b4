"""What differs between the supported versions of Spark, as data: one row per version.

Rules:
- Code asks for a fact by its name, and never compares version numbers.
- The rows are the versions that `_extras` supports. Patch releases of a version have the same facts.
- Every fact has a test that asks the installed Spark (tests/spark: test_versions.py, test_restored_state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast._extras import minor_version, pyspark_version


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """The facts about one version of Spark on which this code depends."""

    passes_read_limits: bool  # to Python sources, with the start of the batch; such sources then support availableNow
    finds_state_format: bool  # a query takes it from its folder; otherwise the setting must agree with the folder
    query_settings: Mapping[str, str] = field(default_factory=dict)  # needed for every query
    connectors: Mapping[str, str] = field(default_factory=dict)  # by the format of a source: its package for Spark


# Without read limits, a query with a Python source and the trigger availableNow ends after one batch. With this setting
# it would ask the source for its end before the source knows where the query is: batches could begin too early.
ONE_BATCH = {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "false"}

_DELTA = "io.delta:delta-spark_{}_2.13:4.4.0"
_ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-{}_2.13:1.12.0"

VERSIONS = {
    "4.1": SparkFacts(
        passes_read_limits=False,
        finds_state_format=False,
        query_settings=ONE_BATCH,
        connectors={"delta": _DELTA.format("4.1"), "iceberg": _ICEBERG.format("4.1")},
    ),
    "4.2": SparkFacts(passes_read_limits=True, finds_state_format=False, connectors={"delta": _DELTA.format("4.2")}),
    "4.3": SparkFacts(passes_read_limits=True, finds_state_format=True),
}
FACTS = VERSIONS[minor_version(pyspark_version())]  # `holdfast.spark` has refused other versions
