"""Rewinds of PostgreSQL tables that are killed at each of their points, with a real server."""

from pathlib import Path

import pytest

from handstaged import HandStaged
from holdfast.sinks.taking_back import POINTS
from pgfixture import server
from pgstaged import PostgresPrepared, PostgresStaged
from takebackkills import CHECKS, seen, taken_back

METHODS: dict[str, type[HandStaged]] = {"prepared": PostgresPrepared, "staged": PostgresStaged}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("point", [point for point in POINTS if point != "moving"])
def test_killed_at_each_point(method: str, check: str, point: str, tmp_path: Path) -> None:
    server().start_again()
    CHECKS[check](METHODS[method](), tmp_path, point)


def test_a_server_that_dies_within_a_take_back(tmp_path: Path) -> None:
    """Its transaction is gone, and so is nothing else."""
    server().start_again()
    contract = PostgresPrepared()
    contract._filled(None, tmp_path).close()

    def die(point: str) -> None:
        if point == "stamped":
            server().kill()

    with pytest.raises(Exception, match="could not be taken back"):
        contract._open(None, tmp_path, reach=die).take_back(contract.owner, (1, 2), 2)
    server().start()
    assert seen(contract, tmp_path) == [1, 2, 3, 4]
    taken_back(contract, tmp_path)
    assert seen(contract, tmp_path) == [1, 2]
