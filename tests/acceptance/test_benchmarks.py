"""The page of the benchmarks is what its JSON says, and can be found."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import report
from bench.document import Document
from bench.pages import PAGES, Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(params=PAGES, ids=lambda page: str(page.stem))
def about(request: pytest.FixtureRequest) -> Page:
    found: Page = request.param
    return found


def files(about: Page) -> dict[str, str]:
    return report.drawn(Document.from_json((DOCS / about.json).read_text()), about)


def test_the_page_and_the_plot_are_what_the_figures_say(about: Page) -> None:
    """Where this fails: `make docs`, or `make bench-docs` for new figures. Never edit them by hand."""
    for name, text in files(about).items():
        assert text == (DOCS / name).read_text(), name


def test_the_check_of_the_command_agrees() -> None:
    command = [sys.executable, "-m", "bench.report", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_is_linked_from_the_map_and_shows_its_plot(about: Page) -> None:
    assert f"]({about.page})" in (DOCS / "index.md").read_text()
    for name in files(about):
        assert name == about.page or f"]({name})" in (DOCS / about.page).read_text()


def test_no_path_and_no_name_of_a_host_is_published(about: Page) -> None:
    for name in (about.json, *files(about)):
        assert not re.search(r"/(tmp|home|root|usr|work|Users)/", (DOCS / name).read_text()), name
