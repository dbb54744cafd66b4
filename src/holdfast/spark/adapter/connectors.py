"""Connectors for lake tables: which versions of Spark have one, and the error of a stream that lacks one."""

from __future__ import annotations

import re

from holdfast._extras import minor_version, pyspark_version
from holdfast.errors import NotSupported
from holdfast.spark.adapter.versions import FACTS, VERSIONS

TITLES = {"delta": "Delta", "iceberg": "Iceberg"}
_CLASSES = {"org.apache.spark.sql.delta": "delta", "org.apache.iceberg": "iceberg"}
# Spark's errors for a format, and for the class of a catalog, that is not on its class path.
_FORMAT = re.compile(r"\[DATA_SOURCE_NOT_FOUND\][^:\n]*: (\w+)")
_CATALOG = re.compile(r"plugin class[^\n]*?(" + "|".join(map(re.escape, _CLASSES)) + r")\.")


def missing_connector(stream: str, error: BaseException) -> NotSupported | None:
    """Return the typed error for a lake table that Spark cannot read here, or `None` for any other error."""
    text = str(error)
    if found := _FORMAT.search(text):
        kind = found[1].lower()
    elif found := _CATALOG.search(text):
        kind = _CLASSES[found[1]]
    else:
        return None
    return _not_supported(stream, kind) if kind in TITLES else None


def _not_supported(stream: str, kind: str) -> NotSupported:
    title, what = TITLES[kind], f"the source {kind!r} of stream {stream!r}"
    if package := FACTS.connectors.get(kind):
        why = f"the Spark session has no connector for {title}"
        return NotSupported(what=what, why=why, do=f"start the session with spark.jars.packages={package}")
    others = " and ".join(version for version, facts in VERSIONS.items() if kind in facts.connectors)
    why = f"no connector for {title} is released for Spark {minor_version(pyspark_version())}, only for Spark {others}"
    do = f"use PySpark {others.replace('and', 'or')}; or let another program copy the rows to Kafka or to files"
    return NotSupported(what=what, why=why, do=do)
