"""What a look at a checkpoint finds: every damage, once, by its name, and nothing where there is none."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fabricated import Fabricated, flip
from holdfast.barriers import BarrierFlags
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import BadValue, CheckpointMissing, HoldfastError, LogMissing, StorageFailed, StoreUnreachable
from holdfast.formats.manifest_parts import Severity
from holdfast.repository import Decisions, HeldFile, Lineage, LocalRepository, MemoryRepository
from holdfast.repository.checkpoint_keys import place_of
from holdfast.restore import RestorePlan, plan_restore
from holdfast.rewind.way_back import newest_sound
from holdfast.spark import statereader
from holdfast.testing import FaultyRepository
from holdfast.verification import Finding, FindingCode, Grade, Verification, verify, verify_all


@pytest.fixture(params=["local", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Fabricated:
    return Fabricated(LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository())


@pytest.fixture
def three(made: Fabricated) -> Fabricated:
    """Three checkpoints; the last has operator states inline and in the sidecar."""
    made.take("shared", "a")
    made.take("shared", "b")
    number = made.checkpoints.claim(1, 1)
    made.finish(number, {"orders": ["shared", "c"], "totals": ["d"]}, states={"small": b"s", "model": b"x" * 100})
    return made


def codes(found: Verification) -> list[str]:
    return [each.code for each in found.findings]


def test_a_sound_checkpoint_has_no_findings(three: Fabricated) -> None:
    for grade in (Grade.STRUCTURE, Grade.DIGESTS):
        found = verify(three.repository, grade=grade)
        assert (found.checkpoint, found.findings, found.ok, found.files) == (3, (), True, 5)
    assert found.bytes == sum(cut.file_bytes for cut in three.checkpoints.read(3).streams.values())
    assert found.summary().startswith(f"checkpoint 3 is sound (digests: 5 files, {found.bytes} B")
    data = found.to_dict()
    assert (data["ok"], data["grade"], data["findings"], data["files"]) == (True, "digests", [], 5)
    assert [each.checkpoint for each in verify_all(three.repository)] == [1, 2, 3]
    assert verify(three.repository, 1).checkpoint == 1


def test_grades_are_ordered() -> None:
    assert Grade.STRUCTURE < Grade.DIGESTS < Grade.READ_DATA


Damage = Callable[[Fabricated], object]


def key_of(text: str) -> str:
    return place_of(1, 3).object(hashlib.sha256(text.encode()).hexdigest())


def list_of(made: Fabricated) -> str:
    return place_of(1, 3).object(str(made.checkpoints.read(3).streams["totals"].files))


def rewrite(made: Fabricated, **fields: object) -> None:
    manifest = made.checkpoints.read(3)
    cut = {name: fields.pop(name) for name in list(fields) if name in ("file_count",)}
    if cut:
        fields["streams"] = {**manifest.streams, "totals": replace(manifest.streams["totals"], **cut)}
    made.repository.put(place_of(1, 3).manifest, replace(manifest, **fields).to_bytes())


STRUCTURE: dict[str, tuple[Damage, list[str]]] = {
    "manifest flipped": (lambda made: flip(made.repository, place_of(1, 3).manifest), ["manifest-damaged"]),
    "manifest of another id": (lambda made: rewrite(made, checkpoint_id=9), ["manifest-damaged"]),
    "manifest of another timeline": (lambda made: rewrite(made, timeline=2), ["manifest-damaged"]),
    "another pipeline's": (lambda made: rewrite(made, uid="other"), ["of-another-pipeline"]),
    "another parent": (lambda made: rewrite(made, parent="0" * 64), ["chain-broken"]),
    "no parent": (lambda made: rewrite(made, parent=None), ["chain-broken"]),
    "not valid": (lambda made: rewrite(made, vnode_count=7), ["vnode-count-mismatch"]),
    "list flipped": (lambda made: flip(made.repository, list_of(made)), ["file-list-damaged"]),
    "list gone": (lambda made: made.repository.delete(list_of(made)), ["file-list-damaged"]),
    "list miscounted": (lambda made: rewrite(made, file_count=7), ["file-list-miscounted"]),
    "file gone": (lambda made: made.repository.delete(key_of("d")), ["file-missing"]),
    "file cut": (lambda made: made.repository.put(key_of("shared"), b"share"), ["file-size"]),
    "sidecar gone": (lambda made: made.repository.delete(place_of(1, 3).sidecar), ["sidecar-damaged"]),
    "sidecar cut": (lambda made: made.repository.put(place_of(1, 3).sidecar, b"x" * 99), ["sidecar-range-outside"]),
    "whose it is": (lambda made: made.repository.put("holdfast.json", b"{}"), ["identity-unreadable"]),
}
DIGESTS: dict[str, tuple[Damage, list[str]]] = {
    "file flipped": (lambda made: flip(made.repository, key_of("shared")), ["file-digest"]),
    "sidecar flipped": (
        lambda made: flip(made.repository, place_of(1, 3).sidecar),
        ["sidecar-damaged", "state-damaged"],
    ),
}


WARNINGS = ("no parent", "whose it is")


@pytest.mark.parametrize("name", [*STRUCTURE, *DIGESTS])
def test_each_damage_is_found_by_its_grade_and_named(three: Fabricated, name: str) -> None:
    hurt, expected = {**STRUCTURE, **DIGESTS}[name]
    hurt(three)
    structure = verify(three.repository, 3, grade=Grade.STRUCTURE)
    assert codes(structure) == (expected if name in STRUCTURE else [])
    digests = verify(three.repository, 3)
    assert set(codes(digests)) >= set(expected)
    assert digests.ok is (name in WARNINGS)
    assert all(each.where and each.message for each in digests.findings)
    assert digests.findings[0].code in digests.summary()
    assert ("CANNOT BE RESTORED" in digests.summary()) is digests.is_unsound
    assert digests.to_dict()["findings"][0]["severity"] in ("error", "warning")


def test_every_flipped_byte_of_a_checkpoint_is_found(made: Fabricated) -> None:
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["ab"]}, states={"model": b"x" * 17})
    place = place_of(1, 1)
    keys = [place.manifest, place.sidecar]
    keys += [place.object(digest) for digest in sorted(made.objects())]
    assert len(keys) == 5
    for key in keys:
        sound = made.repository.read(key)
        for at in range(0, len(sound), max(1, len(sound) // 40)):
            changed = bytearray(sound)
            changed[at] ^= 1
            made.repository.put(key, bytes(changed))
            assert not verify(made.repository, 1).ok, (key, at)
        made.repository.put(key, sound)
    assert verify(made.repository, 1).findings == ()


def test_the_newest_is_looked_at_also_where_it_is_damaged(three: Fabricated) -> None:
    flip(three.repository, place_of(1, 3).manifest)
    assert codes(verify(three.repository)) == ["manifest-damaged"]
    assert [each.ok for each in verify_all(three.repository)] == [True, True, False]


def test_over_all_checkpoints_each_file_is_read_once(three: Fabricated) -> None:
    read: list[str] = []
    watched = FaultyRepository(three.repository, lambda action, key: read.append(key) if action == "digest" else None)
    assert all(each.ok for each in verify_all(watched))
    objects = [key for key in read if key.startswith("objects/")]
    assert len(objects) == len(set(objects)) == 6
    flip(three.repository, key_of("shared"))
    assert [codes(each) for each in verify_all(three.repository)] == [["file-digest"]] * 3


def test_progress_is_told_in_bytes(three: Fabricated) -> None:
    told: list[tuple[int, int]] = []
    found = verify(three.repository, progress=lambda done, total: told.append((done, total)))
    metadata = 42  # which both streams have alike
    assert told[-1][0] == told[-1][1] == found.bytes - metadata


def test_the_chain_is_followed_over_what_was_given_up_and_not_past_what_was_dropped(made: Fabricated) -> None:
    made.take("a")
    made.checkpoints.abort(1, made.checkpoints.claim(1, 1), 1, "late")
    made.take("b")
    assert verify(made.repository, 3).ok
    made.take("c")
    made.checkpoints.drop(1, 3)
    assert verify(made.repository, 4).ok, "its parent was dropped: nobody knows"
    made.parent = "0" * 64
    made.take("d")
    assert codes(verify(made.repository)) == ["chain-broken"]


def test_a_checkpoint_after_one_that_could_not_be_read_has_no_parent_and_can_be_restored(made: Fabricated) -> None:
    """A run that cannot read the newest manifest when it begins continues without it; then a copy is put back."""
    made.take("a")
    sound = made.repository.read(place_of(1, 1).manifest)
    flip(made.repository, place_of(1, 1).manifest)
    made.parent = None
    made.take("b")
    assert verify(made.repository, 2).findings == (), "its parent is damaged: this cannot be checked"
    made.repository.put(place_of(1, 1).manifest, sound)
    found = verify(made.repository, 2)
    assert (codes(found), found.ok, found.findings[0].severity) == (["chain-broken"], True, Severity.WARNING)
    assert "it has no parent, although checkpoint 1 is before it" in found.findings[0].message
    made.take("c")
    assert verify(made.repository, 3).findings == ()


@pytest.mark.parametrize(
    ("code", "unsound"),
    [
        (FindingCode.FILE_DIGEST, True),
        (FindingCode.FILE_MISSING, True),
        (FindingCode.EDGE, True),
        ("vnode-count-mismatch", True),
        (FindingCode.PARENT, False),
        (FindingCode.UNREADABLE, False),
        (FindingCode.STATE_UNREADABLE, False),
    ],
)
def test_some_errors_do_not_show_that_a_checkpoint_cannot_be_restored(code: str, unsound: bool) -> None:
    error = Finding(code, Severity.ERROR, "found", "objects")
    warning = Finding(FindingCode.FILE_ETAG, Severity.WARNING, "found", "objects")
    found = Verification(3, Grade.DIGESTS, (warning, error), files=1, bytes=1, seconds=0.1)
    assert (found.ok, found.is_unsound) == (False, unsound)
    assert not replace(found, findings=(replace(error, severity=Severity.WARNING),)).is_unsound


def test_a_savepoint_may_stand_in_the_chain_or_beside_it(made: Fabricated) -> None:
    made.take("a")
    beside = made.parent
    made.finish(made.checkpoints.claim(1, 1, BarrierFlags.FULL_SNAPSHOT), {"orders": ["b"]}, savepoint="before")
    through, made.parent = made.parent, beside
    made.take("c")
    made.checkpoints.drop(1, 3)
    made.parent = through
    made.take("d")
    assert [each.checkpoint for each in verify_all(made.repository)] == [1, "before", 4]
    assert all(each.ok for each in verify_all(made.repository))


def test_the_first_of_a_timeline_has_a_parent_in_another(three: Fabricated) -> None:
    three.rewind(1)
    three.parent = three.digest(1)  # as a rewind to it
    three.take("e", timeline=2)
    assert verify(three.repository).findings == ()


def test_a_downstream_that_holds_what_its_upstream_has_not_is_an_error(made: Fabricated) -> None:
    for sequence, ok in ((10, True), (11, False)):
        cuts = {
            "orders": {"sinks": {"log": {"log": "u1", "tail": 10}}},
            "totals": {"reads": ["orders"], "offsets": [f'{{"log":"u1","sequence":{sequence}}}']},
        }
        made.finish(made.checkpoints.claim(1, 1), {"orders": ["a"], "totals": ["b"]}, cuts=cuts)
        found = verify(made.repository, grade=Grade.STRUCTURE)
        assert found.ok is ok
    assert "downstream is ahead of upstream" in found.summary()


def decide(made: Fabricated, epoch: int, verdict: Verdict = Verdict.COMMIT, attempt: int = 1) -> None:
    address = Attempt(stream="orders", timeline=1, epoch=epoch, attempt=attempt)
    Decisions(made.repository).close(Decision(attempt=address, verdict=verdict, lease=1))


def test_an_epoch_in_doubt_is_a_warning(three: Fabricated) -> None:
    folder = "timelines/1/streams/orders"
    decide(three, 3)
    (found,) = verify(three.repository).findings
    assert "Spark's folder is missing: only the sinks know" in found.message
    for batch in range(3):
        three.repository.put(f"{folder}/spark/commits/{batch}", b"v1\n{}")
    assert verify(three.repository).findings == ()
    decide(three, 4, Verdict.ABORT)
    assert verify(three.repository).findings == ()
    decide(three, 4, attempt=2)
    written = three.repository.list(f"{folder}/epochs")
    (found,) = verify(three.repository).findings
    assert (found.code, found.severity) == ("epoch-in-doubt", Severity.WARNING)
    assert "epoch 4 of stream 'orders'" in found.message
    assert verify(three.repository).ok
    assert three.repository.list(f"{folder}/epochs") == written
    flip(three.repository, f"{folder}/epochs/4.2.json")
    assert codes(verify(three.repository)) == ["decision-damaged"]
    three.rewind(1)
    assert verify(three.repository, 3).findings == (), "of an older timeline nothing is in doubt any more"


def test_reading_the_data_is_for_whoever_can_and_only_where_the_rest_is_sound(three: Fabricated) -> None:
    asked: list[int | str] = []

    def read_data(plan: RestorePlan) -> Iterator[Finding]:
        asked.append(plan.name)
        yield Finding("state-unreadable", Severity.ERROR, "Spark says no", "state/0/1")

    with pytest.raises(BadValue, match="read_data"):
        verify(three.repository, grade=Grade.READ_DATA)
    found = verify(three.repository, grade=Grade.READ_DATA, read_data=read_data)
    assert (codes(found), found.grade) == (["state-unreadable"], Grade.READ_DATA)
    verify(three.repository, grade=Grade.DIGESTS, read_data=read_data)
    three.repository.delete(key_of("d"))
    found = verify(three.repository, grade=Grade.READ_DATA, read_data=read_data)
    assert (codes(found), found.grade) == (["file-missing"], Grade.DIGESTS)
    assert asked == [3]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogMissing(path="/logs"), "source-lost"),
        (StorageFailed(action="read", key="log.json", why="no disk"), "file-unreadable"),
    ],
)
def test_a_log_that_cannot_be_read_now_is_not_called_lost(
    made: Fabricated, monkeypatch: pytest.MonkeyPatch, error: HoldfastError, code: str
) -> None:
    cuts = {
        "orders": {"sinks": {"log": {"log": "u1", "tail": 10, "path": "/logs"}}},
        "totals": {"reads": ["orders"], "offsets": ['{"log":"u1","sequence":10}']},
    }
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["a"], "totals": ["b"]}, cuts=cuts)

    def failing(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(statereader, "home_of", failing)
    session: Any = None  # no stream has a state
    read = statereader.read_data(session, made.repository)
    found = verify(made.repository, grade=Grade.READ_DATA, read_data=read)
    assert (codes(found), found.is_unsound) == ([code], code == "source-lost")


def test_savepoints_are_looked_at_with_their_own_files(made: Fabricated) -> None:
    made.finish(made.checkpoints.claim(1, 1, BarrierFlags.FULL_SNAPSHOT), {"orders": ["a"]}, savepoint="before")
    assert verify(made.repository, "before").ok
    assert verify(made.repository, 1).ok
    digest = hashlib.sha256(b"a").hexdigest()
    flip(made.repository, place_of(0, 0, "before").object(digest))
    (found,) = verify(made.repository, "before").findings
    assert (found.code, found.where) == ("file-digest", f"savepoints/before/files/{digest[:2]}/{digest}")


def test_a_hostile_list_is_a_finding(made: Fabricated) -> None:
    digest, _ = made.checkpoints.put_files(place_of(1, 1), [HeldFile("../x", 1, "a" * 64)])
    made.finish(made.checkpoints.claim(1, 1), {"orders": []}, cuts={"orders": {"files": digest}})
    assert codes(verify(made.repository)) == ["file-list-damaged"]


def test_what_is_not_there_or_cannot_be_read_now_is_no_finding(three: Fabricated) -> None:
    for asked in (9, "none"):
        with pytest.raises(CheckpointMissing):
            verify(three.repository, asked)
    with pytest.raises(CheckpointMissing):
        verify(Fabricated(MemoryRepository()).repository)

    def fail(action: str, key: str) -> None:
        if action == "digest":
            raise StorageFailed(action="read", key=key, why="Input/output error")

    with pytest.raises(StorageFailed):
        verify(FaultyRepository(three.repository, fail))


@pytest.mark.parametrize("kind", [StorageFailed, StoreUnreachable])
def test_a_list_that_the_storage_cannot_read_is_not_damage(three: Fabricated, kind: type[StorageFailed]) -> None:
    """It was recorded as such, and prevented a rewind."""
    listed = list_of(three)

    def fail(action: str, key: str) -> None:
        if (action, key) == ("read", listed):
            raise kind(action="read", key=key, why="no route to host")

    found = verify(FaultyRepository(three.repository, fail))
    assert ("file-unreadable", listed) in [(each.code, each.where) for each in found.findings]
    assert (found.ok, found.is_unsound) == (False, False)


def test_an_outage_of_a_store_is_not_reported_as_damage(three: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.rewind.way_back.ObjectRepository", FaultyRepository)
    away: list[str] = []

    def fail(action: str, key: str) -> None:
        if action == "read" and key in away:
            raise StoreUnreachable(action="read", key=key, why="no route to host")

    repository = FaultyRepository(three.repository, fail)
    for key in (place_of(1, 3).manifest, list_of(three)):
        away[:] = [key]
        with pytest.raises(StoreUnreachable):
            plan_restore(repository)
        with pytest.raises(StoreUnreachable):
            newest_sound(repository, Lineage.load(repository))
