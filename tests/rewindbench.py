"""A pipeline of one stream that can be rewound without a JVM: real decisions, checkpoints and folders, a fake query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from fakespark import Bench, Rows
from handsinks import HandFileSink, HandSqliteSink
from handstaged import SCHEMA, NoSession, query
from holdfast.epoch import Facts, Reach, unwatched
from holdfast.errors import StagedGone, TimelineEnded
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.policy import Backoff, RestartPolicy
from holdfast.repository import Checkpoints, Decisions, HeldFile, Lease, Lineage
from holdfast.repository.checkpoint_keys import place_of
from holdfast.repository.decisions import stream_folder
from holdfast.rewind import Program, ProgramStream, RewindPlan, apply_rewind, plan_rewind, plan_undo
from holdfast.rewind.finishing import finish_unfinished
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    Sink,
    SinkPosition,
    Staged,
    StreamIdentity,
    TakeBack,
)
from holdfast.spark.context import RunContext, StreamCallbacks
from holdfast.spark.spec import checked_spec
from holdfast.spark.stream import StreamRun

STREAM = "rows"


@dataclass
class TimelinePlace:
    """What outlives a driver: the output of one sink, by timeline and epoch."""

    staged: dict[str, tuple[EpochPlace, list[int]]] = field(default_factory=dict)
    visible: dict[EpochPlace, list[int]] = field(default_factory=dict)
    aside: dict[int, dict[EpochPlace, list[int]]] = field(default_factory=dict)
    stamp: EpochPlace = (0, 0)

    @property
    def rows(self) -> list[int]:
        return sorted(row for rows in self.visible.values() for row in rows)


class TimelineSink(Sink):
    """A sink that can go back. `at(step)` is called between the steps, and may raise."""

    def __init__(self, name: str, place: TimelinePlace, at: Callable[[str], None] = unwatched) -> None:
        super().__init__(name)
        self.target = f"memory {name}"
        self.place = place
        self.at = at

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        name = f"{key.attempt} lease {key.lease}"
        self.place.staged[name] = (key.place, list(df))
        return Staged({"staged": name}, len(df))

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        self.at("commit")
        if self.place.stamp[0] > key.timeline:
            raise TimelineEnded(stream=key.attempt.stream, timeline=key.timeline)
        if key.place <= max([self.place.stamp, *self.place.visible], default=(0, 0)):
            return
        if handle["staged"] not in self.place.staged:
            raise StagedGone(sink=self.name, epoch=key.epoch)
        self.place.visible[key.place] = self.place.staged[handle["staged"]][1]

    def abort(self, key: EpochKey) -> None:
        for name in [each for each in self.place.staged if each.startswith(f"{key.attempt} ")]:
            del self.place.staged[name]

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        del owner
        stamped = self.place.stamp[1] if self.place.stamp[0] == timeline else 0
        return SinkPosition(max([stamped, *(epoch for at, epoch in self.place.visible if at == timeline)]))

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        del owner
        later = [rows for place, rows in self.place.visible.items() if place > base]
        return TakeBack(len(later), sum(map(len, later)), f"memory aside {self.name}")

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        self.stamp(owner, base, into)
        aside = self.place.aside.setdefault(into, {})
        for place in sorted((each for each in self.place.visible if base < each < (into, 0)), reverse=True):
            self.at("moving")
            aside[place] = self.place.visible.pop(place)

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        self.stamp(owner, base, into)
        aside = self.place.aside.get(taken, {})
        for place in sorted(aside):
            self.at("moving")
            self.place.visible[place] = aside.pop(place)

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        if self.place.stamp[0] > into:
            raise TimelineEnded(stream=owner.stream, timeline=into)
        self.at("stamping")
        self.place.stamp = max(self.place.stamp, (into, base[1]))
        self.at("stamped")
        for name in [name for name, (place, _) in self.place.staged.items() if place < (into, 0)]:
            del self.place.staged[name]


class RewindBench(Bench):
    """One stream into sinks that can go back. It is also what `plan_rewind` takes: a pipeline with a program."""

    shared = False  # a rewind of a shared pipeline takes over from its driver
    output_mode = "append"

    def __init__(self, folder: Path, sinks: int = 2) -> None:
        super().__init__(folder, sinks=0)
        self.outputs = [TimelinePlace() for _ in range(sinks)]
        self.at: Callable[[str], None] = unwatched
        self.sinks: Callable[[], list[Sink]] = self.made_sinks

    def made_sinks(self) -> list[Sink]:
        return [TimelineSink(f"sink{n}", each, self._at) for n, each in enumerate(self.outputs)]

    def _at(self, step: str) -> None:
        self.at(step)

    @property
    def program(self) -> Program:
        stream = ProgramStream(STREAM, tuple(self.sinks()))
        return Program(self.identity.pipeline, self.repository, shared=self.shared, streams={STREAM: stream})

    @property
    def lineage(self) -> Lineage:
        return Lineage.load(self.repository)

    @property
    def folder(self) -> Path:
        return self.repository.root / stream_folder(STREAM, self.lineage.timeline_of(STREAM))

    def driver(
        self, reach: Reach = unwatched, *, available_now: bool = True, accept: tuple[str, ...] = (), **_: Any
    ) -> StreamRun:
        """Start the program: finish an interrupted rewind, as `start_pipeline` does, then continue."""
        lease = Lease.take(self.repository, locker=lambda: None, shared=True)
        finish_unfinished(self.program, lease, reach)

        def build(_: object) -> Any:
            df: Any = self._frame()
            return df

        spec = checked_spec(
            STREAM,
            build,
            sinks=self.sinks(),
            output_mode=self.output_mode,
            trigger=None,
            options=None,
            restart=RestartPolicy.never(),
            quarantine_after=None,
        )
        run = RunContext(
            spark=NoSession(),  # type: ignore[arg-type]
            repository=self.repository,
            lineage=self.lineage,
            lease=lease,
            retain=100,
            shared=True,
            available_now=available_now,
            accept=frozenset(accept),
            backoff=Backoff(first=0.001, longest=0.002),
            callbacks=StreamCallbacks(),
            reach=reach,
            build=build,
        )
        return StreamRun(spec, run)

    def _frame(self) -> Any:
        df: Any = Rows()
        df.source, df.stateful, df.schema = self.source, False, SCHEMA
        return df

    def add(self, *epochs: list[int]) -> None:
        """Give input, and run it."""
        self.source += epochs
        self.run()

    def take(self, savepoint: str | None = None) -> Manifest:
        """Take a checkpoint at the last epoch, as a coordinator does."""
        timeline = self.lineage.timeline_of(STREAM)
        decision = Decisions(self.repository).newest(STREAM, timeline)
        checkpoints, current = Checkpoints(self.repository), self.lineage.current
        before = checkpoints.newest(self.lineage)
        number = checkpoints.claim(current, 1)
        place = place_of(current, number, savepoint)
        cut = StreamCut(timeline=timeline, epoch=0)
        if decision is not None:
            batch, facts = decision.attempt.epoch - 1, Facts.of(decision)
            names = ["metadata", f"offsets/{batch}", f"commits/{batch}"]
            names += [f"offsets/{batch - 1}"] if (self.folder / f"spark/offsets/{batch - 1}").exists() else []
            paths = [self.folder / "spark" / name for name in names]
            held = self.repository.hold_all(paths, place.objects)
            files = [HeldFile(name, each.size, each.sha256) for name, each in zip(names, held, strict=True)]
            digest, listed = checkpoints.put_files(place, files)
            cut = StreamCut(
                timeline=timeline,
                epoch=decision.attempt.epoch,
                offsets=tuple(facts.end),
                rows=facts.total_rows,
                sinks={name: {"epoch": share.stands} for name, share in facts.sinks.items()},
                files=digest,
                file_count=len(listed.files),
                file_bytes=listed.bytes,
            )
        manifest = Manifest(
            checkpoint_id=number,
            epoch=number,
            timestamp_ms=number,
            pipeline=self.identity.pipeline,
            uid=self.identity.uid,
            timeline=current,
            lease=1,
            savepoint=savepoint,
            parent=before.digest if before else None,
            streams={STREAM: cut},
        )
        checkpoints.put(manifest)
        return manifest

    def plan(self, to: int | str, **options: Any) -> RewindPlan:
        return plan_rewind(self, to, **options)

    def rewind(self, to: int | str, reach: Reach = unwatched, **options: Any) -> RewindPlan:
        """Plan and apply. The fake source cannot be asked for its input, so that is accepted."""
        plan = self.plan(to, **options)
        apply_rewind(self, plan, accept_input=True, take_over=self.shared, reach=reach)
        return plan

    def undo(self, reach: Reach = unwatched) -> None:
        apply_rewind(self, plan_undo(self), take_over=self.shared, reach=reach)

    def visible(self) -> list[list[int]]:
        return [place.rows for place in self.outputs]


class DiskBench(RewindBench):
    """A pipeline into a folder of files and a SQLite table. Everything is on disk: any process can continue it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sinks=0)
        self.place = folder

    def made_sinks(self) -> list[Sink]:
        return [
            HandFileSink(self.place / "out", name="files"),
            HandSqliteSink(self.place / "out.db", "rows", epoch_column="epoch", name="table"),
        ]

    def in_files(self) -> list[int]:
        if not list((self.place / "out").rglob("*part-*")):
            return []
        read = ds.dataset(self.place / "out", format="parquet", partitioning="hive").to_table(columns=["n"])
        return sorted(read.column("n").to_pylist())

    def visible(self) -> list[list[int]]:
        return [self.in_files(), sorted(row[0] for row in query(self.place / "out.db", "SELECT n FROM rows"))]
