"""Clean-up on an object store: state that a restart or a checkpoint needs is never deleted, by whichever driver."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaningmodel import StateLost, walk
from holdfast.cleaning import Cleaning, FolderCleaning, FolderFacts, KeptCut, ListedFile
from holdfast.cleaning.names import LogEntry, SharedFile, SourceEntry, StateVersion, kind_of

STORE = "state/0/0"


def folder(*paths: str, at: float = 0.0) -> list[ListedFile]:
    return [ListedFile(path, 10, at) for path in paths]


def cut(epoch: int, *in_place: str, copied: tuple[str, ...] = (), checkpoint: int = 1) -> KeptCut:
    return KeptCut(checkpoint, epoch, frozenset(in_place), frozenset(copied))


def plan(files: list[ListedFile], *cuts: KeptCut, epoch: int = 200, retain: int = 100, **listed: set[str]) -> set[str]:
    named = {f"{STORE}/{name.removeprefix('v')}.zip": frozenset(paths) for name, paths in listed.items()}
    facts = FolderFacts(files=files, cuts=cuts, epoch=epoch, retain=retain, listed=named)
    return {each.path for each in FolderCleaning(facts).plan().deletes}


# --- rule by rule ---


def test_names_of_sparks_files() -> None:
    assert kind_of("state/0/11/7_ab-1.zip") == StateVersion("state/0/11", 7, is_snapshot=True)
    assert kind_of("state/0/11/left/7_ab-1.changelog.crc") == StateVersion("state/0/11/left", 7, is_snapshot=False)
    assert kind_of("state/0/11/7_ab-1.zip.crc") == StateVersion("state/0/11", 7, is_snapshot=False)
    assert kind_of("state/0/11/SSTs/000008-ab.sst") == SharedFile("state/0/11")
    assert kind_of("commits/12") == kind_of("offsets/12") == LogEntry(12)
    assert kind_of("sources/0/9.compact") == SourceEntry("sources/0", 9, is_compact=True)
    for path in ("metadata", "state/0/_metadata/metadata", "state/0/_stateSchema/default/0_a", "state/0/0/x.tmp"):
        assert kind_of(path) is None


def test_without_a_checkpoint_that_is_old_enough_nothing_goes() -> None:
    files = folder(f"{STORE}/1_a.changelog", "offsets/0", "commits/0", f"{STORE}/SSTs/1.sst", f"{STORE}/90_b.zip")
    assert plan(files) == set()
    assert plan(files, cut(101, f"{STORE}/90_b.zip")) == set()
    assert plan(files[:-1], cut(100, f"{STORE}/90_b.zip")) == set()  # its files are not all there
    assert plan(files, cut(100, f"{STORE}/90_b.zip")) == {f"{STORE}/1_a.changelog", "offsets/0", "commits/0"}


def test_nothing_at_or_above_the_base_snapshot_goes_even_if_nothing_names_it() -> None:
    names = [f"{STORE}/{version}_{name}.changelog" for version in (89, 90, 91, 200, 500) for name in "ab"]
    files = folder(*names, f"{STORE}/90_a.zip")
    assert plan(files, cut(95, f"{STORE}/90_a.zip")) == {f"{STORE}/89_a.changelog", f"{STORE}/89_b.changelog"}


def test_a_version_that_a_kept_checkpoint_names_stays() -> None:
    old = cut(40, f"{STORE}/39_a.zip", f"{STORE}/40_a.changelog", f"{STORE}/SSTs/1.sst", checkpoint=1)
    base = cut(95, f"{STORE}/90_a.zip", checkpoint=2)
    files = folder(*old.in_place, *base.in_place, f"{STORE}/40_b.changelog", f"{STORE}/38_a.changelog.crc")
    assert plan(files, old, base) == {f"{STORE}/40_b.changelog", f"{STORE}/38_a.changelog.crc"}


def test_without_a_snapshot_in_one_store_its_versions_and_all_log_entries_stay() -> None:
    base = cut(95, f"{STORE}/90_a.zip", "state/0/1/1_a.changelog")
    files = folder(*base.in_place, f"{STORE}/1_f.changelog", "state/0/1/1_f.changelog", "commits/3")
    assert plan(files, base) == {f"{STORE}/1_f.changelog"}
    new = folder("commits/3", f"{STORE}/90_a.zip", "state/1/0/500_a.changelog")  # a store that the base does not have
    assert plan(new, cut(95, f"{STORE}/90_a.zip")) == set()


def test_log_entries_go_below_the_lowest_base_snapshot_less_two() -> None:
    base = cut(95, f"{STORE}/90_a.zip", "state/0/1/80_a.zip")
    logs = [f"{log}/{batch}" for log in ("offsets", "commits") for batch in (77, 78, 79, 95)]
    files = folder(*base.in_place, *logs)
    assert plan(files, base) == {"offsets/77", "commits/77"}


def test_log_entries_of_a_stream_without_state_go_below_the_base_less_two() -> None:
    assert plan(folder("offsets/92", "offsets/93"), cut(95)) == {"offsets/92"}


def test_source_entries_go_below_the_last_but_one_compacted_entry_of_the_base() -> None:
    names = [f"sources/0/{each}.compact" if each % 10 == 9 else f"sources/0/{each}" for each in range(45)]
    base = cut(95, copied=("sources/0/29.compact", "sources/0/30"))
    assert plan(folder(*names, "sources/1/0"), base) == set(names[:19])
    assert plan(folder(*names[20:]), base) == set()  # there is no compacted entry before the last
    assert plan(folder(*names), cut(95, copied=("sources/0/8",))) == set()


SSTS = [ListedFile(f"{STORE}/SSTs/{each}.sst", 10, float(each)) for each in range(6)]
SNAPSHOTS = folder(f"{STORE}/90.zip", f"{STORE}/95.zip")
BASE = cut(95, f"{STORE}/90.zip", f"{STORE}/SSTs/3.sst")


def sst(*numbers: int) -> set[str]:
    return {f"{STORE}/SSTs/{each}.sst" for each in numbers}


def test_an_sst_goes_if_no_snapshot_lists_it_and_it_is_older_than_all_that_one_lists() -> None:
    files = [*SSTS, *SNAPSHOTS]
    assert plan(files, BASE, v90=sst(3), v95=sst(5)) == sst(0, 1, 2)
    assert plan(files, BASE, v90=sst(3), v95=sst(5, 1)) == sst(0)  # an older file is still in use
    same = [dataclasses.replace(each, modified=3.0) for each in SSTS]
    assert plan([*same, *SNAPSHOTS], BASE, v90=sst(3), v95=sst(5)) == set()


def test_an_sst_stays_if_it_is_not_known_what_a_remaining_snapshot_lists() -> None:
    assert plan([*SSTS, *SNAPSHOTS], BASE, v90=sst(3)) == set()
    assert plan([*SSTS, *SNAPSHOTS], BASE, v90=sst(3), v95=sst(77)) == set()  # damaged: it lists a missing file
    assert plan([*SSTS, *SNAPSHOTS], BASE, v90=set(), v95=set()) == set()
    below = folder(f"{STORE}/80.zip")  # it goes, so what it lists does not matter
    found = plan([*SSTS, *SNAPSHOTS, *below], BASE, v90=sst(3), v95=sst(5))
    assert found == {f"{STORE}/80.zip", *sst(0, 1, 2)}


def test_an_sst_stays_until_a_snapshot_above_the_base_snapshot_was_uploaded() -> None:
    assert plan([*SSTS, SNAPSHOTS[0]], BASE, v90=sst(3)) == set()


def test_an_sst_stays_if_a_kept_checkpoint_names_it_and_so_do_newer_ones() -> None:
    old = cut(40, f"{STORE}/39.zip", *sst(1), checkpoint=7)
    files = [*SSTS, *SNAPSHOTS, *folder(f"{STORE}/39.zip")]
    assert plan(files, BASE, old, v90=sst(3), v95=sst(5), v39=sst(1)) == sst(0)


def test_the_plan_gives_a_reason_for_each_file_and_names_its_base() -> None:
    facts = FolderFacts(
        files=folder(f"{STORE}/1_a.zip", f"{STORE}/90_a.zip", "commits/1"),
        cuts=[cut(95, f"{STORE}/90_a.zip", checkpoint=4)],
        epoch=200,
        retain=100,
        listed={},
    )
    found = FolderCleaning(facts).plan()
    assert (found.base, found.bytes) == (4, 20)
    assert [each.why for each in found.deletes] == [
        "batch 1 is below 88",
        "version 1 is below 90, and no checkpoint names it",
    ]
    assert FolderCleaning(dataclasses.replace(facts, cuts=[])).plan() == Cleaning((), None)


# --- properties of any folder ---

versions = st.integers(1, 30)
stores = st.sampled_from([STORE, "state/0/1", "state/1/0/left"])
names = st.one_of(
    st.builds("{}/{}_{}.{}".format, stores, versions, st.sampled_from("ab"), st.sampled_from(["zip", "changelog"])),
    st.builds("{}/SSTs/{}.sst".format, stores, st.integers(0, 9)),
    st.builds("{}/{}".format, st.sampled_from(["offsets", "commits"]), versions),
    st.builds("sources/{}/{}{}".format, st.integers(0, 1), versions, st.sampled_from(["", ".compact"])),
    st.sampled_from(["metadata", "state/0/_metadata/metadata", "state/0/_stateSchema/default/0_x"]),
)


@st.composite
def folders(draw: st.DrawFn) -> FolderFacts:
    paths = draw(st.sets(names, max_size=60))
    files = [ListedFile(path, 1, draw(st.integers(0, 9))) for path in sorted(paths)]
    some = st.frozensets(st.sampled_from(sorted(paths)), max_size=12) if paths else st.just(frozenset[str]())
    cuts = [KeptCut(draw(st.integers(1, 9)), draw(versions), draw(some), draw(some)) for _ in range(draw(versions) % 4)]
    zips = [path for path in sorted(paths) if path.endswith(".zip") and draw(st.integers(0, 9))]
    beside = {path: [each for each in paths if each.startswith(f"{path.rpartition('/')[0]}/SSTs")] for path in zips}
    listed = {path: frozenset(draw(st.sets(st.sampled_from(sorted(of))))) for path, of in beside.items() if of}
    return FolderFacts(files=files, cuts=cuts, epoch=draw(st.integers(0, 40)), retain=10, listed=listed)


@given(folders())
def test_what_a_kept_checkpoint_names_never_goes(facts: FolderFacts) -> None:
    gone = {each.path for each in FolderCleaning(facts).plan().deletes}
    assert not gone & {path for cut in facts.cuts for path in cut.in_place}


@given(folders())
def test_nothing_at_or_above_a_base_snapshot_goes(facts: FolderFacts) -> None:
    cleaning = FolderCleaning(facts)
    gone = cleaning.plan().deletes
    assert not gone or cleaning.base is not None
    assert not cleaning.base or cleaning.base.epoch <= facts.epoch - facts.retain
    for each in gone:
        kind = kind_of(each.path)
        assert kind is not None
        if isinstance(kind, StateVersion):
            assert kind.version < cleaning.bounds[kind.store]
        if isinstance(kind, LogEntry):
            assert all(kind.batch < bound - 2 for bound in cleaning.bounds.values())


@given(folders())
def test_what_a_remaining_snapshot_lists_stays_and_so_does_all_that_is_newer(facts: FolderFacts) -> None:
    times = {each.path: each.modified for each in facts.files}
    gone = {each.path for each in FolderCleaning(facts).plan().deletes}
    for path in times.keys() - gone:
        for name in facts.listed.get(path, ()):
            store = path.rpartition("/")[0]
            later = {each for each in gone if each.startswith(f"{store}/SSTs/") and times[each] >= times[name]}
            assert name not in gone
            assert not later


@given(folders())
def test_a_second_clean_up_finds_nothing(facts: FolderFacts) -> None:
    gone = {each.path for each in FolderCleaning(facts).plan().deletes}
    rest = dataclasses.replace(facts, files=[each for each in facts.files if each.path not in gone])
    assert FolderCleaning(rest).plan().deletes == ()


# --- drivers that are paused and replaced, late uploads, clean-ups that are carried out late ---

STEPS = 150


def test_state_is_never_lost_whatever_a_paused_driver_does_later() -> None:
    worlds = [walk(seed, STEPS) for seed in range(300)]
    assert sum(world.deleted for world in worlds) > 300  # it does clean up
    assert any(".sst" not in path for world in worlds for path in world.store)


class BaseIsNewest(FolderCleaning):
    """The newest checkpoint sets T, whatever its age."""

    def __init__(self, facts: FolderFacts) -> None:
        super().__init__(dataclasses.replace(facts, retain=0))


class NothingNamesIt(FolderCleaning):
    """A version goes if no checkpoint names it, at any age."""

    @property
    def bounds(self) -> dict[str, int]:  # type: ignore[override]
        return dict.fromkeys(FolderCleaning(self._facts).bounds, 10**9)

    def _log_entries(self):  # type: ignore[no-untyped-def]
        return iter(())


class IgnoresKept(FolderCleaning):
    """Files below T go even if a kept checkpoint names them."""

    _named = frozenset()  # type: ignore[assignment]


class BoundIsEpoch(FolderCleaning):
    """The epoch of the base is T, not the version of its snapshot."""

    @property
    def bounds(self) -> dict[str, int]:  # type: ignore[override]
        found = FolderCleaning(self._facts)
        return dict.fromkeys(found.bounds, found.base.epoch if found.base else 0)


class LogsToTheBound(FolderCleaning):
    """Log entries go up to T."""

    def _log_entries(self):  # type: ignore[no-untyped-def]
        first = min(self.bounds.values(), default=0)
        return ((path, "") for path, kind in self._kinds.items() if isinstance(kind, LogEntry) and kind.batch < first)


class AnyAge(FolderCleaning):
    """An SST goes if no snapshot lists it, at any age."""

    def _oldest_listed(self, store, snapshots):  # type: ignore[no-untyped-def]
        return None if super()._oldest_listed(store, snapshots) is None else float("inf")


class AgeAlone(FolderCleaning):
    """An SST goes if it is older than the newest that a snapshot lists."""

    def _oldest_listed(self, store, snapshots):  # type: ignore[no-untyped-def]
        if super()._oldest_listed(store, snapshots) is None:
            return None
        return max(self._modified[name] for path in snapshots for name in self._facts.listed[path])


class NotFollowed(FolderCleaning):
    """An SST may go before a snapshot above T was uploaded."""

    def _is_followed(self, store, snapshots):  # type: ignore[no-untyped-def]
        del store, snapshots
        return True


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (BaseIsNewest, 0),
        (NothingNamesIt, 0),
        (IgnoresKept, 0),
        (BoundIsEpoch, 0),
        (LogsToTheBound, 0),
        (AnyAge, 0),
        (AgeAlone, 400),
        (NotFollowed, 1800),  # it takes many walks to find this one
    ],
)
def test_without_one_of_the_rules_state_is_lost(mutant: type[FolderCleaning], first: int) -> None:
    with pytest.raises(StateLost):
        for seed in range(first, first + 1000):
            walk(seed, STEPS, mutant)
