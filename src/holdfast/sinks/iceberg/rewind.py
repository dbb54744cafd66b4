"""Taking the epochs of a stream out of an Iceberg table, and putting them back: files and stamp in one transaction.

    holdfast-<uid>.<stream>-t<n>     a tag: the snapshot before the rewind into timeline n, which names the files

Rules:
- Only files that the stream wrote are taken out: their paths contain stream, timeline and epoch. Rows of other writers
  stay. No file is deleted. The tag keeps other programs from deleting them, and readers can query it.
- An epoch has files and a record. If there are none at all, or if files of an epoch are in another folder, the location
  of the table was changed: that is refused, because the records that prove the epochs whole are in that folder.
- Every epoch after the base must be in the table with all of its files. If another program has rewritten some of them,
  as a compaction does, or has marked rows in them as deleted, the rewind is refused.
- Stamp and files change together, and a commit that read an older ledger is refused by the catalog. So if the stamp is
  there, no rows can be left, and nothing is done: rows of the new timeline may have the same epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from holdfast.errors import SinkFailed, SinkForeign
from holdfast.sinks.base import CannotTakeBack, EpochKey, EpochPlace, RowsAside, StreamIdentity, TakeBack
from holdfast.sinks.iceberg.changes import change, untag
from holdfast.sinks.iceberg.ledger import TableLedger, TakenBack, foreign_owner, ledger_in
from holdfast.sinks.key_files import place as place_name
from holdfast.sinks.lake.epoch_files import EpochFiles, LakeStaging
from holdfast.sinks.taking_back import refuse_outdated

_REWRITTEN = "go back to a checkpoint after the epochs that were rewritten, or pass --leave {}: its rows stay"

_MOVED = "go back to a checkpoint after these epochs, or pass --leave {}: its rows stay"
_SET_BACK = "set the location of the table to the folder with them, or "


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A data file that the stream wrote, in one snapshot of the table."""

    place: EpochPlace
    path: str  # relative to the table's folder, or to the one that was the table's folder when it was written
    file: DataFile
    has_deletes: bool  # another program has marked some of its rows as deleted
    is_elsewhere: bool  # it is not in the table's folder


