"""Streams without a JVM: a fake query that calls `foreachBatch` and writes Spark's logs, and sinks in memory.

Everything else is the real code: recovery, the epoch protocol, decisions on disk, supervision, stopping.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.epoch import Reach, unwatched
from holdfast.errors import NotFound, StagedGone
from holdfast.policy import Backoff, RestartPolicy
from holdfast.repository import Identity, Lease, Lineage, LocalRepository
from holdfast.repository.lease import RUN
from holdfast.sinks.base import EpochKey, Link, Sink, SinkPosition, Staged, StreamIdentity
from holdfast.sinks.held_epochs import is_past
from holdfast.spark import adapter, preparing
from holdfast.spark.context import RunContext, StreamCallbacks
from holdfast.spark.spec import checked_spec
from holdfast.spark.stream import StreamRun


class Interrupted(Exception):
    """The fake query was stopped within a batch."""


class Rows(list[int]):
    """A DataFrame, as far as fake sinks need it."""

    schema = ()
    sparkSession = None  # noqa: N815 - Spark's name


def _write(path: Path, text: str) -> None:
    """Write a file as Spark does, under another name first: a checkpoint may hold a link to the old one."""
    made = path.with_name(f".{path.name}.tmp")
    made.write_text(text)
    made.replace(path)


class FakeQuery:
    """Runs batches in a thread, as Spark's micro-batch execution does: offsets, the callback, the commit."""

    def __init__(self, source: list[list[int]], body: Callable[[Any, int], None], folder: Path, *, once: bool) -> None:
        self.name = "fake"
        self.source = source
        self.folder = folder
        self.stopped = threading.Event()
        self.error: Exception | None = None
        self._body = body
        self._once = once
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / "metadata").exists():
            _write(folder / "metadata", '{"id":"1"}')
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        batch = self._committed
        try:
            while not self.stopped.is_set():
                if batch < len(self.source):
                    end = sum(len(rows) for rows in self.source[: batch + 1])
                    _write(self.folder / "offsets" / str(batch), f"v1\n{{}}\n{json.dumps({'t': {'0': end}})}")
                    self._body(Rows(self.source[batch]), batch)
                    _write(self.folder / "commits" / str(batch), "v1\n{}")
                    batch += 1
                elif self._once:
                    return
                else:
                    self.stopped.wait(0.002)
        except Exception as error:
            self.error = error

    @property
    def _committed(self) -> int:
        """How many batches are committed; a restored folder has only the last one."""
        return max((int(path.name) + 1 for path in (self.folder / "commits").glob("[0-9]*")), default=0)

    @property
    def is_idle(self) -> bool:
        return self._committed == len(self.source)

    def stop(self) -> None:
        self.stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(60)

    def awaitTermination(self, seconds: float | None = None) -> bool:  # noqa: N802 - Spark's name
        self._thread.join(seconds)
        if self.error is not None:
            raise self.error
        return not self._thread.is_alive()


class FakeBatches:
    """As `adapter.Batches`."""

    def __init__(self, body: Callable[[Any, int], None], _: object) -> None:
        self.body = body

    def release(self) -> None:
        del self.body


class FakeDigest:
    """As `RowDigest`, of rows that may differ each time."""

    def __init__(self, _: object) -> None: ...

    def observed(self, rows: Rows) -> tuple[Rows, Callable[[], str]]:
        return rows, lambda: f"{sum(rows)}"


def install(patch: pytest.MonkeyPatch) -> None:
    """Replace what needs a JVM."""

    @contextlib.contextmanager
    def frozen(rows: Rows) -> Iterator[Rows]:
        yield rows

    def start_query(df: Any, batches: Any, *, checkpoint: str, trigger: Any, **_: object) -> FakeQuery:
        return FakeQuery(
            df.source, batches.body, Path(checkpoint.removeprefix("file:")), once="availableNow" in trigger
        )

    fakes: dict[str, Any] = {
        "Batches": FakeBatches,
        "start_query": start_query,
        "frozen": frozen,
        "can_freeze_on_use": lambda _: False,
        "job_properties": lambda _: lambda: None,
        "run_for_nothing": lambda _: None,
        "ends_within": lambda query, seconds: query.awaitTermination(seconds),
        "is_idle": lambda query: query.is_idle,
        "stop_from_within": lambda query: query.stop(),
        "progress_of": lambda _: {},
        "end_idle_monitors": lambda _: None,
        "session_end": lambda _: None,
        "source_names": lambda _: ["fake"],
        "inputs": lambda _: [("fake", {})],
        "lake_inputs": lambda _: [],
        "state_operators": lambda df: [("Fake", [], [])] if df.stateful else [],
        "setting": lambda *_: None,
        "source_paths": lambda *_: [],
        "file_inputs": lambda *_: [],
        "require_packages": lambda _: None,
        "require_trigger": lambda *_: None,
        "is_stateful": lambda df: df.stateful,
        "is_observed": lambda _: False,
        "few_rows": lambda *_, **_options: None,
        "state_settings": lambda _: {},
        "is_local": lambda _: True,
        "folder_mode": lambda _: 0o755,
    }
    for name, fake in fakes.items():
        patch.setattr(adapter, name, fake)
    patch.setattr(preparing, "RowDigest", FakeDigest)


