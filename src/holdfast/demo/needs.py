"""What the demo needs of the machine, looked for before anything is started."""

from __future__ import annotations

import importlib.util

from holdfast.errors import MissingExtra


def require() -> None:
    """Raise what is missing: PySpark, pyarrow, or a Java that Spark can run on."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(extra="spark", module=module)
    from holdfast.spark.session import require_java  # it imports pyspark

    require_java()
