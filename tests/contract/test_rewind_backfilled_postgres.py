"""Going back past a backfill of a PostgreSQL table: as in `tests/unit/test_rewind_backfilled.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfillbench import NEW, BackfillBench, install_backfill
from pgfixture import server


def test_a_base_before_a_backfill_is_refused_and_later_ones_keep_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backfill(monkeypatch)
    pg = server()
    bench = BackfillBench(tmp_path, "postgres", pg.dsn(pg.fresh_database()))
    bench.add([1], [2])
    bench.take()
    bench.add([3], [4])
    bench.take()
    bench.names.append(NEW)
    assert bench.backfill().rows == 4
    assert "filled by a backfill up to epoch 4" in bench.plan(1).problems[0]
    bench.add([5])
    assert "filled by a backfill up to epoch 4" in bench.plan(1).problems[0]
    bench.rewind(2)
    assert bench.seen() == [1, 2, 3, 4]
    bench.run()
    assert bench.seen() == [1, 2, 3, 4, 5]
