"""Fetch Spark's connectors for Delta and Iceberg, for the tests: `python -m tools.lake fetch .venv-4.1/lake`.

The packages are those that `holdfast.spark.adapter.versions` names for the installed version of Spark. The jars are
pinned: `tools/lake-<version>.lock` has the digest and the path of each. `python -m tools.lake lock` writes the file of
each version again, which needs Maven. A version without a connector has no file, and nothing is fetched.

Without a network the tests that need the jars are skipped, and the reason is reported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast._extras import minor_version, pyspark_version
from holdfast.spark.adapter.versions import VERSIONS
from tools import maven
from tools.s3a import missing_in_spark

_HERE = Path(__file__).parent


def _lock_file(version: str) -> Path:
    return _HERE / f"lake-{version}.lock"


def main(words: list[str]) -> None:
    """Fetch into a folder, or lock."""
    if words[0] == "fetch":
        target, lock = Path(words[1]), _lock_file(minor_version(pyspark_version()))
        maven.provide(target, "lake tables as sources", {target: lock} if lock.exists() else {})
        return
    for version, facts in VERSIONS.items():
        packages = sorted(facts.connectors.values())
        if packages:
            maven.write_lock(_lock_file(version), "python -m tools.lake lock", packages, (), missing_in_spark())


if __name__ == "__main__":
    main(sys.argv[1:])
