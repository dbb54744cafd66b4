"""Fetch the REST catalog of the Iceberg project for the tests: `python -m tools.iceberg_rest .venv/iceberg-rest`.

`tools/iceberg-rest.lock` has the digest and the path of each file. Jackson, Avro and Hadoop come from Spark's jars.
Without a network the tests that need it are skipped; the reason is printed.
"""

from __future__ import annotations

import sys
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.s3a import fetch_file

_LOCK = Path(__file__).with_name("iceberg-rest.lock")


def fetch(folder: Path) -> None:
    """Download what is missing. A file whose digest differs is refused."""
    lines = [line.split() for line in _LOCK.read_text().splitlines() if not line.startswith("#")]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda pin: fetch_file(folder / pin[1].rpartition("/")[2], pin[1], pin[0]), lines))


def main(words: list[str]) -> int:
    """Fetch into a folder."""
    folder = Path(words[0])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fetch(folder)
    except (OSError, urllib.error.URLError) as error:
        print(f"set-up: the tests of an Iceberg REST catalog are skipped: {error}", file=sys.stderr)
    (folder / "ready").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
