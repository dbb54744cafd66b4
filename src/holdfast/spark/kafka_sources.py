"""The Kafka sources of a stream: compared with its last epoch before a query starts.

Rules:
- Before a start and a restart, every position of the last decided epoch must still exist, in the same topic. What does
  not fit is an error, unless the user accepts gaps. Then it is recorded in the gap ledger.
- The position is that of the decision, never the last entry of Spark's offset log: a start that failed may have written
  that entry.
- With `failOnDataLoss=false`, Spark skips lost records without an error. Then each epoch is compared again before it is
  decided: nothing is lost silently while the stream runs.
- Settings of Kafka's clients may contain secrets. They are kept in memory, and passed only to the driver's JVM.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast._error_text import one_line
from holdfast._topics import (
    KAFKA,
    LossKind,
    LostInput,
    Positions,
    TopicChoice,
    TopicNow,
    lost_input,
    positions_of,
    summary,
)
from holdfast.errors import SourceFailed, SourceGap, Storage
from holdfast.repository.topics import StreamTopics, TopicNote, TopicsRecord
from holdfast.spark import adapter
from holdfast.spark.kafka_groups import GroupCommitter
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.parts import StreamParts
from holdfast.spark.source_gaps import record_gap
from holdfast.sparkfiles.sourcelog import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAIL_ON_LOSS = "failOnDataLoss"
ISOLATION = "kafka.isolation.level"
READ_COMMITTED = "read_committed"
_SET_OPTION = (
    f"set the option {FAIL_ON_LOSS} of the source to false for this run (hf.read_kafka does it), because Spark would "
    "fail; remove it afterwards"
)
_OF_OLD_TOPIC = (LossKind.TRUNCATED, LossKind.PARTITION_GONE)  # no news if the topic is known to be another one
_CREATE = "create the topic, or correct the options of the source, then run again"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """One Kafka source of a stream: its number in Spark's offsets, and the options of its reader, in lower case."""

    number: int
    options: Mapping[str, str]

    @property
    def choice(self) -> TopicChoice:
        """The topics that it reads."""
        return TopicChoice.of(self.options)

    @property
    def fails_on_loss(self) -> bool:
        """Whether Spark fails if records are gone."""
        return self.options.get(FAIL_ON_LOSS.lower(), "true").strip().lower() != "false"

    @property
    def reads_committed(self) -> bool:
        """Whether rows of transactions that are open or were aborted are left out."""
        return self.options.get(ISOLATION, "").strip().lower() == READ_COMMITTED


@dataclass(frozen=True, slots=True)
class KafkaInputs:
    """What a stream reads, in the order of its plan: the options of each Kafka source, `None` for others.

    Spark reads a part of a plan that occurs twice as one source, so there may be fewer offsets than inputs.
    """

    inputs: tuple[Mapping[str, str] | None, ...] = ()

    @classmethod
    def of(cls, df: DataFrame) -> KafkaInputs:
        """Return the inputs of a streaming DataFrame."""
        return cls(tuple(options if name == KAFKA else None for name, options in adapter.inputs(df)))

    @property
    def sources(self) -> list[KafkaSource]:
        """The Kafka sources, without those that have the same options as an earlier one."""
        found: list[KafkaSource] = []
        for number, options in enumerate(self.inputs):
            if options is not None and all(each.options != options for each in found):
                found.append(KafkaSource(number, options))
        return found

    def ends_of(self, source: KafkaSource, ends: Sequence[str | None]) -> list[Positions]:
        """Return the offsets of an epoch that belong to a source: by their order or, if Spark has merged, by topic."""
        positions = [positions_of(end) for end in ends]
        if len(ends) == len(self.inputs):
            return [each for each, of in zip(positions, self.inputs, strict=True) if each and of == source.options]
        return [each for each in positions if each and self._reader(each) == source]

    def _reader(self, positions: Positions) -> KafkaSource:
        sources = sorted(self.sources, key=lambda each: bool(each.choice.pattern))
        return next((each for each in sources if all(each.choice.names(topic) for topic in positions)), sources[0])


