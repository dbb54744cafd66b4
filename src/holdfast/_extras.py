"""Optional packages: the extra that installs each of them, and the versions of PySpark that are supported.

Rules:
- A missing package raises `MissingExtra`, which names the command that installs it.
- An unsupported version of PySpark is rejected when the first module of `holdfast.spark` is imported: before a folder
  is created and before Java starts. The version is read from PySpark's files, without importing it.
"""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

from holdfast.errors import MissingExtra, NotSupported

# Spark's internals differ between minor versions. What differs between these is in `holdfast.spark.adapter.versions`.
SUPPORTED = ("4.1", "4.2", "4.3")
PYSPARK = "pyspark>=4.1,<4.4"  # the same range, as pip and pyproject.toml write it
_REASONS = {"4.0": "the classes of its streaming engine have other names"}  # why a version is refused, where known
EXTRAS = {  # package -> the extra that installs it
    "pyspark": "spark",
    "py4j": "spark",
    "pyarrow": "log",
    "confluent_kafka": "kafka",
    "psycopg": "postgres",
    "adbc_driver_manager": "postgres",
    "adbc_driver_postgresql": "postgres",
    "pandas": "spark",
    "obstore": "s3",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
    "deltalake": "delta",
    "starlette": "page",
    "uvicorn": "page",
    "anyio": "page",
}
_VERSION = re.compile(rb"""^__version__(?:: *str)? *= *["']([^"']+)["']""", re.MULTILINE)


def missing_extra(error: BaseException) -> MissingExtra | None:
    """Return the typed error for a package of `EXTRAS` that could not be found, or `None` for any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    if package not in EXTRAS or find_spec(package) is not None:
        return None
    return MissingExtra(extra=EXTRAS[package], module=package)


def pyspark_version() -> str | None:
    """Return the version of the installed PySpark, or `None` if it is not installed."""
    spec = find_spec("pyspark")
    if spec is None:
        return None
    try:
        text = spec.loader.get_data(str(spec.origin).replace("__init__", "version"))  # type: ignore[union-attr]
    except (AttributeError, OSError):
        text = b""
    if found := _VERSION.search(text):
        return found[1].decode()
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def minor_version(version: str | None) -> str:
    """Return the first two numbers of a version, such as `4.3`."""
    return ".".join((version or "").split(".")[:2])


def is_supported(version: str | None) -> bool:
    """Whether Holdfast supports this version of PySpark."""
    return minor_version(version) in SUPPORTED


def require_pyspark() -> None:
    """Raise `MissingExtra` if PySpark or py4j is missing, and `NotSupported` for an unsupported PySpark."""
    for package in ("pyspark", "py4j"):
        if find_spec(package) is None:
            raise MissingExtra(extra=EXTRAS[package], module=package)
    version = pyspark_version()
    if not is_supported(version):
        why = f"this version of Holdfast supports PySpark {', '.join(SUPPORTED[:-1])} and {SUPPORTED[-1]}"
        if reason := _REASONS.get(minor_version(version)):
            why = f"{reason}, and {why}"
        raise NotSupported(what=f"the installed PySpark {version}", why=why, do=f"pip install '{PYSPARK}'")
