"""The screenshots of the page in the docs: each is made by the command, exists, and is shown."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

ROOT = Path(__file__).parents[2]


def test_every_screenshot_of_the_page_is_made_by_the_command_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the tool adds a folder
    from tools.page_captures import TARGET, VIEWS

    shown = re.findall(r"!\[[^\]]+\]\(captures/([\w-]+)\.png\)", (ROOT / "docs/page.md").read_text())
    assert sorted(shown) == sorted(VIEWS)
    assert sorted(each.stem for each in TARGET.glob("page-*.png")) == sorted(VIEWS)
