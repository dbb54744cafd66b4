"""Connections to PostgreSQL that are kept: reused, replaced when they have died, never shared, and clean."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import adbc_driver_manager
import psycopg
import pyarrow as pa
import pytest

from holdfast.errors import SinkFailed, SinkUnavailable
from holdfast.sinks.postgres.copying import CopyTask, connected, into_prepared
from holdfast.sinks.postgres.driver_copy import DriverConnections
from holdfast.sinks.postgres.names import Mark
from holdfast.sinks.postgres.server import Server
from pgfixture import Postgres, server
from support import eventually

TYPES = (("n", "bigint"), ("text", "text"))
TYPES_QUERY = (
    "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
    "WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped"
)


class Place:
    """A table in its own database, and connections to it."""

    def __init__(self, pg: Postgres) -> None:
        self.pg = pg
        self.db = pg.fresh_database()
        self.run("CREATE TABLE orders (n int8, text text)")
        self.run("CREATE TABLE parts (gid text, rows int8)")
        self.server = Server("s", pg.dsn(self.db), 5)
        self.server.kept.open()
        self.driver = DriverConnections()
        self.driver.kept.open()
        self.task = CopyTask(
            "s", self.server.address, "public", "orders", ("n", "text"), 5000, (), TYPES, TYPES_QUERY, idle_timeout=2500
        )
        self.numbers = iter(range(1, 1000))

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self.pg.execute(statement, self.db)

    def pids(self) -> set[int]:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
        return {pid for (pid,) in self.run(query)}

    def terminate(self) -> None:
        for pid in self.pids():
            self.run(f"SELECT pg_terminate_backend({pid}, 10000)")

    def transact(self) -> int:
        with self.server.transaction("test") as conn:
            return conn.info.backend_pid

    def copy(self, connect: Any = None) -> list[dict[str, Any]]:
        mark = Mark("0" * 16, 1, next(self.numbers), 1, 1)
        copier = into_prepared(self.task, mark, "INSERT INTO parts VALUES ($1, $2)", connect or self.driver.connect)
        batch = pa.RecordBatch.from_pydict({"c0": pa.array([1, 2], pa.int64()), "c1": ["a", "b"]})
        return [row for out in copier(iter([batch])) for row in out.to_pylist()]

    def prepared(self) -> int:
        return len(self.run("SELECT 1 FROM pg_prepared_xacts WHERE database = current_database()"))


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place(server())
    yield found
    found.server.kept.close()
    found.driver.kept.close()
    eventually(lambda: found.pids() == set())  # the server needs a moment


def test_a_connection_is_kept_from_one_operation_to_the_next(place: Place) -> None:
    assert place.transact() == place.transact()
    with place.server.outside("test") as other, place.server.transaction("test") as conn:
        assert other.info.backend_pid != conn.info.backend_pid
    for _ in range(3):
        assert place.copy()[0]["rows"] == 2
    assert (len(place.pids()), place.prepared()) == (3, 3)
    place.server.kept.close()
    place.driver.kept.close()
    eventually(lambda: place.pids() == set())
    place.transact()
    place.copy()
    eventually(lambda: place.pids() == set())  # nothing is kept after the close; the server needs a moment


@pytest.mark.parametrize("how", ["terminated", "restarted", "killed"])
def test_a_dead_connection_is_replaced_without_a_failure(place: Place, how: str) -> None:
    place.copy()
    with place.server.outside("test"), place.server.transaction("test"):
        pass
    assert len(before := place.pids()) == 3
    if how == "terminated":
        place.terminate()
    elif how == "restarted":
        place.pg.restart()
    else:
        place.pg.kill()
        place.pg.start()
    with place.server.outside("test") as other, place.server.transaction("test") as conn:
        assert not {other.info.backend_pid, conn.info.backend_pid} & before
        conn.execute("INSERT INTO orders VALUES (7, 'kept')")
    assert place.copy()[0]["rows"] == 2
    assert (place.run("SELECT n FROM orders"), place.prepared()) == ([(7,)], 2)


def test_a_server_that_is_down_is_reported_as_an_outage(place: Place) -> None:
    place.copy()
    place.transact()
    place.pg.stop()
    try:
        with pytest.raises(SinkUnavailable, match="connect to PostgreSQL"):
            place.transact()
        with pytest.raises(SinkUnavailable, match="copy rows"):
            place.copy()
    finally:
        place.pg.start()
    place.transact()
    assert (place.copy()[0]["rows"], place.prepared()) == (2, 2)


def test_a_connection_that_dies_in_use_is_a_failure_and_is_not_repeated(place: Place) -> None:
    """The statement may have taken effect: only the caller can know."""
    with pytest.raises(SinkUnavailable), place.server.transaction("test") as conn:
        conn.execute("INSERT INTO orders VALUES (1, 'lost')")
        place.terminate()
        conn.execute("INSERT INTO orders VALUES (2, 'lost')")
    assert (place.run("SELECT n FROM orders"), place.pids()) == ([], set())


def test_after_an_error_the_next_transaction_is_clean(place: Place) -> None:
    with pytest.raises(SinkFailed, match="nowhere"), place.server.transaction("test") as conn:
        conn.execute("INSERT INTO orders VALUES (1, 'rolled back')")
        conn.execute("SELECT * FROM nowhere")
    with pytest.raises(ValueError, match="own"), place.server.transaction("test") as conn:
        conn.execute("INSERT INTO orders VALUES (2, 'rolled back')")
        raise ValueError("own")
    with place.server.transaction("test") as conn:
        conn.execute("INSERT INTO orders VALUES (3, 'kept')")
    with place.server.outside("test") as conn:
        assert conn.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        conn.execute("BEGIN")  # a block that forgets to end it
    with place.server.outside("test") as conn:
        assert conn.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    place.run("ALTER TABLE orders ALTER n TYPE float8")
    with pytest.raises(SinkFailed, match="was bigint when the stream started, and is now double precision"):
        place.copy()
    place.run("ALTER TABLE orders ALTER n TYPE int8")
    assert place.copy()[0]["rows"] == 2
    assert (place.run("SELECT n FROM orders"), place.prepared()) == ([(3,)], 1)


def test_settings_hold_for_every_transaction_and_only_for_it(place: Place) -> None:
    place.run(f"ALTER DATABASE {place.db} SET default_transaction_isolation = 'serializable'")
    place.run(f"ALTER DATABASE {place.db} SET synchronous_commit = off")
    names = ("transaction_isolation", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
    for _ in range(2):
        with place.server.transaction("test") as conn:
            found = [conn.execute(f"SHOW {name}").fetchone()[0] for name in names]
            assert found == ["read committed", "5s", "2500ms", "on"]
        with place.server.outside("test") as conn:
            assert conn.execute("SHOW synchronous_commit").fetchone() == ("off",)
            assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)


@pytest.mark.parametrize("kept", [True, False])
def test_a_type_that_changed_after_the_begin_is_noticed_under_any_default_isolation(place: Place, kept: bool) -> None:
    """In a transaction with one snapshot, the catalog would still show the type from before the copy."""
    place.run(f"ALTER DATABASE {place.db} SET default_transaction_isolation = 'repeatable read'")

    @contextmanager
    def altered(task: CopyTask) -> Iterator[Any]:
        with (place.driver.connect if kept else connected)(task) as connection:
            place.run("ALTER TABLE orders ALTER n TYPE float8")
            yield connection

    with pytest.raises(SinkFailed, match="was bigint when the stream started, and is now double precision"):
        place.copy(altered)
    assert place.prepared() == 0


def test_threads_never_share_a_connection(place: Place) -> None:
    meet, found = threading.Barrier(4), []

    def work() -> None:
        for _ in range(20):
            with place.server.transaction("test") as conn:
                meet.wait()
                found.append(conn.info.backend_pid)
                meet.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rounds = [found[at : at + 4] for at in range(0, len(found), 4)]
    assert all(len(set(each)) == 4 for each in rounds)
    assert len(place.pids()) == 2


def test_a_paused_driver_does_not_hold_its_locks_for_long(place: Place) -> None:
    """A driver that is suspended in its copy loses its transaction, and later finds that out."""
    with (
        pytest.raises(adbc_driver_manager.Error),
        place.driver.connect(replace(place.task, idle_timeout=100)) as copying,
    ):
        with adbc_driver_manager.AdbcStatement(copying) as statement:
            statement.set_sql_query("INSERT INTO orders VALUES (1, 'lost')")
            statement.execute_update()
        deadline = time.monotonic() + 30
        while place.pids() and time.monotonic() < deadline:
            time.sleep(0.01)
        place.run("ALTER TABLE orders ADD more int")
        copying.commit()
    assert (place.run("SELECT n FROM orders"), place.pids()) == ([], set())


FORKING = """
import os, sys
from holdfast.sinks.postgres.server import Server
from holdfast.sinks.postgres.copying import Address, CopyTask
from holdfast.sinks.postgres.driver_copy import DriverConnections

server = Server("s", sys.argv[1], 5)
server.kept.open()
driver = DriverConnections()
driver.kept.open()
task = CopyTask("s", server.address, "public", "orders", ("n", "text"), 5000)

def pids():
    with server.transaction("test") as conn, driver.connect(task) as copying:
        copying.rollback()
        return conn.info.backend_pid

before = pids()
child = os.fork()
if not child:
    ours = pids()
    server.kept.close()
    driver.kept.close()
    os._exit(0 if ours != before else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert pids() == before
assert driver.kept.take() is not None
print("good")
"""


def test_a_forked_process_leaves_the_connections_of_its_parent_alone(place: Place) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKING, place.pg.dsn(place.db)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
