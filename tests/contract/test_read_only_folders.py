"""Tables in folders that the user may not write to, without Spark.

Each step raises a typed error that names the path and the next step. Nothing is visible, nothing is left behind, and
the step succeeds after the permissions are corrected.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import deltastaged as delta
import icebergstaged as iceberg
from holdfast.errors import SinkFailed, SinkUnavailable
from holdfast.sinks.base import Sink
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.iceberg.sink import IcebergSink
from unprivileged import make_read_only, open_folder, set_modes, unprivileged


@dataclass(frozen=True)
class Format:
    """How a table of a format is made and read."""

    sink: Callable[[Path], Sink]
    staged: Any  # the module with its epochs
    denied: type[SinkFailed]  # if its folder, or its catalog, cannot be created
    named: str  # what the error names then

    def opened(self, folder: Path) -> Sink:
        sink = self.sink(folder)
        sink.open(self.staged.context_for())
        return sink

    def prepared(self, sink: Sink, epoch: int) -> dict[str, Any]:
        found: dict[str, Any] = sink.prepare(self.staged.frame_of(epoch), self.staged.key_of(epoch)).handle
        return found

    def numbers(self, sink: Sink) -> list[int]:
        return sorted(n for n, _ in self.staged.rows_of(sink))


FORMATS = {
    "delta": Format(lambda folder: DeltaSink(folder / "table"), delta, SinkFailed, "table"),
    "iceberg": Format(
        lambda folder: IcebergSink("shop.rows", catalog=iceberg.sqlite_catalog(folder)),
        iceberg,
        SinkUnavailable,  # SQLite does not report the reason
        "unable to open database file",
    ),
}
each_format = pytest.mark.parametrize("kind", FORMATS)


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as found:
        yield found


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


@each_format
def test_a_table_that_cannot_be_created(kind: str, folder: Path) -> None:
    table = FORMATS[kind]
    make_read_only(folder)
    with unprivileged(), pytest.raises(table.denied, match=f"{table.named}.* Next: fix .*permissions"):
        table.opened(folder)
    assert files(folder) == []
    set_modes(folder, folders=0o755, files=0o644)
    sink = table.opened(folder)
    sink.commit(table.staged.key_of(1), table.prepared(sink, 1))
    assert table.numbers(sink) == [1]


@each_format
def test_an_epoch_that_cannot_be_staged(kind: str, folder: Path) -> None:
    """It fails before the decision."""
    table = FORMATS[kind]
    sink = table.opened(folder)
    sink.commit(table.staged.key_of(1), table.prepared(sink, 1))
    before = files(folder)
    make_read_only(folder)
    with unprivileged(), pytest.raises(SinkFailed, match=f"could not prepare: Permission denied: {folder}.* Next: fix"):
        table.prepared(sink, 2)
    assert files(folder) == before
    assert table.numbers(sink) == [1]


@each_format
def test_an_epoch_that_cannot_be_committed(kind: str, folder: Path) -> None:
    """The epoch is decided: it stays staged and invisible until the permissions are corrected, and is not lost."""
    table = FORMATS[kind]
    sink = table.opened(folder)
    sink.commit(table.staged.key_of(1), table.prepared(sink, 1))
    handle = table.prepared(sink, 2)
    before = files(folder)
    make_read_only(folder)
    with unprivileged(), pytest.raises(SinkFailed, match=r"could not commit.*Permission denied.* Next: fix"):
        sink.commit(table.staged.key_of(2), handle)
    assert files(folder) == before
    assert table.numbers(sink) == [1]
    set_modes(folder, folders=0o755, files=0o644)
    for _ in range(2):
        sink.commit(table.staged.key_of(2), handle)
    assert table.numbers(sink) == [1, 2]
