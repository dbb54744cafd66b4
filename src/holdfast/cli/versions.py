"""`holdfast version`."""

from __future__ import annotations

import platform
from importlib import metadata

import msgspec
from rich.console import Console

import holdfast
from holdfast._extras import SPARK, is_supported, pyspark_version
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of what is installed here."""

    holdfast: str  # of this package
    python: str  # of the interpreter
    pyspark: str | None  # null where it is not installed; so below
    pyarrow: str | None  # for event logs
    psycopg: str | None  # for PostgreSQL


SHAPES = {"version": Version}


def version(as_json: Json = False) -> Answer:
    """Say which version this is, and what it works with.

    A package that is not installed is named too: what needs it cannot be used here.

    [bold]Example[/]

        holdfast version --json
    """
    found = Version(
        holdfast=holdfast.__version__,
        python=platform.python_version(),
        pyspark=pyspark_version(),
        pyarrow=_installed("pyarrow"),
        psycopg=_installed("psycopg"),
    )

    def show(console: Console) -> None:
        console.print(f"holdfast {found.holdfast}")
        for name in ("python", "pyspark", "pyarrow", "psycopg"):
            refused = name == "pyspark" and found.pyspark is not None and not is_supported(found.pyspark)
            remark = f", not supported: pip install 'pyspark=={SPARK}.*'" if refused else ""
            console.print(f"{name} {getattr(found, name) or 'is not installed'}{remark}", markup=False)

    return Answer(found, show)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
