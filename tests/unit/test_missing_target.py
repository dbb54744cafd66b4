"""Whether the target of a sink on a disk is gone, or only cannot be looked at."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.errors import SinkFailed
from holdfast.sinks.base import Sink
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.sqlite import SqliteSink


@pytest.mark.parametrize("made", [FileSink, lambda path: SqliteSink(path, "rows")])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_target_that_cannot_be_looked_at_is_not_missing(
    made: type[Sink], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "target"
    sink = made(path)  # type: ignore[call-arg,arg-type]
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
