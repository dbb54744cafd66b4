"""The requirements of the demo, checked before anything is started."""

from __future__ import annotations

import importlib.util

from holdfast.errors import MissingExtra


def require() -> None:
    """Raise an error if PySpark, pyarrow, or a Java version that Spark supports is missing."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(extra="spark", module=module)
    from holdfast.spark.session import require_java  # it imports pyspark

    require_java()
