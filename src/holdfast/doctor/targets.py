"""Which folder to examine: a local checkpoint folder, and nothing that only resembles one."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from holdfast._redaction import redacted_text
from holdfast.errors import NotSupported, SparkCheckpointMissing
from holdfast.repository.files import failing_as, local_path
from holdfast.repository.identity import KEY

_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")
_OUTPUT = "_spark_metadata"
_PARTS = ("offsets", "commits", "sources", "state")
_SHOWN = 3  # checkpoints that an error names


def checkpoint_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a checkpoint, or raise an error that names what the path is instead."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else path
    if isinstance(text, str) and _REMOTE.match(text):
        scheme = text.partition(":")[0]
        raise NotSupported(
            what=f"examining {redacted_text(text)}",
            why=f"doctor reads local folders, and this is an address of {scheme}",
            do=f"copy the folder to a local disk and examine the copy: {_copy_command(scheme)}",
        )
    folder = local_path("checkpoint folder", path)
    with failing_as("look at", str(folder)):
        if not folder.exists():
            raise _missing(folder, "the folder does not exist")
        if not folder.is_dir():
            raise _missing(folder, "it is not a folder")
        if not _is_checkpoint(folder):
            raise _other(folder)
    return folder


def repository_of(folder: Path) -> Path | None:
    """Return the Holdfast repository that a folder is in, if any."""
    return next((each for each in (folder, *folder.parents) if (each / KEY).is_file()), None)


def _is_checkpoint(folder: Path) -> bool:
    logs = any((folder / each).is_dir() for each in ("offsets", "commits"))
    return logs or ((folder / "metadata").is_file() and any((folder / each).is_dir() for each in _PARTS))


def _other(folder: Path) -> SparkCheckpointMissing:
    """Return the error for a folder that is something else."""
    if (folder / _OUTPUT).is_dir() or folder.name == _OUTPUT:
        why = "this is the output folder of a file sink; its checkpoint is elsewhere"
        return _missing(folder, why, "pass the checkpointLocation of the query that writes this folder")
    repository = repository_of(folder)
    if repository is not None:
        where = shlex.quote(str(repository))
        why = "it belongs to a Holdfast repository, not to plain Spark"
        do = f"list its checkpoints: holdfast ls --repo {where}; or check them: holdfast verify --repo {where}"
        return _missing(folder, why, do)
    if folder.name in _PARTS and _is_checkpoint(folder.parent):
        return _missing(folder, "it is a part of a checkpoint folder", f"pass {shlex.quote(str(folder.parent))}")
    inside = sorted(each for each in folder.iterdir() if each.is_dir())
    if any((each / KEY).is_file() for each in inside):
        why = "it is the root of Holdfast repositories, not a plain Spark checkpoint"
        return _missing(folder, why, f"list their checkpoints: holdfast ls --repo {shlex.quote(str(folder))}")
    found = [each for each in inside if _is_checkpoint(each)]
    if found:
        names = ", ".join(shlex.quote(str(each)) for each in found[:_SHOWN])
        return _missing(folder, f"it contains {len(found)} checkpoint folders", f"pass one of them, such as {names}")
    return _missing(folder, "it has neither offsets nor commits")


def _missing(folder: Path, why: str, do: str = "pass the checkpointLocation of the query") -> SparkCheckpointMissing:
    return SparkCheckpointMissing(path=str(folder), why=why, do=do)


def _copy_command(scheme: str) -> str:
    known = {"s3": "aws s3 cp --recursive", "s3a": "aws s3 cp --recursive", "gs": "gcloud storage cp -r"}
    return f"{known.get(scheme, 'hadoop fs -copyToLocal')} <address> ./copy"
