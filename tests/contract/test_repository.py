"""One suite for every backend of a repository."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import open_repository
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import (
    AlreadyExists,
    BadName,
    BadValue,
    Closed,
    Fenced,
    LeaseTaken,
    Locked,
    NotFound,
    OutcomeUnknown,
    RecordCorrupt,
    StorageFailed,
)
from holdfast.formats.sealed_json import seal
from holdfast.repository import (
    Decisions,
    FileRepository,
    Held,
    History,
    Identity,
    Lease,
    Lineage,
    LocalRepository,
    MemoryRepository,
    ObjectRepository,
    Repository,
    TimelineRecord,
    files,
)
from holdfast.repository.base import held_key
from holdfast.repository.lease import newest_lease
from holdfast.repository.lineage import begin_timeline, branches
from holdfast.testing import FaultyRepository, ManualClock
from s3fixture import S3_PARAMS, S3Place, with_faults
from support import refused_in_a_child


@pytest.fixture(params=["local", "memory", *S3_PARAMS])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """Every backend; the store also with faults: about one request in seven fails in some way."""
    if request.param in ("local", "memory"):
        return LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository()
    place: S3Place = request.getfixturevalue("s3")
    if request.param == "s3-faults":
        with_faults(request.getfixturevalue("s3_faults"))
    return ObjectRepository(place.url())


@pytest.fixture(params=["local", "memory"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FileRepository:
    """The backends on this machine."""
    return LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository()


@pytest.fixture
def local(tmp_path: Path) -> LocalRepository:
    return LocalRepository(tmp_path / "root")


def test_what_is_put_is_read_and_replaced(machine: FileRepository) -> None:
    with pytest.raises(NotFound, match="a/b"):
        machine.read("a/b")
    machine.put("a/b", b"one")
    assert machine.read("a/b") == b"one"
    machine.put("a/b", [memoryview(b"t"), memoryview(b"wo")])
    assert machine.read("a/b") == b"two"
    machine.put("a/empty", b"")
    assert machine.read("a/empty") == b""


@pytest.mark.parametrize("first", [b"", b"1", b"first"])
def test_put_if_absent_has_one_winner_and_the_loser_reads_it(repository: Repository, first: bytes) -> None:
    won = repository.put_if_absent("slot", first)
    assert (won.won, won.data) == (True, first)
    for data in (first, b"second"):
        lost = repository.put_if_absent("slot", data)
        assert (lost.won, lost.data) == (False, first)
    repository.delete("slot")
    assert repository.put_if_absent("slot", [memoryview(b"thi"), memoryview(b"rd")]).data == b"third"


@pytest.mark.parametrize("data", ["text", None, 5, {}, [1], ["text"], {b"x"}])
def test_what_is_not_bytes_is_refused_and_nothing_is_written(repository: Repository, data: Any) -> None:
    for put in (repository.put_new, repository.put_if_absent):
        with pytest.raises(BadValue, match="bytes"):
            put("x", data)
    with pytest.raises(NotFound):
        repository.read("x")


def test_lists_are_direct_children_sorted_folders_marked(repository: Repository) -> None:
    assert repository.list() == []
    assert repository.list("nothing/here") == []
    for key in ("b", "a/y", "a/x/1", "a/x/2", "ab"):
        repository.put_new(key, b"")
    assert repository.list() == ["a/", "ab", "b"]
    assert repository.list("a") == repository.list("a/") == ["x/", "y"]
    assert repository.list("a/x") == ["1", "2"]


def test_delete_is_idempotent(repository: Repository) -> None:
    repository.put_new("a/b", b"")
    repository.delete("a/b")
    repository.delete("a/b")
    repository.delete("never/there")
    with pytest.raises(NotFound):
        repository.read("a/b")


def test_a_held_file_outlives_its_source_and_comes_back(machine: FileRepository, tmp_path: Path) -> None:
    source, target = tmp_path / "spark" / "1.delta", tmp_path / "new" / "state" / "1.delta"
    source.parent.mkdir()
    source.write_bytes(b"state")
    machine.hold(source, "objects/ab/abcd")
    machine.hold(source, "objects/ab/abcd")
    source.unlink()
    assert machine.read("objects/ab/abcd") == b"state"
    machine.restore("objects/ab/abcd", target)
    assert target.read_bytes() == b"state"
    with pytest.raises(AlreadyExists, match=r"1\.delta"):
        machine.restore("objects/ab/abcd", target)
    with pytest.raises(NotFound):
        machine.restore("objects/ab/other", tmp_path / "x")


def test_only_plain_files_are_held(machine: FileRepository, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path, tmp_path / "link", tmp_path / "nothing"):
        with pytest.raises(BadValue, match="regular file"):
            machine.hold(path, "objects/x")


def test_a_lock_is_held_by_one_and_released(machine: FileRepository) -> None:
    lock = machine.lock("a.lock")
    with pytest.raises(Locked) as caught:
        machine.lock("a.lock")
    assert caught.value.pid == os.getpid()
    lock.release()
    lock.release()
    assert machine.locked_by("a.lock") is None
    assert machine.locked_by("never.lock") is None
    with machine.lock("a.lock"):
        assert machine.locked_by("a.lock") == os.getpid()
        assert machine.locked_by("b.lock") is None
    with machine.lock("a.lock"), machine.lock("b.lock"):
        pass


# --- many files at once ----------------------------------------------------------------------------------------------


def spark_files(folder: Path, *texts: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.delta" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("copy", [False, True])
def test_files_are_held_under_their_digests_and_come_back(machine: FileRepository, tmp_path: Path, copy: bool) -> None:
    paths = spark_files(tmp_path / "spark", "a", "bb", "a", "")
    for _ in range(2):  # what is held already stays as it is
        held = machine.hold_all(paths, "objects", copy=copy)
        assert [(each.size, each.sha256) for each in held] == [
            (len(text), sha256(text)) for text in ("a", "bb", "a", "")
        ]
        assert [each.key for each in held] == [held_key("objects", each.sha256) for each in held]
    assert sum(len(machine.list(f"objects/{top}")) for top in machine.list("objects")) == 3
    for path in paths:
        path.unlink()
    targets = [tmp_path / "new" / "state" / path.name for path in paths]
    machine.restore_all(((each.key, to) for each, to in zip(held, targets, strict=True)), copy=copy)
    assert [path.read_text() for path in targets] == ["a", "bb", "a", ""]
    with pytest.raises(AlreadyExists, match=r"0\.delta"):
        machine.restore_all([(held[0].key, targets[0])], copy=copy)
    with pytest.raises(NotFound):
        machine.restore_all([("objects/ab/abc", tmp_path / "x")], copy=copy)
    assert machine.hold_all([], "objects") == []


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_that_vanished_is_not_found_and_what_was_held_before_it_does_no_harm(
    machine: FileRepository, tmp_path: Path, copy: bool
) -> None:
    (path,) = spark_files(tmp_path / "spark", "a")
    with pytest.raises(NotFound, match=r"gone\.delta"):
        machine.hold_all([path, tmp_path / "gone.delta"], "objects", copy=copy)
    assert machine.digest(held_key("objects", sha256("a"))) == sha256("a")


def test_links_share_their_bytes_and_copies_do_not(local: LocalRepository, tmp_path: Path) -> None:
    (path,) = spark_files(tmp_path / "spark", "a")
    (linked,) = local.hold_all([path], "objects")
    (copied,) = local.hold_all([path], "savepoints/x/files", copy=True)
    local.restore_all([(linked.key, tmp_path / "linked")])
    local.restore_all([(linked.key, tmp_path / "copied")], copy=True)
    assert (local.root / linked.key).samefile(path)
    assert (tmp_path / "linked").samefile(path)
    assert not (local.root / copied.key).samefile(path)
    assert not (tmp_path / "copied").samefile(path)


def test_what_is_kept_is_what_was_read(local: LocalRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked first and read from the link: a file that is replaced meanwhile is not kept under the other's digest."""
    (path,) = spark_files(tmp_path / "spark", "old")
    digest = files.digest_of_file

    def replaced(read: Path) -> str:
        (tmp_path / "other").write_text("new")
        (tmp_path / "other").replace(path)
        return digest(read)

    monkeypatch.setattr(files, "digest_of_file", replaced)
    (held,) = local.hold_all([path], "objects")
    assert held.sha256 == sha256("old")
    assert local.read(held.key) == b"old"


