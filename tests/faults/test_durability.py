"""What must be on disk before the next step is, in the order in which the operating system was asked."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.eventlog import EventLog
from holdfast.repository import FileBlocks, LocalRepository, files
from holdfast.stages import CheckpointedStage, MsgpackCodec
from support import events


class Recorder:
    """Notes each call that changes or syncs a file, with the file's place below the root; temporary names are short."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.calls: list[str] = []
        self._patch = patch
        for name in ("fsync", "fdatasync", "write", "pwrite", "ftruncate"):
            self._wrap(name, lambda args: self._name(f"/proc/self/fd/{args[0]}"))
        for name in ("link", "rename", "replace"):
            self._wrap(name, lambda args: self._name(args[1]))
        for name in ("mkdir", "unlink"):
            self._wrap(name, lambda args: self._name(args[0]))

    def _wrap(self, name: str, about: Callable[[Any], str]) -> None:
        real = getattr(os, name)

        def noted(*args: Any, **options: Any) -> Any:
            target = about(args)
            done = real(*args, **options)
            self.calls.append(f"{name} {target}")
            return done

        self._patch.setattr(os, name, noted)

    def _name(self, path: Any) -> str:
        real = os.path.realpath(path) if str(path).startswith("/proc") else os.fspath(path)
        name = os.path.relpath(real, self.root)
        parts = ["<temp>" if part.startswith(".tmp-") else part for part in name.split("/")]
        return "<segment>" if name.endswith(".parquet") else "/".join(parts)

    def during(self, act: Callable[[], object]) -> list[str]:
        self.calls.clear()
        act()
        return list(self.calls)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(tmp_path, monkeypatch)


PUBLISH = ["write .tmp/<temp>", "fsync .tmp/<temp>"]