class KafkaSources:
    """Compares the Kafka sources of one stream. It exists from the first recovery to the end of the run."""

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts
        self._topics = StreamTopics(parts.run.repository, parts.name)
        self._inputs = KafkaInputs()
        self._sources: list[KafkaSource] = []
        self._clients: dict[int, adapter.KafkaClient] = {}
        self._known: TopicsRecord | None = None
        self._warned: set[int] = set()
        self._replaced: set[tuple[int, int, str]] = set()  # epoch, source, topic: accepted as created again in this run
        self._committer: GroupCommitter | None = None

    @property
    def inputs(self) -> KafkaInputs:
        """What the current query of the stream reads."""
        return self._inputs

    @property
    def may_lose(self) -> bool:
        """Whether Spark would skip lost records of a source without an error."""
        return not all(each.fails_on_loss for each in self._sources)

    def check(self, df: DataFrame, last: LastDecided) -> bool:
        """Compare the sources of a stream with its last epoch, before its query starts; return whether it has any.

        1. Warn of a source that reads rows of aborted transactions.  2. Require that each topic of the program exists,
        and that nothing that follows the last epoch is lost, or record the gap.  3. Record the topics.
        """
        self._use(KafkaInputs.of(df))
        if not self._sources:
            return False
        for source in self._sources:
            self._warn(source)  # 1
        self._known = self._topics.at(self._parts.run.lineage, last.epoch + 1)
        self._compare(last)  # 2 and 3
        if not self.may_lose and self._parts.spec.commit_group is None:
            self._disconnect()  # they are rarely needed again before the next start
        return True

    def check_again(self, last: LastDecided) -> None:
        """Compare the sources before an epoch is decided, if Spark would skip lost records without an error."""
        if self._sources and self.may_lose:
            self._compare(last)

    def epoch_ended(self, last: LastDecided) -> None:
        """Record topics that an epoch was the first to read, and pass its end to the consumer group."""
        group = self._parts.spec.commit_group
        ends = [(source, each) for source in self._sources for each in self._inputs.ends_of(source, last.ends)]
        known = self._known.sources if self._known else {}
        if any(each.keys() - known.get(str(source.number), {}).keys() for source, each in ends):
            self._note_new(last)
        if group is not None and ends:
            self._committer = self._committer or GroupCommitter(self._parts.name, group)
            self._committer.put([(self._client(source), each) for source, each in ends])

    def _note_new(self, last: LastDecided) -> None:
        """Record new topics now. The epoch has ended: if that fails, the next one tries again.

        The ids of known topics stay as they are: the next start finds a topic that was created again meanwhile.
        """
        found: dict[int, Mapping[str, TopicNow]] = {}
        try:
            for source in self._sources:
                known = self._known.ids(source.number) if self._known else {}
                now = self._look(source, self._positions(source, last))
                found[source.number] = {topic: each for topic, each in now.items() if topic not in known}
            self._record(found, last.epoch)
        except Storage as error:
            _log.warning("stream %s: its topics were not recorded: %s", self._parts.name, one_line(error))

    def close(self) -> None:
        """Commit the last offsets to the consumer group, and end the connections."""
        if self._committer is not None:
            self._committer.close()
            self._committer = None
        self._disconnect()

    def _disconnect(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients = {}

    # --- comparing ---

    def _use(self, inputs: KafkaInputs) -> None:
        if inputs != self._inputs:  # a restart may build another DataFrame
            self.close()
            self._inputs, self._sources = inputs, inputs.sources

    def _warn(self, source: KafkaSource) -> None:
        if not source.reads_committed and source.number not in self._warned:
            self._warned.add(source.number)
            _log.warning(
                "stream %s: source %d also reads Kafka's rows of transactions that are open or were aborted. Next: set "
                "its option %s to %s, or read it with hf.read_kafka",
                self._parts.name,
                source.number,
                ISOLATION,
                READ_COMMITTED,
            )

    def _compare(self, last: LastDecided) -> None:
        found: dict[int, Mapping[str, TopicNow]] = {}
        for source in self._sources:
            positions = self._positions(source, last)
            now = found[source.number] = self._look(source, positions)
            self._require_topics(source, now, last.epoch + 1)
            ids = self._known.ids(source.number) if self._known else {}
            lost = [
                each
                for place in positions
                for each in lost_input(place, ids, now, source.choice)
                if each.kind not in _OF_OLD_TOPIC or (last.epoch + 1, source.number, each.topic) not in self._replaced
            ]
            if lost:
                self._accept(source, positions, lost, last.epoch + 1)
            self._report_added(source.number, now)
        self._record(found, last.epoch + 1)

    def _look(self, source: KafkaSource, positions: Sequence[Positions]) -> dict[str, TopicNow]:
        return self._client(source).topics(source.choice, [topic for each in positions for topic in each])

    def _client(self, source: KafkaSource) -> adapter.KafkaClient:
        if source.number not in self._clients:
            spark, name = self._parts.run.spark, self._parts.name
            self._clients[source.number] = adapter.KafkaClient(spark, source.options, stream=name, source=source.number)
        return self._clients[source.number]

    def _positions(self, source: KafkaSource, last: LastDecided) -> list[Positions]:
        """Return where a source continues: after the last epoch or, before the first, where Spark has begun."""
        if last.epoch:
            return self._inputs.ends_of(source, last.ends)
        entry = self._parts.log.folder.read(f"{SOURCES}/{source.number}/0")  # of an epoch that was not decided
        begun = positions_of(entry.decode("utf-8", "replace").rpartition("\n")[2]) if entry else {}
        return [begun] if begun else []

    def _require_topics(self, source: KafkaSource, now: Mapping[str, TopicNow], epoch: int) -> None:
        """Refuse a source that names a topic or partition that does not exist: Spark could not go on without it."""
        choice = source.choice
        missing = {topic: f"topic {topic!r}" for topic in choice.topics if topic not in now}
        for topic, partitions in choice.assigned.items():
            gone = [str(each) for each in partitions if topic in now and each not in now[topic].partitions]
            missing |= {topic: f"partition {', '.join(gone)} of topic {topic!r}"} if gone else {}
        if missing:
            why = f"{', '.join(missing.values())} does not exist"
            known = self._known.ids(source.number) if self._known else {}
            if known.keys() & missing.keys():
                raise SourceGap(stream=self._parts.name, epoch=epoch, source=source.number, what=why, do=_CREATE)
            raise SourceFailed(stream=self._parts.name, source=source.number, why=why, do=_CREATE)

    def _accept(
        self, source: KafkaSource, positions: Sequence[Positions], lost: Sequence[LostInput], epoch: int
    ) -> None:
        """Raise, or record the gap if the user accepts it."""
        name, what = self._parts.name, summary(lost)
        error = SourceGap(stream=name, epoch=epoch, source=source.number, what=what)
        if not self._parts.accepts("gaps"):
            raise error
        if source.fails_on_loss:
            error.do = _SET_OPTION
            raise error
        ended = [
            {topic: {str(n): at for n, at in each.items()} for topic, each in place.items()} for place in positions
        ]
        facts = {"source": source.number, "ended": ended, "lost": [each.facts() for each in lost]}
        record_gap(self._parts, epoch, error.summary, facts)
        self._replaced |= {(epoch, source.number, each.topic) for each in lost if each.kind is LossKind.RECREATED}
        _log.warning("%s; accepted and recorded", error.summary)

    def _report_added(self, source: int, now: Mapping[str, TopicNow]) -> None:
        noted = self._known.sources.get(str(source), {}) if self._known else {}
        for topic, there in now.items():
            if topic in noted and noted[topic].id == there.id and noted[topic].partitions < len(there.partitions):
                text = "stream %s: topic %r has %d partitions now, not %d: the new ones are read from their beginning"
                _log.warning(text, self._parts.name, topic, len(there.partitions), noted[topic].partitions)

    # --- records ---

    def _record(self, found: Mapping[int, Mapping[str, TopicNow]], epoch: int) -> None:
        """Record the topics from an epoch on, if they have changed. Topics that are gone stay in the record."""
        before = self._known.sources if self._known else {}
        sources = {
            str(number): before.get(str(number), {})
            | {topic: TopicNote(id=each.id, partitions=len(each.partitions)) for topic, each in topics.items()}
            for number, topics in found.items()
        }
        if sources != before:
            self._topics.add(self._parts.timeline, epoch, sources)
            self._known = self._topics.at(self._parts.run.lineage, epoch)
