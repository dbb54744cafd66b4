"""Pipelines on Spark: the epoch protocol, recovery and supervision. `adapter` alone knows Spark's internals.

Importing any of its modules raises `MissingExtra` if PySpark is missing, and `NotSupported` for an unsupported version.
"""

from holdfast._extras import require_pyspark

require_pyspark()
