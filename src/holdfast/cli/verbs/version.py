"""`holdfast version`."""

from __future__ import annotations

import platform
from importlib import metadata

import msgspec
from rich.console import Console

import holdfast
from holdfast._extras import PYSPARK, is_supported, pyspark_version
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The installed versions."""

    holdfast: str  # version of this package
    python: str  # version of the interpreter
    pyspark: str | None  # null if it is not installed, like the fields below
    pyarrow: str | None  # needed for event logs
    psycopg: str | None  # needed for PostgreSQL
    confluent_kafka: str | None  # needed for Kafka
    deltalake: str | None  # needed for Delta tables
    pyiceberg: str | None  # needed for Iceberg tables
    obstore: str | None  # needed for S3
    starlette: str | None  # needed for the page
    uvicorn: str | None  # needed for the page


SHAPES = {"version": Version}


def version(as_json: Json = False) -> Answer:
    """Print the versions of Holdfast, Python and the optional packages.

    Also lists optional packages that are not installed. The features that need them are not available.

    [bold]Example[/]

        holdfast version --json
    """
    found = Version(
        holdfast=holdfast.__version__,
        python=platform.python_version(),
        pyspark=pyspark_version(),
        pyarrow=_installed("pyarrow"),
        psycopg=_installed("psycopg"),
        confluent_kafka=_installed("confluent-kafka"),
        deltalake=_installed("deltalake"),
        pyiceberg=_installed("pyiceberg"),
        obstore=_installed("obstore"),
        starlette=_installed("starlette"),
        uvicorn=_installed("uvicorn"),
    )

    def print_it(console: Console) -> None:
        console.print(f"holdfast {found.holdfast}")
        for name in Version.__struct_fields__[1:]:
            refused = name == "pyspark" and found.pyspark is not None and not is_supported(found.pyspark)
            remark = f", not supported: pip install '{PYSPARK}'" if refused else ""
            console.print(f"{name} {getattr(found, name) or 'is not installed'}{remark}", markup=False)

    return Answer(found, print_it)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
