"""Chains: which stream reads from which, determined when the functions of the streams are called.

`pipeline.read("orders")`, called inside the function of a stream, is an edge to the stream `orders`, which is built
first if necessary. An event log joins the two: the `LogSink` of `orders`, or else one that is added to it, in the
repository under `logs/<stream>/log`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.coordinator import Topology
from holdfast.errors import BadValue, NotSupported
from holdfast.sinks.log import LogSink
from holdfast.spark import adapter
from holdfast.spark.logsource import read_log_stream
from holdfast.spark.spec import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "logs"
_INNER = "log"  # the name of a sink that is added to a stream because another stream reads it
_building: ContextVar[tuple[Chain, str] | None] = ContextVar("holdfast_building", default=None)


class Chain:
    """The streams of one run, and which stream reads from which."""

    def __init__(
        self,
        pipeline: str,
        specs: Mapping[str, StreamSpec],
        root: Path | str,
        spark: SparkSession,
        *,
        scratch: Path | None = None,
        accept: frozenset[str] = frozenset(),
    ) -> None:
        self.pipeline = pipeline
        self.accept = accept  # what the user accepts in this run
        self._scratch = scratch  # where event logs that do not exist are created instead: for a caller that only looks
        self._specs = specs
        self._root = root
        self._spark = spark
        self._reads = {name: list(spec.reads) for name, spec in specs.items()}
        self._inner: dict[str, LogSink] = {}
        self._frames: dict[str, DataFrame] = {}
        self._under_way: list[str] = []

    def join(self) -> tuple[Topology, list[StreamSpec]]:
        """Build every stream once; return the topology, and the streams with the event logs that were added."""
        Topology(self._reads)  # a wrong declaration is refused before anything is built
        for name in self._specs:
            self._frame(name)
        topology = Topology(self._reads)
        specs = [
            dataclasses.replace(spec, sinks=(*spec.sinks, self._inner[name])) if name in self._inner else spec
            for name, spec in self._specs.items()
        ]
        return topology, specs

    @property
    def frames(self) -> list[DataFrame]:
        """The streams that `join` has built and that were not started yet."""
        return list(self._frames.values())

    def build(self, spec: StreamSpec) -> DataFrame:
        """Return a stream's DataFrame: the one that `join` built, or a new one for a restart."""
        found = self._frames.pop(spec.name, None)
        return self._built(spec.name) if found is None else found

    def read(self, reader: str, stream: str, rows_per_epoch: int | None) -> DataFrame:
        """Return the output of a stream from its event log, as a streaming DataFrame of its columns."""
        if stream not in self._specs:
            why = f"stream {reader!r} reads it, but the pipeline has only {', '.join(sorted(self._specs))}"
            raise BadValue(what="stream", value=stream, why=why, do="correct the name in pipeline.read(...)")
        if stream not in self._reads[reader]:
            self._reads[reader].append(stream)
        if stream in self._under_way:
            Topology(
                {**self._reads, reader: [*self._reads[reader], stream]}
            )  # raises an error that names the whole cycle
        log = self._log(stream)
        return read_log_stream(self._spark, log.path, rows_per_epoch=rows_per_epoch).select("payload.*")

    def _log(self, stream: str) -> LogSink:
        """Return the event log that joins a stream to its readers; add one if there is none."""
        logs = [sink for sink in self._specs[stream].outputs if isinstance(sink, LogSink)]
        if len(logs) > 1:
            why, do = (
                "another stream reads it, and it has several event logs",
                "read one of them with hf.read_log_stream, and pass reads=[...]",
            )
            raise BadValue(what="stream", value=stream, why=why, do=do)
        if not logs and stream not in self._inner:
            self._inner[stream] = inner_log(self._root, self._specs[stream].name)
        log = logs[0] if logs else self._inner[stream]
        if not log.exists():
            if self._scratch is not None:
                log = inner_log(self._scratch, stream)
            if not log.exists():
                log.make(self._frame(stream).schema)
        return log

    def _frame(self, name: str) -> DataFrame:
        if name not in self._frames:
            self._frames[name] = self._built(name)
        return self._frames[name]

    def _built(self, name: str) -> DataFrame:
        self._under_way.append(name)
        try:
            with _reading(self, name):
                df = self._specs[name].build(self._spark)
        except Exception as error:  # the user's function may raise anything
            if missing := adapter.missing_connector(name, error):
                raise missing from error
            error.add_note(f"in the function of stream {name!r}")
            raise
        finally:
            self._under_way.remove(name)
        return _streaming(name, df)


def inner_log(root: Path | str, stream: str) -> LogSink:
    """Return the event log that joins a stream without one of its own to its readers."""
    return LogSink(f"{root}/{FOLDER}/{stream}/{_INNER}", name=_INNER, changelog=True, keep=0)


def _streaming(name: str, df: DataFrame | None) -> DataFrame:
    """Return the result of a stream's function if it is a streaming DataFrame."""
    if df is not None and getattr(df, "isStreaming", False):
        return df
    why, do = "it is not a streaming DataFrame", "read with spark.readStream, not spark.read"
    if df is None:
        why, do = "expected a streaming DataFrame", "return it from the function: is a return statement missing?"
    raise BadValue(what=f"result of the function of stream {name!r}", value=df, why=why, do=do)


@contextmanager
def _reading(chain: Chain, stream: str) -> Iterator[None]:
    token = _building.set((chain, stream))
    try:
        yield
    finally:
        _building.reset(token)


def accepts_here(change: str) -> bool:
    """Whether the run whose stream is being built accepts a change; false outside of a stream's function."""
    found = _building.get()
    return found is not None and change in found[0].accept


def read_here(pipeline: str, stream: str, rows_per_epoch: int | None) -> DataFrame:
    """Read a stream of the pipeline that is being built; only inside the function of another stream."""
    found = _building.get()
    if found is None:
        why = "the reading stream is only known while its function is called"
        do = "call it inside the function of the stream that reads, or use hf.read_log_stream with the log's path"
        raise NotSupported(what=f"reading stream {stream!r} of pipeline {pipeline!r} here", why=why, do=do)
    chain, reader = found
    if chain.pipeline != pipeline:
        why = f"stream {reader!r} belongs to pipeline {chain.pipeline!r}"
        do = "read another pipeline's log by its path, with hf.read_log_stream"
        raise NotSupported(what=f"reading stream {stream!r} of pipeline {pipeline!r} here", why=why, do=do)
    return chain.read(reader, stream, rows_per_epoch)
