"""A FileSink's folder of lines of JSON: epochs are staged by hand and committed as a pipeline does, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.epoch import Attempt
from holdfast.errors import NotFound
from holdfast.formats.sealed_json import digest_of
from holdfast.repository import Identity, LocalRepository
from holdfast.sinks.base import EpochKey, SinkContext, StreamIdentity
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord
from holdfast.sinks.files.sink import FileSink

SCHEMA: Any = SimpleNamespace(
    fields=[SimpleNamespace(name="n", dataType=SimpleNamespace(typeName=lambda: "long"))],
)


class EpochFiles:
    """A pipeline's repository and the folder of its one sink. Epoch `e` holds the rows 10 * e and 10 * e + 1."""

    def __init__(
        self, folder: Path, *, format: str = "json", layout: str = "epochs", shared: bool = False, name: str = "out"
    ) -> None:
        self.path = folder / name
        self.repository = LocalRepository(folder / "root")
        try:
            self.identity = Identity.load(self.repository)
        except NotFound:
            self.identity = Identity.create(self.repository, "shop")
        self.owner = StreamIdentity("shop", self.identity.uid, "s")
        self.sink = FileSink(self.path, format=format, layout=layout)
        self.sink.open(SinkContext(self.owner, SCHEMA, "append", None, shared=shared))

    def key(self, epoch: int, timeline: int = 1) -> EpochKey:
        return EpochKey(self.owner, Attempt(stream="s", timeline=timeline, epoch=epoch, attempt=1), 1)

    def stage(self, epoch: int, timeline: int = 1, leaves: Iterable[str] = ("",), **told: Any) -> dict[str, Any]:
        folder = self.sink._staging.folder(self.key(epoch, timeline))
        sizes = {}
        for leaf in leaves:
            for row in (10 * epoch, 10 * epoch + 1):
                name = str(Path(leaf) / f"part-{row}-c000.{self.sink.format}")
                (folder / leaf).mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(json.dumps({"n": row}) + "\n")
                sizes[name] = (folder / name).stat().st_size
        record = KeyRecord(
            pipeline="shop",
            uid=self.owner.uid,
            stream="s",
            timeline=timeline,
            epoch=epoch,
            attempt=1,
            lease=1,
            rows=len(sizes),
            files=sizes,
            **({"shape": "x", "options": {}} | told),
        ).sealed()
        (folder / KEY_FILE).write_bytes(record)
        return {"rows": len(sizes), "files": len(sizes), "digest": digest_of(record)}

    def commit(self, *epochs: int, **told: Any) -> None:
        for epoch in epochs:
            handle = self.stage(epoch, **told)
            self.sink.commit(self.key(epoch, told.get("timeline", 1)), handle)

    def rows(self) -> list[int]:
        return rows_in(self.path, self.sink.format)

    def folders(self) -> list[int]:
        return [int(each.name[-10:]) for each in sorted(self.path.glob("hf_epoch=*"))]


def rows_in(path: Path, format: str = "json") -> list[int]:
    files = list(path.glob(f"**/*.{format}"))
    return sorted(json.loads(line)["n"] for each in files for line in each.read_text().splitlines())


def due(*epochs: int) -> list[int]:
    return sorted(row for epoch in epochs for row in (10 * epoch, 10 * epoch + 1))
