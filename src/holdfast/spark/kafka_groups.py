"""Offsets of epochs in a Kafka consumer group, for tools that show lag. The stream itself never reads them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from holdfast._error_text import one_line
from holdfast._topics import Positions
from holdfast.spark import adapter

_log = logging.getLogger(__name__)
_LAST_S = 20.0  # for the last commit, when a stream ends


class GroupCommitter:
    """Commits offsets to a consumer group in a thread of its own. Of several that wait, only the newest are committed.

    Not guaranteed: that each epoch is committed, or that it is there when the epoch ends. A failure is logged once.
    """

    def __init__(self, stream: str, group: str) -> None:
        self._stream = stream
        self._group = group
        self._mutex = threading.Condition()
        self._next: Sequence[tuple[adapter.KafkaClient, Positions]] = ()
        self._ends = False
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"holdfast-group-{stream}", daemon=True)
        self._thread.start()

    def put(self, positions: Sequence[tuple[adapter.KafkaClient, Positions]]) -> None:
        """Replace what is committed next."""
        with self._mutex:
            self._next = positions
            self._mutex.notify()

    def close(self) -> None:
        """Commit what waits, and end the thread."""
        with self._mutex:
            self._ends = True
            self._mutex.notify()
        self._thread.join(_LAST_S)

    def _work(self) -> None:
        while True:
            with self._mutex:
                self._mutex.wait_for(lambda: self._next or self._ends)
                positions, self._next = self._next, ()
            if not positions:
                return
            for client, each in positions:
                self._commit(client, each)

    def _commit(self, client: adapter.KafkaClient, positions: Positions) -> None:
        try:
            client.commit(self._group, positions)
            self._failed = False
        except Exception as error:  # lag tools show an older position; the stream continues
            level = logging.DEBUG if self._failed else logging.WARNING
            self._failed = True
            text = "stream %s: its offsets were not committed to the consumer group %r: %s"
            _log.log(level, text, self._stream, self._group, one_line(error))
