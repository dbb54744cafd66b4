"""A process that dies before any one of its calls to the operating system: what it leaves is the old state or the new.

Nothing is half done, nothing is refused, and work goes on.
"""

import struct
from pathlib import Path
from typing import Any

import pytest

from deaths import crash_everywhere
from holdfast.epoch import Reach, unwatched
from holdfast.errors import LogMissing, NotFound, StageBlank
from holdfast.eventlog import DurableCursor, EventLog, Region, repair
from holdfast.eventlog._cursor_slot import read_cursor
from holdfast.repository import FileBlocks, History, Lease, LocalRepository
from holdfast.repository.lease import newest_lease
from holdfast.stages import CheckpointedStage, MsgpackCodec
from holdfast.stores import CheckpointId, CheckpointState, DurableCheckpointStore
from holdfast.testing import CrashAt, Crashed
from support import events, new_log, segment_files


def nothing(_: Path) -> None:
    pass


def outcomes(seen: list[Any], old: Any, new: Any) -> None:
    """All are old or new, the first is old, the last is new, and none goes back."""
    assert seen[0] == old
    assert seen[-1] == new
    assert seen == [old] * seen.count(old) + [new] * seen.count(new)


def test_put(tmp_path: Path) -> None:
    def look(place: Path) -> bytes:
        repository = LocalRepository(place)
        found = repository.read("a/b")
        repository.put("a/b", b"again")
        assert repository.read("a/b") == b"again"
        return found

    places = crash_everywhere(
        tmp_path,
        lambda place: LocalRepository(place).put("a/b", b"old"),
        lambda place: LocalRepository(place).put("a/b", b"new"),
    )
    outcomes([look(place) for place in places], b"old", b"new")


def test_put_if_absent(tmp_path: Path) -> None:
    def look(place: Path) -> bytes:
        return LocalRepository(place).put_if_absent("deep/er/slot", b"second").data

    places = crash_everywhere(
        tmp_path, nothing, lambda place: LocalRepository(place).put_if_absent("deep/er/slot", b"first")
    )
    outcomes([look(place) for place in places], b"second", b"first")


def test_creating_a_log(tmp_path: Path) -> None:
    def look(place: Path) -> str:
        try:
            EventLog.open(place / "log")
            found = "made"
        except LogMissing:
            found = "missing"
        with EventLog.open_or_create(place / "log").writer() as writer:
            assert writer.append(events("a")) == range(1)
        return found

    places = crash_everywhere(tmp_path, nothing, lambda place: EventLog.create(place / "log"))
    outcomes([look(place) for place in places], "missing", "made")


def sequences(place: Path) -> list[tuple[int, str]]:
    return [(event.sequence, event.entity) for event in EventLog.open(place / "log").read()]


@pytest.mark.parametrize("what", ["append", "cancel"])
def test_writing_to_a_log(tmp_path: Path, what: str) -> None:
    def act(place: Path) -> None:
        with EventLog.open(place / "log").writer() as writer:
            if what == "append":
                writer.append(events("b", "c"))
            else:
                writer.cancel(2, "x")

    def look(place: Path) -> int:
        tail = EventLog.open(place / "log").tail
        new = [(1, "b"), (2, "c")] if what == "append" and tail == 3 else []
        assert sequences(place) == [(0, "a"), *new]
        with EventLog.open(place / "log").writer() as writer:
            assert writer.append(events("d")) == range(tail, tail + 1)
        assert sequences(place) == [(0, "a"), *new, (tail, "d")]
        folders = {path.name for path in (place / "log/segments").iterdir()}
        assert folders == {f"first={first:020}" for first in {0, tail} | ({1} if new else set())}
        return tail

    places = crash_everywhere(tmp_path, lambda place: new_log(place / "log", events("a")), act)
    outcomes([look(place) for place in places], 1, 3)


def segment_folders(place: Path) -> set[int]:
    return {int(path.name.removeprefix("first=")) for path in (place / "log/segments").iterdir()}


def adopt(place: Path, reach: Reach = unwatched) -> None:
    log = EventLog.open(place / "log")
    files = segment_files(place / "staged", log, events("b", "c"), events("d"), events("e", "f"))
    with log.writer() as writer:
        writer.adopt(files, "k", reach)


