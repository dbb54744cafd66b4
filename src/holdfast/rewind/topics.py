"""Whether Kafka still has the records after a base. No Spark is needed; the package confluent-kafka is.

Servers and topics are those that the last program of the stream has recorded. Secrets are never recorded, so a source
that needs one cannot be asked here: the next start compares it, before a query runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast._error_text import one_line
from holdfast._topics import KAFKA, TopicChoice, TopicNow, client_settings, lost_input, positions_of, summary
from holdfast.errors import HoldfastError
from holdfast.program.description import SourceDescription
from holdfast.program.records import Programs
from holdfast.repository import Lineage, Repository
from holdfast.repository.topics import StreamTopics
from holdfast.rewind.plan import Readable

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ANSWER_S = 15.0
_PLAIN = ("", "PLAINTEXT")
_LATER = "the next start compares it before a query runs"
_NOT_JAVA = str.maketrans("+/", "-_")  # Kafka's Java client prints ids in the other alphabet


class TopicQuestions:
    """Asks Kafka about the sources of one stream."""

    def __init__(self, repository: Repository, lineage: Lineage, stream: str, base_epoch: int) -> None:
        self._repository = repository
        self._lineage = lineage
        self._stream = stream
        self._base_epoch = base_epoch

    def readable(self, number: int, start: str | None) -> tuple[Readable, str]:
        """Return whether a source still has the records after an offset, and why not, or why it is not known."""
        positions = positions_of(start)
        if not positions:
            return Readable.UNKNOWN, "the source begins again, as its option startingOffsets says"
        try:
            source, first = self._source(number)
            if source is None:
                return Readable.UNKNOWN, f"the servers that it was read from are not recorded; {_LATER}"
            if source.options.get("kafka.security.protocol", "").upper() not in _PLAIN:
                return Readable.UNKNOWN, f"its servers need credentials, which are not recorded; {_LATER}"
            record = StreamTopics(self._repository, self._stream).at(self._lineage, self._base_epoch)
            now = _topics(client_settings(source.options)["bootstrap.servers"], tuple(positions))
        except ImportError:
            return Readable.UNKNOWN, f"to check it here: pip install 'holdfast-spark[kafka]'; {_LATER}"
        except Exception as error:  # of the client, which raises errors of its own, or of the repository
            if isinstance(error, HoldfastError):
                raise
            return Readable.UNKNOWN, f"Kafka cannot be asked: {one_line(error)}; {_LATER}"
        ids = record.ids(first) if record else {}
        choice = TopicChoice(topics=tuple(positions))
        if source.reads.startswith("{"):  # partitions, not topics or a pattern
            choice = TopicChoice.of({"assign": source.reads})
        lost = list(lost_input(positions, ids, now, choice))
        return (Readable.NO, summary(lost)) if lost else (Readable.YES, "")

    def _source(self, number: int) -> tuple[SourceDescription | None, int]:
        """Return a source of the last program, and the number of the first one with the same description."""
        program = Programs(self._repository).newest(self._stream, self._lineage)
        sources = program.description.sources if program else []
        if number >= len(sources) or sources[number].kind != KAFKA:
            return None, number
        return sources[number], sources.index(sources[number])


def _topics(servers: str, names: tuple[str, ...]) -> dict[str, TopicNow]:
    """Return the topics that exist, as a server describes them."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection  # noqa: PLC0415 - an extra
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    client = AdminClient({"bootstrap.servers": servers, "log_level": 0, "socket.timeout.ms": int(_ANSWER_S * 1000)})
    found: dict[str, TopicNow] = {}
    for name, answer in client.describe_topics(TopicCollection(list(names)), request_timeout=_ANSWER_S).items():
        try:
            topic = answer.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise
        numbers = [each.id for each in topic.partitions]
        id_ = str(topic.topic_id).translate(_NOT_JAVA).rstrip("=")
        found[name] = TopicNow(id_, _bounds(client, name, numbers))
    return found


def _bounds(client: AdminClient, topic: str, numbers: list[int]) -> Mapping[int, tuple[int, int]]:
    import confluent_kafka.admin as kafka  # noqa: PLC0415
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    def offsets(spec: Any) -> dict[int, int]:
        wanted = {TopicPartition(topic, each): spec for each in numbers}
        answers = client.list_offsets(wanted, request_timeout=_ANSWER_S)
        return {each.partition: answer.result().offset for each, answer in answers.items()}

    with ThreadPoolExecutor(2) as pool:
        specs: Any = getattr(kafka, "OffsetSpec")  # noqa: B009 - the package exports it without types
        first, end = pool.map(offsets, (specs.earliest(), specs.latest()))
    return {each: (first[each], end[each]) for each in numbers}
