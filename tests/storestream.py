"""A stream on an object store without Spark: its files are written as Spark would write them."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Iterable

from holdfast.epoch import Attempt, Decision, Facts, Verdict
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.repository import Checkpoints, Decisions, Identity, Lineage, ObjectRepository
from holdfast.repository.stream_records import StreamRecord, stream_record_key
from holdfast.spark.pins import SparkCut
from holdfast.spark.placed import PlacedSnapshots
from holdfast.sparkfiles.places import spark_key
from holdfast.sparkfiles.storefolder import StoreSparkFolder

STREAM = "totals"


class StoreStream:
    """One stateful stream: batches, snapshots of its state stores, and checkpoints."""

    def __init__(self, url: str, partitions: int = 2, timeline: int = 1) -> None:
        self.repository = ObjectRepository(url)
        self.checkpoints = Checkpoints(self.repository)
        try:
            self.identity = Identity.load(self.repository)
        except Exception:
            self.identity = Identity.create(self.repository, "orders")
        self.timeline = timeline
        self.live = spark_key(STREAM, timeline)
        self.folder = StoreSparkFolder(self.repository, self.live)
        self.snapshots = PlacedSnapshots(STREAM, self.folder, self.repository)
        self.batch = -1
        self.ids: dict[tuple[int, int], str] = {}  # by version and partition
        self.ssts: dict[int, list[str]] = {each: [] for each in range(partitions)}
        self.parent: str | None = None

    def put(self, path: str, data: str | bytes) -> None:
        self.repository.put_new(f"{self.live}/{path}", data.encode() if isinstance(data, str) else data)

    def begin(self) -> None:
        """Write what exists before the first batch."""
        self.put("metadata", '{"id":"0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11"}')
        self.put("state/0/_metadata/metadata", "v1\n{}")
        record = StreamRecord(stream=STREAM, output_mode="update", settings={})
        self.repository.put_new(stream_record_key(STREAM, self.timeline), record.sealed())

    def run(self, batches: int = 1, *, commit: bool = True) -> None:
        """Run batches: offsets, a changelog for each partition, the decision, the commit."""
        for _ in range(batches):
            if self.batch < 0:
                self.begin()
            self.batch += 1
            version = self.batch + 1
            self.put(f"offsets/{self.batch}", f'v1\n{{"conf":{{"a":"b"}}}}\n{{"logOffset":{self.batch}}}')
            name = f"{self.batch}.compact" if self.batch % 10 == 9 else str(self.batch)
            self.put(f"sources/0/{name}", f"v1\nentry {self.batch}")
            for partition in self.ssts:
                self.ids[version, partition] = str(uuid.uuid4())
                self.put(self.stem(version, partition) + ".changelog", f"changes {version} of {partition}")
                self.put(self.stem(version, partition) + ".changelog.crc", "sum")
            self.decide(version)
            if commit:
                self.commit()

    def commit(self) -> None:
        ids = [[self.ids[self.batch + 1, partition]] for partition in self.ssts]
        self.put(
            f"commits/{self.batch}", "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": ids}})
        )

    def decide(self, epoch: int) -> None:
        ends: list[str | None] = [json.dumps({"logOffset": epoch - 1})]
        facts = Facts(
            start=ends,
            end=ends,
            offsets_digest="",
            source_log={},
            source_entries={},
            sinks={},
            rows=1,
            watermark_ms=0,
            total_rows=epoch,
            decided_at_ms=1,
        )
        attempt = Attempt(stream=STREAM, timeline=self.timeline, epoch=epoch, attempt=1)
        decision = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain())
        Decisions(self.repository).close(decision)

    def stem(self, version: int, partition: int) -> str:
        return f"state/0/{partition}/{version}_{self.ids[version, partition]}"

    def upload(self, partition: int, *, merged: bool = False) -> str:
        """Upload an SST file of a partition; `merged`: RocksDB has merged the earlier ones into it."""
        name = f"{len(self.ssts[partition]):06}-{uuid.uuid4()}.sst"
        self.put(f"state/0/{partition}/SSTs/{name}", f"table {name}")
        self.ssts[partition] = [name] if merged else [*self.ssts[partition], name]
        return f"state/0/{partition}/SSTs/{name}"

    def snapshot(self, partition: int, version: int | None = None) -> str:
        """Upload the snapshot of a version, which lists all SST files of the partition."""
        files = [{"localFileName": name, "dfsSstFileName": name, "sizeBytes": 1} for name in self.ssts[partition]]
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "logFiles": [], "numKeys": 1}))
        path = self.stem(version or self.batch + 1, partition) + ".zip"
        self.put(path, packed.getvalue())
        return path

    def snapshot_all(self, *, merged: bool = False) -> None:
        for partition in self.ssts:
            self.upload(partition, merged=merged)
            self.snapshot(partition)

    def cut(self, number: int, savepoint: str | None = None) -> SparkCut:
        """Take the files of the last batch for a checkpoint."""
        place = self.checkpoints.place(self.timeline, number, savepoint)
        pinned = self.snapshots.pin(self.batch, place, copy=savepoint is not None)
        while (cut := self.snapshots.keep(pinned)) is None:
            pass
        return cut

    def checkpoint(self, savepoint: str | None = None) -> Manifest:
        """Take a checkpoint or a savepoint."""
        number = self.checkpoints.claim(self.timeline, 1)
        cut = self.cut(number, savepoint)
        place = self.checkpoints.place(self.timeline, number, savepoint)
        manifest = Manifest(
            checkpoint_id=number,
            epoch=number,
            timestamp_ms=number * 1000,
            pipeline="orders",
            uid=self.identity.uid,
            timeline=self.timeline,
            lease=1,
            parent=self.parent,
            savepoint=savepoint,
            streams={
                STREAM: StreamCut(
                    timeline=self.timeline,
                    epoch=self.batch + 1,
                    offsets=(json.dumps({"logOffset": self.batch}),),
                    rows=self.batch + 1,
                    output_mode="update",
                    state_format=cut.state_format,
                    confs=cut.confs,
                    files=cut.stored(self.checkpoints, place),
                    file_count=len(cut.files),
                    file_bytes=sum(each.size for each in cut.files),
                )
            },
        )
        self.parent = self.checkpoints.put(manifest)
        return manifest

    def paths(self) -> set[str]:
        """Return the paths of all files in Spark's folder."""
        return {each.key.removeprefix(f"{self.live}/") for each in self.repository.flat(self.live)}

    def chain(self, version: int, partition: int, names: Iterable[str] | None = None) -> list[str]:
        """Return the files that Spark would load for a version, or raise `AssertionError` if it could not."""
        there = set(self.paths() if names is None else names)
        found: list[str] = []
        for each in range(version, 0, -1):
            stem = self.stem(each, partition)
            if f"{stem}.zip" in there:
                return [*found, f"{stem}.zip"]
            assert f"{stem}.changelog" in there, f"{stem}.changelog is gone"
            found.append(f"{stem}.changelog")
        return found

    def lineage(self) -> Lineage:
        return Lineage.load(self.repository)
