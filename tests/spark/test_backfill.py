"""A sink that is added to a stream is filled with all earlier rows, once, whatever dies on the way."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from holdfast.cli.verbs.backfill import FilledSink
from holdfast.epoch import Reach, unwatched
from holdfast.errors import (
    BackfillIncomplete,
    BadValue,
    HoldfastError,
    NotSupported,
    SinksChanged,
)
from holdfast.policy import CheckpointPolicy
from holdfast.repository import History, LocalRepository
from holdfast.rewind.apply import apply_rewind
from holdfast.rewind.planning import plan_rewind
from holdfast.spark.backfilling import Backfilled
from holdfast.testing import Crashed
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import RunState
from pgfixture import server
from rig import FilesTarget, LogTarget, PostgresTarget, Rig, SqliteTarget, Target


def postgres(method: str) -> Target:
    pg = server()
    return PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True, method=method)


NEW: dict[str, Callable[[Path], Target]] = {
    "files": lambda folder: FilesTarget(folder / "new"),
    "log": lambda folder: LogTarget(folder / "new", entity="text"),
    "sqlite": lambda folder: SqliteTarget(folder / "new.db"),
    "sqlite-upsert": lambda folder: SqliteTarget(folder / "new.db", key="n"),
    "postgres-prepared": lambda _: postgres("prepared"),
    "postgres-staged": lambda _: postgres("staged"),
}
POINTS = ["backfill opened", "staging", "backfill durable", "backfill decided", "committing", "backfill committed"]


def dying(at: str) -> Reach:
    def reach(point: str) -> None:
        if point == at:
            raise Crashed(point)

    return reach


def fill(rig: Rig, source: str | None = None, reach: Reach = unwatched) -> Backfilled:
    pipeline = rig.pipeline()
    new = rig.targets[-1].make().name
    return pipeline.backfill(stream="rows", sink=new, source=source, spark=rig.spark, reach=reach)


def three_epochs(rig: Rig) -> Rig:
    for numbers in ((1, 2), (), (3, 4, 5)):
        rig.add(*numbers)
    rig.run()
    return rig


@pytest.mark.parametrize("kind", NEW)
def test_a_new_sink_gets_every_row_once_whatever_dies(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """It dies at every point in turn, each time with an empty target."""
    rig = three_epochs(Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")]))
    rig.targets.append(NEW[kind](tmp_path))
    reached: list[str] = []
    for point in POINTS:
        try:
            fill(rig, reach=dying(point))
        except Crashed:
            reached.append(point)
        except HoldfastError as error:
            assert isinstance(error.__cause__, Crashed), error
            reached.append(point)
        visible = rig.targets[-1].visible(spark)
        if POINTS.index(point) < POINTS.index("backfill decided"):
            assert visible == []
        elif point != "committing":  # the parts of a prepared transaction appear one after another
            assert visible in ([], [1, 2, 3, 4, 5])
    assert {"backfill opened", "backfill durable", "backfill decided", "backfill committed"} <= set(reached)
    found = fill(rig)
    assert (found.epoch, found.rows, found.already) == (3, 5, True)
    assert rig.visible() == [[1, 2, 3, 4, 5]] * 2
    rig.add(6)
    rig.run()  # nothing has to be accepted
    assert rig.visible() == [[1, 2, 3, 4, 5, 6]] * 2
    with pytest.raises(NotSupported, match="writes to it already"):
        fill(rig)
    history = History(rig.pipeline().repository).entries()
    assert [each.what for each in history].count("backfill") == 1
    assert "accept" not in {each.what for each in history}


def test_the_next_start_completes_a_decided_backfill(spark: SparkSession, tmp_path: Path) -> None:
    rig = three_epochs(Rig(spark, tmp_path, [FilesTarget(tmp_path / "out", partition_by="text")]))
    rig.targets.append(SqliteTarget(tmp_path / "new.db"))
    with pytest.raises(Crashed):
        fill(rig, reach=dying("backfill decided"))
    assert rig.targets[-1].visible() == []
    rig.add(6)
    status = rig.run()
    assert status.streams["rows"].epoch == 4
    assert rig.visible() == [[1, 2, 3, 4, 5, 6]] * 2


APP = """
import os, signal
from pathlib import Path
import holdfast as hf

folder = Path(__file__).parent
pipeline = hf.Pipeline("torment", folder / "root")

@pipeline.stream(name="rows", sinks=[hf.FileSink(folder / "out"), hf.SqliteSink(folder / "new.db", table="rows")])
def rows(spark):
    source = spark.readStream.schema("n long, text string").option("maxFilesPerTrigger", 1)
    return source.option("latestFirst", "false").json(str(folder / "in"))

