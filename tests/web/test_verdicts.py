"""Recorded verdicts of verifications: bounded by the checkpoints, and apart from what happened to the runs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabricated import Fabricated
from holdfast.cli.app import app
from holdfast.cli.verbs.ls import listing_of
from holdfast.cli.verbs.show import shown_checkpoint
from holdfast.cli.verbs.verify import record_verdicts
from holdfast.formats.manifest_parts import Severity
from holdfast.repository import LocalRepository, MemoryRepository, Repository
from holdfast.repository.activity import KEPT_EVENTS, Activity
from holdfast.repository.checkpoint_keys import AttemptRecord, attempt_key
from holdfast.repository.verdicts import GRADES, LastVerify, Verdicts
from holdfast.testing import FaultyRepository
from holdfast.verification import Finding, Grade, Verification, verify_all
from holdfast.web.book import Book
from holdfast.web.places import Places
from holdfast.web.reading.runs import runs_of
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import RunState
from webfixture import Sample


def verification(checkpoint: int | str, *findings: Finding, grade: Grade = Grade.DIGESTS) -> Verification:
    return Verification(checkpoint, grade, findings, files=1, bytes=1, seconds=0.1)


DAMAGE = Finding("file-digest", Severity.ERROR, "a file has other bytes", "orders")
UNREADABLE = Finding("file-unreadable", Severity.ERROR, "no disk", "orders")
WEAK, STRONG, STRONGEST = Grade
Check = tuple[Grade, Finding | None]


def with_checkpoints(*numbers: int) -> Repository:
    """Return a repository in which these ids exist."""
    repository = MemoryRepository()
    for number in numbers:
        record = AttemptRecord(checkpoint_id=number, lease=1, begun_at_ms=1)
        repository.put_if_absent(attempt_key(1, number), record.sealed())
    return repository


@pytest.fixture
def failed(tmp_path: Path) -> Sample:
    sample = Sample(tmp_path).healthy(3, 0)
    sample.lease(2, ago_s=20)
    sample.event("failed", "no disk", stream="orders", next="free some space", lease=2, ago_s=4)
    return sample


def test_verdicts_of_many_checkpoints_do_not_hide_a_failed_run(failed: Sample) -> None:
    for number in range(1, 121):
        failed.checkpoint(number, files=1)
    record_verdicts(failed.repository, verify_all(failed.repository, grade=Grade.STRUCTURE))
    line = status_of(failed.repository)
    assert line.state is RunState.FAILED
    assert "no disk" in [each.what for each in line.problems]
    assert len(Verdicts(failed.repository).shown()) == 120


def test_verdicts_that_an_earlier_version_recorded_as_events_are_shown_and_hide_nothing(failed: Sample) -> None:
    for number in range(1, 121):
        failed.checkpoint(number, files=1)
        facts = {"checkpoint": str(number), "ok": number != 7, "grade": "digests"}
        failed.event("verified", "found", lease=0, n=number, facts=facts)
    assert status_of(failed.repository).state is RunState.FAILED
    assert {each.kind for each in runs_of(failed.repository).events} >= {"failed", "ended"}
    found = Verdicts(failed.repository).shown()
    assert [name for name, each in found.items() if not each.ok] == ["7"]
    record_verdicts(failed.repository, [verification(7)])
    found = Verdicts(failed.repository).shown()
    assert len(found) == 120
    assert found["7"].ok
    assert not list(failed.folder.glob("activity/events/*.00000000.*")), "they are in the new record"


def test_a_thousand_verdicts_are_all_kept_and_those_of_deleted_checkpoints_are_not() -> None:
    numbers = range(1, 2 * KEPT_EVENTS + 1)
    repository = with_checkpoints(*numbers)
    record_verdicts(repository, [verification(number) for number in numbers])
    assert len(Verdicts(repository).shown()) == len(numbers)
    repository.delete(attempt_key(1, 5))
    for _ in range(3):
        record_verdicts(repository, [verification(9)])
    assert Verdicts(repository).shown().keys() == {str(number) for number in numbers} - {"5"}
    assert len(repository.list("activity/verdicts")) == 1


def test_two_that_record_at_the_same_moment_lose_nothing() -> None:
    repository, met = with_checkpoints(1, 2, 3), []
    record_verdicts(repository, [verification(1)])

    def meet(action: str, key: str) -> None:
        if action == "put" and not met:
            met.append(key)
            record_verdicts(repository, [verification(2)])

    record_verdicts(FaultyRepository(repository, meet), [verification(3)])
    assert met
    assert Verdicts(repository).shown().keys() == {"1", "2", "3"}


def test_a_record_that_is_replaced_while_it_is_read_is_not_missed() -> None:
    repository, met = with_checkpoints(1, 2), []
    record_verdicts(repository, [verification(1)])

    def meet(action: str, key: str) -> None:
        if action == "read" and not met:
            met.append(key)
            record_verdicts(repository, [verification(2)])

    assert Verdicts(FaultyRepository(repository, meet)).shown().keys() == {"1", "2"}
    assert met


def test_a_damaged_record_of_verdicts_hides_only_itself(failed: Sample) -> None:
    failed.checkpoint(1)
    record_verdicts(failed.repository, [verification(1)])
    (path,) = failed.folder.glob("activity/verdicts/*")
    path.write_bytes(path.read_bytes()[:-9])
    assert Verdicts(failed.repository).shown() == {}
    record_verdicts(failed.repository, [verification(1)])
    assert Verdicts(failed.repository).shown()["1"].ok


def test_checkpoints_are_shown_although_their_verdicts_cannot_be_listed(failed: Sample) -> None:
    """The status names the reason."""
    failed.checkpoint(1)
    (failed.folder / "activity/verdicts").write_bytes(b"")
    assert [each.checkpoint for each in listing_of(failed.repository).checkpoints][-1] == 1
    assert shown_checkpoint(failed.repository, "1").result.last_verify is None
    book = Book(Places([str(failed.folder)]))
    for address in ("", "/checkpoints", "/checkpoints/1"):
        (slug,) = book.places.all()
        found = book.look(f"/p/{slug}{address}")
        assert found is not None
        assert found.status == 200
    assert any("activity/verdicts" in each.what for each in status_of(failed.repository).problems)


def test_only_the_newest_events_of_earlier_versions_are_kept(failed: Sample) -> None:
    for number in range(KEPT_EVENTS + 3):
        failed.event("verified", lease=0, n=number)
    Activity(failed.repository).tidy(lease=3)
    assert len(list(failed.folder.glob("activity/events/*.00000000.*"))) == KEPT_EVENTS
    assert status_of(failed.repository).state is RunState.FAILED


def test_an_unsound_checkpoint_is_a_problem_and_no_longer_the_one_to_go_back_to(failed: Sample) -> None:
    for number in (1, 2):
        failed.checkpoint(number)
    assert (status_of(failed.repository).checkpoint, status_of(failed.repository).checkpoints) == (2, 2)
    broken = Finding("file-digest", Severity.ERROR, "a file has other bytes", "orders")
    record_verdicts(failed.repository, [verification(1), verification(2, broken)])
    line = status_of(failed.repository)
    assert (line.checkpoint, line.checkpoints, line.checkpoints_damaged) == (1, 1, 1)
    (problem,) = [each for each in line.problems if "checkpoint 2" in each.what]
    assert (problem.severity, "unsound" in problem.what) == ("error", True)
    assert "holdfast verify 2 --record; or use a sound one: holdfast show 1" in problem.next
    (listed,) = [each for each in listing_of(failed.repository).checkpoints if each.checkpoint == 2]
    assert listed.status == "restorable"
    assert (listed.last_verify and listed.last_verify.ok) is False
    record_verdicts(failed.repository, [verification(2)])
    assert status_of(failed.repository).checkpoint == 2
    assert status_of(failed.repository).checkpoints_damaged == 0


def test_a_checkpoint_that_could_not_be_verified_is_shown_as_such_and_remains_one_to_go_back_to(failed: Sample) -> None:
    failed.checkpoint(1)
    unreadable = Finding("file-unreadable", Severity.ERROR, "read 'objects/00' failed: no disk", "objects/00")
    record_verdicts(failed.repository, [verification(1, unreadable)])
    line = status_of(failed.repository)
    assert (line.checkpoint, line.checkpoints, line.checkpoints_damaged) == (1, 1, 0)
    (problem,) = [each for each in line.problems if "checkpoint 1" in each.what]
    assert problem.severity == "warning"
    assert problem.what == (
        "checkpoint 1 was verified, but it is not known whether it can be restored: read 'objects/00' failed: no disk "
        "[file-unreadable, objects/00]"
    )
    assert "verify it again: holdfast verify 1 --record" in problem.next
    book = Book(Places([str(failed.folder)]))
    (slug,) = book.places.all()
    for address in ("/checkpoints", "/checkpoints/1"):
        found = book.look(f"/p/{slug}{address}")
        assert found is not None
        assert "s-unknown" in found.view.body
        assert "s-unsound" not in found.view.body
    text = CliRunner().invoke(app, ["ls", "-r", str(failed.folder)], env={"COLUMNS": "200"}).stdout
    assert "unknown 0" in text
    assert "restorable" in text
    assert "unsound" not in text


@pytest.mark.parametrize(
    ("checks", "shown"),
    [
        ([(STRONG, DAMAGE), (WEAK, None)], 0),
        ([(STRONG, DAMAGE), (WEAK, None), (STRONG, None)], 2),
        ([(STRONG, DAMAGE), (STRONGEST, None)], 1),
        ([(STRONG, DAMAGE), (STRONG, None)], 1),
        ([(STRONG, DAMAGE), (STRONG, DAMAGE)], 1),
        ([(STRONG, DAMAGE), (WEAK, UNREADABLE), (WEAK, None)], 0),
        ([(STRONG, DAMAGE), (WEAK, DAMAGE), (WEAK, None)], 0),
        ([(STRONG, DAMAGE), (STRONG, UNREADABLE)], 0),
        ([(STRONG, DAMAGE), (STRONGEST, UNREADABLE)], 0),
        ([(STRONG, UNREADABLE), (WEAK, None)], 0),
        ([(STRONGEST, UNREADABLE), (STRONG, DAMAGE)], 1),
        ([(WEAK, DAMAGE), (STRONG, None), (WEAK, None)], 2),
        ([(STRONG, None), (WEAK, DAMAGE)], 1),
        ([(STRONG, None), (WEAK, UNREADABLE)], 1),
    ],
)
def test_only_a_check_that_is_as_thorough_replaces_a_verdict_of_damage(
    checks: list[Check], shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is that of the check whose verdict is shown."""
    repository = with_checkpoints(1)
    for at, (grade, finding) in enumerate(checks, 1):
        monkeypatch.setattr("time.time", lambda at=at: at)
        record_verdicts(repository, [verification(1, *filter(None, [finding]), grade=grade)])
    (found,) = Verdicts(repository).all()[0].values()
    assert found.at_ms == (shown + 1) * 1000
    assert (found.grade, found.ok) == (checks[shown][0].word, checks[shown][1] is None)


