"""What a prune takes away, what it never does, and that it may be cut off anywhere."""

import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fabricated import Fabricated, flip
from holdfast import Retention, pruning
from holdfast.barriers import BarrierFlags
from holdfast.control import answer_requests, request_prune
from holdfast.control.channel import KEPT_MS
from holdfast.errors import (
    BadValue,
    Closed,
    Fenced,
    NotFound,
    PlanOutdated,
    RepositoryMissing,
    RequestFailed,
    RequestUnanswered,
    StorageFailed,
)
from holdfast.pruning import POINTS, Pruned, PrunePlan, apply_prune, plan_prune
from holdfast.repository import Checkpoints, History, Lease, LocalRepository, MemoryRepository, Repository, Status
from holdfast.repository.base import held_key
from holdfast.repository.checkpoint_keys import place_of
from holdfast.testing import FaultyRepository

TWO = Retention(last=2)


@pytest.fixture(params=["local", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Fabricated:
    return Fabricated(LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository())


def require_whole(repository: Repository) -> int:
    """Every checkpoint that counts can be read in full; return how many there are."""
    checkpoints = Checkpoints(repository)
    found = [each for each in checkpoints.all() if each.status is not Status.ABORTED]
    for each in found:
        if each.status is not Status.OPEN:
            manifest = checkpoints.read(each.name)
            place, _ = checkpoints.find(each.name)
            for cut in manifest.streams.values():
                for file in checkpoints.files(place, cut, each.name).files:
                    assert repository.digest(place.object(file.sha256)) == file.sha256
    return len(found)


def prune(made: Fabricated, retention: Retention = TWO, **options: Any) -> Pruned:
    with Lease.take(made.repository) as lease:
        return apply_prune(made.repository, plan_prune(made.repository, retention), lease, **options)


def test_what_goes_and_what_stays_is_told_before_it_is_done(made: Fabricated) -> None:
    for number in range(1, 6):
        made.take("shared", f"own {number}")
    before = made.objects()
    plan = plan_prune(made.repository, TWO, now_ms=0)
    assert (plan.drops, plan.keeps) == ((1, 2, 3), {4: "one of the last 2", 5: "the newest"})
    assert len(plan.garbage) == 6  # a file and a list each
    assert plan.garbage_bytes == sum(size or 0 for size in made.repository.sizes(plan.garbage).values())
    assert made.objects() == before
    assert "checkpoints to delete: 1, 2, 3" in plan.summary()
    assert "objects that no checkpoint will need: 6" in plan.summary()
    assert plan.to_dict()["drops"] == [1, 2, 3]
    assert plan.to_dict()["garbage"] == 6
    done = prune(made)
    assert (done.dropped, done.objects, done.bytes) == ((1, 2, 3), 6, plan.garbage_bytes)
    assert len(made.objects()) == len(before) - 6
    assert "deleted 3 checkpoints and 6 objects" in done.summary()
    assert require_whole(made.repository) == 2
    assert plan_prune(made.repository, TWO).empty
    (entry,) = History(made.repository).entries()
    assert (entry.what, entry.facts["drops"], entry.facts["garbage"]) == ("prune", [1, 2, 3], 6)
    prune(made)
    assert len(History(made.repository).entries()) == 1, "nothing was done"
    made.take("x")
    prune(made, why=None)
    assert len(History(made.repository).entries()) == 1, "routine is not recorded"


def test_an_id_of_an_abandoned_timeline_that_was_deleted_is_not_used_again(made: Fabricated) -> None:
    made.take("base")
    made.rewind(1)
    made.take("abandoned", timeline=2)
    made.take("abandoned, too", timeline=2)
    made.rewind(1, timeline=3)
    with Lease.take(made.repository) as lease:
        plan = plan_prune(made.repository, TWO, abandoned=True)
        assert (plan.drops, plan.timelines) == ((2, 3), (2,))
        apply_prune(made.repository, plan, lease)
        assert plan_prune(made.repository, TWO, abandoned=True).empty
    assert made.checkpoints.timelines() == [1, 3]
    assert made.take("new", timeline=3).checkpoint_id == 4


def test_retention_follows_the_lineage_and_never_chooses_savepoints_or_abandoned_branches(made: Fabricated) -> None:
    made.take("old")
    made.take("old")
    number = made.checkpoints.claim(1, 1, BarrierFlags.FULL_SNAPSHOT)
    made.finish(number, {"orders": ["kept"]}, savepoint="before")
    made.rewind(1)
    for text in "abc":
        made.take(text, timeline=2)
    plan = plan_prune(made.repository, Retention(last=1))
    assert plan.drops == (1, 4, 5)
    assert set(plan.keeps) == {2, "before", 6}
    assert "abandoned branch, timeline 1" in plan.keeps[2]
    assert "savepoint" in plan.keeps["before"]
    prune(made, Retention(last=1))
    assert require_whole(made.repository) == 3


@pytest.mark.parametrize("part", ["manifest", "list", "list gone", "older timeline", "version"])
def test_where_something_cannot_be_read_no_object_is_collected_and_it_is_said(made: Fabricated, part: str) -> None:
    for text in "abcd":
        made.take(text)
    cut = made.take("e").streams["orders"]
    listed = place_of(1, 5).object(str(cut.files))
    if part == "list":
        flip(made.repository, listed)
    elif part == "list gone":
        made.repository.delete(listed)
    elif part == "version":
        made.repository.put("timelines/1/checkpoints/5/manifest.json", b"{}")
    else:
        flip(made.repository, "timelines/1/checkpoints/5/manifest.json")
    if part == "older timeline":
        made.rewind(1)
    before = made.objects()
    plan = plan_prune(made.repository, TWO)
    assert plan.garbage == ()
    assert "checkpoint 5 is damaged" in str(plan.blocked)
    assert "no objects are deleted: checkpoint 5" in plan.summary()
    done = prune(made)
    assert made.objects() == before
    assert "no objects" in done.summary()
    assert done.dropped == (() if part == "older timeline" else (1, 2)), "damaged ones do not count, and stay"


def test_a_damaged_savepoint_holds_up_nothing(made: Fabricated) -> None:
    made.finish(made.checkpoints.claim(1, 1, 1), {"orders": ["kept"]}, savepoint="before")
    made.take("a")
    made.take("b")
    flip(made.repository, "savepoints/before/manifest.json")
    assert plan_prune(made.repository, Retention(last=1)).blocked is None
    assert prune(made, Retention(last=1)).dropped == (2,)
    assert Checkpoints(made.repository).savepoints()[0].status is Status.DAMAGED


def test_what_somebody_else_put_among_the_objects_stays(made: Fabricated) -> None:
    made.take("a")
    for key in ("objects/readme.txt", "objects/ab/note", f"objects/{'a' * 64}"):
        made.repository.put(key, b"")
    made.repository.put(f"objects/ab/ab{'0' * 62}", b"garbage")
    plan = plan_prune(made.repository, TWO)
    assert (plan.garbage, plan.garbage_bytes) == ((f"objects/ab/ab{'0' * 62}",), 7)


def test_attempts_that_were_left_unfinished_are_given_up_with_what_they_held(made: Fabricated) -> None:
    made.take("a")
    number = made.checkpoints.claim(1, 1)
    made.hold(["held, and then the driver died"], "objects")
    plan = plan_prune(made.repository, TWO)
    assert (plan.leftovers, len(plan.garbage)) == ((number,), 1)
    assert "unfinished attempts to abort: 2" in plan.summary()
    assert prune(made).closed == (number,)
    assert [each.status for each in Checkpoints(made.repository).all()] == [Status.RESTORABLE, Status.ABORTED]
    assert require_whole(made.repository) == 1


def test_only_the_holder_prunes_and_only_by_a_plan_that_still_holds(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    plan = plan_prune(made.repository, TWO)
    with Lease.take(made.repository) as lease:
        late = made.checkpoints.claim(1, lease.number)
        made.finish(late, {"orders": ["a"]})  # what the plan calls garbage is named again
        with pytest.raises(PlanOutdated, match="make a new plan"):
            apply_prune(made.repository, plan, lease)
    with pytest.raises(Closed):
        apply_prune(made.repository, plan, lease)
    old = Lease.take(made.repository)
    Lease.take(made.repository, locker=lambda: None)
    with pytest.raises(Fenced):
        apply_prune(made.repository, plan_prune(made.repository, TWO), old)
    assert require_whole(made.repository) == 4


def test_a_replaced_holder_stops_in_the_middle(made: Fabricated) -> None:
    made.take("a")
    for number in range(250):
        made.repository.put(f"objects/ab/ab{number:062}", b"")
    lease = Lease.take(made.repository)

    def replace(point: str) -> None:
        if point == "object collected":
            Lease.take(made.repository, locker=lambda: None)

    with pytest.raises(Fenced):
        apply_prune(made.repository, plan_prune(made.repository, TWO), lease, reach=replace)
    assert len(plan_prune(made.repository, TWO).garbage) == 150


def test_a_replaced_holder_drops_no_further_checkpoint(made: Fabricated) -> None:
    """Its successor may keep more of them."""
    for text in "abcdef":
        made.take(text)
    lease, plan = Lease.take(made.repository), plan_prune(made.repository, TWO)
    assert len(plan.drops) == 4

    def replace(point: str) -> None:
        if point == "manifest dropped":
            Lease.take(made.repository, locker=lambda: None)

    with pytest.raises(Fenced):
        apply_prune(made.repository, plan, lease, reach=replace)
    assert [each.checkpoint for each in made.checkpoints.restorable()] == [2, 3, 4, 5, 6]


class Died(BaseException):
    pass


@pytest.mark.parametrize("point", [point for point in POINTS if point != "log trimmed"])  # see test_trimming.py
@pytest.mark.parametrize("hit", [1, 2])
def test_a_prune_that_dies_anywhere_leaves_whole_checkpoints_and_is_taken_up_again(
    made: Fabricated, point: str, hit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_BATCH", 2)
    for number in range(1, 6):
        made.take("shared", f"own {number}")
    reached = []

    def die(at: str) -> None:
        reached.append(at)
        if reached.count(point) == hit:
            raise Died

    lease, plan = Lease.take(made.repository), plan_prune(made.repository, TWO)
    if hit == 1 or point in ("manifest dropped", "object collected"):
        with pytest.raises(Died):
            apply_prune(made.repository, plan, lease, reach=die)
    assert require_whole(made.repository) >= 2
    apply_prune(made.repository, plan, lease)  # the same plan again: nothing was taken since
    assert plan_prune(made.repository, TWO).empty
    assert require_whole(made.repository) == 2
    assert made.checkpoints.claim(1, 1) == 6


def test_a_storage_that_fails_at_any_deletion_leaves_whole_checkpoints(made: Fabricated) -> None:
    for number in range(1, 5):
        made.take("shared", f"own {number}")
    for turn in range(1, 100):
        deletions = 0

        def fail(action: str, key: str, turn: int = turn) -> None:
            nonlocal deletions
            deletions += action in ("delete", "clear")
            if deletions == turn:
                raise StorageFailed(action=action, key=key, why="Input/output error")

        with Lease.take(made.repository) as lease:
            try:
                failing = FaultyRepository(made.repository, fail)
                apply_prune(failing, plan_prune(made.repository, Retention(last=1)), lease, why=None)
            except StorageFailed:
                assert require_whole(made.repository) >= 1
                continue
        break
    assert turn > 3
    assert [each.checkpoint for each in Checkpoints(made.repository).restorable()] == [4]
    assert plan_prune(made.repository, TWO).empty


# --- asked from elsewhere --------------------------------------------------------------------------------------------


def test_a_dry_run_needs_no_lease_and_changes_nothing(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    with Lease.take(made.repository):
        plan = request_prune(made.repository, TWO, dry_run=True)
    assert isinstance(plan, PrunePlan)
    assert plan.drops == (1,)
    assert require_whole(made.repository) == 3
    assert made.repository.list("requests") == []


def test_where_nobody_holds_the_lease_it_is_done_at_once_and_let_go(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    done = request_prune(made.repository, TWO)
    assert isinstance(done, Pruned)
    assert done.dropped == (1,)
    assert made.repository.list("requests") == []
    assert History(made.repository).entries()[0].why.startswith("requested by ")
    Lease.take(made.repository).release()


def ask(made: Fabricated, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """Ask from a thread, as from another process."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(request_prune(made.repository, TWO, **{"poll_s": 0.01, "timeout_s": 120, **options}))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def answer_one(made: Fabricated, lease: Lease, **options: Any) -> None:
    until = time.monotonic() + 120
    while not answer_requests(made.repository, lease, **options):
        assert time.monotonic() < until
        time.sleep(0.01)


def asked(made: Fabricated, lease: Lease) -> list[str]:
    """The names of the requests to a lease holder, without claims and answers."""
    names = made.repository.list(f"requests/{lease.number:08}")
    return [name for name in names if len(name) == 37]


def test_the_holder_carries_a_request_out_and_answers(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    with Lease.take(made.repository) as lease:
        assert answer_requests(made.repository, lease) == 0
        thread, found = ask(made)
        answer_one(made, lease)
        thread.join()
        assert isinstance(found[0], Pruned)
        assert found[0].dropped == (1,)
        assert require_whole(made.repository) == 2
        (name,) = asked(made, lease)
        kept = {name, name.replace(".json", ".claim.json"), name.replace(".json", ".done.json"), "open.json"}
        assert set(made.repository.list(f"requests/{lease.number:08}")) == kept
        assert answer_requests(made.repository, lease) == 0
        later = int(time.time() * 1000) + KEPT_MS
        assert answer_requests(made.repository, lease, now_ms=later + 1000) == 0
        assert made.repository.list(f"requests/{lease.number:08}") == ["open.json"]


def test_a_failure_at_the_holder_reaches_the_asker(made: Fabricated) -> None:
    made.take("a")
    with Lease.take(made.repository) as lease:
        answer_requests(made.repository, lease)
        thread, found = ask(made)
        while not asked(made, lease):
            time.sleep(0.01)
        identity = made.repository.read("holdfast.json")
        made.repository.put("holdfast.json", b"{}")
        answer_one(made, lease)
        made.repository.put("holdfast.json", identity)
        thread.join()
    assert isinstance(found[0], RequestFailed)
    assert "holdfast.json" in str(found[0])


def test_a_request_that_nobody_answers_says_whose_it_was_to_answer_and_is_passed_over_later(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    with Lease.take(made.repository) as lease:
        with pytest.raises(
            RequestUnanswered, match=rf"process {lease.record.pid} on .*holdfast prune --timeout"
        ) as caught:
            request_prune(made.repository, TWO, timeout_s=0.05, poll_s=0.01)
        assert "take_over" not in str(caught.value)
        assert answer_requests(made.repository, lease) == 0  # it was withdrawn, if it was sent at all
        with pytest.raises(RequestUnanswered, match="process"):
            request_prune(made.repository, TWO, timeout_s=0.05, poll_s=0.01)
        assert len(asked(made, lease)) == 1
        assert answer_requests(made.repository, lease) == 0
        assert require_whole(made.repository) == 3


def test_where_the_holder_ends_meanwhile_the_asker_does_it(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    lease = Lease.take(made.repository)
    answer_requests(made.repository, lease)
    thread, found = ask(made)
    while not asked(made, lease):
        time.sleep(0.01)
    lease.release()
    thread.join()
    assert isinstance(found[0], Pruned)
    assert require_whole(made.repository) == 2


def test_a_shared_pipeline_is_never_fenced_by_a_prune_unless_one_says_that_it_has_ended(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    lease = Lease.take(made.repository, locker=lambda: None, shared=True)
    with pytest.raises(RequestUnanswered, match="--take-over"):
        request_prune(made.repository, TWO, timeout_s=0.05, poll_s=0.01)
    lease.check()
    assert isinstance(request_prune(made.repository, TWO, take_over=True), Pruned)
    with pytest.raises(Fenced):
        lease.check()


def test_damaged_and_foreign_files_among_the_requests_do_no_harm(
    made: Fabricated, caplog: pytest.LogCaptureFixture
) -> None:
    made.take("a")
    name = "a" * 32
    with Lease.take(made.repository) as lease:
        folder = f"requests/{lease.number:08}"
        made.repository.put(f"{folder}/{name}.json", b"{}")
        made.repository.put(f"{folder}/{'b' * 32}.done.json", b"{}")
        made.repository.put(f"{folder}/notes.txt", b"")
        made.repository.put("requests/notes.txt", b"")
        assert answer_requests(made.repository, lease) == 0
        assert b"RecordCorrupt" in made.repository.read(f"{folder}/{name}.done.json")
        assert "notes.txt is not a request" in caplog.text
        kept = [f"{name}.claim.json", f"{name}.done.json", f"{name}.json", "notes.txt", "open.json"]
        assert made.repository.list(folder) == kept
        made.repository.put(f"{folder}/{name}.json", b"answered already, and the holder died")
        assert answer_requests(made.repository, lease) == 0


def test_a_holder_that_was_replaced_answers_nothing(made: Fabricated) -> None:
    made.take("a")
    old = Lease.take(made.repository)
    answer_requests(made.repository, old)
    thread, found = ask(made)
    while not asked(made, old):
        time.sleep(0.01)
    new = Lease.take(made.repository, locker=lambda: None)
    with pytest.raises(Fenced):
        answer_requests(made.repository, old)
    answer_one(made, new)
    thread.join()
    assert isinstance(found[0], Pruned)


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"poll_s": -1}])
def test_waits_that_make_no_sense_are_refused(made: Fabricated, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        request_prune(made.repository, TWO, **wrong)


def test_a_repository_that_is_none_is_said_to_be_none(made: Fabricated) -> None:
    with pytest.raises(NotFound):
        plan_prune(MemoryRepository(), TWO)
    with pytest.raises(RepositoryMissing):
        Checkpoints(MemoryRepository()).latest()


@pytest.mark.parametrize("what", ["list", "file"])
def test_a_checkpoint_that_lacks_a_file_takes_nobodys_place(made: Fabricated, what: str) -> None:
    """Else the last sound one would go, and a broken one stay."""
    for text in "abcd":
        made.take(text)
    newest = made.checkpoints.read(4).streams["orders"].files
    lost = str(newest) if what == "list" else hashlib.sha256(b"d").hexdigest()
    made.repository.delete(held_key("objects", lost))
    plan = plan_prune(made.repository, Retention(last=1))
    assert plan.drops == (1, 2)
    assert plan.keeps[3] == "the newest"
    assert "not counted by the retention" in plan.keeps[4]


def test_a_file_that_is_lost_counts_for_each_checkpoint_that_shares_it(made: Fabricated) -> None:
    for own in "abcd":
        made.take(own, *(["shared"] if own in "bd" else []))
    made.repository.delete(held_key("objects", hashlib.sha256(b"shared").hexdigest()))
    plan = plan_prune(made.repository, Retention(last=2))
    assert plan.drops == ()
    assert (plan.keeps[3], plan.keeps[1]) == ("the newest", "one of the last 2")
    for number in (2, 4):
        assert "not counted by the retention" in plan.keeps[number]


def test_a_plan_looks_at_each_list_and_each_file_once(made: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made after every checkpoint, and checkpoints share most of their files."""
    for own in "abcd":
        made.take("shared", own)
    kind, looked, read = type(made.repository), [], []
    sizes, list_of = kind.sizes, Checkpoints.file_list
    monkeypatch.setattr(kind, "sizes", lambda self, keys: looked.extend(keys := list(keys)) or sizes(self, keys))
    monkeypatch.setattr(Checkpoints, "file_list", lambda *args: read.append(args[2]) or list_of(*args))
    assert plan_prune(made.repository, Retention(last=4)).empty
    assert len(looked) == len(set(looked)) == 10  # `metadata`, the shared one, one of each, and the four lists
    assert len(read) == len(set(read)) == 4


def test_a_plan_does_not_read_why_others_were_given_up(made: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where checkpoints fail day after day, those are many."""
    made.take("a")
    for _ in range(3):
        made.checkpoints.abort(1, made.checkpoints.claim(1, 1), 1, "late")
    kind, looked = type(made.repository), []
    read = kind.read
    monkeypatch.setattr(kind, "read", lambda self, key: looked.append(key) or read(self, key))
    plan = plan_prune(made.repository, Retention(last=1))
    assert (plan.highest, list(plan.keeps)) == (4, [1])
    assert not [key for key in looked if "aborted" in key]
