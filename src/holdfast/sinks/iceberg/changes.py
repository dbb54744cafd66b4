"""Changes of an Iceberg table: each is one transaction that adds a snapshot, with the ledger and the files.

Rules:
- Manifests are merged as Iceberg's own writers do it, so that their number stays bounded.
- Of the snapshots that a stream has written, the last `keep` stay. Older ones are expired in the same transaction,
  because each commit rewrites the list of all snapshots. Snapshots of other writers stay, and so does every snapshot
  that a branch or a tag names. No files are deleted.
- A table without a name mapping gets one: the files of Spark do not contain Iceberg's field ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

from holdfast.sinks.base import StreamIdentity
from holdfast.sinks.iceberg.ledger import TableLedger

OWNER, EPOCH = "holdfast.stream", "holdfast.epoch"  # in the summaries of snapshots
EXPIRED_AT_ONCE = 5  # more than one only after `keep_snapshots` was lowered


def change(
    table: Table,
    owner: StreamIdentity,
    ledger: TableLedger,
    *,
    added: Sequence[DataFile] = (),
    removed: Sequence[DataFile] = (),
    keep: int,
    tag: str | None = None,
) -> Transaction:
    """Return a transaction that adds a snapshot and replaces the stream's ledger. Nothing is committed.

    A `tag` names the snapshot before: no program expires it, or deletes its files, until the tag is removed.
    """
    table.metadata.properties.setdefault(TableProperties.MANIFEST_MERGE_ENABLED, "true")  # in memory only
    made = table.transaction()
    timeline, epoch = ledger.place
    update = made.update_snapshot(snapshot_properties={OWNER: _name(owner), EPOCH: f"{timeline}/{epoch}"})
    producer = update.overwrite() if removed else update.merge_append()
    for each in added:
        producer.append_data_file(each)
    for each in removed:
        producer.delete_data_file(each)
    producer.commit()  # into the transaction
    made.set_properties(ledger.property_of(owner))
    if added and table.metadata.name_mapping() is None:
        mapping = table.schema().name_mapping.model_dump_json()
        made.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    head = table.metadata.current_snapshot_id
    if tag is not None and head is not None:
        ManageSnapshots(made).create_tag(head, tag).commit()
    for snapshot in outdated(table, owner, keep):
        if tag is None or snapshot != head:
            ExpireSnapshots(made).by_id(snapshot).commit()
    return made


def outdated(table: Table, owner: StreamIdentity, keep: int) -> list[int]:
    """Return the oldest snapshots of a stream that the next one replaces, except those that a ref names."""
    needed = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name != MAIN_BRANCH}
    own = [each for each in _by_age(table.metadata.snapshots) if is_own(each, owner)]
    old = own[: max(0, len(own) - keep + 1)]
    return [each.snapshot_id for each in old if each.snapshot_id not in needed][:EXPIRED_AT_ONCE]


def is_own(snapshot: Snapshot, owner: StreamIdentity) -> bool:
    """Whether a stream has written this snapshot."""
    return snapshot.summary is not None and snapshot.summary.get(OWNER) == _name(owner)


def untag(made: Transaction, name: str) -> None:
    """Remove a tag, if it exists."""
    if name in made.table_metadata.refs:
        ManageSnapshots(made).remove_tag(name).commit()


def _by_age(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    return sorted(snapshots, key=lambda each: (each.sequence_number or 0, each.timestamp_ms))


def _name(owner: StreamIdentity) -> str:
    return f"{owner.uid}.{owner.stream}"
