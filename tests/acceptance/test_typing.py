"""A user's program passes a strict type checker, and its mistakes do not."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

PROGRAM = """
import holdfast as hf
from holdfast.eventlog import EventLog, Region

log: hf.eventlog.EventLog = EventLog.open("orders.log")


def handle(
    batch: hf.eventlog.Batch, log: hf.eventlog.EventLog, witness: hf.eventlog.AtLeastOnce | None
) -> hf.eventlog.Action:
    total: int = sum(event.sequence for event in batch)
    return hf.eventlog.Action.STOP if total else hf.eventlog.Action.CONTINUE


worker = hf.eventlog.CursorWorker(Region(), handle, log=log, repository=hf.open_repository("memory:"), cursor="c")
try:
    worker.start().join()
except hf.errors.WorkerFailed as failed:
    print(failed.position, failed.restarts)
stage = hf.stages.CheckpointedStage({"n": 1}, hf.stages.MemoryBlocks(8), hf.stages.MsgpackCodec(dict[str, int]))
number: int = stage.state["n"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all: to check the package itself takes longest."""
    return tmp_path_factory.mktemp("typing")


def checked(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


STREAMS = """
import holdfast as hf
from pyspark.sql import DataFrame

pipeline = hf.Pipeline("shop", root="checkpoints")
pipeline.stream(lambda spark: spark.readStream.load(), name="a", sinks=hf.FileSink("out", format="json", layout="flat"))
pipeline.stream(lambda spark: spark.readStream.load(), name="b", sinks=[hf.FileSink("b")], output_mode="update")


def started(df: DataFrame) -> hf.PipelineHandle:
    return hf.exactly_once(df, name="c", sinks=[hf.FileSink("c")], root="checkpoints", quarantine_after=3).start()


status: hf.PipelineStatus = pipeline.run(accept=["sinks", "gaps"])
"""
TYPOS = {
    'format="json"': 'format="jason"',
    'layout="flat"': 'layout="flatt"',
    'output_mode="update"': 'output_mode="upsert"',
    '"gaps"': '"gap"',
    "quarantine_after=3": "quarantine_afer=3",
}


def test_a_type_checker_sees_a_typo_in_what_users_choose_from(folder: Path) -> None:
    good = checked(STREAMS, folder)
    assert good.returncode == 0, good.stdout
    text = STREAMS
    for right, wrong in TYPOS.items():
        assert right in text
        text = text.replace(right, wrong)
    found = checked(text, folder)
    assert found.stdout.count("error:") == len(TYPOS), found.stdout


@pytest.mark.parametrize("name", ["FileSink", "SqliteSink", "PostgresSink", "LogSink", "Pipeline"])
def test_help_of_a_class_explains_each_of_its_options(name: str) -> None:
    made = getattr(holdfast, name)
    text = inspect.getdoc(made)
    options = list(inspect.signature(made).parameters)
    assert [each for each in options if not re.search(rf"`{each}\b[^`]*`", text)] == []
    assert "above" not in text


def test_exactly_once_names_its_own_options() -> None:
    kinds = {each.kind for each in inspect.signature(holdfast.exactly_once).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    of_stream = inspect.signature(holdfast.Pipeline.stream).parameters.keys() - {"self", "build", "reads"}
    assert of_stream <= inspect.signature(holdfast.exactly_once).parameters.keys()


def test_a_sound_program_passes_and_wrong_ones_do_not(folder: Path) -> None:
    good = checked(PROGRAM, folder)
    assert good.returncode == 0, good.stdout
    wrong = checked(
        PROGRAM.replace('number: int = stage.state["n"]', 'number: str = stage.state["n"]').replace(
            "log=log, repo", 'log="orders.log", repo'
        ),
        folder,
    )
    assert wrong.stdout.count("error:") == 2, wrong.stdout
    misspelt = checked("import holdfast as hf\nfrom holdfast import EventLogs\nhf.CursorWorkr\n", folder)
    assert misspelt.stdout.count("error:") == 2, misspelt.stdout