def test_put(recorder: Recorder, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    first = recorder.during(lambda: repository.put("a/b/c", b"1"))
    # Each new folder is made durable in the one above it before anything is written into it.
    made = ["fsync ..", "mkdir .tmp", "fsync .", "fsync ..", "mkdir a", "fsync .", "mkdir a/b", "fsync a"]
    publish = [*PUBLISH, "replace a/b/c", "fsync a/b"]
    assert first == [*made, *publish]
    assert recorder.during(lambda: repository.put("a/b/c", b"2")) == publish


def test_put_if_absent_syncs_for_winner_and_loser_alike(recorder: Recorder, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    repository.put("a/x", b"")
    won = recorder.during(lambda: repository.put_if_absent("a/slot", b"1"))
    assert won == [*PUBLISH, "link a/slot", "fsync a", "unlink .tmp/<temp>"]
    lost = recorder.during(lambda: repository.put_if_absent("a/slot", b"2"))
    assert lost == [*PUBLISH, "fsync a", "unlink .tmp/<temp>"]


def test_a_folder_that_another_process_made_is_synced_too(recorder: Recorder, tmp_path: Path) -> None:
    LocalRepository(tmp_path).put("a/x", b"")
    calls = recorder.during(lambda: LocalRepository(tmp_path).put("a/y", b""))
    assert calls == ["fsync .", "fsync .", "fsync .tmp/<temp>", "replace a/y", "fsync a"]


def test_hold_syncs_what_spark_did_not(recorder: Recorder, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    repository.put("objects/x", b"")
    (tmp_path / "1.delta").write_bytes(b"state")
    calls = recorder.during(lambda: repository.hold(tmp_path / "1.delta", "objects/y"))
    assert calls == ["fsync 1.delta", "link objects/y", "fsync objects"]


def test_hold_all_syncs_what_is_new_and_its_folders(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = LocalRepository(tmp_path)
    repository.put("objects/00/x", b"")
    (tmp_path / "1.delta").write_bytes(b"state")
    (held,) = repository.hold_all([tmp_path / "1.delta"], "objects")
    calls = recorder.during(lambda: repository.hold_all([tmp_path / "1.delta"], "objects"))
    assert calls == ["link .tmp/<temp>", "unlink .tmp/<temp>"], "what this process has held is durable already"
    calls = recorder.during(lambda: LocalRepository(tmp_path).hold_all([tmp_path / "1.delta"], "objects"))
    assert calls[-2:] == [f"fsync {held.key.rpartition('/')[0]}", f"fsync {held.key}"], "another may have died before"
    (tmp_path / "2.delta").write_bytes(b"more")
    path = f"objects/{hashlib.sha256(b'more').hexdigest()[:2]}/{hashlib.sha256(b'more').hexdigest()}"
    calls = recorder.during(lambda: repository.hold_all([tmp_path / "2.delta"], "objects"))
    folder = path.rpartition("/")[0]
    made = ["fsync .", "mkdir " + folder, "fsync objects"]
    assert calls == [
        "link .tmp/<temp>",
        *made,
        f"replace {path}",
        f"fsync {folder}",
        f"fsync {path}",
    ]
    synced: list[int] = []
    monkeypatch.setattr(files, "_syncfs", lambda descriptor: synced.append(descriptor) or 0)
    many = [tmp_path / f"{number}.many" for number in range(20)]
    for path_ in many:
        path_.write_text(path_.name)
    calls = recorder.during(lambda: repository.hold_all(many, "objects"))
    assert len(synced) == 1, "many are synced all at once, after the last is in its place"
    assert not [call for call in calls if call.startswith("fsync") and call.count("/") == 2]
    assert held.size == 5


def test_hold_all_replaces_what_a_loss_of_power_left_empty(recorder: Recorder, tmp_path: Path) -> None:
    """A name may outlast its bytes: it was moved into place, and the power went before it was synced."""
    repository = LocalRepository(tmp_path)
    (tmp_path / "1.delta").write_bytes(b"state")
    (held,) = repository.hold_all([tmp_path / "1.delta"], "objects")
    (tmp_path / held.key).unlink()
    (tmp_path / held.key).write_bytes(b"")
    calls = recorder.during(lambda: repository.hold_all([tmp_path / "1.delta"], "objects"))
    assert repository.read(held.key) == b"state"
    folder = held.key.rpartition("/")[0]
    assert calls == ["link .tmp/<temp>", f"replace {held.key}", f"fsync {folder}", f"fsync {held.key}"]


def test_restore_all_syncs_files_and_every_new_folder(recorder: Recorder, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    repository.put("objects/x", b"state")
    calls = recorder.during(lambda: repository.restore_all([("objects/x", tmp_path / "new/state/1.delta")]))
    assert calls[-5:] == [
        "link new/state/1.delta",
        "fsync .",
        "fsync new",
        "fsync new/state",
        "fsync new/state/1.delta",
    ]


def test_delete_all_syncs_each_folder_once(recorder: Recorder, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    for key in ("a/x", "a/y", "b/z"):
        repository.put(key, b"")
    calls = recorder.during(lambda: repository.delete_all(["a/x", "a/y", "b/z"]))
    assert calls == ["unlink a/x", "unlink a/y", "unlink b/z", "fsync a", "fsync b"]


def test_delete(recorder: Recorder, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    repository.put("a/x", b"")
    assert recorder.during(lambda: repository.delete("a/x")) == ["unlink a/x", "fsync a"]


def test_an_append_is_segment_then_index_then_head(recorder: Recorder, tmp_path: Path) -> None:
    log = EventLog.create(tmp_path / "log")
    with log.writer() as writer:
        calls = recorder.during(lambda: writer.append(events("a")))
    folder = f"log/segments/first={0:020}"
    order = [
        f"mkdir {folder}",
        "fsync log/segments",
        f"fsync {folder}/<temp>",
        "<segment>",
        f"fsync {folder}",
        "write log/index",
        "fdatasync log/index",
        "pwrite log/head",
        "fdatasync log/head",
    ]
    at = -1
    for step in order:
        place = next(place for place, call in enumerate(calls) if place > at and call.endswith(step))
        assert place > at, (step, calls)
        at = place
    assert at == len([call for call in calls if "unlink" not in call]) - 1


def test_what_a_crash_left_is_cut_off_durably(recorder: Recorder, tmp_path: Path) -> None:
    log = EventLog.create(tmp_path / "log")
    with (tmp_path / "log/index").open("ab") as index:
        index.write(b"rubbish")
    calls = recorder.during(lambda: log.writer().close())
    assert [call for call in calls if "lock" not in call] == [
        "fdatasync log/head",
        "ftruncate log/index",
        "fsync log/index",
    ]


def test_a_stage_writes_its_slot_and_syncs_it(recorder: Recorder, tmp_path: Path) -> None:
    with FileBlocks.create(tmp_path / "b", 8) as blocks:
        stage = CheckpointedStage(1, blocks, MsgpackCodec(int))
        first = recorder.during(stage.checkpoint)
        assert first == ["pwrite b", "fdatasync b"] * 3  # the other slot is made ready, then both are filled
        assert recorder.during(stage.checkpoint) == ["pwrite b", "fdatasync b"]
