"""Whether a lake table still has the input after a base. It needs no Spark, but the package deltalake.

The path of a Delta table is the one that the last program of the stream has recorded. Table and repository must be on a
local disk. An Iceberg table is found through a catalog of the Spark session, which is not recorded. All other tables
are compared by the next start, before a query runs.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast._error_text import one_line
from holdfast._lake_tables import DELTA, DeltaNow, DeltaPosition, lost_in_delta
from holdfast.errors import HoldfastError
from holdfast.program.records import Programs
from holdfast.repository import Lineage, Repository
from holdfast.repository.opening import local_root
from holdfast.rewind.plan import Readable

_LATER = "the next start compares it before a query runs"
_LOCAL = re.compile(r"^file:(//(?=/))?")
_COMMIT = re.compile(r"(\d{20})\.json")


class TableQuestions:
    """Looks at the tables of one stream."""

    def __init__(self, repository: Repository, lineage: Lineage, stream: str) -> None:
        self._repository = repository
        self._lineage = lineage
        self._stream = stream

    def readable(self, number: int, kind: str, start: str | None, *, offsets: int) -> tuple[Readable, str]:
        """Return whether a source still has the input after an offset, and why not, or why it is not known.

        `offsets`: how many sources have one.
        """
        if start is None:
            return Readable.UNKNOWN, "nothing was read before the base: the source begins where its options say"
        position = DeltaPosition.of(start)
        if kind != DELTA or position is None:
            return Readable.UNKNOWN, f"its catalog is known only to the Spark session; {_LATER}"
        try:
            path = self._path(number, offsets)
            if path is None:
                return Readable.UNKNOWN, f"its path is not recorded, or it or the repository is not on a disk; {_LATER}"
            lost = lost_in_delta(str(path), position, _delta_now(path))
        except ImportError:
            return Readable.UNKNOWN, f"deltalake is not installed (pip install 'holdfast-spark[delta]'); {_LATER}"
        except Exception as error:  # delta-rs raises errors of its own
            if isinstance(error, HoldfastError):
                raise
            return Readable.UNKNOWN, f"its log cannot be read: {one_line(error)}; {_LATER}"
        return (Readable.NO, lost.summary) if lost else (Readable.YES, "")

    def _path(self, number: int, offsets: int) -> Path | None:
        """Return the folder of a table. A path below the repository is recorded relative to it.

        Spark reads a table that the program has twice only once: then fewer sources have an offset.
        """
        program = Programs(self._repository).newest(self._stream, self._lineage)
        sources = program.description.sources if program else []
        if len(sources) != offsets:
            sources = [each for at, each in enumerate(sources) if each not in sources[:at]]
        if len(sources) != offsets:
            return None
        if number >= len(sources) or sources[number].kind != DELTA or not sources[number].reads:
            return None
        plain = _LOCAL.sub("", sources[number].reads, count=1)
        root = local_root(self._repository)
        return None if "://" in plain or root is None else root / plain


def _delta_now(path: Path) -> DeltaNow:
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra

    log = path / "_delta_log"
    if not log.is_dir():  # for the driver, a relative path, or one on another machine, may be another folder
        raise FileNotFoundError(f"there is no table at {path}")
    names = (_COMMIT.fullmatch(each.name) for each in log.iterdir())
    return DeltaNow(str(DeltaTable(path).metadata().id), {int(name[1]) for name in names if name})