def reach(point):
    if point == "backfill decided":
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    pipeline.backfill(stream="rows", sink="sqlite.rows", reach=reach)
"""


def ran(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)


def test_after_a_kill_the_command_completes_what_was_decided(spark: SparkSession, tmp_path: Path) -> None:
    rig = three_epochs(Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")]))
    rig.targets.append(SqliteTarget(tmp_path / "new.db"))
    app = tmp_path / "app.py"
    app.write_text(APP)
    killed = ran(app)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rig.targets[-1].visible() == []
    words = ("-m", "holdfast", "backfill", app, "--stream", "rows", "--sink", "sqlite.rows", "--json")
    found = ran(*words)
    while found.returncode == 2 and "Locked" in found.stdout:  # the JVM of the dead process holds the lock for a moment
        found = ran(*words)
    assert found.returncode == 0, found.stderr
    result = msgspec.json.decode(found.stdout)["result"]
    assert msgspec.convert(result, FilledSink, strict=True) == FilledSink(
        stream="rows", sink="sqlite.rows", source="files.out", epoch=3, rows=5, already=False
    )
    assert rig.visible() == [[1, 2, 3, 4, 5]] * 2


def test_an_epoch_that_was_in_doubt_is_completed_first(spark: SparkSession, tmp_path: Path) -> None:
    rig = three_epochs(Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")]))
    rig.add(6)
    rig.crash(dying("decided"))
    rig.targets.append(LogTarget(tmp_path / "new"))
    assert fill(rig).rows == 6
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4, 5, 6]] * 2


def test_an_interrupted_rewind_is_finished_first(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for number in (1, 2, 3):
        rig.add(number)
        rig.pipeline().run(spark, available_now=True, checkpoint_every=CheckpointPolicy(epochs=1))
    pipeline = rig.pipeline()
    with pytest.raises(Crashed):
        apply_rewind(pipeline, plan_rewind(pipeline, "before:rows:3"), reach=dying("rewind decided"))
    rig.targets.append(SqliteTarget(tmp_path / "new.db"))
    assert fill(rig).rows == 2
    assert rig.visible() == [[1, 2]] * 2
    rig.run()
    assert rig.visible() == [[1, 2, 3]] * 2


def test_a_stream_that_went_on_without_the_sink_needs_another_backfill(spark: SparkSession, tmp_path: Path) -> None:
    rig = three_epochs(Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")]))
    rig.targets.append(SqliteTarget(tmp_path / "new.db"))
    fill(rig)
    new = rig.targets.pop()
    rig.add(6)
    rig.run()
    rig.targets.append(new)
    with pytest.raises(NotSupported, match="only an empty sink can be filled"):
        fill(rig)
    with pytest.raises(SinksChanged):
        rig.run()
    rig.targets[-1] = SqliteTarget(tmp_path / "newer.db", table="newer")
    assert fill(rig).rows == 6
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4, 5, 6]] * 2


def test_a_source_that_lacks_rows_is_refused_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    rig.add(1)
    rig.run()
    rig.targets.append(FilesTarget(tmp_path / "late"))  # it starts empty
    rig.add(2)
    rig.run(accept=("sinks",))
    rig.targets.append(FilesTarget(tmp_path / "new"))
    with pytest.raises(BackfillIncomplete, match="holds 1 rows, but stream 'rows' has written 2"):
        fill(rig)
    assert rig.targets[-1].visible(spark) == []
    assert rig.targets[-1].staged() == 0
    assert status_of(LocalRepository(rig.repository)).state is RunState.STOPPED, "it was neither a run nor killed"


def test_what_cannot_be_filled_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    rig.targets.append(SqliteTarget(tmp_path / "new.db", table="new"))
    with pytest.raises(NotSupported, match="has no epoch yet"):
        fill(rig)
    new = rig.targets.pop()
    three_epochs(rig)
    rig.targets.append(new)
    pipeline = rig.pipeline()
    bad: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (BadValue, "the pipeline has rows", {"stream": "other", "sink": "x"}),
        (BadValue, "has the sinks", {"stream": "rows", "sink": "x"}),
        (NotSupported, "only files and event logs can", {"stream": "rows", "sink": "sqlite.new"}),
    ]
    for error, text, arguments in bad:
        with pytest.raises(error, match=text):
            pipeline.backfill(spark=spark, **arguments)
    assert new.visible(spark) == []


def test_a_table_that_holds_other_rows_is_not_filled(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of another stream in the same folder."""
    rig = three_epochs(Rig(spark, tmp_path / "a", [FilesTarget(tmp_path / "a-out")]))
    other = three_epochs(Rig(spark, tmp_path / "b", [FilesTarget(tmp_path / "b-out")]))
    rig.targets.append(other.targets[0])
    with pytest.raises(HoldfastError, match=r"belongs to|owner|another"):
        fill(rig)
    assert other.visible() == [[1, 2, 3, 4, 5]]
