"""The PostgreSQL sink against a real server: what is prepared and what is visible after each phase, both ways."""

import datetime as dt
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from holdfast.errors import BadValue, HoldfastError, NotSupported, SinkFailed, SinkForeign, StagedGone
from holdfast.sinks.base import Sink, SinkContext, SinkPosition, StreamIdentity
from holdfast.sinks.postgres import copying
from holdfast.sinks.postgres.copying import PART_COLUMN, into_prepared, into_stage
from holdfast.sinks.postgres.names import Mark
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.testing.sinks import SinkContract, VisibleRows
from pgfixture import server
from pgsupport import METHODS, OWNER, SCHEMA, Crash, Table, key
from support import eventually


@pytest.fixture
def table(spark: SparkSession) -> Table:
    return Table(server(), spark)


# --- the contract of all sinks ---------------------------------------------------------------------------------------


class _Contract(SinkContract):
    options: dict[str, Any] = {"method": "staged", "epoch_column": "epoch"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.dsn = server().dsn(server().fresh_database())

    def make(self, folder: Path) -> Sink:
        return PostgresSink(self.dsn, "rows", create=True, **self.options)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        with psycopg.connect(self.dsn) as conn:
            return conn.execute("SELECT n, text FROM rows").fetchall()


class TestPrepared(_Contract):
    options = {"method": "prepared", "epoch_column": "epoch"}  # noqa: RUF012


class TestStaged(_Contract):
    pass


class TestUpsert(_Contract):
    options = {"key": "n"}  # noqa: RUF012


class TestReplace(_Contract):
    output_mode = "complete"
    options = {}  # noqa: RUF012


# --- the phases ------------------------------------------------------------------------------------------------------


def test_prepared_transactions_phase_by_phase(table: Table) -> None:
    sink = table.opened(method="prepared", epoch_column="e")
    staged = sink.prepare(table.rows(1, 2, 3), key(1))
    gids = table.prepared()
    assert staged.handle == {"method": "prepared", "gids": gids, "rows": 3}
    assert (staged.rows, staged.trace, len(gids)) == (3, True, 2)
    assert all(len(gid) < 200 for gid in gids)
    assert (table.stages(), table.visible(), table.ledger(), sink.inspect(OWNER, 1).epoch) == ([], [], [], 0)
    sink.commit(key(1), staged.handle)
    assert table.prepared() == []
    assert table.visible("SELECT n, text, e FROM orders ORDER BY n") == [(n, f"row {n}", 1) for n in (1, 2, 3)]
    assert [row for row in table.ledger() if row[2]] == [(1, 1, True, 3)]
    assert sum(row[3] for row in table.ledger() if not row[2]) == 3
    sink.commit(key(1), staged.handle)
    assert (table.visible(), sink.inspect(OWNER, 1).epoch) == ([1, 2, 3], 1)


def test_a_staging_table_phase_by_phase(table: Table) -> None:
    sink = table.opened(method="staged", epoch_column="e")
    staged = sink.prepare(table.rows(1, 2, 3), key(1, attempt=4, lease=7))
    (name,) = table.stages()
    assert name.endswith("_1_1_4_7")
    assert len(name) <= 63
    assert staged.handle["table"] == name
    assert (staged.handle["method"], staged.handle["rows"], len(staged.handle["parts"])) == ("staged", 3, 2)
    assert table.read("count(*)", name) == [(3,)]
    assert table.read("relpersistence::text", "pg_class", f"WHERE relname = '{name}'") == [("p",)]
    assert (table.prepared(), table.visible(), table.ledger(), sink.inspect(OWNER, 1).epoch) == ([], [], [], 0)
    sink.commit(key(1, attempt=4, lease=7), staged.handle)
    assert table.visible("SELECT n, text, e FROM orders ORDER BY n") == [(n, f"row {n}", 1) for n in (1, 2, 3)]
    assert (table.stages(), table.ledger()) == ([name], [(1, 1, True, 3)])
    sink.commit(key(1, attempt=4, lease=7), staged.handle)
    assert (table.visible(), sink.inspect(OWNER, 1).epoch) == ([1, 2, 3], 1)
    table.epoch(sink, 2, table.rows(4))
    assert (len(table.stages()), name in table.stages(), table.visible()) == (1, False, [1, 2, 3, 4])


@pytest.mark.parametrize("method", METHODS)
def test_the_ledger_keeps_two_epochs_and_leftovers_go(table: Table, method: str) -> None:
    sink = table.opened(method=method)
    for epoch in range(1, 6):
        lost = sink.prepare(table.rows(90), key(epoch, attempt=1))  # a crash: nobody aborts it
        kept = sink.prepare(table.rows(epoch), key(epoch, attempt=2, lease=2))
        before = table.left()
        # The committing driver has another lease than the one that prepared.
        sink.commit(key(epoch, attempt=2, lease=3), kept.handle)
        assert table.left() < before
        assert lost.handle.get("table") not in table.stages()
        assert not set(lost.handle.get("gids", ())) & set(table.prepared())
    assert table.visible() == [1, 2, 3, 4, 5]
    assert {row[1] for row in table.ledger()} == {4, 5}
    assert table.left() == (1 if method == "staged" else 0)


@pytest.mark.parametrize("method", METHODS)
def test_abort_by_lease_and_by_any_lease(table: Table, method: str) -> None:
    sink = table.opened(method=method)
    keys = [key(2, attempt=1, lease=1), key(2, attempt=1, lease=2), key(2, attempt=11, lease=1), key(21, attempt=1)]
    handles = [sink.prepare(table.rows(n), each).handle for n, each in enumerate(keys)]
    other = table.opened(table.made(create=True, method=method, name="other"))
    other.prepare(table.rows(7), keys[0])
    assert table.left() == 5
    for _ in range(2):
        sink.abort(keys[0])
        assert table.left() == 4
    for _ in range(2):
        sink.abort(key(2, attempt=1, lease=None))
        assert table.left() == 3
    sink.abort(key(9, lease=None))
    assert (table.left(), table.visible()) == (3, [])
    for each, handle in zip(keys[:2], handles[:2], strict=True):
        with pytest.raises(StagedGone):
            sink.commit(each, handle)
    assert (table.visible(), table.ledger()) == ([], [])
    sink.commit(keys[2], handles[2])
    assert table.visible() == [2]
    sink.commit(keys[3], handles[3])
    assert table.visible() == [2, 3]


def test_a_commit_that_dies_between_two_parts_is_not_claimed_and_is_finished(table: Table) -> None:
    sink = table.opened(method="prepared")
    staged = sink.prepare(table.rows(*range(10)), key(1))
    assert len(table.prepared()) == 2
    with pytest.raises(Crash):
        table.opened(method="prepared", dies_at="committing").commit(key(1), staged.handle)
    assert len(table.prepared()) == 1
    assert 0 < len(table.visible()) < 10
    assert sink.inspect(OWNER, 1).epoch == 0
    sink.commit(key(1), staged.handle)
    assert (table.prepared(), table.visible()) == ([], list(range(10)))
    assert sink.inspect(OWNER, 1).epoch == 1


def test_nothing_becomes_visible_of_an_epoch_that_has_lost_a_part(table: Table) -> None:
    sink = table.opened(method="prepared")
    staged = sink.prepare(table.rows(*range(10)), key(1))
    table.run(f"ROLLBACK PREPARED '{staged.handle['gids'][1]}'")
    with pytest.raises(StagedGone):
        sink.commit(key(1), staged.handle)
    assert (len(table.prepared()), table.visible(), sink.inspect(OWNER, 1).epoch) == (1, [], 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_while_staging_or_committing_leaves_what_abort_finds(table: Table, method: str) -> None:
    with pytest.raises(Crash):
        table.opened(method=method, dies_at="staging").prepare(table.rows(1), key(1))
    assert (table.left(), table.visible()) == (1, [])
    sink = table.opened(method=method)
    sink.abort(key(1, lease=None))
    assert (table.left(), table.visible()) == (0, [])
    staged = sink.prepare(table.rows(2), key(1, attempt=2))
    with pytest.raises(Crash):
        table.opened(method=method, dies_at="committing").commit(key(1, attempt=2), staged.handle)
    assert table.visible() == ([] if method == "staged" else [2])
    assert sink.inspect(OWNER, 1).epoch == 0
    sink.commit(key(1, attempt=2), staged.handle)
    assert (table.visible(), sink.inspect(OWNER, 1).epoch) == ([2], 1)


@pytest.mark.parametrize("method", METHODS)
def test_two_threads_commit_one_handle(table: Table, method: str) -> None:
    staged = table.opened(method=method).prepare(table.rows(*range(20)), key(1))
    meet = threading.Barrier(2, timeout=1)

    def reach(point: str) -> None:
        try:  # the first to get there stays for a second, while the other waits for the lock
            meet.wait()
        except threading.BrokenBarrierError:
            met.append(point)

    met: list[str] = []
    failures: list[BaseException] = []

    def commit() -> None:
        try:
            table.opened(method=method, reach=reach).commit(key(1), staged.handle)
        except HoldfastError as error:
            failures.append(error)

    threads = [threading.Thread(target=commit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, met) == ([], ["committing"])
    assert (table.visible(), table.prepared()) == (list(range(20)), [])
    assert [row for row in table.ledger() if row[2]] == [(1, 1, True, 20)]


def test_a_commit_waits_for_the_lock_only_so_long(table: Table) -> None:
    sink = table.opened(method="staged", lock_timeout=dt.timedelta(seconds=2))
    staged = sink.prepare(table.rows(1), key(1))
    with psycopg.connect(table.pg.dsn(table.db)) as blocker:
        blocker.execute("LOCK TABLE orders")
        with pytest.raises(SinkFailed, match=r"lock timeout.*lock_timeout; then run again"):
            sink.commit(key(1), staged.handle)
    sink.commit(key(1), staged.handle)
    assert table.visible() == [1]


@pytest.mark.parametrize("method", METHODS)
def test_a_driver_that_is_paused_in_its_commit_does_not_keep_the_next_one_out(table: Table, method: str) -> None:
    staged = table.opened(method=method).prepare(table.rows(*range(10)), key(1))
    reached, go_on = threading.Event(), threading.Event()
    failures: list[HoldfastError] = []

    def pause(point: str) -> None:
        reached.set()
        assert go_on.wait(30)

    def commit() -> None:
        try:
            table.opened(method=method, reach=pause, lock_timeout=1).commit(key(1), staged.handle)
        except SinkFailed as error:
            failures.append(error)

    paused = threading.Thread(target=commit)
    paused.start()
    assert reached.wait(30)
    sink = table.opened(method=method)
    sink.commit(key(1), staged.handle)
    table.epoch(sink, 2, table.rows(10))
    go_on.set()
    paused.join()
    assert len(failures) == 1
    assert (table.visible(), table.prepared(), sink.inspect(OWNER, 1).epoch) == (list(range(11)), [], 2)


def test_a_leftover_that_is_in_use_does_not_stop_a_commit(table: Table) -> None:
    """A task that outlived its attempt still writes to its table: that goes with a later epoch."""
    sink = table.opened(method="staged", lock_timeout=5)
    lost = sink.prepare(table.rows(9), key(1)).handle["table"]
    kept = sink.prepare(table.rows(1), key(1, attempt=2))
    with psycopg.connect(table.pg.dsn(table.db)) as zombie:
        zombie.execute(f"LOCK TABLE {lost} IN ROW EXCLUSIVE MODE")
        sink.commit(key(1, attempt=2), kept.handle)
        assert (table.visible(), lost in table.stages()) == ([1], True)
    table.epoch(sink, 2, table.rows(2))
    assert (table.visible(), lost in table.stages()) == ([1, 2], False)


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_without_rows_leaves_its_place(table: Table, method: str) -> None:
    sink = table.opened(method=method)
    staged = sink.prepare(table.rows(), key(1))
    assert (staged.rows, table.prepared()) == (0, [])
    sink.commit(key(1), staged.handle)
    assert (table.visible(), sink.inspect(OWNER, 1).epoch) == ([], 1)


# --- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_what_a_task_wrote_that_was_never_heard_of_is_not_committed(table: Table, method: str) -> None:
    """A task that is tried again may have ended unheard: its forerunner's rows stay out."""
    import pyarrow as pa

    def unheard(point: str) -> None:
        if point == "staging":
            work = sink._ready
            batch = pa.RecordBatch.from_pydict({"n": pa.array([66], pa.int64()), "text": ["twin"]})
            if method == "staged":
                copier = into_stage(work.task(table.stages()[0]))
            else:
                mark = Mark.of(work.ledger.digest, key(1))
                copier = into_prepared(work.direct_task(1), mark, work.ledger.part_statement(key(1)))
            assert [row["rows"] for out in copier(iter([batch])) for row in out.to_pylist()] == [1]

    sink = table.opened(method=method, reach=unheard)
    staged = sink.prepare(table.rows(1, 2), key(1))
    assert staged.rows == 2
    assert len(table.prepared()) == (len(staged.handle["gids"]) + 1 if method == "prepared" else 0)
    sink.commit(key(1), staged.handle)
    assert (table.visible(), table.prepared()) == ([1, 2], [])


def test_a_worker_reads_the_catalog_once_and_keeps_no_connection(table: Table) -> None:
    """Nor does it keep what a failure may have made doubtful; a type that is younger than what it keeps is taken."""
    import pyarrow as pa

    sink = table.opened()
    task = sink._ready.task("orders")
    sink.close()  # the connections of the driver are not those of a worker
    copier = into_stage(replace(task, table="younger"))
    batch = pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int64()), "text": ["good"]})
    copying._server.cache_clear()
    kept = copying._server(task.address.conninfo)
    table.run(
        "CREATE TYPE mood AS ENUM ('good', 'bad')", f"CREATE TABLE younger (n int8, text mood, {PART_COLUMN} int8)"
    )
    for _ in range(2):
        assert [out.to_pylist()[0]["rows"] for out in copier(iter([batch]))] == [1]
    assert copying._server(task.address.conninfo) is kept
    assert table.run("SELECT n, text::text FROM younger") == [(1, "good")] * 2
    activity = "pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
    eventually(lambda: table.run(f"SELECT count(*) FROM {activity}") == [(0,)])  # noqa: S608
    table.run("DROP TABLE younger")
    with pytest.raises(SinkFailed, match="younger"):
        list(copier(iter([batch])))
    assert copying._server(task.address.conninfo) is not kept


