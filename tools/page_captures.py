"""Screenshots of the page for the docs, made in a real Chromium: `make captures`.

The pipelines are those of the browser tests. Needs the package `chromium`, and playwright.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browsing import Watched, browser  # noqa: E402 - from the tests
from holdfast.web.acting.control import PageControl  # noqa: E402
from holdfast.web.listening import Listening, RunningPage  # noqa: E402
from webfixture import started, troubled  # noqa: E402

TARGET = ROOT / "docs/captures"
VIEWS = {
    "page-pipelines": ("/", 1200, "light"),
    "page-pipeline": ("/p/stopped", 1200, "light"),
    "page-stream": ("/p/stopped/streams/orders?span=1d", 1200, "light"),
    "page-checkpoints": ("/p/stopped/checkpoints", 1200, "light"),
    "page-checkpoint": ("/p/stopped/checkpoints/3", 1200, "dark"),
    "page-runs": ("/p/failed/runs", 1200, "light"),
    "page-narrow": ("/p/killed", 360, "dark"),
    "page-actions": ("/p/repository/actions", 1200, "light"),
}


def main(target: Path = TARGET) -> None:
    """Write a picture of each view."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkpoints"
        os.chdir(folder)  # the page shows its roots as they were given
        troubled(root)
        process = started(root)
        reading = RunningPage(["checkpoints"], Listening(port=0))
        acting = RunningPage(["checkpoints"], Listening(port=0), PageControl())
        with reading, acting, browser() as chrome:
            for name, (address, width, scheme) in VIEWS.items():
                size = {"width": width, "height": 860}
                page = acting if "actions" in name else reading
                watched = Watched(chrome, page.addresses[0].rstrip("/"), viewport=size, color_scheme=scheme)
                watched.open(address)
                if "actions" not in name:  # a view with forms is not live
                    watched.page.wait_for_selector("#live.on")
                watched.page.screenshot(path=str(target / f"{name}.png"))
                watched.close()
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
