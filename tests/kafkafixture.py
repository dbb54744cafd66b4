"""A real Kafka broker for tests, on loopback, one per process that runs tests. tools/kafka.py fetches it.

How to use it:

    from kafkafixture import broker

    def test_something() -> None:
        topic = broker().topic(partitions=2)            # a topic of its own, empty
        broker().address                                # for bootstrap.servers
        broker().rows(topic)                            # committed records: read_committed, as (key, value)
        broker().kill(); broker().start()               # SIGKILL, then the same address and data
        broker().end_hanging()                          # after a kill under load, about once in 15

A test whose module imports `broker` is marked `kafka` and `jvm` by conftest.py. It belongs to the lane `make
test-kafka`. Where the jars are missing, these tests are skipped with the reason; with HOLDFAST_REQUIRE_KAFKA=1 they
fail.

`connector()` is the value of `spark.jars` with which Spark reads and writes Kafka.

Not like production: one broker, replication factor 1, no TLS, and a SIGKILL is not a power loss.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

JARS = Path(os.environ.get("HOLDFAST_KAFKA", Path(sys.prefix) / "kafka"))
_START_S = 90
_WAIT_S = 30
_NUMBERS = itertools.count(1)
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "offsets.retention.check.interval.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A restarted broker waits until the session of the killed one has ended. On a busy machine, a broker may be silent
    # for more than a second: then its own controller takes its partitions away.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class Cluster:
    """A Kafka cluster as its clients see it. A process that did not start the broker needs no more."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """A client for topics, offsets and groups."""
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        return self._admin

    def topic(self, name: str | None = None, partitions: int = 1, **config: str) -> str:
        """Create a topic and return its name. Its settings have `_` for each dot."""
        from confluent_kafka.cimpl import NewTopic

        name = name or f"topic-{os.getpid()}-{next(_NUMBERS)}"
        settings = {each.replace("_", "."): value for each, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([new])[name].result(_WAIT_S)
        self._until(lambda: name in self.admin.list_topics(timeout=_WAIT_S).topics, f"topic {name} is there")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([name])[name].result(_WAIT_S)
        self._until(lambda: name not in self.admin.list_topics(timeout=_WAIT_S).topics, f"topic {name} is gone")

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset of each partition, as retention does."""
        from confluent_kafka import TopicPartition

        self._admin = None  # a new client: the old one may not know a partition that was added
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for each in self.admin.delete_records(wanted).values():
            each.result(_WAIT_S)

    def produce(self, topic: str, values: Any, **options: Any) -> None:
        """Write values (bytes or str) to a topic with a plain producer. Options are those of `Producer.produce`."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5})
        for each in values:
            while True:
                try:
                    producer.produce(topic, each, **options)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(_WAIT_S) == 0

    def messages(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Return all messages of a topic, ordered by partition and offset."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        settings = {
            "bootstrap.servers": self.address,
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            partitions = list(consumer.list_topics(topic, _WAIT_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
            found, open_ones, until = [], set(partitions), time.monotonic() + _WAIT_S
            while open_ones:
                assert time.monotonic() < until, f"topic {topic} could not be read to its end"
                for message in consumer.consume(10_000, 0.5):
                    error = message.error()
                    if error is None:
                        found.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_ones.discard(message.partition())
                    else:
                        raise AssertionError(str(error))
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def rows(self, topic: str, isolation: str = "read_committed") -> list[tuple[bytes | None, bytes | None]]:
        """Return (key, value) of all messages, ordered by partition and offset."""
        return [(each.key(), each.value()) for each in self.messages(topic, isolation)]

    def size(self, topic: str) -> int:
        """Return the sum of the end offsets of all partitions, including what is not committed."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        moving = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH, KafkaError._NOENT)
        until = time.monotonic() + _WAIT_S
        while True:
            partitions = self.admin.list_topics(topic, _WAIT_S).topics[topic].partitions
            wanted = {TopicPartition(topic, each): OffsetSpec.latest() for each in partitions}
            try:
                return sum(int(each.result(_WAIT_S).offset) for each in self.admin.list_offsets(wanted).values())
            except KafkaException as error:
                if error.args[0].code() not in moving or time.monotonic() > until:
                    raise
            self._admin = None  # a new client: the old one may know a leader of before the broker was killed
            time.sleep(0.02)

    def log(self) -> str:
        """Return nothing: only the process that started the broker reads its output."""
        return ""

    def _until(self, done: Any, what: str) -> None:
        until = time.monotonic() + _WAIT_S
        while not done():
            assert time.monotonic() < until, f"waited in vain until {what}: {self.log()}"
            time.sleep(0.02)


