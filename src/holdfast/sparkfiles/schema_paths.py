"""Absolute paths in Spark's operator metadata: a copy of a checkpoint folder must not refer to the original.

`state/N/_metadata/v2/…`, which Spark writes for transformWithState, contains the absolute paths of schema files. In a
copy these paths are rewritten, and nothing else.
"""

from __future__ import annotations

import json
import re

from holdfast.errors import NotSupported, UnsupportedVersion

_OPERATOR = re.compile(r"state/(\d+)/_metadata/v(\d{1,9})/.+")
_PATHS = "stateSchemaFilePaths"


def has_schema_paths(path: str) -> bool:
    """Whether a file of a checkpoint folder may contain absolute paths; `path` is relative to the folder."""
    return _OPERATOR.fullmatch(path) is not None


def with_schema_paths(data: bytes, path: str, address: str) -> bytes:
    """Return an operator's metadata with the paths of its schema files moved to a folder, otherwise unchanged.

    `address` is what Spark is given as the `checkpointLocation` of that folder.

    An unknown format is refused: if a path were missed, the copy would depend on the original.
    """
    operator, version = _OPERATOR.fullmatch(path).groups()  # type: ignore[union-attr] # the caller has matched it
    first, _, text = data.partition(b"\n")
    if (version, first) != ("2", b"v2"):
        header = re.fullmatch(rb"v(\d{1,9})", first)
        found = int(version) if version != "2" or header is None else int(header[1])
        raise UnsupportedVersion(what=f"Spark's operator metadata {path!r}", found=found, known="v2")
    below = f"/state/{operator}/_stateSchema/"

    def moved(old: str) -> str:
        _, found, name = old.rpartition(below)
        if not found:
            raise ValueError(f"path {old!r}")
        return f"{address}{below}{name}"

    try:
        metadata = json.loads(text)
        for store in metadata["stateStoreInfo"]:
            store[_PATHS] = [moved(old) for old in store[_PATHS]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"its format is unknown ({error}), so the paths in it cannot be rewritten"
        do = "restore with the version of Holdfast that took the checkpoint, or report this with the file"
        raise NotSupported(what=f"rewriting Spark's operator metadata {path!r}", why=why, do=do) from error
    return first + b"\n" + json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode()
