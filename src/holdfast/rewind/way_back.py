"""The next step if the Spark folder of a stream is lost: the newest sound checkpoint, and the command to go back.

On a local disk, files of a checkpoint are hard links to the files in that folder, so both may be damaged. A checkpoint
is called sound only after every byte of it was compared. One that the disk cannot read is passed over. If an object
store cannot be read, the search fails: a checkpoint there is not unsound because of an outage.
"""

from __future__ import annotations

from holdfast.epoch import Facts
from holdfast.errors import (
    CheckpointDamaged,
    CheckpointMissing,
    Corrupt,
    ManifestRefused,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.errors.base import PROGRAM
from holdfast.repository import Checkpoints, Lineage, ObjectRepository, Repository
from holdfast.repository.decisions import streams_of
from holdfast.restore import RestorePlan, plan_restore, refuse_changed
from holdfast.rewind.bases import on_lineage
from holdfast.rewind.inputs import EntryDigests, inputs_after
from holdfast.rewind.lake_tables import TableQuestions
from holdfast.rewind.members import last_decision
from holdfast.rewind.plan import Readable
from holdfast.rewind.topics import TopicQuestions
from holdfast.sparkfiles.places import spark_folder


def newest_sound(repository: Repository, lineage: Lineage) -> int | str | None:
    """Return the newest checkpoint of the lineage that can be restored."""
    found = _newest_sound(repository, lineage)
    return None if found is None else found.name


def way_back(repository: Repository, lineage: Lineage) -> str | None:
    """Return the next step for a stream whose Spark folder is damaged or gone, or `None` without a checkpoint.

    The command has every option that it needs. Which files a stream has read since the checkpoint may be known to the
    lost folder only: then the user must know that they still exist.
    """
    found = _newest_sound(repository, lineage)
    if found is None:
        return None
    condition, option = "", ""
    if not _input_is_known(repository, lineage, found):
        condition, option = "if the input after it still exists, which cannot be checked here, ", " --accept-input"
    return (
        f"{condition}go back to the newest sound checkpoint: holdfast rewind {PROGRAM} --to {found.name}{option}; or "
        f"restore the folder from a copy; nothing was changed"
    )


def _newest_sound(repository: Repository, lineage: Lineage) -> RestorePlan | None:
    for each in on_lineage(Checkpoints(repository), lineage):
        try:
            found = plan_restore(repository, each.name)
            refuse_changed(repository, found)
            return found
        except (CheckpointDamaged, CheckpointMissing, ManifestRefused, UnsupportedVersion):
            continue
        except StorageFailed:
            if isinstance(repository, ObjectRepository):
                raise
    return None


def _input_is_known(repository: Repository, lineage: Lineage, base: RestorePlan) -> bool:
    """Whether it can be found out for all sources if they have the input after a checkpoint, as the plan does it."""
    for stream in sorted({name for timeline in lineage.timelines for name in streams_of(repository, timeline)}):
        timeline, cut = lineage.timeline_of(stream), base.manifest.streams.get(stream)
        try:
            decision, _ = last_decision(repository, stream, timeline)
            now = tuple(Facts.of(decision).end) if decision else ()
        except (Corrupt, StorageFailed, UnsupportedVersion):
            continue  # the rewind reports it
        spark = spark_folder(repository, stream, timeline)
        topics = TopicQuestions(repository, lineage, stream, cut.epoch if cut else 0)
        tables = TableQuestions(repository, lineage, stream)
        entries = EntryDigests(repository, stream, timeline, cut.epoch if cut else 0, decision)
        sources = inputs_after(
            cut.offsets if cut else (), now, spark, [base.manifest], entries=entries, topics=topics, tables=tables
        )
        if any(each.readable is Readable.UNKNOWN for each in sources):
            return False
    return True
