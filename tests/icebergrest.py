"""A real Iceberg REST catalog for tests: the server of the Iceberg project on loopback, one per test process.

`tools/iceberg_rest.py` fetches it. Its tables are in a SQLite file and a folder of its own. Where the jars are missing,
the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

import pyspark
import pytest

from s3fixture import _die_with_parent, _free_port

JARS = Path(sys.prefix) / "iceberg-rest"
_FROM_SPARK = (
    *("slf4j-api", "jackson-core-2", "jackson-databind-2", "jackson-annotations-2", "avro-1", "RoaringBitmap"),
    *("hadoop-client-api", "hadoop-client-runtime", "aircompressor", "commons-logging"),
)
_START_S = 60
_NUMBERS = itertools.count(1)


class RestCatalogServer:
    """One server process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hfrest"))
        self.port = _free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        spark = Path(pyspark.__file__).parent / "jars"
        jars = [str(each) for name in _FROM_SPARK for each in spark.glob(f"{name}*.jar")]
        java = [f"{os.environ['JAVA_HOME']}/bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        words = ["-cp", ":".join([f"{JARS}/*", *jars]), "org.apache.iceberg.rest.RESTCatalogServer"]
        settings = {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self.folder / 'catalog.db'}",
            "CATALOG_WAREHOUSE": str(self.folder / "warehouse"),
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*java, *words],
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc
            )
        atexit.register(self._remove)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.uri}/v1/config", timeout=5)  # noqa: S310
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"the REST catalog did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def _remove(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def server() -> RestCatalogServer:
    """Return the server of this process, or skip the test."""
    if not list(JARS.glob("iceberg-open-api-*.jar")):
        pytest.skip("no Iceberg REST catalog: its jars are missing; make test fetches them")
    return RestCatalogServer()


def new_namespace() -> str:
    """Return a namespace that no other test uses."""
    return f"ns{next(_NUMBERS)}"
