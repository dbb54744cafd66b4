"""A job with a long history that is generated, not run: ten real epochs, extended to the required number.

Ten thousand real epochs would take almost an hour. Instead, the files that they would leave are generated, in the
layout of Spark and Holdfast (a real run of 310 epochs left the same kinds and numbers of files):

- Spark's logs: the last 101 offsets and commits; the source's log from its last compaction before the last hundred
  batches, each compacted entry with all earlier files, as after Spark's ten minutes of grace.
- The output: one file per epoch, each a link to a real one. For Holdfast, each in its folder with its own key.
- For Holdfast: the decisions since the last pruning, closed and pruned by Holdfast itself.

Input files that were read are removed, as if they had been archived. Otherwise both sides would list them at every
trigger, and this would hide the difference.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

import msgspec
from pyarrow.dataset import dataset
from pyspark.sql import DataFrame, SparkSession

from holdfast import FileSink, Pipeline, StreamCallbacks
from holdfast.epoch import Decision, Facts
from holdfast.repository import Decisions, LocalRepository
from holdfast.repository.decisions import stream_folder
from holdfast.sinks.files.epoch_folders import KEY_FILE, folder_name, folder_of
from holdfast.spark.adapter import RETAINED
from holdfast.spark.epochs import PRUNE_EVERY

REAL = 10  # number of epochs that are run
ROWS = 10  # per epoch
PATIENCE_S = 120.0
_COMPACTED_EVERY = 10  # entries of the file source's log
_CHUNK = 512  # bytes per checksum of Hadoop


class Job:
    """A job that reads and writes one file per epoch. Subclasses define how it runs and which files it leaves."""

    def __init__(self, spark: SparkSession, folder: Path, epochs: int) -> None:
        assert epochs == REAL or epochs % PRUNE_EVERY == 0, "decisions are kept since the last pruning"
        self.spark = spark
        self.inputs, self.out = folder / "in", folder / "out"
        self.folder = folder
        self.inputs.mkdir(parents=True)
        self.epochs = REAL
        for number in range(REAL):
            self._feed(number)
        self._run_available()
        shutil.rmtree(self.inputs)
        self.inputs.mkdir()
        if epochs > REAL:
            self._extend(epochs)
            self.epochs = epochs
        os.sync()  # so that the first samples do not include it

    @property
    def log(self) -> Path:
        """Spark's checkpoint folder."""
        raise NotImplementedError

    def _run_available(self) -> None:
        raise NotImplementedError

    def _extend(self, epochs: int) -> None:
        raise NotImplementedError

    def _started(self) -> Any:
        """Start the job and return its handle, which has a `stop` method."""
        raise NotImplementedError

    def _feed(self, number: int) -> None:
        text = "".join(json.dumps({"k": k, "epoch": number}) + "\n" for k in range(ROWS))
        hidden = self.inputs / f".{_input(number)}"
        hidden.write_text(text)
        hidden.rename(self.inputs / _input(number))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the stream."""
        reader = spark.readStream.schema("k long, epoch long").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.inputs))

    def epoch(self) -> None:
        """Add the input of one epoch and wait until Spark has committed it. The job must be running."""
        self._feed(self.epochs)
        self._wait()

    def restart(self) -> float:
        """Return the time from the start until Spark has committed the first new epoch."""
        self._feed(self.epochs)
        start = time.perf_counter()
        running = self._started()
        self._wait()
        seconds = time.perf_counter() - start
        running.stop()
        return seconds

    def _wait(self) -> None:
        wait_for(self.log / "commits" / str(self.epochs))
        self.epochs += 1

    def check(self) -> None:
        """Check that the output has one row for each row of the history."""
        found = dataset(self.out, format="parquet").count_rows()
        assert found == self.epochs * ROWS, f"{found} rows after {self.epochs} epochs"


class PlainJob(Job):
    """Plain Spark: a `foreachBatch` that appends to a folder."""

    @property
    def log(self) -> Path:
        """The configured checkpoint location."""
        return self.folder / "checkpoint"

    def _query(self, **trigger: Any) -> Any:
        writer = self.read(self.spark).writeStream.option("checkpointLocation", str(self.log))
        return writer.foreachBatch(self._write).trigger(**trigger).start()

    def _write(self, df: DataFrame, batch: int) -> None:
        del batch
        df.write.mode("append").parquet(str(self.out))

    def _run_available(self) -> None:
        self._query(availableNow=True).awaitTermination()

    def _started(self) -> Any:
        return self._query(processingTime="0 seconds")

    def _extend(self, epochs: int) -> None:
        _extend_logs(self.log, self.inputs, epochs)
        part = next(self.out.glob("part-*"))
        for _ in range(REAL, epochs):
            _link_part(part, self.out)


class OurJob(Job):
    """A pipeline with one `FileSink`."""

    stream = "rows"

    def __init__(self, spark: SparkSession, folder: Path, epochs: int) -> None:
        self.name = f"after-{epochs}"  # several may run in one session
        self.repository = LocalRepository(folder / "root" / self.name)
        super().__init__(spark, folder, epochs)

    @property
    def log(self) -> Path:
        """Spark's folder in the repository."""
        return self.repository.root / stream_folder(self.stream, 1) / "spark"

    def pipeline(self, callbacks: StreamCallbacks | None = None) -> Pipeline:
        """Return the pipeline, not yet started."""
        made = Pipeline(self.name, self.folder / "root", callbacks=callbacks)
        made.stream(self.read, name=self.stream, sinks=[FileSink(self.out)])
        return made

    def _run_available(self) -> None:
        self.pipeline().run(self.spark, available_now=True, checkpoint_every=None)

    def _started(self) -> Any:
        return self.pipeline().start(self.spark, checkpoint_every=None)

    def check(self) -> None:
        """Also check the decisions."""
        super().check()
        last = Decisions(self.repository).seen(self.stream, 1)
        assert last is not None
        assert (last.attempt.epoch, Facts.of(last).total_rows) == (self.epochs, self.epochs * ROWS)

    def _extend(self, epochs: int) -> None:
        _extend_logs(self.log, self.inputs, epochs)
        digests = self._extend_output(epochs)
        decisions = Decisions(self.repository)
        last = decisions.newest(self.stream, 1)
        assert last is not None
        kept_from = epochs - epochs % PRUNE_EVERY - RETAINED
        for epoch in range(max(kept_from, REAL + 1), epochs + 1):
            decisions.close(self._decision(last, epoch, digests[epoch]))
        decisions.prune(self.stream, 1, kept_from)

    def _extend_output(self, epochs: int) -> dict[int, str]:
        """Write the folders of the epochs, and return the digest of each key."""
        real = folder_of(self.out, 1, REAL)
        part = next((self.out / real.name).glob("part-*"))
        digests = {}
        for epoch in range(REAL + 1, epochs + 1):
            folder = self.out / folder_name(1, epoch)
            folder.mkdir()
            files = {each.name: each.stat().st_size for each in _link_part(part, folder)}
            key = msgspec.structs.replace(real.record, epoch=epoch, files=files).sealed()
            (folder / KEY_FILE).write_bytes(key)
            digests[epoch] = folder_of(self.out, 1, epoch).digest
        return digests

    def _decision(self, last: Decision, epoch: int, digest: str) -> Decision:
        log, facts, batch = self.log, Facts.of(last), epoch - 1
        entry = log / "sources" / "0" / _entry(batch)
        shares = {
            name: msgspec.structs.replace(each, handle={**each.handle, "digest": digest}, stands=epoch, before=batch)
            for name, each in facts.sinks.items()
        }
        facts = msgspec.structs.replace(
            facts,
            start=[_offset(batch - 1)],
            end=[_offset(batch)],
            offsets_digest=_sha256(log / "offsets" / str(batch)),
            source_log={"0": batch},
            source_entries={f"0/{entry.name}": _sha256(entry)},
            sinks=shares,
            total_rows=epoch * ROWS,
        )
        attempt = msgspec.structs.replace(last.attempt, epoch=epoch, attempt=1)
        return msgspec.structs.replace(last, attempt=attempt, facts=facts.plain())


