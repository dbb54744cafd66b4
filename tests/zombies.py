"""Drivers of an old timeline: processes that are stopped within an epoch, and resume after a rewind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from deltastaged import HandDeltaSink, rows_of
from fakespark import install
from handsinks import HandFileSink, HandLogSink, HandPostgresSink, HandSqliteSink, key_of
from handstaged import query
from holdfast.errors import StreamFailed
from holdfast.eventlog import EventLog
from holdfast.sinks.base import Sink
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.iceberg.sink import IcebergSink
from icebergstaged import HandIcebergSink, sqlite_catalog
from icebergstaged import rows_of as iceberg_rows
from markersink import HandMarkerSink
from rewindbench import RewindBench

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")  # for libraries whose threads do not survive a fork
WAIT_S = 60.0
BLOCKED_S = 1.0  # how long a rewind may wait for a commit whose driver is stopped, before the driver resumes


class ZombieBench(RewindBench):
    """A shared pipeline into one real sink. Each process makes its own sink."""

    shared = True

    def __init__(self, folder: Path, kind: str, dsn: str = "") -> None:
        super().__init__(folder, sinks=0)
        self.place = folder
        self.kind = kind
        self.dsn = dsn
        self.output_mode = "complete" if kind.endswith("replace") else "append"

    def made_sinks(self) -> list[Sink]:
        database = self.place / "out.db"
        makers: dict[str, Callable[[], Sink]] = {
            "files": lambda: HandFileSink(self.place / "out", name="out"),
            "log": lambda: HandLogSink(self.place / "log", entity="text", name="out"),
            "sqlite append": lambda: HandSqliteSink(database, "rows", epoch_column="epoch", name="out"),
            "sqlite upsert": lambda: HandSqliteSink(database, "rows", key="n", undo=True, name="out"),
            "sqlite replace": lambda: HandSqliteSink(database, "rows", name="out"),
            "delta append": lambda: HandDeltaSink(self.place / "table", name="out"),
            "delta replace": lambda: HandDeltaSink(self.place / "table", name="out"),
            "iceberg": lambda: HandIcebergSink("shop.rows", catalog=sqlite_catalog(self.place), name="out"),
            "marker": lambda: HandMarkerSink(database, staging=self.place / "staging", name="out"),
            "postgres prepared": lambda: self._postgres("prepared"),
            "postgres staged": lambda: self._postgres("staged"),
        }
        return [makers[self.kind]()]

    def _postgres(self, method: str) -> Sink:
        options: Any = {"method": method, "epoch_column": "epoch", "create": True, "lock_timeout": 20}
        return HandPostgresSink(self.dsn, "rows", name="out", **options)

    def seen(self) -> list[tuple[int, str]]:
        """The rows that a reader sees."""
        if self.kind == "files":
            found = ds.dataset(self.place / "out", format="parquet", partitioning="hive").to_table()
            return sorted((row["n"], row["text"]) for row in found.to_pylist())
        if self.kind == "log":
            events = EventLog.open(self.place / "log").read()
            return sorted((event.payload["n"], event.payload["text"]) for event in events)
        if self.kind.startswith("delta"):
            return rows_of(DeltaSink(self.place / "table"))
        if self.kind == "iceberg":
            return sorted(iceberg_rows(IcebergSink("shop.rows", catalog=sqlite_catalog(self.place))))  # type: ignore[arg-type]
        if self.dsn:
            import psycopg

            with psycopg.connect(self.dsn) as connection:
                return sorted(connection.execute("SELECT n, text FROM rows").fetchall())
        return sorted(query(self.place / "out.db", "SELECT n, text FROM rows"))  # type: ignore[arg-type]

    def expected(self, *epochs: list[int]) -> list[tuple[int, str]]:
        """The rows that it must see after these epochs."""
        rows = [row for epoch in epochs for row in epoch]
        if self.kind.endswith("replace"):
            rows = epochs[-1]
        if self.kind == "sqlite upsert":
            return sorted({key_of(row): f"row {row}" for row in rows}.items())
        return sorted((row, f"row {row}") for row in rows)


class Zombie:
    """A driver in a process of its own, which is stopped as soon as it reaches a point.

    `spawned`: in a new interpreter.
    """

    def __init__(
        self, made: Callable[[], RewindBench], source: list[list[int]], point: str, *, spawned: bool = False
    ) -> None:
        context: Any = SPAWN if spawned else FORK
        self._pipe, theirs = context.Pipe()
        drive = _drive_anew if spawned else _drive
        self._child = context.Process(target=drive, args=(made, source, point, theirs), daemon=True)
        self._child.start()
        assert self._child.pid
        self._pid = self._child.pid
        assert self._pipe.poll(WAIT_S), f"it did not reach {point!r}"
        assert self._pipe.recv() == point
        os.kill(self._pid, signal.SIGSTOP)  # all of its threads, as on a machine that hangs
        assert os.WIFSTOPPED(os.waitpid(self._pid, os.WUNTRACED)[1])

    def resume(self) -> list[str]:
        """Resume the driver, and return the errors with which it ends: what it raised, and the cause."""
        self._pipe.send("go on")
        os.kill(self._pid, signal.SIGCONT)
        assert self._pipe.poll(WAIT_S), "it did not end"
        found: list[str] = self._pipe.recv()
        self._child.join(WAIT_S)
        assert self._child.exitcode == 0
        return found


def _drive(made: Callable[[], RewindBench], source: list[list[int]], point: str, pipe: Connection) -> None:
    """Run the pipeline to the end of its input. Wait at the first visit of the point."""
    waited = threading.Event()

    def reach(at: str) -> None:
        if at == point and not waited.is_set():
            waited.set()
            pipe.send(at)
            pipe.recv()

    bench = made()
    bench.source += source
    errors: list[str] = []
    try:
        bench.run(reach)
    except StreamFailed as error:
        errors = [type(error).__name__, type(error.__cause__).__name__]
    pipe.send(errors)


def _drive_anew(made: Callable[[], RewindBench], source: list[list[int]], point: str, pipe: Connection) -> None:
    """Do the same in a new interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        _drive(made, source, point, pipe)


def in_a_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Start a function; return its thread, and a list that gets its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors
