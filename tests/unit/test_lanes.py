"""The lanes of the tests: one without Java, where nothing can start it, and one of long tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lanes import LANES, is_long, left_out, stale
from s3fixture import unavailable

START = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"


@pytest.mark.parametrize("home", [True, False], ids=["from JAVA_HOME", "from the PATH"])
def test_a_test_that_is_not_marked_cannot_start_java(home: bool) -> None:
    environment = dict(os.environ)
    if not home:
        del environment["JAVA_HOME"]
    done = subprocess.run(
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "this test is not marked jvm" in done.stderr


def test_marks_come_by_folder_and_by_import(request: pytest.FixtureRequest) -> None:
    """Of all tests of this run."""
    tests = Path(__file__).parents[1]
    for item in request.session.items:
        folder = item.path.relative_to(tests).parts[0]
        marks = {mark.name for mark in item.iter_markers()}
        text = item.path.read_text()
        imports = re.search("^from sparkfixture import session", text, re.MULTILINE)
        may = (
            folder in ("spark", "faults", "acceptance")
            or marks & {"s3", "kafka"}
            or "pytestmark = pytest.mark.jvm" in text
        )
        assert ("jvm" in marks) >= (folder == "spark" or imports is not None), item.nodeid
        assert ("jvm" in marks) <= bool(may), item.nodeid
        assert ("acceptance" in marks) == (folder == "acceptance"), item.nodeid


def test_an_entry_of_the_long_lane_that_matches_no_test_is_found() -> None:
    nodes = [f"tests/acceptance/test_signals.py::{each}" for each in ("test_a_second_signal_ends_it", "test_other")]
    assert [is_long(node) for node in nodes] == [True, False]
    assert stale(nodes) == []
    assert stale(nodes[1:]) == ["acceptance/test_signals: a_second_signal"]


def test_the_lanes_that_make_test_leaves_out_are_named_with_their_commands() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    lanes = dict(re.findall(r"^([a-z-]*):? ?LANE = (.*)$", makefile, re.MULTILINE))
    assert set(lanes) == {"", *(how.removeprefix("make ") for _, how in LANES.values())}
    line = str(left_out(lanes[""]))
    for what, how in LANES.values():
        assert f"{what} ({how})" in line
    assert left_out(lanes["test-store"]) == "left out: long tests (make test-long)"
    assert left_out(lanes["test-kafka"]) is None


def test_a_test_of_a_store_that_cannot_run_is_skipped_and_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOLDFAST_REQUIRE_S3", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no server"):
        unavailable("no server")
    monkeypatch.setenv("HOLDFAST_REQUIRE_S3", "1")
    with pytest.raises(pytest.fail.Exception, match="no server"):
        unavailable("no server")
