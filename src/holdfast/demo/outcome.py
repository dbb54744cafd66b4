"""The result of a demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.demo.proof import Proof
from holdfast.demo.trial import Kill

JOBS = {"holdfast": "Holdfast", "plain": "plain Spark"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a demo. It is `ok` if Holdfast's outputs are right; plain Spark's are only shown."""

    folder: Path
    seed: int
    seconds: float
    events: int
    late: int
    twice: int
    kills: tuple[Kill, ...]
    proofs: dict[str, Proof]

    @property
    def ok(self) -> bool:
        """Whether Holdfast's outputs are exactly as expected."""
        return self.proofs["holdfast"].ok

    def killed(self, job: str) -> int:
        """Count the kills of a job."""
        return sum(kill.job == job for kill in self.kills)

    def summary(self) -> str:
        """Return the result as text, one paragraph per job."""
        return "\n\n".join(
            f"{name}, killed {self.killed(job)} times\n{self.proofs[job].summary()}" for job, name in JOBS.items()
        )

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
            "kills": [kill.to_dict() for kill in self.kills],
            "jobs": {job: {"killed": self.killed(job)} | self.proofs[job].to_dict() for job in JOBS},
        }