@pytest.mark.parametrize("next_one", ["the same", "another", "cancel"])
def test_adopting_files_into_a_log(tmp_path: Path, next_one: str) -> None:
    """Whatever comes after a crash, of whatever shape, no folder of the dead append stays beside what counts."""

    def look(place: Path) -> int:
        log = EventLog.open(place / "log")
        tail = log.tail
        new = [(1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f")]
        assert sequences(place) == [(0, "a"), *(new if tail == 6 else [])]
        assert list(log.keys()) == ["k"] * (tail == 6)
        if tail == 6:
            assert segment_folders(place) == {0, 1, 3, 4}
            return tail
        if next_one == "the same":
            adopt(place)
            assert sequences(place) == [(0, "a"), *new]
            assert segment_folders(place) == {0, 1, 3, 4}
            return tail
        with log.writer() as writer:
            if next_one == "cancel":
                writer.cancel(9, "x")
            else:
                writer.append(events(*"xxxxxxx"))
        assert segment_folders(place) == ({0} if next_one == "cancel" else {0, 1})
        return tail

    places = crash_everywhere(tmp_path, lambda place: new_log(place / "log", events("a")), adopt)
    outcomes([look(place) for place in places], 1, 6)


def test_clearing_what_a_dead_append_left(tmp_path: Path) -> None:
    """A sweep that dies half-way is gone on with by the next one."""

    def prepare(place: Path) -> None:
        new_log(place / "log", events("a"))
        with pytest.raises(Crashed):
            adopt(place, CrashAt("committing"))
        assert segment_folders(place) == {0, 1, 3, 4}

    def act(place: Path) -> None:
        with EventLog.open(place / "log").writer() as writer:
            writer.append(events(*"xxxxxxx"))

    for place in crash_everywhere(tmp_path, prepare, act):
        act(place)
        tail = EventLog.open(place / "log").tail
        assert segment_folders(place) == ({0, 1} if tail == 8 else {0, 1, 8})


def test_repairing_a_log(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        new_log(place / "log", events("a"), events("b"))
        head = bytearray((place / "log/head").read_bytes())
        head[3] ^= 1
        (place / "log/head").write_bytes(head)

    for place in crash_everywhere(tmp_path, prepare, lambda place: repair(place / "log")):
        repair(place / "log")
        assert sequences(place) == [(0, "a"), (1, "b")]
        with EventLog.open(place / "log").writer() as writer:
            writer.append(events("c"))


CODEC = MsgpackCodec(str)


def checkpoint(place: Path, state: str) -> None:
    with FileBlocks.open(place / "blocks") as blocks:
        stage = CheckpointedStage.resume("", blocks, CODEC).stage
        stage.state = state
        stage.checkpoint()


def restored(place: Path) -> str:
    with FileBlocks.open(place / "blocks") as blocks:
        try:
            found = CheckpointedStage.restore(blocks, CODEC)
        except StageBlank:
            return ""
        assert not found.fell_back
        state: str = found.stage.state
        found.stage.checkpoint()
        return state


def test_the_first_checkpoint_of_a_stage(tmp_path: Path) -> None:
    places = crash_everywhere(
        tmp_path,
        lambda place: FileBlocks.create(place / "blocks", 16).close(),
        lambda place: checkpoint(place, "new"),
    )
    outcomes([restored(place) for place in places], "", "new")


def test_a_later_checkpoint_of_a_stage(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        FileBlocks.create(place / "blocks", 16).close()
        checkpoint(place, "older")
        checkpoint(place, "old")

    places = crash_everywhere(tmp_path, prepare, lambda place: checkpoint(place, "new"))
    outcomes([restored(place) for place in places], "old", "new")


def test_the_upgrade_of_a_version_1_image(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        payload = CODEC.encode("old")
        header = struct.pack("<4sIQ", b"PCHK", 1, len(payload)).ljust(512, b"\0")
        (place / "blocks").write_bytes((header + payload).ljust(16 * 512, b"\0"))

    places = crash_everywhere(tmp_path, prepare, lambda place: checkpoint(place, "new"))
    outcomes([restored(place) for place in places], "old", "new")


def test_making_a_file_of_blocks(tmp_path: Path) -> None:
    for place in crash_everywhere(tmp_path, nothing, lambda place: FileBlocks.create(place / "blocks", 16).close()):
        FileBlocks.open_or_create(place / "blocks", 16).close()
        checkpoint(place, "new")


def test_committing_a_cursor(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a", "b", "c"))

    def commit(place: Path, count: int) -> None:
        with DurableCursor(LocalRepository(place), "mine", EventLog.open(log.path), Region()) as cursor:
            cursor.poll_batch(count)
            cursor.commit()

    def look(place: Path) -> int:
        record = read_cursor(LocalRepository(place), "mine")
        assert record is not None
        commit(place, 1)
        return record.position

    (tmp_path / "places").mkdir()
    places = crash_everywhere(tmp_path / "places", lambda place: commit(place, 1), lambda place: commit(place, 1))
    outcomes([look(place) for place in places], 0, 1)


def test_saving_a_state_over_the_limit(tmp_path: Path) -> None:
    def save(place: Path, sequence: int) -> None:
        DurableCheckpointStore(LocalRepository(place), 2).save(CheckpointState(CheckpointId("s", sequence)))

    def prepare(place: Path) -> None:
        save(place, 1)
        save(place, 2)

    def look(place: Path) -> list[int]:
        store = DurableCheckpointStore(LocalRepository(place), 2)
        kept = [each.sequence for each in store.list("s")]
        assert len(kept) >= 2
        save(place, 4)
        assert store.count("s") == 2
        return kept[-2:]

    places = crash_everywhere(tmp_path, prepare, lambda place: save(place, 3))
    outcomes([look(place) for place in places], [1, 2], [2, 3])


def test_adding_to_the_history(tmp_path: Path) -> None:
    def look(place: Path) -> int:
        history = History(LocalRepository(place))
        found = len(history.entries())
        history.add("three")
        assert len(history.entries()) == found + 1
        return found

    places = crash_everywhere(
        tmp_path,
        lambda place: History(LocalRepository(place)).add("one"),
        lambda place: History(LocalRepository(place)).add("two"),
    )
    outcomes([look(place) for place in places], 1, 2)


def test_taking_the_lease(tmp_path: Path) -> None:
    def look(place: Path) -> int:
        repository = LocalRepository(place)
        newest = newest_lease(repository)
        with Lease.take(repository) as lease:
            assert lease.number == (newest.number if newest else 0) + 1
            lease.check()
        return newest.number if newest else 0

    def prepare(place: Path) -> None:
        with pytest.raises(NotFound):
            LocalRepository(place).read("lease/00000001.json")
        Lease.take(LocalRepository(place)).release()

    places = crash_everywhere(tmp_path, prepare, lambda place: Lease.take(LocalRepository(place)))
    outcomes([look(place) for place in places], 1, 2)
