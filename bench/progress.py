"""A progress line on stderr: what is being measured, and for how long."""

from __future__ import annotations

import sys
import threading
import time


class Progress:
    """In a terminal, one line that is updated every second; elsewhere, a line every 30 seconds and at both ends."""

    def __init__(self, name: str, start: float, about: float | None = None) -> None:
        self._name = name
        self._about = "" if about is None else f" of about {about:.0f}"
        self._all, self._own = start, time.perf_counter()
        self._live = sys.stderr.isatty()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _write(self, state: str) -> None:
        now = time.perf_counter()
        about = self._about if state == "…" else ""
        line = f"{self._name} {state} {now - self._own:.0f}{about} s, {(now - self._all) / 60:.1f} min in total"
        sys.stderr.write(f"\r\x1b[2K{line}" if self._live else f"{line}\n")
        sys.stderr.flush()

    def _run(self) -> None:
        while not self._over.wait(1 if self._live else 30):
            self._write("…")

    def __enter__(self) -> None:
        self._write("…")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write("took")
        if self._live:
            sys.stderr.write("\n")
