"""The command line: a thin view of the library."""

from __future__ import annotations


def main() -> None:
    """Run the command that the process was started with."""
