"""Whether the target of a sink on a disk is gone, or only cannot be looked at."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet  # noqa: F401 - a user without privileges may not be able to import it
import pytest

from handstaged import SCHEMA
from holdfast.errors import SinkFailed
from holdfast.sinks.base import Sink, SinkContext, StreamIdentity
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.foreach import ForeachSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.sqlite import SqliteSink
from unprivileged import open_folder, unprivileged


@pytest.mark.parametrize("made", [FileSink, lambda path: SqliteSink(path, "rows")])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_target_that_cannot_be_looked_at_is_not_missing(
    made: Callable[[Path], Sink], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "target"
    sink = made(path)
    assert sink.is_missing()
    path.mkdir()
    assert not sink.is_missing()
    stat = os.stat

    def failing(each: object, *args: object, **options: object) -> os.stat_result:
        if str(each) == str(path):
            raise OSError(number, os.strerror(number), str(path))
        return stat(each, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(SinkFailed, match=os.strerror(number)):
        sink.is_missing()


@pytest.mark.parametrize(
    "made",
    [
        FileSink,
        lambda path: SqliteSink(path / "shop.db", "rows"),
        lambda path: ForeachSink(print, path=path),
        lambda path: LogSink(path, entity="text"),
    ],
)
def test_a_folder_that_this_user_may_not_enter_is_reported_as_such(made: Callable[[Path], Sink]) -> None:
    with open_folder() as folder:
        closed = folder / "closed"
        closed.mkdir()
        closed.chmod(0)
        owner = StreamIdentity("shop", "0" * 32, "rows")
        context = SinkContext(owner, SCHEMA, "append", None)  # type: ignore[arg-type]
        for path in (closed, closed / "below"):
            sink = made(path)
            with unprivileged():
                with pytest.raises(SinkFailed, match="Permission denied"):
                    sink.open(context)
                with pytest.raises(SinkFailed, match="Permission denied"):
                    sink.inspect(owner, 1)
