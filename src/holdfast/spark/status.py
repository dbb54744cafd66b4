"""The status of one stream: counted while it runs, put together when it is requested."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast._error_text import one_line
from holdfast.spark import adapter
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.epoch_times import EpochTimes
from holdfast.spark.lag import RowRate, behind_logs, behind_topics
from holdfast.spark.logsource import FORMAT as LOG_SOURCE
from holdfast.spark.outages import Outage
from holdfast.spark.parts import StreamParts
from holdfast.spark.query import StreamQuery
from holdfast.spark.recovering import RecoveredStream
from holdfast.spark.supervisor import Supervisor
from holdfast.spark.topic_lag import TopicLag
from holdfast.spark.unread import Unread, UnreadFiles

_log = logging.getLogger(__name__)
_TROUBLED = ("restarting", "waiting", "failed")
_LIVE = ("running", "restarting", "waiting")


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The status of a stream. `rows` counts the rows that each sink was given in this run, not those that it holds.

    A field that cannot be determined is `None`. `unread` and `behind_s` are determined at most every few seconds.
    """

    stream: str  # its name
    state: str  # starting, running, restarting, waiting, ended, stopped, failed
    epoch: int  # the last one that every sink has
    rows: int  # given to each sink in this run
    restarts: int  # in this run
    in_doubt: int | None = None  # an epoch that is decided and not yet in every sink
    last_error: str | None = None  # the reason of the last restart, or of the end
    behind: int | None = None  # events or records that its sources have and no sink has yet, where known
    watermark_ms: int | None = None  # of event time, in the last epoch; where the query has one
    unread: Unread | None = None  # files and bytes that its file sources have and no sink has yet
    rows_per_s: float = 0.0  # given to each sink, over the last minute
    input_rows_per_s: float | None = None  # that arrived, in Spark's last trigger
    processed_rows_per_s: float | None = None  # that were processed, in Spark's last trigger
    last_epoch: EpochTimes | None = None  # of this run: its rows, its duration and that of each phase
    last_progress: dict[str, Any] | None = None  # Spark's own report of its last trigger, as in `lastProgress`
    dead_rows: int = 0  # given to the dead letter in this run, and to no other sink
    outage: Outage | None = None  # what it waits for, until the next epoch, or until it runs and has no new input
    behind_s: float | None = None  # the age of the oldest record of its Kafka topics that no sink has yet; 0: none


def as_data(value: Any) -> Any:
    """Return a value of this package as plain JSON data."""
    return msgspec.to_builtins(value)


class EpochTally:
    """Counts the epochs of this run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._rate = RowRate(clock)
        self.rows = 0  # given to each sink
        self.dead_rows = 0  # given to the dead letter
        self.last: EpochTimes | None = None  # of the last epoch

    def add(self, times: EpochTimes) -> None:
        """Count an epoch that has just ended."""
        self.rows += times.rows
        self.dead_rows += times.dead_rows
        self.last = times
        self._rate.add(times.rows)

    def rows_per_s(self) -> float:
        """Return the rate over the last minute."""
        return self._rate.per_second()


class StatusReporter:
    """Puts the status of one stream together."""

    def __init__(
        self,
        parts: StreamParts,
        *,
        supervisor: Supervisor,
        acknowledger: Acknowledger,
        query: StreamQuery,
        tally: EpochTally,
        topic_lag: TopicLag,
    ) -> None:
        self._parts = parts
        self._supervisor = supervisor
        self._acknowledger = acknowledger
        self._query = query
        self._tally = tally
        self._topic_lag = topic_lag
        self._logs: list[str] | None = None  # event logs that the stream reads; looked up when first needed
        self._unread: UnreadFiles | None = None  # likewise, of its file sources

    def status(self) -> StreamStatus:
        """Return the status now."""
        watched, last = self._supervisor, self._acknowledger.last
        state, error = watched.state, watched.error
        is_live = state in _LIVE
        progress = self._query.progress()
        recovered = watched.recovered if is_live else None
        return StreamStatus(
            stream=self._parts.name,
            state=state,
            epoch=last.epoch,
            rows=self._tally.rows,
            dead_rows=self._tally.dead_rows,
            restarts=watched.restarts,
            in_doubt=watched.in_doubt if state in _TROUBLED else None,
            last_error=one_line(error) if error else None,
            behind=self._behind(recovered, progress) if recovered else None,
            watermark_ms=last.watermark_ms or None,
            unread=self._unread_files(recovered) if recovered else None,
            rows_per_s=self._tally.rows_per_s(),
            input_rows_per_s=progress.get("inputRowsPerSecond"),
            processed_rows_per_s=progress.get("processedRowsPerSecond"),
            last_epoch=self._tally.last,
            last_progress=progress or None,
            outage=watched.outages.current,
            behind_s=self._topic_lag.seconds(last.ends) if state == "running" else None,
        )

    def _behind(self, recovered: RecoveredStream, progress: dict[str, Any]) -> int | None:
        ends = self._acknowledger.last.ends
        try:
            if self._logs is None:
                self._logs = adapter.source_paths(recovered.df, LOG_SOURCE)
            if self._logs and set(recovered.sources) == {LOG_SOURCE}:
                return behind_logs(self._logs, ends)
            return behind_topics(progress, ends)
        except Exception:  # a session that is ending, or a log that is being created: the next status may succeed
            _log.debug("stream %s: its lag cannot be determined now", self._parts.name, exc_info=True)
            return None

    def _unread_files(self, recovered: RecoveredStream) -> Unread | None:
        query = self._query.running
        try:
            if self._unread is None and query is not None:
                self._unread = UnreadFiles(self._parts.log.folder, adapter.file_inputs(recovered.df, query))
            return self._unread.count(self._acknowledger.last.ends) if self._unread is not None else None
        except Exception:  # a folder that is gone, or a log that Spark is compacting: the next status may succeed
            _log.debug("stream %s: unread files cannot be counted now", self._parts.name, exc_info=True)
            return None
