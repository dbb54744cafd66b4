"""The `holdfast` command: a thin view of the library.

Rules:
- Whatever only looks imports neither pyspark nor pyarrow, takes no lease and writes nothing.
- Exit codes: 0 good, 1 found something (damage, gaps, differences), 2 wrong use or failure.
- `--json` prints one document, whose shape stands in `results`; errors too.
- An error is one line of what is wrong and one of what to type next; never a traceback.
"""

from __future__ import annotations


def main() -> None:
    """Run the command that the process was started with."""
    from holdfast.cli.app import app  # noqa: PLC0415 - typer takes a tenth of a second

    app()
