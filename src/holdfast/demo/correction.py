"""The second part of the demo: a bug is deployed with the Holdfast job, seen in its outputs, undone and fixed.

1. New orders arrive, and the program with the bug processes them.
2. The outputs are compared with the expected ones: the totals are wrong.
3. A rewind takes the job back to the last checkpoint before the bug. The outputs are as they were then.
4. The fixed program processes the new orders again.
5. The outputs are compared once more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

import holdfast as hf
from holdfast.demo import screen, story
from holdfast.demo.orders import LISTED_TWICE, Orders
from holdfast.demo.outcome import Correction
from holdfast.demo.place import DemoFolder
from holdfast.demo.proof import Proof
from holdfast.demo.trial import Trial

if TYPE_CHECKING:
    from holdfast.rewind import RewindDone, RewindPlan

WHY = "tea was listed twice"


@dataclass(frozen=True, slots=True)
class _Shop:
    """The job's folder, and the orders before the bug, after it, and together."""

    place: DemoFolder
    before: Orders
    more: Orders
    console: Console
    interrupted: threading.Event

    @property
    def all(self) -> Orders:
        return self.before.followed_by(self.more)

    def run(self, program: str) -> Proof:
        """Run a version of the program until all orders are processed, and compare the outputs."""
        trial = Trial("holdfast", self.place, (), program)
        screen.run([trial], self.all.rows().total(), self.console, self.interrupted)
        return self.proof(self.all)

    def proof(self, orders: Orders) -> Proof:
        return Proof.of(self.place.outputs("holdfast"), orders.rows(), orders.totals())


def correct(
    place: DemoFolder, before: Orders, more: Orders, console: Console, interrupted: threading.Event
) -> Correction:
    """Deploy a bug, take it back, and deploy the fix. The orders `before` are processed, and no worker is running."""
    shop = _Shop(place, before, more, console, interrupted)
    checkpoint = _last_checkpoint(place)
    # 1, 2
    story.announce(console, more)
    more.write(place.input)
    buggy = shop.run("buggy")
    story.show_harm(console, buggy)
    # 3
    plan, done = _rewind(place, checkpoint)
    rewound = shop.proof(before)
    story.show_rewind(console, plan, rewound)
    # 4, 5
    fixed = shop.run("fixed")
    events = sum(1 for _ in more.events)
    correction = Correction(events, LISTED_TWICE, plan, done.timeline, buggy, rewound, fixed)
    story.conclude(console, correction)
    return correction


def _last_checkpoint(place: DemoFolder) -> int:
    """Return the checkpoint that the last run took at its end."""
    return hf.Checkpoints(hf.open_repository(str(place.repository))).latest().checkpoint_id


def _rewind(place: DemoFolder, checkpoint: int) -> tuple[RewindPlan, RewindDone]:
    """Take the job back as a user's program does. This needs neither Spark nor Java."""
    from holdfast.demo.job import pipeline  # it imports pyspark

    job = pipeline(place)
    plan = hf.plan_rewind(job, checkpoint)
    return plan, hf.apply_rewind(job, plan, why=WHY)
