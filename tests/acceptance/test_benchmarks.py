"""The page of the benchmarks is what its JSON says, and can be found."""

import re
import subprocess
import sys
from pathlib import Path

from bench import report
from bench.document import Document

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_page_and_the_plot_are_what_the_figures_say() -> None:
    """Where this fails: `make docs`, or `make bench-docs` for new figures. Never edit them by hand."""
    for name, text in report.drawn(Document.from_json((DOCS / report.JSON).read_text())).items():
        assert text == (DOCS / name).read_text(), name


def test_the_check_of_the_command_agrees() -> None:
    command = [sys.executable, "-m", "bench.report", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_is_linked_from_the_map_and_shows_its_plot() -> None:
    assert f"]({report.PAGE})" in (DOCS / "index.md").read_text()
    for name in (report.PLOT, report.CHARTS):
        assert f"]({name})" in (DOCS / report.PAGE).read_text()


def test_no_path_and_no_name_of_a_host_is_published() -> None:
    for name in (report.JSON, report.PAGE, report.PLOT, report.CHARTS):
        assert not re.search(r"/(tmp|home|root|usr|work|Users)/", (DOCS / name).read_text()), name
