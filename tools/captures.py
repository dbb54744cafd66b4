"""Screenshots for the docs: runs commands in a real terminal of 80 and 160 columns and draws the output as SVG.

    python tools/captures.py FOLDER 'holdfast ls' 'holdfast show' ...

Each command runs in FOLDER under a pseudo-terminal of 66 rows. A picture shows the last screen. The pictures are
written to docs/captures/, named by command and width.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

TARGET = Path(__file__).parents[1] / "docs/captures"
WIDTHS = (80, 160)
ROWS = 66  # the demo from its bars on
_UP = "\x1b[1A"
_ERASED = r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*"  # how Rich removes lines that it draws again
_CONTROL = re.compile(r"\x1b\[\?25[lh]|\x1b\[[HJK]")


def typed(command: str, folder: Path, width: int, seconds: float | None = None) -> str:
    """Return what a command prints in a terminal. After `seconds`, if given, it is stopped as by Ctrl-C."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, width, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("COLUMNS", "NO_COLOR"):
        env.pop(name, None)
    process = subprocess.Popen(  # noqa: S602 - the caller's own command
        command, shell=True, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
    )
    os.close(slave)
    output, end = b"", None if seconds is None else time.monotonic() + seconds
    while True:
        if end is not None and time.monotonic() > end:
            return _interrupted(output, process)
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        output += piece
    process.wait()
    return output.decode(errors="replace")


def _interrupted(output: bytes, process: subprocess.Popen[bytes]) -> str:
    """Stop the process as Ctrl-C would, and return what it has printed so far."""
    os.killpg(process.pid, 2)
    process.wait(60)
    return output.decode(errors="replace")


def last_screen(text: str) -> str:
    """Return what is on the screen at the end: the last lines, without those that were drawn again."""
    shown: list[str] = [""]
    for piece in re.split(f"({_ERASED})", re.sub(f"{_ERASED}$", "", text)):
        if re.fullmatch(_ERASED, piece):
            del shown[-1 - piece.count(_UP) :]
            shown.append("")
        else:
            first, *others = _CONTROL.sub("", piece).split("\n")
            shown[-1] += first
            shown += others
    return "\n".join(shown[-ROWS:])


def draw(command: str, text: str, width: int, name: str) -> Path:
    """Write the picture and return its path."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(text.replace("\r\n", "\n").rstrip()))
        TARGET.mkdir(parents=True, exist_ok=True)
        path = TARGET / f"{name}-{width}.svg"
        svg = console.export_svg(title=f"{width} columns", unique_id=f"{name}-{width}")
    svg = re.sub(
        r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL
    )  # uses the reader's own font, so nothing is downloaded
    svg = re.sub(r"<!-- Generated.*?-->", "", svg)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    return path


def main() -> None:
    """Capture the commands of the arguments. `COMMAND @SECONDS` is stopped after that time."""
    folder = Path(sys.argv[1])
    for argument in sys.argv[2:]:
        command, _, seconds = argument.partition(" @")
        name = re.sub(r"[^a-z0-9]+", "-", command.removeprefix("holdfast ").lower()).strip("-")
        for width in WIDTHS:
            text = last_screen(typed(command, folder, width, float(seconds) if seconds else None))
            print(draw(command, text, width, name))


if __name__ == "__main__":
    main()
