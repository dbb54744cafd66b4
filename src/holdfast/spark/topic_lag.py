"""How far a stream is behind its Kafka topics, in seconds. Kafka is asked only when a status is requested.

Rules:
- The lag is the age of the oldest record that no sink has yet: of each partition, the first record after the last epoch
  is read. The age is the difference between the driver's clock and the timestamp of the record.
- An answer is kept for some seconds. A question takes a few seconds at most, and then there is no answer.
- A caller within an epoch gets the last answer while it is kept, otherwise none: no epoch waits for Kafka.
- If any partition does not answer, or a record has no timestamp, the lag is not known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast._error_text import one_line
from holdfast._topics import Positions
from holdfast.spark.gate import EpochGate
from holdfast.spark.kafka_sources import KafkaInputs, KafkaSource

_log = logging.getLogger(__name__)
_ANSWER_S = 2.0  # for the answers of all sources
_FRESH_S = 5.0  # how long an answer is kept
_SHARE = 5  # one that took long is kept for this many times its duration


class UnreadReader(Protocol):
    """Reads the first unread records of one source; see `adapter.KafkaUnread`."""

    def timestamps(self, positions: Positions, within_s: float) -> list[int] | None:
        """Return the timestamps of the first unread records by partition; `None` if they are not known."""

    def close(self) -> None:
        """End the connections."""


class OpenReader(Protocol):
    """Makes the reader of a source."""

    def __call__(self, options: Mapping[str, str], *, source: int) -> UnreadReader:
        """Return a reader with the options of a source."""


class TopicLag:
    """Determines the lag of one stream. It exists as long as the run. Used by any thread."""

    def __init__(
        self,
        stream: str,
        gate: EpochGate,
        inputs: Callable[[], KafkaInputs],
        open_reader: OpenReader,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream
        self._gate = gate
        self._inputs = inputs
        self._open_reader = open_reader
        self._clock = clock
        self._wall_clock = wall_clock
        self._mutex = threading.Lock()  # a reader may be used by one thread at a time
        self._asked = KafkaInputs()  # the inputs that the readers belong to
        self._readers: dict[int, UnreadReader] = {}
        self._found: float | None = None
        self._good_until = float("-inf")
        self._closed = False

    def seconds(self, ends: Sequence[str | None]) -> float | None:
        """Return the lag after the offsets of the last epoch; 0 if nothing is unread, `None` if it is not known."""
        if not ends:
            return None  # no epoch has ended yet
        if self._gate.is_inside:
            return self._found if self._clock() < self._good_until else None
        with self._mutex:
            began = self._clock()
            if began >= self._good_until:
                self._found = self._answer(ends)
                now = self._clock()
                self._good_until = now + max(_FRESH_S, _SHARE * (now - began))
            return self._found

    def close(self) -> None:
        """End the connections. From then on, the lag is not known."""
        with self._mutex:
            self._closed, self._found = True, None
            self._release()

    def _answer(self, ends: Sequence[str | None]) -> float | None:
        try:
            times = None if self._closed else self._first_unread(ends)
        except Exception as error:  # Kafka does not answer, or a session is ending: a later status may succeed
            _log.debug("stream %s: its lag in seconds is not known: %s", self._stream, one_line(error))
            return None
        return None if times is None else seconds_since(times, self._wall_clock())

    def _first_unread(self, ends: Sequence[str | None]) -> list[int] | None:
        inputs = self._inputs()
        if inputs != self._asked:  # a restart may read other topics
            self._release()
            self._asked = inputs
        places = [(source, each) for source in inputs.sources for each in inputs.ends_of(source, ends)]
        if len(places) != len(ends):
            return None  # a source is not Kafka
        deadline, times = self._clock() + _ANSWER_S, list[int]()
        for source, positions in places:
            found = self._reader(source).timestamps(positions, deadline - self._clock())
            if found is None:
                return None
            times += found
        return times

    def _reader(self, source: KafkaSource) -> UnreadReader:
        if source.number not in self._readers:
            self._readers[source.number] = self._open_reader(source.options, source=source.number)
        return self._readers[source.number]

    def _release(self) -> None:
        for each in self._readers.values():
            each.close()
        self._readers = {}


def seconds_since(times_ms: Sequence[int], now_s: float) -> float | None:
    """Return the age of the oldest of some records, 0 if there is none; `None` if one has no timestamp."""
    if any(each < 0 for each in times_ms):
        return None
    return round(max(now_s - min(times_ms) / 1000, 0.0), 3) if times_ms else 0.0
