"""Fetch the REST catalog of the Iceberg project for the tests: `python -m tools.iceberg_rest .venv/iceberg-rest`.

`tools/iceberg-rest.lock` has the digest and the path of each file. Jackson, Avro and Hadoop come from Spark's jars.
Without a network the tests that need it are skipped; the reason is printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import maven

_LOCK = Path(__file__).with_name("iceberg-rest.lock")


def main(words: list[str]) -> int:
    """Fetch into a folder."""
    folder = Path(words[0])
    maven.provide(folder, "an Iceberg REST catalog", {folder: _LOCK})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
