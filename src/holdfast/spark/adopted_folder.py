"""The folder of an adopted stream: built among the temporary files, renamed last. The rules are in `adopting`."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.epoch import Attempt, Decision, Facts, Share, Verdict
from holdfast.plainspark.adoption import AdoptPlan
from holdfast.plainspark.folders import FolderCopy, copy_folder
from holdfast.plainspark.records import NAME, AdoptedRecord
from holdfast.repository import Lease, LocalRepository
from holdfast.repository.decisions import slot_key, stream_folder
from holdfast.repository.files import failing_as, make_folder, replace_durably, sync_folder
from holdfast.repository.history import current_user
from holdfast.repository.local import TEMPORARIES
from holdfast.repository.stream_records import StreamRecord
from holdfast.spark.sparklog import SparkLog, last_entries
from holdfast.spark.spec import StreamSpec
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.sourcelog import log_offset


@dataclass(frozen=True, slots=True)
class AdoptedFolder:
    """Builds the folder of a stream, and renames it into place."""

    plan: AdoptPlan
    spec: StreamSpec
    repository: LocalRepository
    lease: Lease
    timeline: int

    @property
    def _scratch(self) -> Path:
        return self.repository.root / TEMPORARIES / f"adopt-{self.spec.name}"

    @property
    def _target(self) -> Path:
        return self.repository.root / stream_folder(self.spec.name, self.timeline)

    def build(self) -> tuple[int, int]:
        """Write all files of the stream, durably; return their number and size.

        1. Remove what a killed adoption has left.  2. Copy Spark's folder.  3. Write the settings.  4. Decide.
        5. Write where the stream comes from.
        """
        plan, scratch = self.plan, self._scratch
        with failing_as("clear", str(scratch)):
            shutil.rmtree(scratch, ignore_errors=True)  # 1
            make_folder(scratch / "epochs")
        copied = copy_folder(  # 2
            FolderCopy(Path(plan.checkpoint), plan.committed, plan.in_doubt), scratch / "spark", self._target / "spark"
        )
        log = SparkLog(LocalSparkFolder(scratch / "spark"), self.spec.name)
        record = StreamRecord(stream=self.spec.name, output_mode=self.spec.output_mode, settings=dict(plan.settings))
        self._put("stream.json", record.sealed())  # 3
        decided = plan.in_doubt if plan.all_written else plan.committed
        if decided is not None:  # 4
            decision = self._decision(log, decided)
            self._put(f"epochs/{Path(slot_key(decision.attempt)).name}", decision.sealed())
        digest = "" if plan.in_doubt is None else log.offsets(plan.in_doubt).digest
        self._put(NAME, _record(plan, digest).sealed())  # 5
        return copied.files, copied.bytes

    def publish(self) -> None:
        """Rename the folder into place: from then on the stream exists."""
        target = self._target
        with failing_as("rename", str(target)):
            make_folder(target.parent)
            with contextlib.suppress(FileNotFoundError):
                target.rmdir()  # an empty one; a rename would replace it anyway
            self._scratch.rename(target)
            sync_folder(target.parent)

    def _put(self, name: str, data: bytes) -> None:
        replace_durably(self._scratch / name, data, name)

    def _decision(self, log: SparkLog, batch: int) -> Decision:
        """Return the decision of a batch that no sink is given."""
        offsets = log.offsets(batch)
        entries = {name: digest for name, digest in log.source_entries({}).items() if _is_read(name, offsets.ends)}
        facts = Facts(
            start=list(log.offsets(batch - 1).ends) if batch else [None] * len(offsets.ends),
            end=list(offsets.ends),
            offsets_digest=offsets.digest,
            source_log=last_entries(entries, {}),
            source_entries=entries,
            sinks={name: Share(handle={}, rows=0, stands=0, before=0, given=False) for name in self.plan.sinks},
            rows=0,
            watermark_ms=offsets.watermark_ms,
            decided_at_ms=int(time.time() * 1000),
        )
        attempt = Attempt(stream=self.spec.name, timeline=self.timeline, epoch=batch + 1, attempt=1)
        return Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=self.lease.number, facts=facts.plain())


def _is_read(entry: str, ends: tuple[str | None, ...]) -> bool:
    """Whether an entry of a source's log belongs to a batch that ends here, or to one before it."""
    source, name = entry.split("/")
    end = ends[int(source)] if source.isdecimal() and int(source) < len(ends) else None
    last = log_offset(end)
    return end is not None and (last is None or int(name.removesuffix(".compact")) <= last)


def _record(plan: AdoptPlan, digest: str) -> AdoptedRecord:
    return AdoptedRecord(
        stream=plan.stream,
        checkpoint=plan.checkpoint,
        query=plan.query,
        committed=plan.committed,
        in_doubt=plan.in_doubt,
        last_batch=dict(plan.last_batch),
        offsets_digest=digest,
        who=current_user(),
        at_ms=int(time.time() * 1000),
    )