def test_a_quick_check_does_not_hide_damage_that_was_found_by_reading_all_bytes(failed: Sample) -> None:
    failed.checkpoint(1)
    path = next(each for each in (failed.folder / "objects").rglob("*/*") if not each.read_bytes().startswith(b"{"))
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    for grade in (Grade.DIGESTS, Grade.STRUCTURE):
        record_verdicts(failed.repository, verify_all(failed.repository, grade=grade))
        (listed,) = [each for each in listing_of(failed.repository).checkpoints if each.checkpoint == 1]
        assert (listed.last_verify and listed.last_verify.ok) is False
        assert status_of(failed.repository).checkpoints_damaged == 1
    path.write_bytes(data)
    record_verdicts(failed.repository, verify_all(failed.repository))
    assert status_of(failed.repository).checkpoints_damaged == 0


def test_verdicts_that_two_processes_record_at_the_same_moment_are_compared_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither has seen the verdict of the other."""
    repository, met = with_checkpoints(1), []

    def meet(action: str, key: str) -> None:
        if action == "put" and not met:
            met.append(key)
            monkeypatch.setattr("time.time", lambda: 1)
            record_verdicts(repository, [verification(1, DAMAGE)])

    monkeypatch.setattr("time.time", lambda: 2)
    record_verdicts(FaultyRepository(repository, meet), [verification(1, grade=Grade.STRUCTURE)])
    assert len(repository.list("activity/verdicts")) == 2
    assert not Verdicts(repository).shown()["1"].ok


def test_a_verdict_on_an_earlier_savepoint_does_not_outlast_one_on_a_later_savepoint_of_its_name(
    tmp_path: Path,
) -> None:
    made = Fabricated(LocalRepository(tmp_path))
    made.take("a", savepoint="keep")
    verdicts = Verdicts(made.repository)
    verdicts.record([LastVerify(checkpoint="keep", ok=False, grade="digests", at_ms=1500)])
    made.checkpoints.drop_savepoint("keep")
    made.take("b", savepoint="keep")
    quick = LastVerify(checkpoint="keep", ok=True, grade="structure", at_ms=2500)
    verdicts.record([quick])
    assert verdicts.all() == ({"keep": quick}, [])


def test_a_verdict_on_a_savepoint_counts_although_the_clock_of_its_driver_is_ahead(tmp_path: Path) -> None:
    made = Fabricated(LocalRepository(tmp_path))
    taken = made.take("a", savepoint="keep").timestamp_ms
    verdicts = Verdicts(made.repository)
    verdicts.record([LastVerify(checkpoint="keep", ok=False, grade="digests", at_ms=taken - 500)])
    found, _ = verdicts.all()
    assert found["keep"].is_unsound


def test_the_grades_of_verdicts_are_those_of_verifications() -> None:
    assert tuple(each.word for each in sorted(Grade)) == GRADES


def test_the_text_of_an_unsound_verdict_is_its_first_error(failed: Sample) -> None:
    """A warning or an error of the storage that was found before it does not explain the verdict."""
    failed.checkpoint(1)
    warning = Finding("no-digest", Severity.WARNING, "a file has no digest", "orders")
    error = Finding("file-digest", Severity.ERROR, "a file has other bytes", "orders")
    unreadable = Finding("file-unreadable", Severity.ERROR, "no disk", "orders")
    record_verdicts(failed.repository, [verification(1, warning, unreadable)])
    assert Verdicts(failed.repository).shown()["1"].text == str(unreadable)
    record_verdicts(failed.repository, [verification(1, warning, unreadable, error)])
    assert Verdicts(failed.repository).shown()["1"].text == str(error)
    (what,) = [each.what for each in status_of(failed.repository).problems if "checkpoint 1" in each.what]
    assert what == "checkpoint 1 was verified and is unsound: a file has other bytes [file-digest, orders]"
    record_verdicts(failed.repository, [verification(1, warning)])
    assert Verdicts(failed.repository).shown()["1"].text == str(warning)
