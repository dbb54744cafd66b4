"""Fetch a Kafka broker, and Spark's connector for Kafka, for the tests: `python -m tools.kafka fetch .venv/kafka`.

The jars of the broker go to `broker/`, those of the connector to `connector/`, and the broker's command line to
`commands/`. They are pinned files: each folder has a file `tools/kafka-<folder>.lock` with the digest and the path of
each jar. `python -m tools.kafka lock` writes them again, which needs Maven.

Without a network the tests that need the jars are skipped, and the reason is reported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import maven

_HERE = Path(__file__).parent
BROKER = ("org.apache.kafka:kafka_2.13:4.3.1",)
# Spark's connector has no release for 4.3 yet. This mix of versions works with it; Spark includes what else it needs.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
COMMANDS = ("org.apache.kafka:kafka-tools:4.3.1",)  # with the jars of the broker
_SETS = {  # packages, and what of their needs is left out
    "broker": (BROKER, ()),
    "connector": (CONNECTOR, ("*:*",)),
    "commands": (COMMANDS, ("*:*",)),
}


def _lock_file(folder: str) -> Path:
    return _HERE / f"kafka-{folder}.lock"


def main(words: list[str]) -> None:
    """Fetch into a folder, or lock."""
    if words[0] == "fetch":
        target = Path(words[1])
        maven.provide(target, "Kafka", {target / folder: _lock_file(folder) for folder in _SETS})
        return
    for folder, (packages, excluded) in _SETS.items():
        maven.write_lock(_lock_file(folder), "python -m tools.kafka lock", packages, excluded, lambda _jar: True)


if __name__ == "__main__":
    main(sys.argv[1:])
