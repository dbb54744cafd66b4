"""The `holdfast` command: a thin view of the library.

Rules:
- Whatever only looks imports neither pyspark nor pyarrow, takes no lease and writes nothing.
- Exit codes: 0 good, 1 found something (damage, gaps, differences), 2 wrong use or failure.
- `--json` prints one document, whose shape stands in `results`; errors too, also those of what was typed.
- An error is one line of what is wrong and one of what to type next; never a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys


def main() -> None:
    """Run the command that the process was started with."""
    try:
        _require_streams()
        from holdfast.cli.app import run_app  # typer takes a tenth of a second

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except OSError as error:  # of what is printed to: a full disk, a reader that is gone
        code = 0 if isinstance(error, BrokenPipeError) else 2
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: what it says cannot be written: {error.strerror}\n")
    finally:
        _let_go()
    sys.exit(code)


def _let_go() -> None:
    """Write what is left to write, or give it up: Python would try once more at its end, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _require_streams() -> None:
    """Open nothing in the place of what the shell has closed; write out what a terminal cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