def wait_for(commit: Path) -> None:
    """Wait until Spark has written its commit of an epoch."""
    path, end = str(commit), time.monotonic() + PATIENCE_S
    while not os.path.exists(path):  # noqa: PTH110 - a thousand times a second
        if time.monotonic() > end:
            raise TimeoutError(f"{commit} was not written within {PATIENCE_S:.0f} s")
        time.sleep(0.001)


def _extend_logs(log: Path, inputs: Path, epochs: int) -> None:
    """Write Spark's logs as they are after this many epochs."""
    kept = range(epochs - RETAINED - 1, epochs)
    for name in ("offsets", "commits"):
        last = (log / name / str(REAL - 1)).read_text()
        _clear(log / name)
        for batch in kept:
            _put(log / name / str(batch), last.replace(_offset(REAL - 1), _offset(batch)))
    at = int(time.time() * 1000)
    lines = [_read_file(inputs, batch, at) for batch in range(epochs)]
    source = log / "sources" / "0"
    _clear(source)
    before = epochs - RETAINED
    for batch in range(before - before % _COMPACTED_EVERY - 1, epochs):
        name = _entry(batch)
        _put(source / name, "\n".join(["v1", *(lines[: batch + 1] if "compact" in name else [lines[batch]])]))


def _input(number: int) -> str:
    return f"{number:06}.json"


def _offset(batch: int) -> str:
    """Return a batch's line in the offset log."""
    return f'{{"logOffset":{batch}}}'


def _entry(batch: int) -> str:
    """Return the name of an entry of the source's log."""
    return f"{batch}.compact" if (batch + 1) % _COMPACTED_EVERY == 0 else str(batch)


def _read_file(inputs: Path, batch: int, at_ms: int) -> str:
    """Return the line of the source's log for a batch's file."""
    entry = {"path": f"{inputs.as_uri()}/{_input(batch)}", "timestamp": at_ms, "batchId": batch}
    return json.dumps(entry, separators=(",", ":"))


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _put(path: Path, text: str) -> None:
    """Write a file and its checksum file, like Hadoop does."""
    data = text.encode()
    chunks = (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
    sums = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", _CHUNK) + sums)


def _link_part(part: Path, folder: Path) -> tuple[Path, Path]:
    """Link one of Spark's files and its checksums into a folder, under a unique name."""
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    made = folder / name, folder / f".{name}.crc"
    os.link(part, made[0])
    os.link(part.with_name(f".{part.name}.crc"), made[1])
    return made


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