@dataclass
class Place:
    """What outlives a driver: the staged and the visible output of one sink."""

    staged: dict[str, list[int]] = field(default_factory=dict)
    visible: dict[int, list[int]] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        return sorted(row for rows in self.visible.values() for row in rows)


class MemorySink(Sink):
    """Stages and commits in a `Place`. `before(step, key)` may raise."""

    def __init__(self, name: str, place: Place, before: Callable[[str, EpochKey], None] = lambda *_: None) -> None:
        super().__init__(name)
        self.place = place
        self._before = before

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        self._before("prepare", key)
        name = f"{key.attempt} lease {key.lease}"
        self.place.staged[name] = list(df)
        self.context.reach("staging")
        return Staged({"staged": name}, len(df))

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        self._before("commit", key)
        last = Link(max(self.place.visible, default=0), None)
        if key.epoch in self.place.visible or is_past(self, key, last, "memory"):
            return
        if handle["staged"] not in self.place.staged:
            raise StagedGone(sink=self.name, epoch=key.epoch)
        self.context.reach("committing")
        self.place.visible[key.epoch] = self.place.staged[handle["staged"]]

    def abort(self, key: EpochKey) -> None:
        self._before("abort", key)
        for name in [each for each in self.place.staged if each.startswith(f"{key.attempt} ")]:
            del self.place.staged[name]

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        del owner, timeline
        return SinkPosition(max(self.place.visible, default=0))


class Bench:
    """One stream into memory sinks; each `driver()` is another start of its program."""

    def __init__(self, folder: Path, sinks: int = 1, *, stateful: bool = False, **options: Any) -> None:
        self.repository = LocalRepository(folder / "repository")
        (folder / "repository").mkdir(parents=True, exist_ok=True)
        try:
            self.identity = Identity.load(self.repository)
        except NotFound:
            self.identity = Identity.create(self.repository, "pipeline")
        self.source: list[list[int]] = []
        self.places = [Place() for _ in range(sinks)]
        self.stateful = stateful
        self.options = options
        self.before: Callable[[str, EpochKey], None] = lambda *_: None
        self.acknowledged: list[tuple[int, Any]] = []

    def driver(
        self,
        reach: Reach = unwatched,
        *,
        available_now: bool = True,
        restart: RestartPolicy | None = None,
        accept: tuple[str, ...] = (),
        **callbacks: Any,
    ) -> StreamRun:
        def build(_: object) -> Any:
            df = Rows()
            df.source, df.stateful = self.source, self.stateful
            return df

        spec = checked_spec(
            "rows",
            build,
            sinks=[MemorySink(f"sink{n}", each, self._before) for n, each in enumerate(self.places)],
            output_mode="append",
            trigger=None,
            options=None,
            restart=restart or RestartPolicy.never(),
            **{"quarantine_after": None, **self.options},
        )
        run = RunContext(
            spark=None,
            repository=self.repository,
            lineage=Lineage.load(self.repository),
            lease=Lease.take(self.repository, locker=lambda: None, shared=True, why=RUN),
            retain=100,
            shared=True,
            available_now=available_now,
            accept=frozenset(accept),
            backoff=Backoff(first=0.001, longest=0.002),
            callbacks=StreamCallbacks(**callbacks),
            reach=reach,
            acknowledge=lambda *each: self.acknowledged.append(each),
            build=build,
        )
        return StreamRun(spec, run)

    def _before(self, step: str, key: EpochKey) -> None:
        self.before(step, key)

    def run(self, reach: Reach = unwatched, **options: Any) -> StreamRun:
        """Recover and run to the end; raise the error of a stream that gave up."""
        stream = self.driver(reach, **options)
        stream.recover()
        stream.live()
        if stream.failed is not None:
            raise stream.failed
        return stream

    def started(self, reach: Reach = unwatched, **options: Any) -> tuple[StreamRun, threading.Thread]:
        """Recover and run in a thread, until stopped."""
        stream = self.driver(reach, available_now=False, **options)
        stream.recover()
        thread = threading.Thread(target=stream.live, daemon=True)
        thread.start()
        return stream, thread

    @property
    def rows(self) -> list[int]:
        """All rows of the source."""
        return sorted(row for rows in self.source for row in rows)