RETRYING = """
import sys, json, pathlib
from pyspark.sql import SparkSession
from holdfast.epoch import Attempt
from holdfast.errors import SinkFailed
from holdfast.sinks.base import EpochKey, SinkContext, StreamIdentity
from holdfast.sinks.postgres.copying import into_stage
from holdfast.sinks.postgres.sink import PostgresSink

dsn, folder = sys.argv[1], pathlib.Path(sys.argv[2])
spark = (SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("WARN")
owner = StreamIdentity("shop", "uid-1", "orders")
for method in ("prepared", "staged"):
    def fails_once(batches, method=method):
        # After our task has copied its rows and told of them, the same task fails: Spark tries it again.
        yield from batches
        flag = folder / method
        if not flag.exists():
            flag.touch()
            raise ValueError("made to fail")
    df = spark.range(0, 1000, 1, 2)
    sink = PostgresSink(dsn, method, create=True, method=method)
    sink.open(SinkContext(owner, df.schema, "append", spark))
    key = EpochKey(owner, Attempt(stream="orders", timeline=1, epoch=1, attempt=1), 1)
    class After:
        def __init__(self, df): self.df, self.columns = df, df.columns
        def toDF(self, *names): return After(self.df.toDF(*names))
        def coalesce(self, n): return After(self.df.coalesce(n))
        def mapInArrow(self, f, schema): return self.df.mapInArrow(f, schema).mapInArrow(fails_once, schema)
    staged = sink.prepare(After(df), key)
    assert (folder / method).exists()
    print(json.dumps([method, staged.rows, staged.handle]))
    sink.commit(key, staged.handle)
sink._server.address = type(sink._server.address)(dsn.replace("host=", "host=/nowhere"), ())
try:
    sink._opened.run(df, lambda connect: into_stage(sink._opened.task("nowhere"), connect))
except SinkFailed as error:
    print(error, file=sys.stderr)
spark.stop()
"""


