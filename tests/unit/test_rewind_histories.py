"""Any history of epochs, checkpoints, rewinds, undos, prunes and crashes: the sinks show the rows of a simple list.

The sinks are in memory, so that hypothesis can shrink a history that fails. `test_rewind_walks` has real ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakespark import install
from holdfast.rewind.steps import POINTS
from rewindbench import RewindBench
from rewindwalk import Walked

CRASH = st.one_of(st.none(), st.tuples(st.sampled_from(list(POINTS)), st.just(1)))
REWIND = st.tuples(st.just("rewind"), st.integers(0, 5), CRASH)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("take")),
        REWIND,
        st.tuples(st.just("die"), st.sampled_from(["durable", "decided"]), REWIND),
        st.tuples(st.just("undo"), CRASH),
        st.tuples(st.just("prune"), st.integers(1, 2), st.booleans()),
    ),
    max_size=14,
)


class History(Walked):
    """The steps with the arguments that hypothesis makes."""

    def step(self, name: str, *arguments: Any) -> None:
        if name == "write":
            self.write(*[1] * arguments[0])
        elif name == "prune":
            self.prune(arguments[0], abandoned=arguments[1])
        elif name == "die":
            self.die(arguments[0])
            self.step(*arguments[1])  # a rewind completes an epoch that was decided
        else:
            getattr(self, name)(*arguments)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_every_history(steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        install(patch)
        history = History(RewindBench(Path(folder)))
        for step in steps:
            history.step(*step)
            history.start()
            history.check()
