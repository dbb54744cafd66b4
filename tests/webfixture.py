"""Pipelines for the page, without a JVM: repositories that are written fast, and a process that runs a fake query.

The records are those of the product, written by its own classes, but without fsync: only reading is tested.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.epoch import Attempt, CommitTimes, Decision, Facts, PhaseTimes, Share, Verdict
from holdfast.formats import Manifest, StreamCut
from holdfast.formats.manifest_parts import CheckpointTimes, StreamTimes
from holdfast.formats.sealed_json import digest_of
from holdfast.program.description import SinkDescription, SourceDescription, StreamDescription
from holdfast.program.records import ProgramRecord
from holdfast.repository import FileList, HeldFile, Identity, LocalRepository
from holdfast.repository.activity import ActivityEvent, Period, PeriodRecord, StreamActivity
from holdfast.repository.checkpoint_keys import AttemptRecord, place_of
from holdfast.repository.gaps import GapRecord
from holdfast.repository.lease import LeaseRecord
from holdfast.repository.lineage import TimelineRecord

DRIVER = Path(__file__).with_name("webdriver.py")
SINKS = ("files", "table")


@dataclass
class Sample:
    """A repository that is made by hand. Times count backwards from `now_ms`."""

    root: Path
    name: str = "orders"
    streams: tuple[str, ...] = ("orders", "totals")
    every_ms: int = 1000  # between two epochs
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def __post_init__(self) -> None:
        self.folder = self.root / self.name
        self.folder.mkdir(parents=True)
        self.repository = LocalRepository(self.folder)
        self.identity = Identity(pipeline=self.name, uid=hashlib.sha256(str(self.folder).encode()).hexdigest()[:32])
        self.write("holdfast.json", self.identity.sealed())
        self.parent: str | None = None

    def write(self, key: str, data: bytes) -> Path:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    # --- runs ---

    def lease(
        self,
        number: int = 1,
        *,
        ago_s: float = 60,
        pid: int = 4242,
        closed: bool = True,
        program: str = "",
        why: str = "run",
        shared: bool = False,
    ) -> None:
        """Write a lease of a run that is over; of a `shared` one, this is not known."""
        record = LeaseRecord(
            number=number,
            host="worker-1",
            pid=pid,
            token="t",  # noqa: S106 - it only tells two holders apart
            taken_at_ms=self.now_ms - int(ago_s * 1000),
            why=why,
            shared=shared,
            started_as=program,
        )
        self.write(f"lease/{number:08}.json", record.sealed())
        if closed:
            self.write(f"requests/{number:08}/closed.json", b"{}")

    def event(self, kind: str, text: str = "", *, ago_s: float = 0, n: int = 0, lease: int = 1, **more: object) -> None:
        at_ms = self.now_ms - int(ago_s * 1000)
        event = ActivityEvent(at_ms=at_ms, lease=lease, kind=kind, text=text, **more)  # type: ignore[arg-type]
        self.write(f"activity/events/{at_ms:015}.{lease:08}.{n}.json", event.sealed())

    def periods(self, count: int, *, lease: int = 1, behind: int | None = None) -> None:
        """Write one period for each of the last minutes."""
        for number in range(count):
            start = self.now_ms - (count - number) * 60_000
            epochs = 55 + number % 7
            streams = {
                name: StreamActivity(
                    epochs=epochs,
                    rows=epochs * (80 + number * 13 % 60),
                    last_epoch=(number + 1) * epochs,
                    seconds=epochs * (0.11 + number % 11 * 0.01),
                    slowest=0.4,
                    slowest_epoch=number * epochs + 1,
                    phases={"open": 1.0, "prepare": 5.0, "harden": 1.0, "decide": 0.5, "commit": 2.0},
                    state="running",
                    behind=behind if behind is None else behind * (number % 5),
                )
                for name in self.streams
            }
            period = Period(start_ms=start, end_ms=start + 60_000, lease=lease, streams=streams, checkpoints=1)
            self.write(f"activity/periods/{start:015}.{lease:08}.json", PeriodRecord(period=period).sealed())

    # --- epochs ---

    def program(self, stream: str, reads: str = "", kind: str = "kafka") -> None:
        description = StreamDescription(
            sources=[SourceDescription(kind=kind, reads=reads or "orders-topic")],
            sinks={name: SinkDescription(kind=f"{name.title()}Sink", target=f"{name} /out/{stream}") for name in SINKS},
            columns=[],
            state=[],
            output_mode="append",
        )
        record = ProgramRecord(stream=stream, timeline=1, epoch=1, description=description, at_ms=self.now_ms)
        self.write(f"programs/{stream}/0000000001.json", record.sealed())

    def epochs(self, stream: str, last: int, *, first: int = 1, committed: bool = True, timeline: int = 1) -> None:
        """Write the decisions of a range of epochs, the last one decided now."""
        folder = f"timelines/{timeline}/streams/{stream}"
        for epoch in range(first, last + 1):
            slow = 6 if epoch % 37 == 0 else 1
            before = CommitTimes(
                epoch=epoch - 1,
                decide=0.004,
                commit=0.021 * slow,
                sinks={"files": 0.006, "table": 0.015 * slow},
                ended_at_ms=self._at(last - epoch + 1) + 30,
            )
            facts = Facts(
                start=[f'{{"t":{{"0":{(epoch - 1) * 100}}}}}'],
                end=[f'{{"t":{{"0":{epoch * 100}}}}}'],
                offsets_digest="0" * 64,
                source_log={},
                source_entries={},
                sinks={name: Share(handle={"path": "x"}, rows=100, stands=epoch, before=epoch - 1) for name in SINKS},
                rows=100,
                total_rows=epoch * 100,
                decided_at_ms=self._at(last - epoch),
                times=PhaseTimes(
                    open=0.002,
                    prepare=0.05 * slow + epoch % 9 * 0.004,
                    harden=0.012,
                    sinks={"files": 0.04, "table": 0.05 * slow},
                ),
                last_commit=before if epoch > 1 else None,
            )
            attempt = Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=1)
            decision = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain())
            self.write(f"{folder}/epochs/{epoch}.1.json", decision.sealed())
        self.write(f"{folder}/spark/offsets/{last - 1}", b"v1\n{}")
        if committed:
            self.write(f"{folder}/spark/commits/{last - 1}", b"v1\n{}")

    def aborts(self, stream: str, epoch: int, count: int, *, first: int = 1) -> None:
        """Write the aborted attempts at an epoch, as an outage leaves them."""
        folder = f"timelines/1/streams/{stream}"
        for number in range(first, first + count):
            attempt = Attempt(stream=stream, timeline=1, epoch=epoch, attempt=number)
            decision = Decision(attempt=attempt, verdict=Verdict.ABORT, lease=1)
            self.write(f"{folder}/epochs/{epoch}.{number}.json", decision.sealed())
        self.write(f"{folder}/spark/offsets/{epoch - 1}", b"v1\n{}")

    def _at(self, epochs_ago: int) -> int:
        return self.now_ms - epochs_ago * self.every_ms

    def gap(self, stream: str, epoch: int, why: str = "the sink refused its rows") -> None:
        record = GapRecord(
            stream=stream, timeline=1, epoch=epoch, kind="quarantined", why=why, at_ms=self.now_ms, facts={"end": ["5"]}
        )
        self.write(f"timelines/1/streams/{stream}/gaps/{epoch:010}.quarantined.json", record.sealed())

    # --- checkpoints and timelines ---

    def checkpoint(
        self, number: int, *, ago_s: float = 0, files: int = 3, timeline: int = 1, savepoint: str | None = None
    ) -> Path:
        """Write a restorable checkpoint whose files exist; return the path of its manifest."""
        place = place_of(timeline, number, savepoint)
        held = []
        for n in range(files):
            data = f"{number if n == files - 1 else 'same'} {n}".encode() * 50
            digest = hashlib.sha256(data).hexdigest()
            if not (self.folder / place.object(digest)).exists():
                self.write(place.object(digest), data)
            held.append(HeldFile(f"state/0/{n}.delta", len(data), digest))
        listed = FileList(held)
        data = listed.to_bytes()
        digest = hashlib.sha256(data).hexdigest()
        self.write(place.object(digest), data)
        cuts = {
            name: StreamCut(
                timeline=timeline,
                epoch=number,
                offsets=(f'{{"t":{{"0":{number * 100}}}}}',),
                sources=("KafkaV2[Subscribe[orders]]",),
                rows=number * 100,
                sinks={sink: {"epoch": number} for sink in SINKS},
                files=digest,
                file_count=len(held),
                file_bytes=listed.bytes,
            )
            for name in self.streams
        }
        times = CheckpointTimes(
            seconds=0.31 + number % 5 * 0.07,
            streams={
                name: StreamTimes(
                    barrier=0.002 * (at + 1),
                    acknowledged=0.12 + at * 0.03,
                    linked=0.16 + at * 0.03,
                    held=0.27,
                    new_files=1,
                    new_bytes=held[-1].size,
                )
                for at, name in enumerate(self.streams)
            },
        )
        manifest = Manifest(
            checkpoint_id=number,
            epoch=number,
            timestamp_ms=self.now_ms - int(ago_s * 1000),
            pipeline=self.name,
            uid=self.identity.uid,
            timeline=timeline,
            lease=1,
            savepoint=savepoint,
            parent=self.parent,
            streams=cuts,
            times=times,
        ).to_bytes()
        if savepoint is None:
            self.parent = digest_of(manifest)
            record = AttemptRecord(checkpoint_id=number, lease=1, begun_at_ms=1)
            self.write(f"{place.folder}/attempt.json", record.sealed())
        return self.write(place.manifest, manifest)

    def timeline(self, number: int, parent: int, *, checkpoint: int, why: str, who: str = "ada@worker-1") -> None:
        record = TimelineRecord(
            timeline=number,
            parent=parent,
            bases=dict.fromkeys(self.streams, checkpoint),
            checkpoint=checkpoint,
            who=who,
            why=why,
            at_ms=self.now_ms - 3_600_000,
        )
        self.write(f"timelines/{number}/lineage.json", record.sealed())

    # --- whole pipelines ---

    def healthy(self, epochs: int = 60, checkpoints: int = 5) -> Sample:
        """Make a pipeline of two streams that has stopped gracefully."""
        self.lease(ago_s=300)
        self.program("orders")
        self.program("totals", reads="logs/orders/log", kind="holdfast_log")
        for name in self.streams:
            self.epochs(name, epochs)
        for number in range(1, checkpoints + 1):
            self.checkpoint(number, ago_s=(checkpoints - number) * 60)
        self.periods(30, behind=40)
        steps = {"build": 0.21, "open sinks": 0.09, "compare": 0.03, "complete": 0.12, "discard": 0.01}
        for name in self.streams:
            text = f"stream '{name}' continues after epoch 12; epoch 12 was decided but not yet in table: committed now"
            self.event("recovered", text, ago_s=290, stream=name, seconds=0.46, steps=steps, n=int(name == "totals"))
        self.event("started", "2 streams were recovered", ago_s=289)
        self.event("ended", "stopped gracefully", ago_s=1)
        return self


def started(folder: Path, *, seconds: float = 60.0) -> subprocess.Popen[bytes]:
    """Start a process that runs a pipeline named `live` below a folder; it decides an epoch every 50 ms."""
    process = subprocess.Popen([sys.executable, str(DRIVER), str(folder), str(seconds)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def troubled(root: Path) -> None:
    """Make one pipeline in each condition: stopped, failed, killed with an epoch in doubt, damaged, rewound, new."""
    Sample(root, "stopped").healthy(120, 24)
    failed = Sample(root, "failed").healthy()
    failed.lease(2, ago_s=20)
    failed.event(
        "failed",
        "stream 'orders' failed at epoch 61 and was restarted 5 times: sink 'table' refused its rows",
        stream="orders",
        next="correct the table, then start the pipeline again: holdfast run app.py:pipeline",
        error="StreamFailed",
        lease=2,
        ago_s=4,
    )
    killed = Sample(root, "killed").healthy()
    killed.lease(2, ago_s=9, closed=False)
    killed.epochs("orders", 61, committed=False)
    damaged = Sample(root, "damaged").healthy()
    path = damaged.checkpoint(6)
    path.write_bytes(path.read_bytes()[:-5])
    rewound = Sample(root, "rewound").healthy()
    rewound.timeline(2, 1, checkpoint=3, why="a bug in the price of an order")
    rewound.gap("orders", 2)
    Sample(root, "new")
