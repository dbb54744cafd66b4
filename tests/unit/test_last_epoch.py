"""The last epoch in a FileSink's folder: found by its pointers, or by listing the folder where they cannot be used."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from epochfiles import SCHEMA, EpochFiles, due
from holdfast.errors import NotSupported, SinkFailed
from holdfast.sinks.base import SinkContext
from holdfast.sinks.compaction.apply import apply_compact
from holdfast.sinks.compaction.plan import plan_compact
from holdfast.sinks.files import last_epoch as module
from holdfast.sinks.files import sink as sinks
from holdfast.sinks.files.epoch_folders import KEY_FILE, folder_name
from holdfast.sinks.files.last_epoch import LastEpoch

TICK_S = 0.02  # the time of a change is not finer than this on every kernel


@pytest.fixture
def files(tmp_path: Path) -> EpochFiles:
    found = EpochFiles(tmp_path)
    found.commit(1, 2, 3, 5)
    return found


class Listed(Exception):
    """The whole folder was listed."""


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refused(*_: object) -> int:
        raise Listed

    monkeypatch.setattr(module, "last_epoch_in", refused)
    monkeypatch.setattr(sinks, "refuse_other_files", refused)
    return monkeypatch


def holds(files: EpochFiles, timeline: int = 1) -> int:
    return files.sink.inspect(files.owner, timeline).epoch


def added_without_pointer(files: EpochFiles, epoch: int) -> None:
    """Add an epoch as a version did that knew no pointers."""
    time.sleep(TICK_S)
    files.stage(epoch)
    files.sink._staging.folder(files.key(epoch)).rename(files.path / folder_name(1, epoch))


def reopen(files: EpochFiles) -> None:
    files.sink.open(SinkContext(files.owner, SCHEMA, "append", None))


def test_a_start_and_a_commit_do_not_list_the_folder(files: EpochFiles, unlisted: pytest.MonkeyPatch) -> None:
    for epoch in (6, 7, 9):
        reopen(files)
        assert holds(files) == LastEpoch(files.path).last(1).epoch == (5, 6, 7)[(6, 7, 9).index(epoch)]
        files.commit(epoch)
    assert files.rows() == due(1, 2, 3, 5, 6, 7, 9)
    assert sorted(path.name for path in (files.path / "_holdfast").glob("t*")) == ["t1-0000000009.key"]
    with pytest.raises(Listed):
        holds(files, timeline=2)  # no pointer shows that it has no epochs


def test_pointers_keep_to_their_timelines(files: EpochFiles) -> None:
    files.commit(6, timeline=2)
    assert (holds(files), holds(files, 2), holds(files, 3)) == (5, 6, 0)


def test_an_epoch_that_was_added_without_a_pointer_is_found(files: EpochFiles) -> None:
    added_without_pointer(files, 8)
    assert holds(files) == 8
    os.utime(files.path / "_holdfast")
    assert holds(files) == 5  # the documented limit: the pointers look current, and the epoch after them is missing
    added_without_pointer(files, 6)
    os.utime(files.path / "_holdfast")
    assert holds(files) == 8


@pytest.mark.parametrize("step", ["link", "rename", "remove"])
def test_a_commit_that_is_interrupted_is_seen_or_not_but_never_half(
    files: EpochFiles, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException): ...

    def killed(*_: object) -> None:
        raise Killed

    time.sleep(TICK_S)
    handle = files.stage(8)
    with monkeypatch.context() as patch:
        if step == "remove":
            patch.setattr(module.KeyFiles, "remove_older", killed)
        else:
            patch.setattr(*((Path, "rename", killed) if step == "rename" else (os, "link", killed)))
        with pytest.raises(Killed):
            files.sink.commit(files.key(8), handle)
    assert holds(files) == (8 if step == "remove" else 5)
    reopen(files)
    files.sink.commit(files.key(8), handle)
    assert holds(files) == 8
    files.commit(9)
    assert (holds(files), files.rows()) == (9, due(1, 2, 3, 5, 8, 9))


def test_a_pointer_that_a_power_loss_took_is_not_missed(files: EpochFiles) -> None:
    """Pointers are not synced: the folder may keep an epoch whose pointer is gone. `_holdfast` is as before then."""
    before = (files.path / "_holdfast").stat()
    time.sleep(TICK_S)
    files.commit(6)
    (files.path / "_holdfast" / "t1-0000000006.key").unlink()
    os.utime(files.path / "_holdfast", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert holds(files) == 6


def test_an_epoch_that_a_user_deleted_is_missed(files: EpochFiles) -> None:
    time.sleep(TICK_S)
    shutil.rmtree(files.path / folder_name(1, 1))
    assert holds(files) == 5
    shutil.rmtree(files.path / folder_name(1, 5))
    assert holds(files) == 3
    os.utime(files.path / "_holdfast")
    assert holds(files) == 3
    (files.path / folder_name(1, 3) / KEY_FILE).unlink()  # this does not change the folder itself
    assert holds(files) == 2


def test_a_copy_of_an_older_folder_is_seen_as_it_is(files: EpochFiles, tmp_path: Path) -> None:
    shutil.copytree(files.path, tmp_path / "copy")
    files.commit(6, 7, 8)
    shutil.rmtree(files.path)
    shutil.copytree(tmp_path / "copy", files.path)
    assert holds(files) == 5
    files.commit(6)
    assert holds(files) == 6


def test_a_compaction_keeps_the_last_epoch(files: EpochFiles, unlisted: pytest.MonkeyPatch) -> None:
    files.commit(*range(6, 12))
    apply_compact(files.repository, plan_compact(files.repository, files.path), grace_s=0.0)
    assert files.folders() == [9, 10, 11]
    with unlisted.context() as patch:
        patch.setattr(module, "last_epoch_in", lambda *_: 11)  # the folder is another one now, and is listed once
        files.commit(12)
    assert holds(files) == 12
    files.commit(13)
    assert files.rows() == due(1, 2, 3, *range(5, 14))


def test_other_files_are_refused_where_the_folder_has_changed(files: EpochFiles) -> None:
    """Readers cannot read them beside the epochs."""
    reopen(files)
    time.sleep(TICK_S)
    (files.path / "notes.txt").touch()
    with pytest.raises(NotSupported, match=r"contains 'notes\.txt'"):
        reopen(files)


def test_other_files_are_refused_before_the_folder_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(NotSupported, match=r"contains 'notes\.txt'"):
        EpochFiles(tmp_path)
    assert not (tmp_path / "out" / "_holdfast").exists()


def test_a_second_claim_leaves_the_folder_as_it_is(files: EpochFiles) -> None:
    """Otherwise a start would make pointers current that are not."""
    added_without_pointer(files, 9)
    reopen(files)
    assert holds(files) == 9


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_epoch_that_cannot_be_looked_at_is_not_taken_for_missing(
    files: EpochFiles, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a disk that fails for a moment would look like a folder that was restored from an older copy."""
    files.commit(6)
    stat = os.stat

    def failing(path: object, *args: object, **options: object) -> os.stat_result:
        if str(path).endswith(KEY_FILE) and folder_name(1, 6) in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return stat(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(SinkFailed, match=os.strerror(number)):
        holds(files)