def test_a_retried_task_does_not_double_its_rows(table: Table, tmp_path: Path) -> None:
    """Nor does the password get into Spark's log, where tasks fail."""
    hidden = "hunter2-Zq"
    arguments = [sys.executable, "-c", RETRYING, f"{table.pg.dsn(table.db)} password={hidden}", str(tmp_path)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "made to fail" in done.stderr
    assert "could not copy rows: IO: [libpq] Failed to connect" in done.stderr
    assert hidden not in done.stderr + done.stdout
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(method, rows) for method, rows, _ in told] == [("prepared", 1000), ("staged", 1000)]
    for method in METHODS:
        assert table.read("count(*), count(DISTINCT id)", method) == [(1000, 1000)]
    assert table.prepared() == []
    (stage,) = table.stages()
    assert table.read("count(*) > 1000", stage) == [(True,)], "the first try was there, and stayed out"


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_of_many_partitions_comes_in_few_parts(table: Table, method: str) -> None:
    sink = table.opened(method=method, parts=3, schema="id long")
    staged = sink.prepare(table.spark.range(0, 100, 1, 8), key(1))
    assert len(staged.handle["gids" if method == "prepared" else "parts"]) == 3
    sink.commit(key(1), staged.handle)
    assert table.run("SELECT count(*), sum(id) FROM orders") == [(100, 4950)]


