"""Fetch the jars of Hadoop's connector for S3 into the environment: `python -m tools.s3a fetch .venv/s3a`.

Spark does not include the connector, and users let Spark download it. The tests use pinned files: for each version of
Hadoop, `tools/s3a-<version>.lock` has the digest and the path of each file. `python -m tools.s3a lock 3.5.0` writes it
again, which needs Maven.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark

from holdfast.spark.s3a import EXCLUDED, packages
from tools import maven

_HERE = Path(__file__).parent


def hadoop() -> str:
    """Return the version of Hadoop that the installed Spark includes."""
    jars = Path(pyspark.__file__).parent / "jars"
    (found,) = jars.glob("hadoop-client-api-*.jar")
    return found.stem.removeprefix("hadoop-client-api-")


def _lock_file(version: str) -> Path:
    return _HERE / f"s3a-{version}.lock"


def missing_in_spark() -> Callable[[Path], bool]:
    """Return whether Spark lacks a jar, in any version. Those that it includes are on the class path already."""
    included = {_name(each) for each in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return lambda jar: _name(jar) not in included


def _name(jar: Path) -> str:
    return re.sub(r"-\d[\w.]*$", "", jar.stem)


def lock(version: str) -> None:
    """Resolve the packages that the error of a start names, and write their digests."""
    command = "python -m tools.s3a lock"
    maven.write_lock(_lock_file(version), command, packages(version).split(","), EXCLUDED, missing_in_spark())


def main(words: list[str]) -> int:
    """Fetch into a folder, or lock a version."""
    verb, what = words
    if verb == "fetch":
        folder = Path(what)
        maven.provide(folder, "Spark on S3", {folder: _lock_file(hadoop())})
    else:
        lock(what)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
