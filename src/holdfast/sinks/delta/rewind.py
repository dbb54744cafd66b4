"""Taking the epochs of a Delta table back, and putting them back: files and stamp in one commit of its log.

    _holdfast/<uid>.<stream>/aside.t<n>.<number>.json    the files that the rewind into timeline n took out

Rules:
- Only files of this stream's epochs are removed, by their names. Rows of other writers stay, also newer ones.
- A file that is no longer part of the table cannot be taken out: OPTIMIZE has copied its rows to another file, or a
  DELETE, UPDATE or MERGE has rewritten it. Then the rewind is refused. The records of the epochs show which files
  should be there.
- delta-rs would remove a file without its deletion vector, and the file would stay. So a table with a feature that this
  sink does not write is refused here too.
- The files stay on the disk or store, and their list is written before the commit, which names it by its number. An
  undo adds them again, unless VACUUM has deleted one.
- Stamp and files are one commit, and a commit of an older timeline that has not seen it is refused by Delta. So if the
  stamp is there, nothing is left to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from holdfast.epoch import Reach
from holdfast.errors import HoldfastError, NotSupported, RecordCorrupt, SinkFailed, SinkForeign
from holdfast.formats.sealed_json import Record, digest_of
from holdfast.sinks.base import CannotTakeBack, EpochPlace, RowsAside, StreamIdentity, TakeBack
from holdfast.sinks.delta.features import APPEND_ONLY, refuse_features
from holdfast.sinks.delta.ledger import DeltaLedger, DeltaMode, Transactions
from holdfast.sinks.delta.table_log import TableLog, TableState
from holdfast.sinks.lake.epoch_files import EpochFiles, LakeFile, LakeStaging
from holdfast.sinks.taking_back import refuse_outdated

CANNOT_APPEND_ONLY = CannotTakeBack(
    why=f"its table has {APPEND_ONLY}=true, so no file can be removed from it",
    do=f"set {APPEND_ONLY} to false before the rewind",
)
CANNOT_UPSERT = CannotTakeBack(
    why="an upsert rewrites files, and the previous versions of its rows are not kept apart",
    do="append to a second table beside it (changelog=True), which can be taken back",
)
TRIES = 100  # a commit fails if another writer was faster
_ASIDE = re.compile(r"aside\.t(\d+)\.(\d+)\.json")
_EVER = (1 << 62, 0)  # a place after all others


class AsideFiles(Record, frozen=True, kw_only=True):
    """The files that a rewind took out of a table."""

    timeline: int  # that the rewind began
    rows: int
    epochs: list[list[int]]  # timeline, epoch, attempt and lease
    files: list[LakeFile]
    written_ms: int  # when the last of them was written


@dataclass(frozen=True, slots=True)
class _Change:
    """What a commit of a rewind does, besides its stamp."""

    add: list[LakeFile] = field(default_factory=list)
    written_ms: int = 0
    remove: list[LakeFile] = field(default_factory=list)
    txns: Transactions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeltaRewind:
    """What a rewind does with one table, for one owner."""

    sink: str
    log: TableLog
    staging: LakeStaging
    upserts: LakeStaging
    owner: StreamIdentity
    share: bool
    reach: Reach

    def ledger(self, state: TableState) -> DeltaLedger:
        """Return the entries of the owner in a version of the table."""
        return DeltaLedger(self.owner, state.transaction, self.share, state.last_owner)

    def found(self, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what taking back would do, or why it is impossible."""
        state = self.log.load("be inspected")
        ledger = self.ledger(state)
        if foreign := ledger.foreign():
            return CannotTakeBack(why=f"its table belongs to {foreign}", do="choose another table")
        if ledger.mode == DeltaMode.REPLACE:
            return TakeBack(0, None, "")
        later = self._later(state, ledger, base, _EVER)
        if isinstance(later, CannotTakeBack):
            return later
        kept = f"{self.log.folder.url} (files that its log no longer names)" if later else ""
        return TakeBack(len({each.place for each in later}), sum(each.rows for each in later), kept)

    def take_back(self, base: EpochPlace, into: int) -> None:
        """Remove the files of all epochs between the base and the timeline `into` from the table."""

        def change(state: TableState, ledger: DeltaLedger) -> _Change:
            if ledger.mode == DeltaMode.REPLACE:
                return _Change()  # the next epoch replaces all rows
            later = self._later(state, ledger, base, (into, 0))
            if isinstance(later, CannotTakeBack):
                raise SinkFailed(sink=self.sink, action="be taken back", why=later.why, do=later.do)
            files = [file for each in later for file in each.files]
            if not files:
                return _Change()
            number = self._keep(later, files, into)
            return _Change(remove=files, txns=ledger.with_aside(into, number))

        self._stamped(base, into, change, "be taken back")

    def put_back(self, base: EpochPlace, into: int, taken: int) -> None:
        """Add the files again that the rewind into the timeline `taken` removed."""

        def change(state: TableState, ledger: DeltaLedger) -> _Change:
            aside = self._aside(ledger, taken)
            if aside is None:
                return _Change()
            self._refuse_features(state)
            if any(list(each.partition) != state.partition_by for each in aside.files):
                why = "the partitioning of the table has changed since the rewind"
                do = "restore the partitioning, then undo the rewind"
                raise SinkFailed(sink=self.sink, action="be put back", why=why, do=do)
            missing = self._missing(aside)
            if missing:
                why = f"{len(missing)} of its {len(aside.files)} files were deleted: {missing[0].path}"
                do = "restore the files from a copy, then undo again; VACUUM deletes what a rewind took out"
                raise SinkFailed(sink=self.sink, action="be put back", why=why, do=do)
            return _Change(add=aside.files, written_ms=aside.written_ms, txns=ledger.with_aside(taken, 0))

        self._stamped(base, into, change, "be put back")
        self._drop_lists()

    def stamp(self, base: EpochPlace, into: int) -> None:
        """End all earlier timelines, and change no rows."""
        self._stamped(base, into, lambda *_: _Change(), "be stamped")

    def set_aside(self) -> list[RowsAside]:
        """Return what rewinds took out and no undo has put back."""
        ledger = self.ledger(self.log.load("be inspected"))
        found = []
        for timeline, _ in self._lists():
            aside = self._aside(ledger, timeline)
            if aside is not None:
                rows = aside.rows - sum(each.rows for each in self._missing(aside))
                found.append(RowsAside(timeline, rows, self._list_name(timeline, ledger.aside(timeline))))
        return found

    def discard(self, timeline: int) -> None:
        """Delete the files that the rewind into a timeline took out. First, the log forgets them."""
        error: HoldfastError | None = None
        for _ in range(TRIES):
            state = self.log.load("discard rows")
            ledger = self.ledger(state)
            aside = self._aside(ledger, timeline)
            if aside is None:
                break
            error = self.log.commit(state, ledger.with_aside(timeline, 0), {"discarded": timeline})
            if error is None:
                for t, e, attempt, lease in aside.epochs:
                    self.staging.remove(self.owner, (t, e), attempt, lease)
                break
        else:
            raise error or SinkFailed(sink=self.sink, action="discard rows", why="other writers were always faster")
        self._drop_lists()

    # --- internal ---

    def _stamped(
        self, base: EpochPlace, into: int, change: Callable[[TableState, DeltaLedger], _Change], action: str
    ) -> None:
        """1. Check the owner and the stamp.  2. Commit stamp and files; repeat if another writer was faster.

        3. Remove what the ended timelines have staged and not committed.
        """
        error: HoldfastError | None = None
        self.reach("stamping")
        for _ in range(TRIES):
            state = self.log.load(action)
            ledger = self.ledger(state)
            if foreign := ledger.foreign():  # 1
                raise SinkForeign(sink=self.sink, place=f"table {self.log.folder.url}", owner=foreign)
            refuse_outdated(self.owner, into, ledger.place[0])
            if ledger.place[0] == into:
                break
            found = change(state, ledger)
            error = self.log.commit(  # 2
                state,
                ledger.stamped((into, base[1])) | found.txns,
                {"timeline": into, "epoch": base[1], "rewind": action},
                add=[(each, found.written_ms) for each in found.add],
                remove=found.remove,
            )
            if error is None:
                self.reach("stamped")
        else:
            raise error or SinkFailed(sink=self.sink, action=action, why="other writers were always faster")
        self.log.sync(state.version)
        for staging in (self.staging, self.upserts):
            staging.retire(self.owner, ledger.ended, (into, 0))  # 3
        self.reach("moved")

    def _later(
        self, state: TableState, ledger: DeltaLedger, base: EpochPlace, before: EpochPlace
    ) -> list[EpochFiles] | CannotTakeBack:
        """Return the attempts whose files are part of the table, after the base; or why they cannot be taken out."""
        if ledger.place <= base:
            return []
        if ledger.mode == DeltaMode.UPSERT:
            return CANNOT_UPSERT
        if base < (ledger.since[0], ledger.since[1] - 1):
            why = f"epochs before {ledger.since[1]} were written in another way: replaced or upserted"
            return CannotTakeBack(why, do=f"go back to a checkpoint at epoch {ledger.since[1] - 1} or later")
        active = {each.path for each in state.files()}
        ours = {path for path in active if self._is_between(path, base, before)}
        known = [each for each in self.staging.records(self.owner, base, before) if each.place <= ledger.place]
        aside = self._aside_paths(ledger)
        found: list[EpochFiles] = []
        for (_, epoch), attempts in groupby(known, key=lambda each: each.place):
            listed = list(attempts)
            there = [each for each in listed if all(file.path in active for file in each.files)]
            found += there
            if not there and not all(file.path in aside for each in listed for file in each.files):
                changed = "OPTIMIZE, DELETE, UPDATE or MERGE replaced them"
                why = f"files of epoch {epoch} are no longer part of the table: {changed}"
                do = f"go back to a checkpoint after that epoch, or pass --leave {self.sink}: its rows stay"
                return CannotTakeBack(why, do)
        unknown = ours - {file.path for each in found for file in each.files}
        if unknown:
            why = f"the record of {min(unknown)} is missing"
            return CannotTakeBack(why, do=f"restore {self.staging.own_name(self.owner, '')} from a copy")
        return (self._obstacle(state) if found else None) or found

    def _obstacle(self, state: TableState) -> CannotTakeBack | None:
        try:
            self._refuse_features(state)
        except NotSupported as error:
            return CannotTakeBack(error.why, error.do)
        return CANNOT_APPEND_ONLY if is_append_only(state) else None

    def _refuse_features(self, state: TableState) -> None:
        refuse_features(self.log.folder.url, state.features, state.settings, state.columns)

    def _is_between(self, path: str, base: EpochPlace, before: EpochPlace) -> bool:
        place = self.staging.place_of(path, self.owner)
        return place is not None and base < place < before

    def _keep(self, later: Iterable[EpochFiles], files: list[LakeFile], into: int) -> int:
        """Write the list of the files, and return its number."""
        data = AsideFiles(
            timeline=into,
            rows=sum(each.rows for each in files),
            epochs=[[*each.place, each.attempt, each.lease] for each in later],
            files=files,
            written_ms=max(each.written_ms for each in later),
        ).sealed()
        number = int(digest_of(data)[:15], 16) + 1
        self.log.folder.write_durably(self._list_name(into, number), data)
        return number

    def _aside(self, ledger: DeltaLedger, timeline: int) -> AsideFiles | None:
        number = ledger.aside(timeline)
        if not number:
            return None
        name = self._list_name(timeline, number)
        data = self.log.folder.read(name)
        if data is None:
            # Another process may have put the files back and removed the list. The version that a commit is based on
            # must stay as it is, so look with another view.
            newest = self.ledger(TableLog(self.sink, self.log.folder).load("be inspected"))
            if newest.aside(timeline) != number:
                return None
            raise RecordCorrupt(key=f"{self.log.folder.url}/{name}", why="it is missing, but the table's log names it")
        return AsideFiles.unsealed(data, f"{self.log.folder.url}/{name}")

    def _aside_paths(self, ledger: DeltaLedger) -> set[str]:
        found = {timeline: self._aside(ledger, timeline) for timeline, _ in self._lists()}
        return {file.path for each in found.values() if each is not None for file in each.files}

    def _missing(self, aside: AsideFiles) -> list[LakeFile]:
        folder, sizes = self.log.folder, dict[str, int]()
        for top in {each.path.rpartition("/")[0] for each in aside.files}:
            sizes |= {f"{top}/{name}": size for name, size in folder.files(top).items()}
        return [each for each in aside.files if sizes.get(each.path) != each.size]

    def _lists(self) -> list[tuple[int, int]]:
        """Return timeline and number of every list, those without an entry in the log too."""
        names = self.log.folder.names(self.staging.own_name(self.owner, "").rstrip("/"))
        return sorted((int(found[1]), int(found[2])) for found in map(_ASIDE.fullmatch, names) if found)

    def _drop_lists(self) -> None:
        """Remove the lists that the log does not name: of tries that failed, and those that were put back."""
        ledger = self.ledger(self.log.load("remove old records"))
        for timeline, number in self._lists():
            if timeline <= ledger.place[0] and ledger.aside(timeline) != number:
                self.log.folder.remove(self._list_name(timeline, number))

    def _list_name(self, timeline: int, number: int) -> str:
        return self.staging.own_name(self.owner, f"aside.t{timeline}.{number}.json")


def is_append_only(state: TableState) -> bool:
    """Whether no file can be removed from a table."""
    return (state.settings.get(APPEND_ONLY) or "").lower() == "true"