@dataclass(frozen=True, slots=True)
class IcebergRewind:
    """What a rewind does with one table, as it was loaded, for one stream."""

    sink: str
    owner: StreamIdentity
    table: Table
    staging: LakeStaging
    keep: int

    @property
    def ledger(self) -> TableLedger:
        """The stream's entry."""
        return ledger_in(self.table.properties, self.owner) or TableLedger(pipeline=self.owner.pipeline)

    def found(self, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what taking back would do, or why it is impossible."""
        foreign = foreign_owner(self.table.properties, self.owner)
        if foreign is not None:
            return CannotTakeBack(why=f"its table belongs to {foreign}", do="choose another table")
        if self.ledger.place <= base:
            return TakeBack(0, 0, "")
        later = self._later(base)
        if isinstance(later, CannotTakeBack):
            return later
        if not later:
            return TakeBack(0, 0, "")
        return TakeBack(_epochs(later), _rows(later), f"files of the table, which the tags {self._tag('*')} name")

    def holds(self, key: EpochKey) -> bool:
        """Whether files of an attempt are in the table. Only a copy of the repository can have committed them."""
        if self.ledger.place < key.place:
            return False
        return self.staging.is_named(key, (each.path for each in self._own_files()))

    def _later(self, base: EpochPlace) -> list[OwnFile] | CannotTakeBack:
        """Return the files of all epochs after the base, or why they cannot be taken out."""
        do = _REWRITTEN.format(self.sink)
        try:
            own = self._own_files()
        except ValueError as error:  # PyIceberg cannot plan a table with equality deletes
            why = f"another program has deleted rows of the table in a way that PyIceberg cannot read: {error}"
            return CannotTakeBack(why, do)
        later = [each for each in own if each.place > base]
        marked = sorted({each.place for each in later if each.has_deletes})
        if marked:
            return CannotTakeBack(f"another program has deleted rows of {_named(marked)}", do)
        elsewhere = sorted({each.place for each in later if each.is_elsewhere})
        if elsewhere:
            place = self.table.location()
            why = f"the location of the table was changed: files of {_named(elsewhere)} are not in {place}"
            back = _SET_BACK if all(each.is_elsewhere for each in later) else ""
            return CannotTakeBack(why, back + _MOVED.format(self.sink))
        records = self._records(base)
        lost = self._lost(records, {each.path for each in later})
        if lost:
            why = f"another program has rewritten or removed files of {_named(lost)}, as a compaction does"
            return CannotTakeBack(why, do)
        if not records and not later and self._has_rows_after(base):
            why = f"neither files nor records of its epochs are in {self.table.location()}"
            return CannotTakeBack(why, _SET_BACK + do)
        return later

    def _has_rows_after(self, base: EpochPlace) -> bool:
        """Whether the last entry of the ledger is an epoch after the base, and not the stamp of a rewind."""
        held = self.ledger.held
        return self.ledger.place > base and bool(held) and held[-1].handle is not None

    def _records(self, base: EpochPlace) -> list[EpochFiles]:
        """Return the records of the epochs after the base."""
        timeline, epoch = self.ledger.place
        return self.staging.records(self.owner, base, (timeline, epoch + 1))

    def _lost(self, records: Iterable[EpochFiles], live: set[str]) -> list[EpochPlace]:
        """Return the epochs of which no attempt is in the table with all of its files."""
        whole: dict[EpochPlace, bool] = {}
        for record in records:
            paths = {each.path for each in record.files}
            whole[record.place] = whole.get(record.place, False) or paths <= live
        return [place for place, is_whole in sorted(whole.items()) if not is_whole and not self._is_aside(place)]

    def _is_aside(self, place: EpochPlace) -> bool:
        """Whether an earlier rewind took the epoch out, or it was never committed in a timeline that has ended."""
        taken = ((tuple(each.base), int(into)) for into, each in self.ledger.aside.items())
        return any(base < place < (into, 0) for base, into in taken) or tuple(self.ledger.ended) < place < (
            self.ledger.timeline,
            0,
        )

    def _own_files(self, snapshot: int | None = None) -> list[OwnFile]:
        """Return the stream's files in a snapshot, or in the current one."""
        if snapshot is None and self.table.current_snapshot() is None:
            return []
        found = []
        for task in self.table.scan(snapshot_id=snapshot).plan_files():
            address = task.file.file_path
            path = self._relative(address)
            is_elsewhere = path == address
            if is_elsewhere:
                path = self.staging.own_part(address, self.owner)
            place = self.staging.place_of(path, self.owner)
            if place is not None:
                found.append(OwnFile(place, path, task.file, bool(task.delete_files), is_elsewhere))
        return found

    def _relative(self, path: str) -> str:
        return path.removeprefix(f"{self.table.location().rstrip('/')}/")

    # --- changes ---

    def is_stamped(self, into: int) -> bool:
        """Whether the table is stamped; refuse one of another owner, and a rewind that a later one has followed."""
        foreign = foreign_owner(self.table.properties, self.owner)
        if foreign is not None:
            raise SinkForeign(sink=self.sink, place=f"table {'.'.join(self.table.name())}", owner=foreign)
        refuse_outdated(self.owner, into, self.ledger.timeline)
        return self.ledger.timeline == into

    def take_back(self, base: EpochPlace, into: int) -> Transaction:
        """Take out all epochs after the base, and stamp the table."""
        later = self._later(base)
        if isinstance(later, CannotTakeBack):
            raise SinkFailed(sink=self.sink, action="be taken back", why=later.why, do=later.do)
        ledger = self.ledger.stamped(base, into)
        if not later:
            return self._change(ledger)
        ledger = ledger.with_aside(into, TakenBack(list(base), _epochs(later), _rows(later)))
        return self._change(ledger, removed=[each.file for each in later], tag=self._tag(into))

    def put_back(self, base: EpochPlace, into: int, taken: int) -> Transaction:
        """Add the files again that the rewind into the timeline `taken` took out, and stamp the table."""
        ledger = self.ledger.stamped(base, into)
        if str(taken) not in ledger.aside:
            return self._change(ledger)
        aside = self._aside(taken)
        if aside is None or _rows(aside) != ledger.aside[str(taken)].rows:
            why = f"another program has removed the tag {self._tag(taken)}, which named the files"
            raise self._cannot_put_back(why, "restore the tag, or leave the rewind as it is")
        files = [each.file for each in aside]
        spec = self.table.metadata.default_spec_id
        if any(each.spec_id != spec for each in files):
            why = "the partitioning of the table has changed since the rewind"
            raise self._cannot_put_back(why, "restore the partitioning, then undo the rewind")
        for each in files:
            if not self.table.io.new_input(each.file_path).exists():
                why = f"another program has deleted {each.file_path}"
                raise self._cannot_put_back(why, "restore the file, then undo the rewind")
        made = self._change(ledger.without_aside(taken), added=files)
        untag(made, self._tag(taken))
        return made

    def stamp(self, base: EpochPlace, into: int) -> Transaction:
        """Stamp the table, and move nothing."""
        return self._change(self.ledger.stamped(base, into))

    def _change(
        self,
        ledger: TableLedger,
        *,
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
        tag: str | None = None,
    ) -> Transaction:
        return change(self.table, self.owner, ledger, added=added, removed=removed, keep=self.keep, tag=tag)

    def _cannot_put_back(self, why: str, do: str) -> SinkFailed:
        return SinkFailed(sink=self.sink, action="be put back", why=why, do=do)

    # --- what is set aside ---

    def set_aside(self) -> list[RowsAside]:
        """Return what rewinds took out, by timeline; without rows if its tag was removed."""
        refs = self.table.metadata.refs
        return [
            RowsAside(int(into), each.rows if self._tag(into) in refs else 0, f"tag {self._tag(into)}")
            for into, each in sorted(self.ledger.aside.items(), key=lambda item: int(item[0]))
        ]

    def _aside(self, taken: int) -> list[OwnFile] | None:
        """Return the files that a rewind took out; `None` if its tag was removed."""
        ref = self.table.metadata.refs.get(self._tag(taken))
        if ref is None:
            return None
        base = tuple(self.ledger.aside[str(taken)].base)
        return [each for each in self._own_files(ref.snapshot_id) if base < each.place < (taken, 0)]

    def discard(self, timeline: int) -> tuple[Transaction, list[OwnFile]] | None:
        """Forget what a rewind took out; return the change, and the files that may be deleted after it."""
        ledger = self.ledger
        if str(timeline) not in ledger.aside:
            return None
        files = self._aside(timeline) or []
        made = self._change(ledger.without_aside(timeline))
        untag(made, self._tag(timeline))
        return made, files

    def delete(self, files: Iterable[OwnFile]) -> None:
        """Delete the records of these files, and those of them that no snapshot names."""
        listed = list(files)
        for place in {each.place for each in listed}:
            self.staging.folder.remove(self.staging.own_name(self.owner, place_name(*place)))
        for path in self._unneeded(each.path for each in listed if not each.is_elsewhere):
            self.staging.folder.remove(path)

    def _unneeded(self, paths: Iterable[str]) -> list[str]:
        needed: set[str] = set()
        seen: set[str] = set()
        for snapshot in self.table.metadata.snapshots:
            for manifest in snapshot.manifests(self.table.io):
                if manifest.manifest_path not in seen:
                    seen.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
                    needed |= {self._relative(entry.data_file.file_path) for entry in entries}
        return sorted(set(paths) - needed)

    def _tag(self, timeline: int | str) -> str:
        return f"holdfast-{self.owner.uid}.{self.owner.stream}-t{timeline}"


def _epochs(files: Iterable[OwnFile]) -> int:
    return len({each.place for each in files})


def _rows(files: Iterable[OwnFile]) -> int:
    return sum(each.file.record_count for each in files)


def _named(places: list[EpochPlace]) -> str:
    epochs = sorted({epoch for _, epoch in places})
    return f"epoch {epochs[0]}" if len(epochs) == 1 else f"{len(epochs)} epochs from {epochs[0]} to {epochs[-1]}"