def test_past_the_link_limit_files_are_copied(
    local: LocalRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = spark_files(tmp_path / "spark", "a")
    link = os.link

    def full(src: Path, dst: Path, **options: bool) -> None:
        if not Path(src).name.startswith(files.TEMP_PREFIX):
            raise OSError(errno.EMLINK, "Too many links")
        link(src, dst, **options)

    monkeypatch.setattr(files.os, "link", full)
    (held,) = local.hold_all([path], "objects")
    assert local.read(held.key) == b"a"
    assert not (local.root / held.key).samefile(path)
    local.restore_all([(held.key, tmp_path / "back")])
    assert (tmp_path / "back").read_bytes() == b"a"
    assert [each.name for each in local.root.rglob(".*")] == [".tmp"]
    assert not list((local.root / ".tmp").iterdir())


def test_sizes_and_digests(repository: Repository) -> None:
    repository.put_new("a/x", b"four")
    repository.put_new("a/empty", b"")
    below = [] if isinstance(repository, ObjectRepository) else ["a/x/y"]  # the server of the tests keeps files
    assert repository.sizes(["a/x", "a/none", "a/empty", "b/none", *below]) == {
        "a/x": 4,
        "a/none": None,
        "a/empty": 0,
        "b/none": None,
        **dict.fromkeys(below),
    }
    assert repository.digests(["a/x", "a/none", *below]) == {
        "a/x": Held("a/x", 4, sha256("four")),
        "a/none": None,
        **dict.fromkeys(below),
    }
    assert repository.sizes([]) == repository.digests([]) == {}
    assert repository.digest("a/x") == sha256("four")
    large = b"0123456789" * 300_000
    repository.put_new("a/large", large)
    assert repository.digest("a/large") == hashlib.sha256(large).hexdigest()
    for missing in ("a/none", *below):
        with pytest.raises(NotFound, match=missing):
            repository.digest(missing)
    with pytest.raises(BadName):
        repository.sizes(["../x"])


def test_many_values_go_at_once_and_a_folder_with_all_in_it(repository: Repository) -> None:
    for key in ("a/x", "a/y/1", "a/y/2", "ab/x"):
        repository.put_new(key, b"")
    for _ in range(2):
        repository.delete_all(["a/x", "a/y/1", "never/there"])
        assert (repository.list("a"), repository.list("a/y"), repository.list("ab")) == (["y/"], ["2"], ["x"])
    for _ in range(2):
        repository.clear("a")
        assert repository.list("a") == []
        assert repository.read("ab/x") == b""
    repository.delete_all([])
    with pytest.raises(BadName):
        repository.delete_all(["lease/os.lock"])


# --- the lease -------------------------------------------------------------------------------------------------------


def test_leases_count_up_and_the_older_holder_is_fenced(machine: FileRepository) -> None:
    assert newest_lease(machine) is None
    first = Lease.take(machine)
    assert first.number == 1
    first.check()
    with pytest.raises(Locked):
        Lease.take(machine)
    second = Lease.take(machine, locker=lambda: None)  # as from another machine, where no lock of ours reaches
    assert second.number == 2
    assert newest_lease(machine) == second.record
    with pytest.raises(Fenced) as caught:
        first.check()
    assert (caught.value.number, caught.value.newer, caught.value.holder) == (1, 2, second.record.holder)
    second.check()
    first.release()
    assert not second.record.shared
    with Lease.take(machine, shared=True) as third:
        assert third.number == 3
        third.check()
        assert newest_lease(machine) == third.record
        assert third.record.shared
    with pytest.raises(Closed):
        third.check()


def test_a_holder_is_fenced_even_when_the_numbers_after_it_are_pruned(machine: FileRepository) -> None:
    old = Lease.take(machine, locker=lambda: None)
    for _ in range(40):
        Lease.take(machine, locker=lambda: None)
    names = [name for name in machine.list("lease") if name.endswith(".json")]
    assert len(names) <= 17
    with pytest.raises(Fenced) as caught:
        old.check()
    assert caught.value.newer == 41


def test_losing_the_race_for_a_number_names_the_winner_and_lets_go_of_the_lock(machine: FileRepository) -> None:
    def overtake(action: str, key: str) -> None:
        if action == "put_if_absent" and key.startswith("lease/"):
            Lease.take(machine, locker=lambda: None)

    with pytest.raises(LeaseTaken) as caught:
        Lease.take(FaultyRepository(machine, overtake))
    winner = newest_lease(machine)
    assert winner is not None
    assert caught.value.holder == winner.holder
    Lease.take(machine).release()


def test_a_damaged_lease_record_still_counts(machine: FileRepository) -> None:
    lease = Lease.take(machine)
    machine.put("lease/00000009.json", b"damaged")
    with pytest.raises(Fenced, match="cannot be read"):
        lease.check()
    machine.put("lease/00000009.json", seal({"version": 2}))  # of a newer Holdfast
    with pytest.raises(Fenced, match="cannot be read"):
        lease.check()
    lease.release()
    assert Lease.take(machine).number == 10


def test_a_lease_whose_record_was_taken_again_or_is_gone_is_fenced(machine: FileRepository) -> None:
    """As when the folder is put back from an older copy: two holders of one number, told apart by their tokens."""
    one = Lease.take(machine, locker=lambda: None)
    machine.delete("lease/00000001.json")
    with pytest.raises(Fenced, match="missing"):
        one.check()
    two = Lease.take(machine, locker=lambda: None)
    assert two.number == one.number
    with pytest.raises(Fenced):
        one.check()
    two.check()


# --- decisions -------------------------------------------------------------------------------------------------------


def decision(attempt: int, verdict: Verdict = Verdict.COMMIT, rows: int = 1) -> Decision:
    address = Attempt(stream="orders", timeline=1, epoch=41, attempt=attempt)
    return Decision(attempt=address, verdict=verdict, lease=1, facts={"rows": rows})


def test_a_slot_is_closed_once_and_what_stands_is_told_to_the_loser(repository: Repository) -> None:
    decisions = Decisions(repository)
    assert decisions.close(decision(1)) == decision(1)
    assert decisions.close(decision(1, Verdict.ABORT)) == decision(1)
    assert decisions.close(decision(1, rows=2)) == decision(1)
    assert repository.list("timelines/1/streams/orders/epochs") == ["41.1.json"]


def test_looking_at_an_epoch_gives_its_decisions_and_the_first_open_slot(repository: Repository) -> None:
    decisions = Decisions(repository)
    nothing = decisions.look("orders", 1, 41)
    assert (nothing.closed, nothing.open) == ((), decision(1).attempt)
    decisions.close(decision(1, Verdict.ABORT))
    decisions.close(decision(2))
    found = decisions.look("orders", 1, 41)
    assert found.closed == (decision(1, Verdict.ABORT), decision(2))
    assert found.open == decision(3).attempt


def test_the_decision_to_commit_an_epoch_is_read_without_a_write(machine: FileRepository) -> None:
    decisions, actions = Decisions(machine), list[tuple[str, str]]()
    looking = FaultyRepository(machine, lambda action, key: actions.append((action, key.rsplit("/", 1)[1])))
    assert Decisions(looking).committed("orders", 1, 41) is None
    decisions.close(decision(1, Verdict.ABORT))
    assert Decisions(looking).committed("orders", 1, 41) is None
    decisions.close(decision(2))
    actions.clear()
    assert Decisions(looking).committed("orders", 1, 41) == decision(2)
    assert actions == [("read", "41.1.json"), ("read", "41.2.json")]


@pytest.mark.parametrize("wrong", ["./state", None, 5])
def test_an_address_is_not_a_repository(wrong: Any) -> None:
    for use in (Decisions, History, Lease.take, Identity.load, lambda each: Identity.create(each, "orders")):
        with pytest.raises(BadValue, match="open_repository"):
            use(wrong)


def test_what_a_decision_says_is_told_as_it_is_read(repository: Repository) -> None:
    typed = Decision(attempt=decision(1).attempt, verdict="commit", lease=1)
    assert Decisions(repository).close(typed).verdict is Verdict.COMMIT


def test_what_could_not_be_read_back_is_never_written(repository: Repository) -> None:
    """A slot is closed once and a history goes on for ever: nothing unreadable may get there."""
    for wrong in ({"verdict": "stop"}, {"facts": {"a": object()}}, {"facts": None}, {"facts": {"a": "\ud800"}}):
        decision_ = Decision(**{"attempt": decision(1).attempt, "verdict": Verdict.ABORT, "lease": 1, **wrong})
        with pytest.raises(BadValue):
            Decisions(repository).close(decision_)
    for wrong in (None, 5, "\ud800"):
        with pytest.raises(BadValue):
            History(repository).add(wrong)
    assert repository.list("timelines/1") == []
    assert History(repository).entries() == []


def test_what_a_look_finds_is_made_durable_before_it_is_told(machine: FileRepository) -> None:
    """Its writer may have died before it was; and whoever is told acts on it."""
    Decisions(machine).close(decision(1))
    actions: list[tuple[str, str]] = []
    looking = FaultyRepository(machine, lambda action, key: actions.append((action, key.rsplit("/", 1)[1])))
    Decisions(looking).look("orders", 1, 41)
    assert actions == [("read", "41.1.json"), ("read", "41.2.json"), ("put_if_absent", "41.1.json")]


@pytest.mark.parametrize(
    "facts",
    [{"x": (1, 2)}, {"x": float("nan")}, {"x": b"bytes"}, {1: "x"}, {"x": {1: 2}}, {"x": object()}],
    ids=["tuple", "nan", "bytes", "integer-key", "deep-integer-key", "object"],
)
def test_facts_that_json_would_change_are_refused(repository: Repository, facts: Any) -> None:
    with pytest.raises(BadValue):
        Decisions(repository).close(Decision(attempt=decision(1).attempt, verdict=Verdict.ABORT, lease=1, facts=facts))
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(BadValue, match="deep"):
        History(repository).add("x", facts={"deep": deep})


def test_a_forked_child_has_no_lease(tmp_path: Path) -> None:
    with Lease.take(LocalRepository(tmp_path)) as lease:
        assert refused_in_a_child(lease.check, Closed)
        lease.check()


def test_a_failure_after_the_change_took_effect_is_unknown(
    local: LocalRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.put("objects/x", b"x")
    (tmp_path / "f").write_bytes(b"")
    sync = files.sync_folder

    def fail(folder: Path) -> None:
        if folder.name in ("objects", "out"):
            raise OSError(5, "Input/output error")
        sync(folder)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(files, "sync_folder", fail)
    for act in (
        lambda: local.put("objects/y", b""),
        lambda: local.put_if_absent("objects/z", b""),
        lambda: local.delete("objects/y"),
        lambda: local.hold(tmp_path / "f", "objects/f"),
        lambda: local.restore("objects/x", tmp_path / "out/x"),
    ):
        with pytest.raises(OutcomeUnknown, match=r"read .* back before you try again"):
            act()


def test_locks_are_no_values(machine: FileRepository, tmp_path: Path) -> None:
    with machine.lock("cursors/c.lock"):
        for act in (
            lambda: machine.put("cursors/c.lock", b""),
            lambda: machine.put_if_absent("cursors/c.lock", b""),
            lambda: machine.delete("cursors/c.lock"),
            lambda: machine.hold(tmp_path, "cursors/c.lock"),
        ):
            with pytest.raises(BadName, match="lock"):
                act()
        with pytest.raises(Locked):
            machine.lock("cursors/c.lock")


def test_a_decision_in_another_slot_or_damaged_is_refused(repository: Repository) -> None:
    decisions = Decisions(repository)
    decisions.close(decision(1))
    data = repository.read("timelines/1/streams/orders/epochs/41.1.json")
    repository.put_new("timelines/1/streams/orders/epochs/41.2.json", data)
    with pytest.raises(RecordCorrupt, match=r"41\.2\.json.*attempt 1"):
        decisions.look("orders", 1, 41)
    repository.put_new("timelines/1/streams/orders/epochs/41.1.json", data[:-1])
    with pytest.raises(RecordCorrupt, match=r"41\.1\.json"):
        decisions.close(decision(1))


# --- the end of a timeline -------------------------------------------------------------------------------------------


def test_a_timeline_ends_in_the_next_slot_and_stays_ended(repository: Repository) -> None:
    decisions = Decisions(repository)
    decisions.close(decision(1))
    assert not decisions.has_ended("orders", 1, 41)
    assert decisions.end("orders", 1, lease=9, after=41) is None
    assert decisions.has_ended("orders", 1, 41)
    assert decisions.end("orders", 1, lease=10, after=41) is None, "idempotent, also for another lease"
    slots = decisions.look("orders", 1, 42)
    assert [each.verdict for each in slots.closed] == [Verdict.END]
    assert slots.closed[0].lease == 9
    assert decisions.newest("orders", 1) == decision(1), "it decides nothing by itself"


def test_a_stream_that_has_decided_nothing_ends_before_its_first_epoch(repository: Repository) -> None:
    decisions = Decisions(repository)
    assert decisions.end("orders", 1, lease=2, after=0) is None
    assert [each.verdict for each in decisions.look("orders", 1, 1).closed] == [Verdict.END]


def test_an_epoch_that_wins_the_slot_is_returned_and_the_next_slot_ended(repository: Repository) -> None:
    decisions = Decisions(repository)
    decisions.close(decision(1))
    late = Decision(attempt=Attempt(stream="orders", timeline=1, epoch=42, attempt=2), verdict=Verdict.COMMIT, lease=1)

    class Raced(Decisions):
        """Another driver closes two slots just before this one does."""

        def close(self, ours: Decision) -> Decision:
            if ours.verdict is Verdict.END and ours.attempt.epoch == 42:
                aborted = msgspec.structs.replace(late, attempt=ours.attempt, verdict=Verdict.ABORT)
                super().close(aborted if ours.attempt.attempt == 1 else late)
            return super().close(ours)

    raced = Raced(repository)
    assert raced.end("orders", 1, lease=9, after=41) == late
    assert raced.end("orders", 1, lease=9, after=42) is None
    assert [each.verdict for each in decisions.look("orders", 1, 43).closed] == [Verdict.END]


@pytest.mark.parametrize("bad", [{"epoch": 0}, {"attempt": 0}, {"timeline": 0}, {"epoch": -1}, {"stream": "a/b"}])
def test_slots_that_cannot_be_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid"):
        Attempt(**{"stream": "s", "timeline": 1, "epoch": 1, "attempt": 1, **bad})


# --- identity and history --------------------------------------------------------------------------------------------


def test_a_repository_belongs_to_one_pipeline(repository: Repository) -> None:
    with pytest.raises(NotFound):
        Identity.load(repository)
    made = Identity.create(repository, "orders")
    assert Identity.load(repository) == made
    with pytest.raises(AlreadyExists):
        Identity.create(repository, "orders")


def test_the_highest_timeline_is_current_whoever_writes_last(repository: Repository) -> None:
    identity = Identity.create(repository, "orders")
    assert Lineage.load(repository) == Lineage(identity)
    fifth = begin_timeline(repository, TimelineRecord(timeline=5, parent=1, bases={"orders": 7}, checkpoint=3))
    begin_timeline(repository, TimelineRecord(timeline=3, parent=1, bases={"orders": 4}, checkpoint=2))
    assert Lineage.load(repository) == Lineage(identity, (fifth,))
    again = begin_timeline(repository, TimelineRecord(timeline=5, parent=1, bases={}, checkpoint=None))
    assert again == fifth, "the first record of a timeline is final"
    assert set(branches(repository)) == {3, 5}


def test_history_keeps_who_did_what_when_and_why(repository: Repository) -> None:
    clock = ManualClock(1_700_000_000.5)
    history = History(repository, clock)
    assert history.entries() == []
    history.add("rewind", "a bad deploy", {"to": 42}, who="ada@home")
    clock.advance(1)
    history.add("fork")
    first, second = history.entries()
    assert (first.who, first.what, first.why, first.facts) == ("ada@home", "rewind", "a bad deploy", {"to": 42})
    assert first.at == "2023-11-14T22:13:20.500+00:00"
    assert (first.previous, len(second.previous or ""), second.why) == (None, 64, "")
    assert "@" in second.who


def test_history_finds_a_line_changed_removed_or_moved(machine: FileRepository) -> None:
    history = History(machine)
    for what in ("one", "two", "three"):
        history.add(what)
    good = machine.read("history.jsonl")
    lines = good.splitlines(keepends=True)
    for number, damaged in {
        2: good.replace(b'"two"', b'"TWO"'),
        3: lines[0] + lines[1] + lines[0],
        1: lines[1] + lines[2],
        4: good + b"{",
    }.items():
        machine.put("history.jsonl", damaged)
        with pytest.raises(RecordCorrupt, match=f"history.jsonl:{number}"):
            history.entries()
        with pytest.raises(RecordCorrupt):
            history.add("four")
        assert machine.read("history.jsonl") == damaged


# --- the local disk alone --------------------------------------------------------------------------------------------


def test_addresses_open_what_they_name(tmp_path: Path) -> None:
    for address in (
        str(tmp_path / "a b"),
        tmp_path / "a b",
        f"file://{tmp_path}/a%20b",
        f"file://localhost{tmp_path}/a b",
    ):
        opened = open_repository(address)
        assert isinstance(opened, LocalRepository)
        assert opened.root == tmp_path / "a b"
    assert isinstance(open_repository("memory:"), MemoryRepository)
    assert not (tmp_path / "a b").exists()


@pytest.mark.parametrize(
    "address", ["s3://k:hunter2@bucket/x", "ftp://x", "file://otherhost/x", "file:///x?y", "", "a\0b"]
)
def test_addresses_that_name_nothing_we_know_are_refused_without_their_secrets(address: str) -> None:
    with pytest.raises(BadValue) as caught:
        open_repository(address)
    assert "hunter2" not in str(caught.value)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(BadValue, match="expected a folder"):
        LocalRepository(tmp_path / "f")


def test_a_folder_in_a_keys_place_and_a_file_in_a_folders_place_are_typed_errors(local: LocalRepository) -> None:
    local.put("a/b", b"")
    with pytest.raises(StorageFailed, match="directory"):
        local.read("a")
    with pytest.raises(NotFound):
        local.read("a/b/c")
    with pytest.raises(StorageFailed):
        local.put("a/b/c", b"")
    with pytest.raises(StorageFailed):
        local.put("a", b"")
    with pytest.raises(StorageFailed):
        local.list("a/b")


def test_held_files_are_links_and_copies_where_links_are_not_allowed(
    local: LocalRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "1.sst"
    source.write_bytes(b"x" * 3_000_000)
    local.hold(source, "objects/linked")
    assert (local.root / "objects/linked").stat().st_ino == source.stat().st_ino
    link = os.link

    def full(src: Path, dst: Path, **options: bool) -> None:
        if Path(src).name == "1.sst" or Path(src).name == "copied":
            raise OSError(31, "Too many links")
        link(src, dst, **options)

    monkeypatch.setattr(files.os, "link", full)
    local.hold(source, "objects/copied")
    assert (local.root / "objects/copied").stat().st_ino != source.stat().st_ino
    assert local.read("objects/copied") == source.read_bytes()
    local.restore("objects/copied", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_what_killed_writers_leave_is_hidden_and_swept_after_a_day(local: LocalRepository) -> None:
    local.put("a/b", b"")
    old, young = local.root / ".tmp/.tmp-1-old", local.root / ".tmp/.tmp-1-young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert local.list() == ["a/"]
    LocalRepository(local.root).put("a/c", b"")
    assert young.exists()
    assert not old.exists()


def test_a_folder_that_was_removed_under_us_is_made_again(local: LocalRepository) -> None:
    local.put("a/b", b"1")
    shutil.rmtree(local.root / "a")
    local.put("a/b", b"1")
    shutil.rmtree(local.root)
    local.put("a/b", b"2")
    assert local.put_if_absent("a/c", b"3").won
    assert local.read("a/b") == b"2"


def test_what_was_cleared_is_not_remembered(local: LocalRepository, tmp_path: Path) -> None:
    """A folder for each checkpoint of a long life would fill the memory."""
    (path,) = spark_files(tmp_path / "spark", "a")
    local.put("timelines/1/checkpoints/aborted/1.json", b"")
    local.hold_all([path], "objects")
    before = len(local._folders), len(local._durable)
    for name in ("1", "2"):
        local.put(f"timelines/1/checkpoints/{name}/attempt.json", b"")
        local.hold_all([path], f"savepoints/{name}/files", copy=True)
        local.clear(f"timelines/1/checkpoints/{name}")
        local.clear(f"savepoints/{name}")
    assert (len(local._folders), len(local._durable)) == before
    (held,) = local.hold_all([path], "savepoints/1/files", copy=True)
    assert local.read(held.key) == b"a"


@pytest.mark.parametrize(
    "path", ["x" * 300, "a\0b", "s3://bucket/x", None, "~no-such-user/x", "file://[bad", "file:///a%00b", "file:"]
)
def test_paths_that_cannot_be_are_typed_errors(local: LocalRepository, path: Any) -> None:
    local.put("held", b"")
    for act in (
        lambda: LocalRepository(path).put("x", b""),
        lambda: local.hold(path, "objects/x"),
        lambda: local.restore("held", path),
    ):
        with pytest.raises((BadValue, StorageFailed)):
            act()


def test_nothing_temporary_is_left_by_any_write(local: LocalRepository, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    local.put("x", b"1")
    local.put_if_absent("y", b"1")
    local.put_if_absent("y", b"2")
    local.hold(tmp_path / "f", "objects/f")
    assert [path.name for path in local.root.rglob(".*")] == [".tmp"]