def test_the_users_own_failure_passes_unchanged(table: Table) -> None:
    sink = table.opened(method="staged", schema="n double")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO") as caught:
        sink.prepare(table.spark.range(3).selectExpr("1 / id AS n"), key(1))
    assert not isinstance(caught.value, HoldfastError)


# --- choosing the method ---------------------------------------------------------------------------------------------


def test_auto_takes_prepared_transactions_where_it_can(table: Table) -> None:
    sink = table.opened()
    assert sink.prepare(table.rows(1), key(1)).handle["method"] == "prepared"
    assert table.told == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("CREATE UNIQUE INDEX ON orders (n)", "unique"),
        ("ALTER TABLE orders ADD EXCLUDE USING btree (n WITH =)", "exclusion"),
        ("ALTER TABLE orders ALTER text TYPE jsonb USING NULL", "'text' has to be converted"),
        (
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
            "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()",
            "triggers",
        ),
    ],
)
def test_auto_stages_where_the_table_forbids_it_and_says_so_once(table: Table, change: str, reason: str) -> None:
    table.run("CREATE TABLE orders (n bigint, text text)", change)
    sink = table.opened()
    table.opened(sink)
    assert len(table.told) == 1
    assert reason in table.told[0]
    staged = sink.prepare(table.spark.sql("SELECT 1L AS n, '{}' AS text"), key(1))
    assert staged.handle["method"] == "staged"
    sink.commit(key(1), staged.handle)
    assert table.visible() == [1]
    with pytest.raises(NotSupported, match=reason):
        table.opened(method="prepared")


