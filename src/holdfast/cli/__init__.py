"""The `holdfast` command: a thin layer over the library.

Rules:
- A verb that only reads imports neither pyspark nor pyarrow, takes no lease and writes nothing.
- Exit codes: 0 success, 1 problems or differences were found, 2 usage error or failure.
- `--json` prints one document, whose shape is defined in `results`. Errors are documents too, even usage errors.
- An error is two lines: what is wrong, and what to do next. There is never a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys


def main() -> None:
    """Run the command with the arguments of this process."""
    try:
        _prepare_streams()
        from holdfast.cli.app import run_app  # typer takes a tenth of a second to import

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except OSError as error:  # from stdout or stderr: the disk is full, or the reader has closed the pipe
        code = 0 if isinstance(error, BrokenPipeError) else 2
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
    finally:
        _flush_streams()
    sys.exit(code)


def _flush_streams() -> None:
    """Flush the output, or discard it: Python would flush again at exit, fail, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _prepare_streams() -> None:
    """Replace streams that the shell has closed by /dev/null; escape characters that the terminal cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
