"""The generated histories of `bench/recovering.py`: a stream without Spark recovers from each of them."""

from pathlib import Path

import pytest

from bench.longlived import History
from bench.recovering import KINDS, without_spark


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_stream_recovers_from_a_generated_history(kind: type[History], tmp_path: Path) -> None:
    with without_spark():
        assert kind(tmp_path, 12).recover() > 0