def test_a_server_without_prepared_transactions_stages(table: Table) -> None:
    table.pg.restart(prepared=0)
    try:
        sink = table.opened()
        table.epoch(sink, 1, table.rows(1))
        assert (table.visible(), len(table.stages())) == ([1], 1)
        assert table.told == [
            "sink 'postgres.orders' uses a staging table, not the faster prepared transactions: "
            "the server's max_prepared_transactions is 0, but 8 are needed"
        ]
        with pytest.raises(NotSupported, match="max_prepared_transactions is 0"):
            table.opened(method="prepared")
        sink.abort(key(2, lease=None))
    finally:
        table.pg.restart()
    assert table.opened(sink).prepare(table.rows(2), key(2)).handle["method"] == "prepared"


def test_other_effects_stage_without_a_word(table: Table) -> None:
    assert table.opened(key="n").prepare(table.rows(1), key(1)).handle["method"] == "staged"
    assert table.told == []
    with pytest.raises(NotSupported, match="they can only append"):
        table.opened(key="n", method="prepared")


def test_speculation_forbids_prepared_transactions(table: Table) -> None:
    class Conf:
        def get(self, name: str, default: str) -> str:
            return {"spark.speculation": "true"}.get(name, default)

    class Session:
        conf = Conf()

    sink = table.made(create=True, method="prepared")
    schema = table.spark.createDataFrame([], SCHEMA).schema
    with pytest.raises(NotSupported, match="speculation"):
        sink.open(SinkContext(OWNER, schema, "append", Session()))


