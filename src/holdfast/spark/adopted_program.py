"""The stream of a program that continues a plain Spark query: what it reads, what it keeps, and where it writes."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._validation import checked_name
from holdfast.doctor import Examination
from holdfast.errors import BadValue, NotSupported
from holdfast.plainspark.inputs import FILES, KAFKA, LOG, ProgramSource
from holdfast.plainspark.looking import FolderLook
from holdfast.spark import adapter
from holdfast.spark.chain import Chain
from holdfast.spark.logsource import FORMAT as LOG_FORMAT
from holdfast.spark.logsource import uid_of
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import borrowed
from holdfast.spark.spec import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_SOURCE = "FileSource["
_TOPICS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True)
class BuiltStream:
    """A stream as the program builds it, with the event logs that were added because other streams read them."""

    spec: StreamSpec
    df: DataFrame

    @property
    def sinks(self) -> tuple[str, ...]:
        """The names of its sinks."""
        return tuple(sink.name for sink in self.spec.sinks)


def spec_of(pipeline: Pipeline, stream: str) -> StreamSpec:
    """Return the definition of a stream that can be adopted."""
    streams = pipeline._definition().streams
    if checked_name("stream", stream) not in streams:
        why = f"the pipeline defines {', '.join(streams) or 'no stream'}"
        near = difflib.get_close_matches(stream, streams, n=1)
        meant = f"did you mean {near[0]!r}? If not, " if near else ""
        do = f"{meant}define it in the program, with the source and the query of the old job"
        raise BadValue(what="stream to adopt", value=stream, why=why, do=do)
    if streams[stream].stage is not None:
        why = "plain Spark has no stage state that it could continue with"
        do = "adopt a stream without stage=, or begin a new stream"
        raise NotSupported(what=f"adopting stream {stream!r} with a stage", why=why, do=do)
    return streams[stream]


@contextlib.contextmanager
def session_or(given: SparkSession | None) -> Iterator[SparkSession]:
    """Provide the given session, the active one, or one that is stopped afterwards."""
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(borrowed()) if given is None else given
        adapter.require_classic(session)
        yield session


def built_stream(pipeline: Pipeline, stream: str, root: Path, spark: SparkSession) -> BuiltStream:
    """Build every stream of a program, and return one of them."""
    chain = Chain(pipeline.name, pipeline._definition().streams, root, spark)
    _, specs = chain.join()
    spec = next(each for each in specs if each.name == stream)
    return BuiltStream(spec, chain.build(spec))


def sources_of(df: DataFrame) -> list[ProgramSource]:
    """Return the sources that a stream reads, in Spark's order."""
    return [_source(name, options) for name, options in adapter.inputs(df)]


def _source(name: str, options: Mapping[str, str]) -> ProgramSource:
    if name.startswith(_FILE_SOURCE):
        recursive = options.get("recursivefilelookup", "").lower() == "true"
        return ProgramSource(FILES, options.get("path") or name[len(_FILE_SOURCE) : -1], recursive=recursive)
    if name == KAFKA:
        topics = {each: options[each] for each in _TOPICS if each in options}
        return ProgramSource(KAFKA, "topic " + ", ".join(topics.values()), topics)
    if name == LOG_FORMAT:
        return ProgramSource(LOG, uid_of(options["path"]))
    return ProgramSource(name, "")


def require_state(stream: str, found: Examination, *, stateful: bool) -> None:
    """Raise if the query has state and the stream keeps none, or the other way round."""
    if found.committed is None or stateful == bool(found.operators):
        return
    why = f"the query keeps state of {len(found.operators)} operators, but the stream keeps none"
    if stateful:
        why = "the stream keeps state, but the query kept none"
    do = "define the stream with the same query as in the old program"
    raise NotSupported(what=f"adopting {found.path} as stream {stream!r}", why=why, do=do)


def formats_of(found: Examination) -> tuple[str, ...]:
    """Return the providers and formats of the state, such as `rocksdb-2`."""
    return tuple(sorted({f"{each.provider}-{each.format}" for each in found.operators if each.provider}))


def settings_of(found: Examination, look: FolderLook) -> dict[str, str]:
    """Return the settings of the state, as the old offsets and the names of its files have them."""
    state_format = max((each.format or 1 for each in found.operators), default=1) if found.committed is not None else 1
    changelog = any(path.startswith("state/") and path.endswith(".changelog") for path in look.facts)
    return adapter.adopted_settings(found.settings, state_format, changelog=changelog)
