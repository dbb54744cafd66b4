"""Any history of epochs, checkpoints, rewinds, undos and crashes: the sinks always show the rows of a simple list."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakespark import install
from holdfast.errors import RewindRefused, StreamFailed
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.rewind.steps import POINTS
from holdfast.testing import CrashAt, Crashed
from rewindbench import RewindBench

UNDECIDED = ("rewind planned", "rewind built")


class Checked:
    """A pipeline beside a list: an epoch appends a row, a rewind cuts the list, an undo restores it."""

    def __init__(self, folder: Path) -> None:
        self.bench = RewindBench(folder)
        self.rows: list[int] = []
        self.next = 0
        self.kept: list[tuple[int, list[int]]] = []  # checkpoints of the lineage, and their rows
        self.undo_to: tuple[list[int], list[tuple[int, list[int]]]] | None = None
        self.rewinds = 0

    def write(self, epochs: int) -> None:
        self.bench.source[:] = [[row] for row in self.rows]
        for _ in range(epochs):
            self.next += 1
            self.rows.append(self.next)
            self.bench.source.append([self.next])
        self.bench.run()
        self.undo_to = None

    def take(self) -> None:
        self.kept.append((self.bench.take().checkpoint_id, list(self.rows)))

    def rewind(self, choice: int, point: str | None) -> None:
        if not self.kept:
            return
        place = choice % len(self.kept)
        checkpoint, rows = self.kept[place]
        if not self._crashes(point, lambda reach: self.bench.rewind(checkpoint, reach)):
            return
        self.undo_to = (self.rows, self.kept)
        self.rows, self.kept = list(rows), self.kept[: place + 1]
        self.rewinds += 1

    def die(self, at: str, choice: int, point: str | None) -> None:
        """Die within an epoch, then go back at once: the rewind completes an epoch that was decided."""
        if not self.kept:
            return
        self.next += 1
        self.bench.source[:] = [*([row] for row in self.rows), [self.next]]
        with pytest.raises((Crashed, StreamFailed)):
            self.bench.run(CrashAt(at))
        if at == "decided":
            self.rows.append(self.next)
            self.undo_to = None
        self.rewind(choice, point)

    def undo(self, point: str | None) -> None:
        if self.undo_to is None:
            with pytest.raises(RewindRefused):
                self.bench.undo()
            return
        if self._crashes(point, self.bench.undo):
            (self.rows, self.kept), self.undo_to = self.undo_to, None
            self.rewinds += 1

    def _crashes(self, point: str | None, act: Any) -> bool:
        """Act, and die on the way; a start finishes what was decided. Return whether it was."""
        if point is None:
            act(lambda _: None)
            return True
        with pytest.raises(Crashed):
            act(CrashAt(point))
        return point not in UNDECIDED

    def start(self) -> None:
        """Start without new input: an interrupted rewind is finished."""
        self.bench.source[:] = [[row] for row in self.rows]
        self.bench.run()

    def check(self) -> None:
        assert self.bench.visible() == [sorted(self.rows)] * 2
        assert unfinished_rewind(self.bench.repository, self.bench.lineage) is None
        assert self.bench.lineage.current >= 1 + self.rewinds


POINT = st.one_of(st.none(), st.sampled_from(list(POINTS)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("take")),
        st.tuples(st.just("rewind"), st.integers(0, 5), POINT),
        st.tuples(st.just("die"), st.sampled_from(["durable", "decided"]), st.integers(0, 5), POINT),
        st.tuples(st.just("undo"), POINT),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_history(steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        install(patch)
        checked = Checked(Path(folder))
        for name, *arguments in steps:
            getattr(checked, name)(*arguments)
            checked.start()
            checked.check()
