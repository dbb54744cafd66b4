"""Flink as a side of a benchmark: its environment, and its programs."""

from __future__ import annotations

from pathlib import Path

from bench.compare import CannotMeasure
from bench.watched import Program

ENVIRONMENT = Path(__file__).parents[2] / ".venv-peers"
INTERVALS_MS = (1_000, 100)  # between two checkpoints
_JOB = Path(__file__).with_name("flink_job.py")


def _version() -> str:
    found = ENVIRONMENT.glob("lib/python3*/site-packages/apache_flink-*.dist-info")
    return max((path.name.removesuffix(".dist-info").rpartition("-")[2] for path in found), default="")


VERSIONS = {"Flink": _version()} if _version() else {}


def named(interval_ms: int) -> str:
    """Return the name of the side with this interval."""
    return f"Flink, checkpoints every {interval_ms:,} ms"


def flink(interval_ms: int) -> Program:
    """Return the program with this interval between checkpoints."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists() or not VERSIONS:
        raise CannotMeasure("Flink is not installed\nNext: make bench-peers")
    return Program(named(interval_ms), (str(python), str(_JOB)), (str(interval_ms),))
