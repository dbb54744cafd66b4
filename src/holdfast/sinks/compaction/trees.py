"""A second tree of a folder, made of hard links: a file that stays as it is costs a directory entry, not its bytes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.errors import CompactionOutdated, NotSupported
from holdfast.repository.files import NO_EXCHANGE, TEMP_PREFIX, exchange
from holdfast.sinks.files.epoch_folders import EPOCH_FOLDER
from holdfast.sinks.staging import below, names_in

_NO_LINK = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK)


def require_able(folder: Path, work: Path, file: Path) -> None:
    """Refuse a file system that cannot exchange two folders or hard-link files, before any work is done."""
    places = [work / "probe-1", work / "probe-2"]
    for each in places:
        each.mkdir()
    try:
        exchange(*places)
        link(file, places[0] / "link")
    except OSError as error:
        if error.errno in NO_EXCHANGE:
            raise _unable(folder, "its file system cannot exchange two folders (RENAME_EXCHANGE)") from error
        raise
    finally:
        for each in places:
            shutil.rmtree(each, ignore_errors=True)


def _unable(folder: Path, why: str) -> NotSupported:
    do = "move the sink to ext4, xfs, btrfs or tmpfs, or rewrite it with a batch job while the pipeline is stopped"
    return NotSupported(what=f"compacting {folder}", why=why, do=do)


def link(source: Path, target: Path) -> None:
    """Hard-link a file; raise `NotSupported` if that is not possible."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            why = f"{source} cannot be hard-linked: {error.strerror}; check its owner and its file system"
            raise _unable(source.parent, why) from error
        raise


def like(source: Path, target: Path) -> None:
    """Create a folder with the permissions, times and owner of another."""
    target.mkdir()
    own_like(source, target)
    shutil.copystat(source, target)


def own_like(source: Path, target: Path) -> None:
    """Copy owner and permissions from one file or folder to another."""
    theirs, ours = source.stat(), target.stat()
    if (theirs.st_uid, theirs.st_gid) != (ours.st_uid, ours.st_gid):
        try:
            os.chown(target, theirs.st_uid, theirs.st_gid)
        except PermissionError as error:
            why = f"{source} belongs to another user or group; run this as the user that runs the pipeline"
            raise _unable(source.parent, why) from error
    shutil.copymode(source, target)


def link_tree(source: Path, target: Path) -> Iterator[Path]:
    """Create `target` as a tree of links to the files in `source`; yield the created folders, which are not synced."""
    like(source, target)
    with os.scandir(source) as found:
        for each in found:
            if each.is_dir(follow_symlinks=False):
                yield from link_tree(Path(each.path), target / each.name)
            elif not each.name.startswith(TEMP_PREFIX):
                link(Path(each.path), target / each.name)
    yield target


def catch_up(old: Path, new: Path, gone: Collection[str], made: Collection[str]) -> list[Path]:
    """Add to the new tree everything that was added to the old one; return the folders that have changed.

    `gone` are the folders that were merged, `made` the folders that they became. The folder of an epoch never changes,
    so only new ones are linked. The few other files are compared; one that a commit removes meanwhile is left out. A
    missing epoch makes the work outdated.
    """
    there = names_in(old)
    missing = sorted({*gone, *(name for name in names_in(new) if _is_epoch(name))} - set(there))
    if missing:
        raise CompactionOutdated(path=str(old), why=f"{missing[0]} no longer exists")
    changed: list[Path] = []
    for name in there:
        if _is_epoch(name):
            if name not in gone and name not in made and not (new / name).exists():
                changed += link_tree(old / name, new / name)
        else:
            changed += _mirrored(old / name, new / name)
    for name in names_in(new):
        if not _is_epoch(name) and name not in there:
            _remove(new / name)
    return [*changed, new]


def _is_epoch(name: str) -> bool:
    return EPOCH_FOLDER.fullmatch(name) is not None


def _mirrored(source: Path, target: Path) -> Iterator[Path]:
    if source.name.startswith(TEMP_PREFIX):
        return
    if source.is_symlink() or not source.is_dir():
        if not _is_same(source, target):
            _remove(target)
            try:
                link(source, target)
            except FileNotFoundError:
                if os.path.lexists(source):
                    raise  # the new tree is gone
            yield target.parent
        return
    if not target.is_dir():
        like(source, target)
        yield target
    for name in names_in(source):
        yield from _mirrored(source / name, target / name)
    for name in set(names_in(target)) - set(names_in(source)):
        _remove(target / name)
        yield target


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def all_in(tree: Path, names: Collection[str]) -> list[Path]:
    """Return all files and folders below some folders of a tree."""
    return [path for name in sorted(names) for path in below(tree / name)]


def swap(old: Path, new: Path) -> None:
    """Exchange two trees. This is not durable until their parent folders are synced."""
    try:
        exchange(old, new)
    except FileNotFoundError as error:
        why = "it blocked commits for too long, and one of them cancelled it"
        raise CompactionOutdated(path=str(old), why=why) from error
