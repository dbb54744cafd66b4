"""The doctor and real checkpoint folders: silent about sound ones, even live ones; each damage is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from counting import Counting
from holdfast.doctor import Examination, FindingSeverity, examine
from holdfast.doctor.findings import RULES
from sparkfolders import CHANGELOG, FAST, FORMAT_2, OFTEN, PLANS, ROCKS, Folders, settings

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def folders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    found = Folders(spark, tmp_path_factory.mktemp("doctor"))
    found.feed("a", 12)
    found.feed("b", 12)
    return found


@pytest.fixture(scope="module")
def sound(spark: SparkSession, folders: Folders) -> dict[str, Path]:
    """Folders of queries that have ended: each plan, each state store, with clean-up, in doubt, restarted."""
    few = Folders(spark, folders.root / "few")  # most need only a few batches
    few.feed("a", 4)
    few.feed("b", 4)

    def plan(at: Folders, name: str, kind: str, **values: str) -> Path:
        df, mode = PLANS[kind]
        with settings(spark, values):
            return at.run(name, df(at), mode)

    made = {kind: plan(folders, kind, kind) for kind in ("stateless", "counts")}  # as Spark has it
    made["join"] = plan(folders, "join", "join", **FAST)
    made["rocks"] = plan(folders, "rocks", "counts", **FAST, **ROCKS)
    made["format2"] = plan(folders, "format2", "counts", **FAST, **FORMAT_2)
    made["retained"] = plan(folders, "retained", "counts", **FAST, **OFTEN, minBatchesToRetain="10")
    made |= {f"few-{kind}": plan(few, kind, kind, **FAST) for kind in PLANS}
    for name, values in {"hdfs": {}, "rocks": ROCKS, "changelog": CHANGELOG, "format2": FORMAT_2}.items():
        made[f"often-{name}"] = plan(few, f"often-{name}", "counts", **FAST, **values, **OFTEN)
    for kind in ("join", "windows", "dedup"):
        made[f"{kind}-format2"] = plan(few, f"{kind}-format2", kind, **FAST, **FORMAT_2)
    made["doubt"] = folders.fail("doubt", PLANS["counts"][0](folders), "update", 7)
    with settings(spark, FAST | FORMAT_2):
        made["doubt-format2"] = few.fail("doubt-format2", PLANS["counts"][0](few), "update", 2)
        made["doubt-first"] = few.fail("doubt-first", PLANS["stateless"][0](few), "append", 0)
        made["resumed"] = few.fail("resumed", PLANS["counts"][0](few), "update", 2)
        few.run("resumed", PLANS["counts"][0](few), "update")
    rates = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    made["rate"] = few.run("rate", rates)
    made["transform"] = few.root / "transform"
    counting = Counting(few.root)
    with settings(spark, FAST | ROCKS):
        for number in range(2):
            counting.add(str(number), "abc")
            counting.run(spark, made["transform"])
    folders.feed("many", 116)
    with settings(spark, FAST):
        made["many"] = folders.run("many", folders.read("many"))
    return made


def codes(found: Examination, *severities: FindingSeverity) -> list[str]:
    return [each.code for each in found.findings if each.severity in (severities or list(FindingSeverity))]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in folder.rglob("*")}


def test_nothing_is_found_in_sound_folders_and_nothing_is_written(sound: dict[str, Path]) -> None:
    for name, folder in sound.items():
        before = listing(folder)
        found = examine(folder, pause=0)
        in_doubt = ["batch-in-doubt"] * name.startswith("doubt")
        assert codes(found) == in_doubt, (name, found.summary())
        assert found.ok and found.query and found.next_batch is not None
        assert listing(folder) == before
    assert len(sound) >= 24


def test_what_is_shown_of_a_folder(sound: dict[str, Path]) -> None:
    counts = examine(sound["counts"])
    last = _numbers(sound["counts"] / "commits")[-1]
    assert last >= 11
    assert (counts.mode, counts.committed, counts.next_batch, counts.in_doubt) == ("micro-batch", last, last + 1, None)
    assert (counts.offsets.first, counts.offsets.last, counts.offsets.versions) == (0, last, ("v1",))
    (operator,) = counts.operators
    assert (operator.name, operator.provider, operator.format) == ("stateStoreSave", "hdfs", 1)
    assert (operator.partitions, operator.stores) == (2, 2)
    assert [each.version for each in operator.growth] == list(range(last - 8, last + 2))
    assert 0 < operator.needed_bytes <= operator.bytes
    (source,) = counts.sources
    assert (source.kind, source.offset, source.log_entries) == ("files", '{"logOffset":11}', 12)
    assert {each.folder for each in counts.folders} == {".", "commits", "offsets", "sources", "state"}
    join = examine(sound["join-format2"])
    assert (join.operators[0].provider, join.operators[0].format, join.operators[0].stores) == ("rocksdb", 2, 8)
    assert join.operators[0].name == "symmetricHashJoin" and len(join.sources) == 2
    doubt = examine(sound["doubt"], pause=0)
    assert (doubt.committed, doubt.in_doubt, doubt.next_batch, doubt.looks) == (6, 7, 7, 2)
    assert examine(sound["rate"]).sources[0].kind == "number"
    assert examine(sound["many"]).commits.count < 116  # Spark has deleted old entries
    json.dumps(counts.to_dict())


@pytest.mark.parametrize("kind", ["stateless", "counts", "counts format2", "join"])
def test_a_running_query_is_not_taken_for_a_damaged_one(
    kind: str, folders: Folders, spark: SparkSession, tmp_path: Path
) -> None:
    plan, *more = kind.split()
    df, mode = PLANS[plan]
    values = {**FAST, **OFTEN, "minBatchesToRetain": "10", **(FORMAT_2 if more else {})}
    with settings(spark, values):
        own = Folders(spark, tmp_path)
        own.feed("a", 40)
        own.feed("b", 40)
        query = own.start("live", df(own), mode, {"processingTime": "0 seconds"})
        try:
            _wait_for((tmp_path / "live/commits/2").exists, query)
            found = [examine(tmp_path / "live", pause=0.3) for _ in range(8)]
            assert query.isActive
        finally:
            query.stop()
    for each in found:
        assert codes(each, FindingSeverity.ERROR, FindingSeverity.WARNING) == [], each.summary()
    assert len({each.committed for each in found}) > 1  # it was running


def test_asynchronous_progress_and_continuous_processing_are_recognised(folders: Folders, spark: SparkSession) -> None:
    options = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "600"}
    folders.feed("fast", 200)
    with settings(spark, FAST):
        query = folders.start("async", folders.read("fast"), "append", {"processingTime": "0 seconds"}, **options)
        _wait_for(lambda: len(_numbers(folders.root / "async/commits")) >= 4, query)
        query.stop()
    found = examine(folders.root / "async", pause=0)
    assert (found.mode, found.ok) == ("asynchronous", True), found.summary()
    rates = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    query = folders.start("continuous", rates, "append", {"continuous": "200 milliseconds"})
    _wait_for((folders.root / "continuous/commits/3").exists, query)
    query.stop()
    found = examine(folders.root / "continuous", pause=0)
    assert (found.mode, found.ok) == ("continuous", True), found.summary()


KILLED = """
import os, sys
from pathlib import Path
from sparkfixture import session
from sparkfolders import PLANS, Folders
spark = session()
at = Folders(spark, Path(sys.argv[1]))
at.feed("a", 8)
def take(rows, batch):
    rows.write.format("noop").mode("overwrite").save()
    if batch == 5:
        spark.sparkContext._gateway.proc.kill()
        os.kill(os.getpid(), 9)
