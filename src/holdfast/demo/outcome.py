"""The result of a demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.demo.proof import Proof
from holdfast.demo.trial import Kill
from holdfast.formats.sealed_json import plain

if TYPE_CHECKING:
    from holdfast.rewind.plan import RewindPlan

JOBS = {"holdfast": "Holdfast", "plain": "plain Spark"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first part: the outputs of both jobs after the kills."""

    kills: tuple[Kill, ...]
    proofs: dict[str, Proof]

    @property
    def ok(self) -> bool:
        """Whether Holdfast's outputs are exactly as expected; plain Spark's are only shown."""
        return self.proofs["holdfast"].ok

    def killed(self, job: str) -> int:
        """Count the kills of a job."""
        return sum(kill.job == job for kill in self.kills)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "kills": [kill.to_dict() for kill in self.kills],
            "jobs": {job: {"killed": self.killed(job)} | self.proofs[job].to_dict() for job in JOBS},
        }


@dataclass(frozen=True, slots=True)
class Correction:
    """The second part: a bug was deployed, undone and fixed. Holdfast's outputs were read after each step."""

    events: int
    category: str
    plan: RewindPlan
    timeline: int
    buggy: Proof
    rewound: Proof
    fixed: Proof

    @property
    def ok(self) -> bool:
        """Whether the bug was visible in the totals, the rewind took it back, and the fixed outputs are right."""
        return not self.buggy.totals.ok and self.rewound.ok and self.fixed.ok

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "ok": self.ok,
            "events": self.events,
            "category": self.category,
            "plan": plain(self.plan),
            "timeline": self.timeline,
            "buggy": self.buggy.to_dict(),
            "rewound": self.rewound.to_dict(),
            "fixed": self.fixed.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a demo."""

    folder: Path
    seed: int
    seconds: float
    events: int
    late: int
    twice: int
    comparison: Comparison
    correction: Correction

    @property
    def ok(self) -> bool:
        """Whether Holdfast's outputs are exactly as expected after the kills, and after the rewind and the fix."""
        return self.comparison.ok and self.correction.ok

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "ok": self.ok,
            "folder": str(self.folder),
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "events": self.events,
            "late": self.late,
            "twice": self.twice,
            **self.comparison.to_dict(),
            "rewind": self.correction.to_dict(),
        }
