"""The live Spark folder of a stream is gone: the error of the start names a command, and that command is enough."""

from __future__ import annotations

import json
import os
import pty
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from counting import Counting
from holdfast import Pipeline
from holdfast.errors import SparkFileDamaged, SparkLogMismatch, StreamFailed

PROGRAM = """
from pathlib import Path

import holdfast as hf
from counting import Counting

here = Path(__file__).parent
pipeline = hf.Pipeline("counts", root=here / "root")
files = hf.FileSink(here / "out", format="json", changelog=True, name="files")
table = hf.SqliteSink(here / "out.db", "counts", key=["k"], undo=True, name="table")
pipeline.stream(Counting(here).build, name="rows", sinks=[files, table], output_mode="update")
"""
COMMAND = re.compile(r"holdfast rewind app\.py:pipeline [^;]*")


def typed(command: str, folder: Path) -> tuple[int, str]:
    """Type a command into a terminal, and confirm; return its exit code and what it printed."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "holdfast", *shlex.split(command)[1:]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAVA_HOME": "/no/java"}
    files: Any = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(words, cwd=folder, env=environment, **files)
    os.close(theirs)
    os.write(ours, b"y\n")
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    return process.wait(60), shown.decode()


def visible(folder: Path) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return the versions in the files, and the rows of the table."""
    lines = [line for path in (folder / "out").rglob("part-*.json") for line in path.read_text().splitlines()]
    connection = sqlite3.connect(folder / "out.db")
    rows = dict(connection.execute("SELECT k, n FROM counts"))
    connection.close()
    return sorted((row["k"], row["n"]) for row in map(json.loads, lines)), rows


def counted(versions: str) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return what must be visible after these versions, such as `a1 a2 b1`."""
    found = [(each[0], int(each[1])) for each in versions.split()]
    return found, dict(found)


@pytest.mark.parametrize("lost", ["rows/spark", "rows/spark/state"])
def test_the_command_of_the_error_brings_transform_with_state_back(
    spark: SparkSession, tmp_path: Path, lost: str
) -> None:
    """Two epochs were decided after the newest checkpoint. Nothing is lost and nothing is doubled."""
    (tmp_path / "app.py").write_text(PROGRAM)
    pipeline: Pipeline = runpy.run_path(str(tmp_path / "app.py"))["pipeline"]
    counting = Counting(tmp_path)
    for number, (keys, every) in enumerate([("aab", "1h"), ("abc", "1h"), ("cc", None), ("ad", None)]):
        counting.add(str(number), keys)
        pipeline.run(spark, available_now=True, checkpoint_every=every)
    assert visible(tmp_path) == counted("a2 a3 a4 b1 b2 c1 c3 d1")
    shutil.rmtree(tmp_path / "root/counts/timelines/1/streams" / lost)
    counting.add("4", "d")
    with pytest.raises((SparkLogMismatch, SparkFileDamaged, StreamFailed)) as caught:
        pipeline.run(spark, available_now=True, checkpoint_every=None)
    assert visible(tmp_path) == counted("a2 a3 a4 b1 b2 c1 c3 d1")
    found = COMMAND.search(caught.value.do)
    assert found is not None, caught.value.do
    code, shown = typed(found[0], tmp_path)
    assert code == 0, shown
    assert visible(tmp_path) == counted("a2 a3 b1 b2 c1")
    pipeline.run(spark, available_now=True)
    assert visible(tmp_path) == counted("a2 a3 a4 b1 b2 c1 c3 d1 d2")
    counting.add("5", "dd")
    pipeline.run(spark, available_now=True)
    assert visible(tmp_path) == counted("a2 a3 a4 b1 b2 c1 c3 d1 d2 d4")
