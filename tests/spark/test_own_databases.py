"""Pipelines into the sinks of the page about one's own database: servers that die, answers that are lost, backups."""

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.errors import HoldfastError, NotSupported, SinkBehind
from holdfast.testing import CrashAt
from markersink import SqliteMarkerSink
from ownsinks import Api, redis_server, sink_of_page
from rig import FilesTarget, MarkerTarget, Rig, Target


@pytest.mark.parametrize("lost", ["before", "after"])
def test_an_api_whose_answer_is_lost_stores_each_epoch_once(lost: str, spark: SparkSession, tmp_path: Path) -> None:
    api = Api()
    try:
        target = Target(lambda: sink_of_page("ApiSink")(api.url))  # type: ignore[call-arg]
        rig = Rig(spark, tmp_path, [target, FilesTarget(tmp_path / "out")])
        rig.add(1, 2)
        rig.run()
        api.fail_next = lost
        rig.add(3)
        rig.run()
        assert sorted(row["n"] for row in api.rows()) == [1, 2, 3]
        assert (len(api.batches), api.requests) == (2, 3)
    finally:
        api.close()


def test_a_crash_after_the_answer_repeats_the_request_with_its_key(spark: SparkSession, tmp_path: Path) -> None:
    api, kept = Api(), tmp_path / "kept"
    try:
        target = Target(lambda: sink_of_page("ApiSink")(api.url, staging=kept))  # type: ignore[call-arg]
        rig = Rig(spark, tmp_path, [target])
        rig.add(1)
        rig.run()
        rig.add(2)
        shutil.copy(kept / "last-key", tmp_path / "last-key")
        rig.crash(CrashAt("committed"))
        shutil.copy(tmp_path / "last-key", kept / "last-key")  # as if it had died before the file was written
        rig.run()
        assert (sorted(row["n"] for row in api.rows()), api.requests) == ([1, 2], 3)
    finally:
        api.close()


def test_a_redis_server_that_is_killed_has_each_document_once(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as server:
        target = Target(lambda: sink_of_page("RedisSink")(server.client(), "orders"))  # type: ignore[call-arg,arg-type]
        rig = Rig(spark, tmp_path, [target])
        for number in range(3):
            rig.add_more(2)
            rig.crash(CrashAt("decided" if number % 2 else "committed"))
            server.kill()
            with pytest.raises(HoldfastError, match="Connection refused"):
                rig.run()
            server.start()
            rig.run()
        with server.client() as client:
            documents = [json.loads(each)["n"] for each in client.lrange("orders", 0, -1)]
        assert documents == rig.rows


def test_a_database_from_a_backup_gets_its_last_epoch_again(spark: SparkSession, tmp_path: Path) -> None:
    target = MarkerTarget(tmp_path / "out.db")
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    rig.run()
    shutil.copy(target.path, tmp_path / "backup.db")
    rig.add(2)
    rig.run()
    shutil.copy(tmp_path / "backup.db", target.path)
    rig.run()
    assert target.visible() == [1, 2]
    rig.add(3)
    rig.run()
    shutil.copy(tmp_path / "backup.db", target.path)
    with pytest.raises(SinkBehind):
        rig.run()


def test_a_rewind_leaves_its_rows_and_the_new_timeline_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    files, target = FilesTarget(tmp_path / "out"), MarkerTarget(tmp_path / "out.db")
    rig = Rig(spark, tmp_path, [files, target])
    rig.add(1)
    rig.pipeline().run(spark, available_now=True)
    rig.add(2)
    rig.run()
    pipeline = rig.pipeline()
    hf.apply_rewind(pipeline, hf.plan_rewind(pipeline, "latest", leave=["out"]))
    assert (files.visible(spark), target.visible()) == ([1], [1, 2])
    rig.run()
    assert (files.visible(spark), target.visible()) == ([1, 2], [1, 2, 2])


def test_in_complete_mode_an_epoch_without_rows_empties_the_table(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[int, bool, list[str]]] = []

    class Replacing(SqliteMarkerSink):
        def apply(self, rows: hf.sinks.StagedRows, key: str, before: str | None) -> None:
            seen.append((len(rows), rows.replaces, rows.table().schema.names))
            super().apply(rows, key, before)

    target = Target(lambda: Replacing(tmp_path / "out.db"))
    rig = Rig(
        spark,
        tmp_path,
        [target],
        lambda df: df.groupBy("text").agg(f.sum("n").alias("n")).where("n < 3"),
        output_mode="complete",
    )
    rig.add(2)
    rig.run()
    assert SqliteMarkerSink(tmp_path / "out.db").seen() == [(2, "row 2")]
    (tmp_path / "in" / "again.json").write_text(json.dumps({"n": 2, "text": "row 2"}))
    rig.run()
    assert SqliteMarkerSink(tmp_path / "out.db").seen() == []
    assert seen == [(1, True, ["text", "n"]), (0, True, ["text", "n"])]


def test_update_mode_must_be_listed(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [MarkerTarget(tmp_path / "out.db")], output_mode="update")
    rig.add(1)
    with pytest.raises(NotSupported, match="output_modes"):
        rig.run()