# --- effects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "update"])
def test_upsert_by_key(table: Table, mode: str) -> None:
    sink = table.opened(key=["n"], mode=mode, epoch_column="e")
    table.epoch(sink, 1, table.rows(1, 2))
    again = table.spark.sql("SELECT 2L AS n, 'new' AS text UNION ALL SELECT 3L, 'row 3'")
    staged = sink.prepare(again, key(2))
    seen = "SELECT n, text, e FROM orders ORDER BY n"
    assert table.visible(seen) == [(1, "row 1", 1), (2, "row 2", 1)]
    for _ in range(2):
        sink.commit(key(2), staged.handle)
        assert table.visible(seen) == [(1, "row 1", 1), (2, "new", 2), (3, "row 3", 2)]


def test_upsert_where_every_column_is_key(table: Table) -> None:
    sink = table.opened(key=["text", "n"], mode="update")
    table.epoch(sink, 1, table.rows(1, 2))
    table.epoch(sink, 2, table.rows(2, 3))
    assert (table.visible(), table.ledger()[-1]) == ([1, 2, 3], (1, 2, True, 2))


def test_a_key_that_comes_twice_in_an_epoch_is_refused_before_the_decision(table: Table) -> None:
    sink = table.opened(key="n")
    with pytest.raises(SinkFailed, match=r"same key \(n\)"):
        sink.prepare(table.rows(1, 2, 1), key(1))
    assert (table.visible(), table.ledger()) == ([], [])
    with pytest.raises(SinkFailed, match="null value in column"):
        sink.prepare(table.spark.sql("SELECT CAST(NULL AS LONG) AS n, 'x' AS text"), key(1, attempt=2))
    sink.abort(key(1, lease=None))
    sink.abort(key(1, attempt=2, lease=None))
    assert table.left() == 0


def test_keys_are_the_same_as_the_table_sees_it(table: Table) -> None:
    """By the table's type and collation, not by the bytes."""
    table.run(
        'CREATE TABLE orders (n uuid, text text COLLATE "C", PRIMARY KEY (n, text))',
    )
    sink = table.opened(key=["n", "text"], schema="n string, text string")
    one = "6F1C7B1E-3C0F-4B7A-9D59-2F3B5E0A1111"
    with pytest.raises(SinkFailed, match="same key"):
        sink.prepare(table.spark.createDataFrame([(one, "a"), (one.lower(), "a")], "n string, text string"), key(1))
    collation = "SELECT c.collname FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation "
    assert table.run(f"{collation} WHERE a.attrelid = '{table.stages()[0]}'::regclass AND a.attname = 'text'") == [
        ("C",)
    ]
    table.epoch(sink, 2, table.spark.createDataFrame([(one, "a"), (one, "b")], "n string, text string"))
    assert table.visible("SELECT text FROM orders ORDER BY 1") == ["a", "b"]


def test_complete_replaces_in_one_transaction(table: Table) -> None:
    sink = table.opened(mode="complete")
    table.epoch(sink, 1, table.rows(1, 2, 3))
    staged = sink.prepare(table.rows(7), key(2))
    assert table.visible() == [1, 2, 3]
    seen: list[Any] = []
    watched = table.opened(mode="complete", reach=lambda _: seen.append(table.visible()))
    watched.commit(key(2), staged.handle)
    assert (seen, table.visible()) == ([[1, 2, 3]], [7])
    sink.commit(key(2), staged.handle)
    assert table.visible() == [7]
    table.epoch(sink, 3, table.rows())
    assert table.visible() == []


