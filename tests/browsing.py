"""A real Chromium for tests: Debian's package, driven by Playwright. Tests are skipped where there is none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """Return the path of Chromium, or `None`."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()


class Watched:
    """A page of the browser that notes errors and requests to other hosts."""

    def __init__(self, browser: Any, origin: str, **options: Any) -> None:
        self.origin = origin
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("console", lambda each: self.errors.append(each.text) if each.type == "error" else None)
        self.page.on("pageerror", lambda each: self.errors.append(str(each)))
        self.page.on("request", lambda each: self.foreign.append(each.url) if not self._is_own(each.url) else None)

    def _is_own(self, url: str) -> bool:
        return url.startswith(f"{self.origin}/")

    def open(self, path: str) -> Any:
        """Open an address; its event stream never ends, so only the document is awaited."""
        return self.page.goto(self.origin + path, wait_until="load")

    @property
    def errors_but_status(self) -> list[str]:
        """The errors, without those that only report the status of a response."""
        return [each for each in self.errors if "the server responded with a status of" not in each]

    @property
    def overflow(self) -> int:
        """By how many pixels the document is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def close(self) -> None:
        """Close the page."""
        self.context.close()
