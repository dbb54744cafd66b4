"""`handle.watch()`: lines of text, and the cell of a notebook."""

from __future__ import annotations

import io
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.spark.pipeline_status import CheckpointStatus, PipelineStatus
from holdfast.spark.status import StreamStatus
from holdfast.spark.watching import watch


class Running:
    """A handle whose pipeline advances by an epoch at each look, and ends after some of them."""

    def __init__(self, epochs: int, *, same: bool = False, interrupted: bool = False) -> None:
        self._left, self._epoch, self._same, self._interrupted = epochs, 0, same, interrupted

    def status(self) -> PipelineStatus:
        self._epoch += not self._same
        stream = StreamStatus(stream="orders", state="running", epoch=self._epoch, rows=1200, restarts=0)
        return PipelineStatus("shop", "uid", 1, 1, {"orders": stream}, CheckpointStatus(last=3))

    def wait(self, seconds: float | None = None) -> bool:
        if self._interrupted:
            raise KeyboardInterrupt
        time.sleep(min(seconds or 0.01, 0.01))
        self._left -= 1
        return self._left <= 0


def watched(handle: Any, **options: Any) -> list[str]:
    out = io.StringIO()
    watch(handle, **{"every": 0.01, "seconds": None, "out": out} | options)
    return out.getvalue().splitlines()


def test_a_line_is_printed_whenever_the_status_has_changed() -> None:
    assert watched(Running(2)) == [
        f"shop: orders running at epoch {epoch}, 1,200 rows; checkpoint 3" for epoch in (1, 2, 3)
    ]
    assert len(watched(Running(5, same=True))) == 1


def test_the_view_ends_after_its_time_and_on_ctrl_c() -> None:
    began = time.monotonic()
    assert watched(Running(10**9), seconds=0.05)
    assert time.monotonic() - began < 5
    assert len(watched(Running(10**9, interrupted=True))) == 1


def test_the_cell_of_a_notebook_is_updated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Any] = []

    def display(first: object, display_id: bool) -> Any:
        assert display_id
        return SimpleNamespace(update=shown.append)

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    displays.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    watch(Running(2), every=0.01, seconds=None)
    assert [each.streams["orders"].epoch for each in shown] == [1, 2, 3]
    assert "epoch" in shown[0]._repr_html_()
    assert capsys.readouterr().out == ""
    ipython.get_ipython = SimpleNamespace  # type: ignore[attr-defined] # IPython in a terminal: lines of text
    watch(Running(1), every=0.01, seconds=None)
    assert "orders running" in capsys.readouterr().out