def test_modes_without_a_meaning_are_refused_unless_every_version_is_wanted(table: Table) -> None:
    with pytest.raises(NotSupported, match=r"output mode 'update'.*key=.*changelog=True"):
        table.opened(mode="update")
    with pytest.raises(BadValue, match="output mode"):
        table.opened(mode="upsert")
    with pytest.raises(BadValue, match="every version"):
        table.made(key="n", changelog=True)
    for mode in ("update", "complete"):
        sink = table.opened(mode=mode, changelog=True, name=mode)
        table.epoch(sink, 1, table.rows(1))
        table.epoch(sink, 2, table.rows(1))
    assert table.visible() == [1, 1, 1, 1]


# --- owners ----------------------------------------------------------------------------------------------------------


def test_owners_share_a_table_if_all_say_so_and_none_replaces_it(table: Table) -> None:
    sink = table.opened(method="staged", share=True)
    table.epoch(sink, 1, table.rows(1))
    reborn, other = StreamIdentity("shop", "uid-2", "orders"), StreamIdentity("bakery", "uid-3", "bread")
    ours = "stream 'orders' of pipeline 'shop' with the uid uid-1"
    assert sink.inspect(OWNER, 1).foreign is None
    assert table.opened(owner=reborn, share=True).inspect(reborn, 1).foreign == ours
    assert table.opened(owner=other).inspect(other, 1).foreign == ours
    second = table.opened(owner=other, method="staged", share=True)
    assert second.inspect(other, 1).foreign is None
    other_key = key(1, owner=other)
    second.commit(other_key, second.prepare(table.rows(1), other_key).handle)
    assert (table.visible(), len(table.stages())) == ([1, 1], 2)
    assert second.inspect(other, 1).epoch == sink.inspect(OWNER, 1).epoch == 1
    assert table.opened().inspect(OWNER, 1).foreign == "stream 'bread' of pipeline 'bakery' with the uid uid-3"
    replacing = table.opened(owner=other, mode="complete", share=True)
    assert replacing.inspect(other, 1).foreign == ours
    with pytest.raises(SinkForeign, match=r"sink 'postgres.orders' of stream 'orders' of this pipeline"):
        table.opened(owner=StreamIdentity("shop", "uid-1", "totals"), mode="complete")


@pytest.mark.parametrize("method", METHODS)
def test_a_table_is_its_owners_from_the_first_open_on(table: Table, method: str) -> None:
    sink = table.opened(method=method)
    other = StreamIdentity("bakery", "uid-3", "bread")
    ours = "stream 'orders' of pipeline 'shop' with the uid uid-1"
    for epoch in (0, 1, 2, 3):
        if epoch:
            table.epoch(sink, epoch, table.rows(epoch))
        assert table.opened(owner=other).inspect(other, 1).foreign == ours
        assert table.opened(owner=other, mode="complete", share=True).inspect(other, 1).foreign == ours
        assert table.opened(method=method).inspect(OWNER, 1) == SinkPosition(
            epoch
        )  # who was refused has claimed nothing
    assert table.visible("SELECT count(*) FROM holdfast_epochs WHERE epoch = 0") == [2]  # its claim and its mode


def test_a_sink_that_cannot_be_opened_claims_nothing(table: Table) -> None:
    table.run("CREATE TABLE orders (n bigint UNIQUE, text text)")
    with pytest.raises(NotSupported, match="unique"):
        table.opened(method="prepared")
    other = StreamIdentity("bakery", "uid-3", "bread")
    assert table.opened(owner=other).inspect(other, 1) == SinkPosition()


def test_a_claim_follows_what_the_sink_does_to_the_table(table: Table) -> None:
    other = StreamIdentity("bakery", "uid-3", "bread")
    table.opened(mode="complete", share=True)
    assert table.opened(owner=other, share=True).inspect(other, 1).foreign is not None
    table.opened(mode="complete", changelog=True, share=True)
    assert table.opened(owner=other, share=True).inspect(other, 1).foreign is None


def test_two_sinks_of_one_stream_may_append_to_one_table(table: Table) -> None:
    for name in ("one", "two"):
        sink = table.opened(name=name, share=True)
        table.epoch(sink, 1, table.rows(1))
    assert table.visible() == [1, 1]


def test_many_may_open_at_the_same_moment(table: Table) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            table.opened(name=f"sink-{number}")
        except HoldfastError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, table.visible(), table.ledger()) == ([], [], [])
    assert len(table.visible("SELECT DISTINCT sink FROM holdfast_epochs")) == 1


