"""A Kafka topic as a sink.

Spark stages an attempt as Parquet, with the records in the form in which Kafka stores them. `commit` sends them from
the driver, in one transaction that also records the epoch. `marker.py` describes that record, `transactions.py` the
transaction, `records.py` the form of a record.

Rules:
- Readers with `isolation.level=read_committed` see all rows of an epoch or none, once. Other readers also see the rows
  of transactions that were aborted.
- `append` writes each row once. `update` writes each new version of a row, so it needs a `key`, by which readers find
  the last one, or `changelog=True`. `complete` would write all rows in each epoch, and needs `changelog=True`.
- A row that the server would refuse fails the attempt, before the epoch is decided.
- A rewind cannot remove records. It can leave them, and stamps the marker.

Not guaranteed:

- that the marker is kept if nothing is written for longer than the server's `offsets.retention.minutes` (7 days). Each
  start renews it. If it is lost, the next start raises `MarkerLost`;
- that the server keeps records whose timestamps are older than its retention. They are reported once;
- the order of rows within an epoch, except that the rows of one staged file and one partition keep theirs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast._validation import checked_seconds
from holdfast.errors import (
    BadValue,
    MarkerLost,
    NotSupported,
    SinkFailed,
    SinkForeign,
    StagedDamaged,
    StagedGone,
)
from holdfast.repository.files import local_path
from holdfast.sinks import base
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    TakeBack,
    failing,
    handle_digest,
)
from holdfast.sinks.held_epochs import is_committed
from holdfast.sinks.kafka.cluster import KafkaCluster, Producer, TopicFacts
from holdfast.sinks.kafka.conditions import record_conditions
from holdfast.sinks.kafka.marker import EpochMarker, ledger_name
from holdfast.sinks.kafka.marker_note import MarkerNote
from holdfast.sinks.kafka.records import LARGEST, RecordColumns, checked_columns, observed
from holdfast.sinks.kafka.repeating import RepeatedTransactions
from holdfast.sinks.kafka.staged import LEAST_LIMIT, check_records, pending_rows, staged_batches
from holdfast.sinks.kafka.transactions import Interrupted, TopicTransactions, Unsettled
from holdfast.sinks.staged_files import proven, refuse_file, require_seen_by_all, stage
from holdfast.sinks.staging import Staging
from holdfast.sinks.taking_back import refuse_outdated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_WAIT_S = 30.0  # for an answer of the server
_STAGING = "staging"
_ZSTD = {"compression": "zstd"}


class KafkaSink(base.Sink):
    """Writes a stream into a Kafka topic, every epoch exactly once, in one transaction.

        hf.KafkaSink("broker:9092", "totals", key="day", value=["day", "total"])

    Readers must use `isolation.level=read_committed`. Output mode "append" writes each row once; "update" writes every
    new version of a row, and needs a `key`; "complete" needs `changelog=True`. The rows of an epoch are staged as
    Parquet, and the driver sends them. Requires `pip install 'holdfast-spark[kafka]'`.

    - `servers`: `host:port`, or several of them, as `bootstrap.servers`.
    - `topic`: an existing topic. An offset of a consumer group in it records which epochs it holds.
    - `key`: a column of type string or binary, as it is; or a list of columns, as a JSON object.
    - `value`: likewise; by default all columns as a JSON object, except for those that `topic_column`, `partition` and
      `headers` name. For Avro or Protobuf, pass a binary column that Spark's `to_avro` or `to_protobuf` made.
    - `headers`: a column of type `array<struct<key:string,value:binary>>` or `map<string,string>`.
    - `timestamp`: a timestamp column. By default a record has the time of its commit.
    - `partition`: an int column. By default the key decides, as with Java producers.
    - `topic_column`: a string column with the topic of each row; where it is null, the row goes to `topic`.
    - `options`: further properties of librdkafka, such as `security.protocol` and `sasl.password`. They never reach a
      log, an error or the repository.
    - `changelog`: accept every output mode: each epoch adds the rows that Spark emits.
    - `share`: allow several streams to write to the topic, if all of them pass `share=True`. By default one stream owns
      it from its first start on. Programs other than Holdfast are not kept from it.
    - `transaction_timeout`: the longest time for which an epoch is sent (5 minutes). After a crash, readers may have to
      wait as long for the rows after it, or until the next start. The server limits it: `transaction.max.timeout.ms`.
    - `path`: a folder for the staged rows; by default they are kept in the repository. On a cluster, every machine must
      mount it.
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the topic.

    A rewind cannot remove records from Kafka. With `--leave` it can leave them, and later epochs are written again. Not
    guaranteed: if a stream writes nothing for longer than the server's `offsets.retention.minutes` (7 days), the server
    deletes the record of its epochs; the next start is then refused.
    """

    one_action = True
    mark_expires = True

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | None = None,
        topic_column: str | None = None,
        options: Mapping[str, object] | None = None,
        changelog: bool = False,
        share: bool = False,
        transaction_timeout: float | timedelta = 300,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(topic, str) or not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            raise BadValue(what="topic", value=topic, expected="the name of a topic: letters, digits, '.', '_', '-'")
        super().__init__(base.default_name("kafka", topic) if name is None else name)
        self.topic = topic
        self._columns = RecordColumns(
            key=checked_columns("key", key),
            value=checked_columns("value", value),
            headers=_checked_column("headers", headers),
            timestamp=_checked_column("timestamp", timestamp),
            partition=_checked_column("partition", partition),
            topic=_checked_column("topic_column", topic_column),
        )
        self._cluster = KafkaCluster(self.name, servers, options)
        self._changelog = changelog
        self._share = share
        self._transaction_s = checked_seconds("transaction_timeout", transaction_timeout)
        self._repeated = RepeatedTransactions(self.name, self._cluster, self._transaction_s)
        self.path = None if path is None else local_path("sink path", path)
        self.target = None if share else f"kafka {self._cluster.servers} {topic}"
        self._given: Path | None = None
        self._staging: Staging | None = None
        self._facts: TopicFacts | None = None  # of the topic, from `open` on
        self._known: dict[str, TopicFacts] = {}  # other topics that rows named
        self._opened: TopicTransactions | None = None
        self._noticed = False  # that the server may soon delete records

    def __repr__(self) -> str:
        return f"KafkaSink({self._cluster.servers!r}, {self.topic!r}, name={self.name!r})"

    def describe(self) -> dict[str, Any]:
        """Return the columns of a record, and whether every version of a row is kept."""
        columns = self._columns
        return {
            "key": _plain(columns.key),
            "value": _plain(columns.value),
            "headers": columns.headers,
            "timestamp": columns.timestamp,
            "partition": columns.partition,
            "topic_column": columns.topic,
            "changelog": self._changelog,
        }

    def row_checks(self) -> dict[str, str]:
        """A record must not be too large; a partition must exist; timestamp, headers and key must be accepted."""
        return record_conditions(self._columns, self._facts or self._found_topic(), self.context.schema)

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Check columns and topic, fence earlier drivers, and claim the topic or renew its marker.

        1. Refuse what cannot work, without the server.  2. Look at the topic.  3. Fence.  4. Compare the marker with
        what this repository knows of the topic.  5. Write the marker, then the note that it was written.
        """
        super().open(context)
        self._close_clients()
        self._check_mode(context.output_mode)  # 1
        require_seen_by_all(self.name, context)
        refuse_file("sink path", self._folder)
        self._columns.check(self.name, self.topic, context.schema, context.spark)
        self._cluster.check_options()
        self._facts = facts = self._found_topic()  # 2
        if facts.compacted and self._columns.key is None:
            why = f"topic {self.topic} is compacted, so every record needs a key"
            raise SinkFailed(sink=self.name, action="open", why=why, do="pass key=...; then run again")
        self._opened = used = self._transactions(context.owner)
        with failing(self.name, "create its folder"):
            self._staged.make()
            self._note.make()
        if self._share:
            self._refuse_owned(context.owner)
        self._repeated.run("open", lambda: self._claim(used, context.owner, facts))

    def _refuse_owned(self, owner: StreamIdentity) -> None:
        """Refuse to share a topic with a stream that does not share it."""
        other = self._transactions(owner, share=False)
        try:
            marker = self._read(other)
        finally:
            other.close()
        if marker is not None:
            self._refuse_foreign(marker, owner)

    def _claim(self, used: TopicTransactions, owner: StreamIdentity, facts: TopicFacts) -> None:
        with contextlib.suppress(Interrupted):  # a driver has died in the middle of a commit
            marker = used.marker()
            if marker is not None and marker.owner != owner:
                return  # `inspect` reports the owner, which is not fenced
        producer = self._initialised(used)  # 3
        marker = used.marker()
        self._refuse_lost(marker, facts)  # 4
        used.write(producer, marker or EpochMarker.claim(owner))  # 5
        self._note.write(owner, facts.id)

    def _check_mode(self, output_mode: str) -> None:
        if output_mode == "update" and self._columns.key is not None:
            return
        do = "pass key=..., by which readers find the last version" if output_mode == "update" else "use another sink"
        base.refuse_mode(self, output_mode, self._changelog, do)

    def _found_topic(self) -> TopicFacts:
        found = self._cluster.topic(self.topic)
        if found is None:
            do = f"create it, for example: kafka-topics.sh --create --topic {self.topic}; then run again"
            raise SinkFailed(sink=self.name, action="open", why=f"topic {self.topic} does not exist", do=do)
        return found

    def _refuse_lost(self, marker: EpochMarker | None, facts: TopicFacts) -> None:
        """Refuse a topic that this repository has written to, if it is another one now or has lost its marker."""
        known = self._note.topic_id()
        if known is None or (marker is not None and known == facts.id):
            return
        raise self._lost("it was deleted and created again" if known != facts.id else None)

    def _lost(self, why: str | None = None) -> MarkerLost:
        return MarkerLost(
            sink=self.name,
            topic=self.topic,
            why=why or "it has expired (offsets.retention.minutes of the server), or was deleted",
        )

    def close(self) -> None:
        """Close the clients."""
        super().close()
        self._close_clients()

    def _close_clients(self) -> None:
        """Close the clients of the last `open`."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._facts = None
        self._known = {}

    # --- places ---

    def set_folder(self, folder: Path) -> None:
        """Name the folder in the repository, which is used unless `path` names another one."""
        self._given = folder

    @property
    def _folder(self) -> Path:
        found = self.path or (self._given if self._context is None else None) or self.context.folder
        if found is None:
            why = "it has no folder for its staged rows"
            do = "pass path=..., a folder that every machine mounts"
            raise NotSupported(what=f"using sink {self.name!r}", why=why, do=do)
        return found

    @property
    def _note(self) -> MarkerNote:
        return MarkerNote(self._folder, self.topic)

    @property
    def _staged(self) -> Staging:
        root = self._folder / _STAGING
        if self._staging is None or self._staging.root != root:
            self._staging = Staging(root)
        return self._staging

    def _transactions(self, owner: StreamIdentity, *, share: bool | None = None) -> TopicTransactions:
        name = ledger_name(self.topic, owner, self.name, share=self._share if share is None else share)
        return TopicTransactions(self._cluster, name, self.topic, self._transaction_s, _WAIT_S)

    def _initialised(self, transactions: TopicTransactions, handle: Mapping[str, Any] | None = None) -> Producer:
        """Fence the producers of other drivers. The producer can send the records of this handle, if there is one."""
        limit = (self._facts or self._found_topic()).bytes
        return transactions.init(max(LEAST_LIMIT, min(limit, (handle or {}).get("limit", limit))))

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Stage the records as Parquet. An epoch without rows leaves no trace."""
        records, seen = observed(self._columns.of(df, self.name, self.topic))
        with failing(self.name, "prepare"):
            staged = stage(records, key, self._staged, self.context, options=_ZSTD)
            if not staged.rows:
                return staged
            found = seen.get
            topic = self._facts or self._found_topic()
            accepted = check_records(self.name, self._staged.folder(key), found, topic, self._other_topic)
        if accepted.notice and not self._noticed:
            self.context.tell(accepted.notice)
            self._noticed = True
        largest = int(found[LARGEST] or 0)
        handle = staged.handle | {"topic": self.topic, "largest": largest, "limit": accepted.limit}
        return Staged(handle, staged.rows, staged.paths)

    def _other_topic(self, name: str) -> TopicFacts | None:
        """Return a topic that a row names. It is looked up once."""
        if name not in self._known:
            found = self._cluster.topic(name) if _TOPIC_NAME.fullmatch(name) else None
            if found is None:
                return None
            self._known[name] = found
        return self._known[name]

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Send the staged records, in one transaction with the marker, unless the topic holds the epoch.

        1. Fence.  2. Read the marker.  3. Check the staged rows.  4. Send rows and marker.  If another driver takes
        over, or the transaction ends after its timeout, all of it is repeated: nothing was visible.
        """
        if handle["rows"]:
            self._refuse_other_topic(key, handle)
            self._committed(key, handle)
        self._staged.sweep(key)

    def _refuse_other_topic(self, key: EpochKey, handle: Mapping[str, Any]) -> None:
        if handle["topic"] != self.topic:
            why = f"epoch {key.epoch} was decided for topic {handle['topic']}, and the sink now writes to {self.topic}"
            do = f"pass {handle['topic']!r} until the epoch is committed"
            raise NotSupported(what=f"changing the topic of sink {self.name!r}", why=why, do=do)

    def _committed(self, key: EpochKey, handle: dict[str, Any]) -> None:
        used = self._opened or self._transactions(key.owner)
        try:
            self._repeated.run(f"commit epoch {key.epoch}", lambda: self._try(used, key, handle))
        finally:
            if used is not self._opened:
                used.close()

    def _try(self, used: TopicTransactions, key: EpochKey, handle: dict[str, Any]) -> None:
        producer = self._initialised(used, handle)  # 1
        marker = used.marker()  # 2
        if marker is None:
            raise self._lost()
        self._refuse_foreign(marker, key.owner)
        if is_committed(self, key, handle, marker.held(key), f"topic {self.topic}"):
            return
        try:
            proven(self.name, self._staged, key, handle)  # 3
        except StagedGone:  # another driver may have committed the epoch and the next one, and removed the rows
            used.drop()
            self._initialised(used)
            marker = used.marker()
            if marker is None or not is_committed(self, key, handle, marker.held(key), f"topic {self.topic}"):
                raise
            return
        following = marker.followed_by(key, handle_digest(handle))
        used.write(producer, following, self._records(key, handle), pending_rows(handle["largest"]))  # 4

    def _records(self, key: EpochKey, handle: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Yield the staged records. At their end, require that they are as many as were staged."""
        folder, count = self._staged.folder(key), 0
        try:
            for batch in staged_batches(folder, handle["largest"]):
                count += len(batch)
                yield batch
        except FileNotFoundError:
            raise StagedGone(sink=self.name, epoch=key.epoch) from None
        if count != handle["rows"]:
            why = f"it holds {count} rows, and {handle['rows']} were staged"
            raise StagedDamaged(sink=self.name, epoch=key.epoch, path=str(folder), why=why)
        self._reach("committing")

    def _refuse_foreign(self, marker: EpochMarker, owner: StreamIdentity) -> None:
        if marker.owner != owner:
            raise SinkForeign(sink=self.name, place=f"topic {self.topic}", owner=marker.owner.summary)

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staged.clear(key)

    def is_missing(self) -> bool:
        """Whether the topic does not exist."""
        return self._cluster.topic(self.topic) is None

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Return the epoch of the marker, and a foreign owner if there is one."""
        marker = self._marker(owner)
        if marker is None:
            return SinkPosition()
        if marker.owner != owner:
            return SinkPosition(foreign=marker.owner.summary)
        return SinkPosition(marker.last.epoch if marker.timeline == timeline else 0)

    def _marker(self, owner: StreamIdentity) -> EpochMarker | None:
        if self._opened is not None:
            return self._read(self._opened)
        if self._cluster.topic(self.topic) is None:
            return None
        used = self._transactions(owner)
        try:
            return self._read(used)
        finally:
            used.close()

    def _read(self, used: TopicTransactions) -> EpochMarker | None:
        """Return the marker. Drivers are not fenced, unless one has left a transaction open in which it wrote it."""
        try:
            with self._cluster.doing("be inspected"):
                return used.marker()
        except Unsettled:
            return self._repeated.run("be inspected", lambda: self._settled(used), tries=2)

    def _settled(self, used: TopicTransactions) -> EpochMarker | None:
        """End the transaction that another driver has left open, and return the marker."""
        self._initialised(used)
        return used.marker()

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Nothing can be taken back. So the topic must hold no epoch after the base."""
        marker = self._marker(owner)
        if marker is None or marker.place <= base:
            return TakeBack(0, 0, "")
        return self.cannot_be_taken_back()

    def cannot_be_taken_back(self) -> CannotTakeBack:
        """No record can be."""
        why = "records cannot be removed from a Kafka topic"
        do = f"to go back without it, pass --leave {self.name}: its records stay, and later rows are written again"
        return CannotTakeBack(why, do)

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, if the topic holds no epoch after the base."""
        marker = self._marker(owner)
        if marker is not None and marker.timeline < into and marker.place > base:
            super().take_back(owner, base, into)
        self.stamp(owner, base, into)

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Write the stamp: nothing was taken back."""
        del taken
        self.stamp(owner, base, into)

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Fence the drivers of earlier timelines, write the stamp, and remove what they staged.

        This also replaces a marker that was lost, and accepts a topic that was created again.
        """
        facts = self._found_topic()
        used = self._transactions(owner)
        try:
            self._repeated.run("be stamped", lambda: self._stamped(used, owner, base, into))
        finally:
            used.close()
        self._reach("stamped")
        with failing(self.name, "be stamped"):
            self._note.replace(owner, facts.id)
            self._reach("moved")
            self._staged.make()
            self._staged.retire(owner, (into, 0))

    def _stamped(self, used: TopicTransactions, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        producer = self._initialised(used)
        marker = used.marker()
        if marker is not None:
            self._refuse_foreign(marker, owner)
            refuse_outdated(owner, into, marker.timeline)
        self._reach("stamping")
        if marker is None or marker.timeline < into:
            used.write(producer, EpochMarker.stamp(owner, base, into))

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)


def _checked_column(what: str, name: object) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise BadValue(what=what, value=name, expected="the name of a column")
    return name


def _plain(given: str | tuple[str, ...] | None) -> str | list[str] | None:
    return list(given) if isinstance(given, tuple) else given
