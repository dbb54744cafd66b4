"""The next step if the Spark folder of a stream is lost: the newest sound checkpoint, and the command to go back."""

from __future__ import annotations

from holdfast.errors import CheckpointDamaged, CheckpointMissing, ManifestRefused, UnsupportedVersion
from holdfast.errors.base import PROGRAM
from holdfast.repository import Checkpoints, Lineage, Repository
from holdfast.restore import plan_restore
from holdfast.rewind.bases import on_lineage


def newest_sound(repository: Repository, lineage: Lineage) -> int | str | None:
    """Return the newest checkpoint of the lineage that can be restored, by its manifest and the sizes of its files."""
    for each in on_lineage(Checkpoints(repository), lineage):
        try:
            return plan_restore(repository, each.name).name
        except (CheckpointDamaged, CheckpointMissing, ManifestRefused, UnsupportedVersion):
            continue
    return None


def way_back(repository: Repository, lineage: Lineage) -> str | None:
    """Return the next step for a stream whose Spark folder is damaged or gone, or `None` without a checkpoint."""
    found = newest_sound(repository, lineage)
    if found is None:
        return None
    return (
        f"go back to the newest sound checkpoint: holdfast rewind {PROGRAM} --to {found}; or restore the folder from a "
        f"copy; nothing was changed"
    )