def test_nothing_of_others_is_swept(table: Table) -> None:
    mine = table.opened(name="mine")
    theirs = table.opened(name="theirs")
    theirs.prepare(table.rows(5), key(1))
    table.run("CREATE TABLE holdfast_stage_of_somebody (n int)")
    with psycopg.connect(table.pg.dsn(table.db), autocommit=True) as conn:
        conn.execute("BEGIN; CREATE TABLE x (n int); PREPARE TRANSACTION 'holdfast:other'")
    twin = Table(table.pg, table.spark)
    same = twin.opened(name="mine")
    same.prepare(twin.rows(6), key(1))  # the same name, in another database of the server
    table.epoch(mine, 2, table.rows(1))
    mine.abort(key(1, lease=None))
    assert (len(table.prepared()), table.stages(), len(twin.prepared())) == (2, ["holdfast_stage_of_somebody"], 1)
    table.run("ROLLBACK PREPARED 'holdfast:other'")


# --- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_are_missing_are_noticed(table: Table, method: str) -> None:
    sink = table.opened(method=method)
    staged = sink.prepare(table.rows(1, 2, 3), key(1))
    with pytest.raises(SinkFailed, match="4 rows were prepared, but 3 were inserted"):
        sink.commit(key(1), staged.handle | {"rows": 4})
    assert sink.inspect(OWNER, 1).epoch == 0
    assert table.visible() == ([] if method == "staged" else [1, 2, 3])
    sink.commit(key(1), staged.handle)
    assert (table.visible(), sink.inspect(OWNER, 1).epoch) == ([1, 2, 3], 1)


def test_a_trigger_that_swallows_rows_is_noticed_and_rolled_back(table: Table) -> None:
    sink = table.opened(method="staged")
    table.run(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.n = 2 THEN RETURN NULL; END IF; RETURN NEW; END'",
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()",
    )
    staged = sink.prepare(table.rows(1, 2, 3), key(1))
    with pytest.raises(SinkFailed, match="2 were inserted"):
        sink.commit(key(1), staged.handle)
    assert (table.visible(), table.ledger()) == ([], [])
    table.run("DROP TRIGGER t ON orders")
    sink.commit(key(1), staged.handle)
    assert table.visible() == [1, 2, 3]


def test_a_constraint_that_refuses_a_decided_epoch_can_be_mended(table: Table) -> None:
    table.run("CREATE TABLE orders (n bigint UNIQUE, text text)", "INSERT INTO orders VALUES (1, 'old')")
    sink = table.opened()
    staged = sink.prepare(table.rows(1, 2), key(1))
    with pytest.raises(SinkFailed, match=r"duplicate key.*change the table"):
        sink.commit(key(1), staged.handle)
    assert (table.visible(), table.ledger()) == ([1], [])
    with pytest.raises(SinkFailed, match="duplicate key"):  # what an epoch does is decided with it
        table.opened(key="n").commit(key(1), staged.handle)
    table.run("ALTER TABLE orders DROP CONSTRAINT orders_n_key")
    sink.commit(key(1), staged.handle)
    assert table.visible("SELECT n, text FROM orders ORDER BY n, text") == [(1, "old"), (1, "row 1"), (2, "row 2")]


# --- the server dies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_what_is_prepared_outlives_the_server(table: Table, method: str) -> None:
    table.run(f"ALTER DATABASE {table.db} SET synchronous_commit = off")
    sink = table.opened(method=method)
    staged = sink.prepare(table.rows(*range(50)), key(1))
    left = table.left()
    table.pg.kill()
    with pytest.raises(SinkFailed, match=f"connect to PostgreSQL .*dbname={table.db}"):
        sink.commit(key(1), staged.handle)
    table.pg.start()
    assert (table.left(), table.visible(), sink.inspect(OWNER, 1).epoch) == (left, [], 0)
    sink.commit(key(1), staged.handle)
    table.pg.kill()
    table.pg.start()
    assert (table.visible(), sink.inspect(OWNER, 1).epoch, table.prepared()) == (list(range(50)), 1, [])
    table.epoch(sink, 2, table.rows(50))
    assert table.visible() == list(range(51))
