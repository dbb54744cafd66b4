"""Two drivers commit one handle at the same moment, a thousand times: both succeed, and the files are there once."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.epoch import Attempt
from holdfast.seal import digest_of
from holdfast.sinks.base import Key, Owner, Setting
from holdfast.sinks.files import FileSink
from holdfast.sinks.stagedfiles import KEY_FILE, KeyRecord

OWNER = Owner("races", "uid", "s")
ROUNDS = 500


def staged(sink: FileSink, key: Key) -> dict[str, object]:
    """Stage one file as Spark would."""
    folder = sink._staging.folder(key)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_text("rows")
    record = KeyRecord(
        pipeline="races",
        uid="uid",
        stream="s",
        timeline=1,
        epoch=key.epoch,
        attempt=1,
        lease=1,
        rows=1,
        files={"part-0.parquet": 4},
    ).sealed()
    (folder / KEY_FILE).write_bytes(record)
    return {"rows": 1, "files": 1, "digest": digest_of(record)}


@pytest.mark.parametrize("layout", ["epochs", "flat"])
def test_two_drivers_at_once(layout: str, tmp_path: Path) -> None:
    schema = SimpleNamespace(fields=[SimpleNamespace(name="n", dataType=SimpleNamespace(typeName=lambda: "long"))])
    sinks = [FileSink(tmp_path / "out", layout=layout) for _ in range(2)]
    for sink in sinks:
        sink.open(Setting(OWNER, schema, "append", None))
    failures: list[str] = []
    for epoch in range(1, ROUNDS + 1):
        key = Key(OWNER, Attempt(stream="s", timeline=1, epoch=epoch, attempt=1), 1)
        handle = staged(sinks[0], key)
        start = threading.Barrier(2)

        def commit(sink: FileSink, key: Key = key, handle: dict[str, object] = handle, start: object = start) -> None:
            start.wait()
            try:
                sink.commit(key, handle)
            except Exception as error:  # whatever it is, it must not be
                failures.append(f"epoch {key.epoch}: {error!r}")

        threads = [threading.Thread(target=commit, args=(sink,)) for sink in sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == ROUNDS
    assert sinks[0].inspect(OWNER, 1).epoch == ROUNDS