rows, mode = PLANS["counts"]
writer = rows(at).writeStream.outputMode(mode).foreachBatch(take).trigger(availableNow=True)
writer.option("checkpointLocation", sys.argv[1] + "/killed").start().awaitTermination()
"""


def test_a_query_that_was_killed_in_a_batch_is_in_doubt_and_sound(tmp_path: Path) -> None:
    paths = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = examine(tmp_path / "killed", pause=0)
    assert (found.ok, found.committed, found.in_doubt, found.next_batch) == (True, 4, 5, 5), found.summary()


def _numbers(folder: Path) -> list[int]:
    return sorted(int(each.name) for each in folder.glob("*") if each.name.isdecimal())


def _wait_for(done: Callable[[], bool], query: Any) -> None:
    until = time.monotonic() + 60
    while not done():
        assert query.isActive and time.monotonic() < until, query.exception()
        time.sleep(0.05)


# --- damage ----------------------------------------------------------------------------------------------------------


def in_folder(name: str, folder: Path) -> str:
    """Put the last batch and the last state version into a name: a query may or may not end with an empty batch."""
    last = _numbers(folder / "offsets")[-1]
    return name.format(last=last, before=last - 1, version=last + 1)


def gone(*names: str) -> Damage:
    """Remove files with their checksums, or folders."""

    def damage(folder: Path) -> None:
        for name in [in_folder(each, folder) for each in names]:
            found = sorted(folder.glob(name))
            assert found, name
            for path in found:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def written(name: str, data: bytes | Callable[[bytes], bytes], *, crc: bool = False) -> Damage:
    """Replace the content of files; their checksums stay only if asked for."""

    def damage(folder: Path) -> None:
        named = in_folder(name, folder)
        for path in folder.glob(named) if "*" in named else [folder / named]:
            path.write_bytes(data if isinstance(data, bytes) else data(path.read_bytes()))
            if not crc:
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return change


OFFSET = b'{"logOffset":11}'
DAMAGES: list[tuple[str, str, Damage, str]] = [
    ("no metadata", "stateless", gone("metadata"), "metadata-missing"),
    ("empty metadata", "stateless", written("metadata", b""), "metadata-unreadable"),
    ("metadata without an id", "stateless", written("metadata", b'{"name":"x"}'), "metadata-unreadable"),
    ("a hole in offsets", "stateless", gone("offsets/4", "offsets/5"), "offsets-hole"),
    ("the offsets before the last", "stateless", gone("offsets/10"), "offsets-previous-missing"),
    ("a hole in commits", "counts", gone("commits/4"), "commits-hole"),
    ("later offsets deleted", "counts", gone("offsets/{before}", "offsets/{last}"), "commits-ahead"),
    ("later commits deleted", "counts", gone("commits/{before}", "commits/{last}"), "offsets-ahead"),
    ("all commits deleted", "stateless", gone("commits/*"), "offsets-ahead"),
    ("empty offsets", "stateless", written("offsets/11", b""), "log-file-torn"),
    ("cut offsets", "stateless", written("offsets/11", half), "log-file-torn"),
    ("zeroed commit", "counts", written("commits/{last}", b"\0" * 40), "log-file-torn"),
    ("an old cut commit", "counts", written("commits/3", half), "old-log-file-torn"),
    ("a newer format", "stateless", written("offsets/11", swapped(b"v1\n", b"v9\n")), "format-unknown"),
    ("another offset format", "stateless", written("offsets/11", swapped(b"v1\n", b"v2\n")), "offsets-mixed"),
    ("another commit format", "counts", written("commits/{last}", swapped(b"v1\n", b"v2\n")), "commits-mixed"),
    ("an edited offset", "stateless", written("offsets/11", swapped(b"11}", b"12}"), crc=True), "checksum-stale"),
    ("an orphan checksum", "stateless", written("offsets/.12.crc", b"crc\0\0\0\2\0abcd"), "checksum-blocks-write"),
    ("an old checksum", "many", written("offsets/.0.crc", b"crc\0\0\0\2\0abcd"), "checksum-orphan"),
    (
        "a temporary file",
        "stateless",
        written("offsets/.12.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11.tmp", b"v1"),
        "temporary-left",
    ),
    ("no offset log", "counts", gone("offsets/*"), "start-refused"),
    ("an earlier offset", "stateless", written("offsets/11", swapped(OFFSET, b'{"logOffset":3}')), "offsets-backwards"),
    ("one source less", "join", written("offsets/{last}", lambda data: data.rsplit(b"\n", 1)[0]), "sources-changed"),
    (
        "logs that were cut back",
        "stateless",
        gone("offsets/[89]", "offsets/1?", "commits/[89]", "commits/1?"),
        "source-ahead",
    ),
    ("a source entry", "stateless", gone("sources/0/10"), "source-entry-missing"),
    ("the source's log", "stateless", gone("sources"), "source-entry-missing"),
    ("an empty source entry", "stateless", written("sources/0/11", b""), "source-entry-torn"),
    ("a cut compacted entry", "stateless", written("sources/0/9.compact", half), "source-entry-torn"),
    ("no compacted entry", "stateless", gone("sources/0/9.compact"), "source-compaction-broken"),
    ("no middle compaction", "many", gone("sources/0/109.compact"), "source-compaction-broken"),
    ("a delta", "counts", gone("state/0/1/{version}.delta"), "state-version-missing"),
    ("the first delta", "counts", gone("state/0/0/1.delta"), "state-version-missing"),
    ("a cut delta", "counts", written("state/0/0/5.delta", half), "state-file-torn"),
    ("an empty delta", "counts", written("state/0/0/5.delta", b""), "state-file-torn"),
    ("a flipped delta", "counts", written("state/0/0/5.delta", lambda d: d[:-1] + b"\7", crc=True), "state-file-torn"),
    ("a partition", "counts", gone("state/0/1"), "state-partition-missing"),
    ("one store of a join", "join", gone("state/0/1/left-keyToNumValues"), "state-partition-missing"),
    ("all partitions", "counts", gone("state/0/[01]"), "state-missing"),
    ("the state", "format2", gone("state"), "state-missing"),
    ("a changelog", "format2", gone("state/0/0/{version}_*.changelog"), "state-version-missing"),
    ("the last zip", "rocks", gone("state/0/0/{version}.zip"), "state-version-missing"),
    ("a cut zip", "rocks", written("state/0/0/{version}.zip", half), "state-file-torn"),
    ("the SST files", "rocks", gone("state/0/0/SSTs/*.sst"), "state-file-missing"),
    ("a cut SST file", "rocks", written("state/0/0/SSTs/*.sst", half), "state-file-torn"),
    ("a cut schema", "counts", written("state/0/0/_metadata/schema", b""), "state-file-torn"),
    (
        "logs cut back, state left",
        "counts",
        gone("offsets/[89]", "offsets/1?", "commits/[89]", "commits/1?"),
        "state-ahead",
    ),
    ("two providers", "counts", written("state/0/0/{version}.zip", b"PK"), "state-providers-mixed"),
    ("two state formats", "format2", written("state/0/0/{version}.changelog", b"x"), "state-formats-mixed"),
    (
        "another provider",
        "counts",
        written("offsets/{last}", swapped(b"HDFSBackedStateStoreProvider", b"RocksDBStateStoreProvider")),
        "state-provider-differs",
    ),
    ("few batches", "stateless", gone("offsets/[0-6]", "commits/[0-6]"), "few-batches"),
]


@pytest.fixture
def damaged(sound: dict[str, Path], tmp_path: Path) -> Callable[[str, Damage], Path]:
    def copy(base: str, damage: Damage) -> Path:
        target = tmp_path / "copy"
        shutil.copytree(sound[base], target)
        damage(target)
        return target

    return copy


@pytest.mark.parametrize(("base", "damage", "code"), [each[1:] for each in DAMAGES], ids=[each[0] for each in DAMAGES])
def test_each_damage_is_named(base: str, damage: Damage, code: str, damaged: Callable[[str, Damage], Path]) -> None:
    found = examine(damaged(base, damage), pause=0)
    assert code in codes(found), found.summary()
    serious = codes(found, FindingSeverity.ERROR, FindingSeverity.WARNING)
    assert found.ok == (not serious)


def test_the_damages_are_many_and_of_all_kinds() -> None:
    named = {code for *_, code in DAMAGES}
    assert len(DAMAGES) >= 30
    elsewhere = {"nothing-committed", "batch-in-doubt", "asynchronous", "continuous", "real-time", "of-holdfast"}
    elsewhere |= {"source-shared"}
    assert set(RULES) - named == elsewhere


STOPS = {  # errors that make the next start fail; the others lose or repeat rows without a message
    "no metadata", "empty metadata", "the offsets before the last", "later offsets deleted", "empty offsets",
    "cut offsets", "a newer format", "an orphan checksum", "no offset log", "an empty source entry",
    "no compacted entry",
    "a delta", "a cut delta", "all partitions", "the state", "the last zip", "the SST files", "another provider",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STOPS))
def test_spark_fails_where_the_doctor_says_so(
    name: str, damaged: Callable[[str, Damage], Path], folders: Folders, spark: SparkSession
) -> None:
    """The findings are true: with the same damage, Spark itself does not start or fails in the first batch."""
    _, base, damage, _ = next(each for each in DAMAGES if each[0] == name)
    folder = damaged(base, damage)
    df, mode = PLANS["counts" if (folder / "state").exists() or base == "format2" else "stateless"]
    values = {"format2": FORMAT_2, "rocks": ROCKS}.get(base, {})
    folders.feed("a", 1, first=100 + len(list((folders.root / "input/a").iterdir())))
    with settings(spark, values), pytest.raises(Exception):  # noqa: B017, PT011 - any error of Spark's
        query = df(folders).writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(folder))
        query.trigger(availableNow=True).start().awaitTermination()