class Broker(Cluster):
    """One broker process and its folder."""

    def __init__(self, **settings: str) -> None:
        """Start a broker. Settings are those of `server.properties`, with `_` for each dot."""
        self.folder = Path(tempfile.mkdtemp(prefix="hfkafka"))
        port, control = _free_ports(2)
        super().__init__(f"127.0.0.1:{port}")
        properties = _SETTINGS | {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{control}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{control}",
            "log.dirs": str(self.folder / "data"),
        }
        properties |= {name.replace("_", "."): value for name, value in settings.items()}
        self._properties = self.folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._remove)
        cluster = f"h{uuid.uuid4().hex[:21]}"  # an id must not begin with a hyphen
        self._java(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._properties)
        ).wait()
        self.start()

    def start(self) -> None:
        """Start the broker, at the same address and with the same data, unless it is running."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = self._java("kafka.Kafka", str(self._properties))
        self._wait()

    def kill(self) -> None:
        """End the broker at once (SIGKILL). What the kernel has taken is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the broker's process (SIGSTOP): its connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def end_hanging(self) -> int:
        """Abort the transactions whose end the broker has lost, as docs/kafka-sink.md says; return their number."""
        words = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
        listed = self._transactions(*words).splitlines()[1:]
        for topic, partition, _producer, _epoch, _coordinator, start, *_times in (line.split() for line in listed):
            self._transactions("abort", "--topic", topic, "--partition", partition, "--start-offset", start)
        return len(listed)

    def _transactions(self, *words: str) -> str:
        jars = f"{JARS / 'broker'}/*:{JARS / 'commands'}/*"
        java = [str(Path(os.environ["JAVA_HOME"]) / "bin/java"), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", jars]
        command = ["org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", self.address]
        done = subprocess.run([*java, *command, *words], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self) -> str:
        """Return the end of the broker's output."""
        return (self.folder / "log").read_text()[-4000:]

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dkafka.logs.dir={self.folder}"]
        java = [str(Path(os.environ["JAVA_HOME"]) / "bin/java"), *small, "-cp", f"{JARS / 'broker'}/*"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*java, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc
            )

    def _wait(self) -> None:
        """Wait until the broker answers requests."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                if _answers(self.address) and self.admin.list_topics(timeout=5).brokers:
                    return
            except KafkaException:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the Kafka broker did not start: {self.log()}")

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def require_jars() -> None:
    """Skip the test if the jars are missing; with HOLDFAST_REQUIRE_KAFKA=1, fail it."""
    note = JARS / "missing"
    if (JARS / "ready").is_file() and not note.is_file():
        return
    why = note.read_text() if note.is_file() else f"{JARS} is missing; make test-kafka fetches it"
    if os.environ.get("HOLDFAST_REQUIRE_KAFKA"):
        pytest.fail(why)
    pytest.skip(f"no Kafka broker: {why}")


@cache
def _broker() -> Broker:
    return Broker()


def broker() -> Broker:
    """Return the broker of this process, running, or skip the test."""
    require_jars()
    found = _broker()
    found.start()  # a test may have left it stopped
    return found


def connector() -> str:
    """Return the jars of Spark's connector for Kafka, for `spark.jars`."""
    require_jars()
    return ",".join(str(each) for each in sorted((JARS / "connector").glob("*.jar")))


def _answers(address: str) -> bool:
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
