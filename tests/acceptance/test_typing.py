"""A user's program passes a strict type checker, and its mistakes do not."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import holdfast as hf
from holdfast import EventLog, Region

log: hf.EventLog = EventLog.open("orders.log")


def handle(batch: hf.Batch, log: hf.EventLog, witness: hf.AtLeastOnce | None) -> hf.Action:
    total: int = sum(event.sequence for event in batch)
    return hf.Action.STOP if total else hf.Action.CONTINUE


worker = hf.CursorWorker(Region(), handle, log=log, repository=hf.open_repository("memory:"), cursor="c")
try:
    worker.start().join()
except hf.errors.WorkerFailed as failed:
    print(failed.position, failed.restarts)
stage = hf.CheckpointedStage({"n": 1}, hf.MemoryBlocks(8), hf.MsgpackCodec(dict[str, int]))
number: int = stage.state["n"]
"""


def checked(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sound_program_passes_and_wrong_ones_do_not(tmp_path: Path) -> None:
    good = checked(PROGRAM, tmp_path)
    assert good.returncode == 0, good.stdout
    wrong = checked(
        PROGRAM.replace('number: int = stage.state["n"]', 'number: str = stage.state["n"]').replace(
            "log=log, repo", 'log="orders.log", repo'
        ),
        tmp_path,
    )
    assert wrong.stdout.count("error:") == 2, wrong.stdout
    misspelt = checked("import holdfast as hf\nfrom holdfast import EventLogs\nhf.CursorWorkr\n", tmp_path)
    assert misspelt.stdout.count("error:") == 2, misspelt.stdout
