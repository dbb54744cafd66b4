"""The process that serves the page of a running pipeline: its end does not go unnoticed."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from holdfast.spark.page_process import PageProcess
from webfixture import Sample


def test_a_page_that_cannot_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sample = Sample(tmp_path / "root").healthy(3, 1)
    own = tmp_path / "program"
    own.mkdir()
    (own / "rich.py").write_text("raise RuntimeError('a module of the program with the same name')")
    monkeypatch.chdir(own)
    page = PageProcess(str(sample.folder), 0)
    assert page.ready.wait(60)
    page.close()
    assert page.address is None
    assert "a module of the program with the same name" in caplog.text


def test_a_page_that_is_killed_is_reported_and_one_that_is_closed_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    with caplog.at_level(logging.WARNING):
        page = PageProcess(str(sample.folder), 0)
        assert page.ready.wait(60)
        page.close()
        assert "not served" not in caplog.text
        page = PageProcess(str(sample.folder), 0)
        assert page.ready.wait(60)
        os.kill(page._process.pid, signal.SIGKILL)
        page._reader.join(60)
        page.close()
    assert f"Next: holdfast serve {sample.folder}" in caplog.text
