"""Checkpoint folders of plain Spark, written by hand after the documented formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.doctor import Examination, examine

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
KAFKA = '{"orders":{"0":%d,"1":%d}}'


class Handmade:
    """A checkpoint folder of a few files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        self.put("metadata", '{"id":"0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11"}')

    def put(self, name: str, data: str | bytes = "") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def begin(self, batch: int, *ends: str, version: str = "v1", begun: int = 1000, conf: Any = None) -> None:
        record = {"batchWatermarkMs": 0, "batchTimestampMs": begun, "conf": conf or {}}
        self.put(f"offsets/{batch}", "\n".join([version, json.dumps(record), *ends]))

    def commit(self, batch: int, version: str = "v1", **more: Any) -> None:
        self.put(f"commits/{batch}", f"{version}\n{json.dumps({'nextBatchWatermarkMs': 0, **more})}")

    def batches(self, count: int, *ends: str, **more: Any) -> Handmade:
        for batch in range(count):
            self.begin(batch, *(end % ((batch,) * end.count("%d")) for end in ends), **more)
            self.commit(batch)
        return self

    def examined(self) -> Examination:
        return examine(self.folder, pause=0)
