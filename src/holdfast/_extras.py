"""Optional packages: the extra that installs each of them, and the PySpark version that is supported.

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

SPARK = "4.3"  # Spark's internals differ between minor versions, so one is supported at a time
EXTRAS = {  # package -> the extra that installs it
    "pyspark": "spark",
    "py4j": "spark",
    "pyarrow": "log",
    "psycopg": "postgres",
    "adbc_driver_manager": "postgres",
    "adbc_driver_postgresql": "postgres",
    "pandas": "spark",
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


def is_supported(version: str | None) -> bool:
    """Whether Holdfast supports this version of PySpark."""
    return version is not None and version.startswith(f"{SPARK}.")


def require_pyspark() -> None:
    """Raise `MissingExtra` if PySpark or py4j is missing, and `NotSupported` for an unsupported PySpark."""
    for package in ("pyspark", "py4j"):
        if find_spec(package) is None:
            raise MissingExtra(extra=EXTRAS[package], module=package)
    version = pyspark_version()
    if not is_supported(version):
        why = f"this version of Holdfast supports PySpark {SPARK} only"
        raise NotSupported(what=f"the installed PySpark {version}", why=why, do=f"pip install 'pyspark=={SPARK}.*'")
