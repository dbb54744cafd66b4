"""An event log on a store keeps what it promises to a rewind, without Spark: rows are staged by hand."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from faultproxy import Fault, FaultProxy
from handstaged import StoreLog
from holdfast.cli.app import app
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import SinkForeign, StagedDamaged, StagedGone, TimelineEnded
from holdfast.eventlog import EventLog
from holdfast.repository import ObjectRepository
from holdfast.repository.opening import open_repository
from holdfast.repository.targets import record_targets
from holdfast.sinks.base import CannotTakeBack, StreamIdentity
from holdfast.sinks.log import LogSink
from holdfast.sinks.log_garbage import find_garbage, logs_on_stores, remove_garbage
from s3fixture import S3Place, with_faults

OTHER = StreamIdentity("contract", "0" * 31 + "2", "rows")


@pytest.fixture
def spark() -> None:
    return None


def counted_from_here(proxy: FaultProxy) -> None:
    """Count requests from 0. The proxy counts a request after it was answered."""
    time.sleep(0.1)
    proxy.reset()


class TestStoreLog(StoreLog):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place) -> None:
        self.root = s3.url("logs")
        self.place = s3

    def objects(self, folder: Path, below: str = "segments") -> list[str]:
        return [each.key for each in ObjectRepository(f"{self.root}/{folder.name}/log").flat(below)]

    def test_a_log_of_another_owner_is_not_touched(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(OTHER, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "belongs to stream 'rows'" in found.why
        with pytest.raises(SinkForeign):
            self.make(tmp_path).take_back(OTHER, (1, 2), 2)
        assert sink.inspect(OTHER, 1).foreign is not None
        assert self._seen(spark, sink) == [1, 2, 3, 4]

    def test_a_commit_that_loses_its_answer_is_done_once(
        self, spark: Any, tmp_path: Path, s3_faults: FaultProxy
    ) -> None:
        sink = self._filled(spark, tmp_path)
        for epoch, fault in enumerate((*Fault, *Fault), 5):
            handle = self._stage(spark, sink, self._key(epoch), epoch).handle
            s3_faults.hang_s = 0.1
            s3_faults.fail(fault, "CREATE", key="index/")
            sink.commit(self._key(epoch), handle)
            sink.commit(self._key(epoch), handle)
        assert self._seen(spark, sink) == list(range(1, 5 + 2 * len(Fault)))
        assert sink.inspect(self.owner, 1).epoch == 4 + 2 * len(Fault)

    def test_a_commit_is_one_request(self, spark: Any, tmp_path: Path, s3_faults: FaultProxy) -> None:
        sink = self._filled(spark, tmp_path)
        handles = {epoch: self._stage(spark, sink, self._key(epoch), epoch).handle for epoch in (5, 6)}
        for epoch, handle in handles.items():
            counted_from_here(s3_faults)
            sink.commit(self._key(epoch), handle)
            sink.mark()
            time.sleep(0.1)
            if epoch == 6:  # the sink has staged this one last, so it need not look at the objects
                assert dict(s3_faults.counts) == {"CREATE": 1}
        counted_from_here(s3_faults)
        assert sink.inspect(self.owner, 1).epoch == 6
        time.sleep(0.1)
        assert dict(s3_faults.counts) == {"GET": 2}  # the owner, and the next record, which does not exist

    def test_opening_a_writer_is_one_listing_and_the_last_record(
        self, spark: Any, tmp_path: Path, s3_faults: FaultProxy
    ) -> None:
        log = EventLog.open(f"{self.root}/{tmp_path.name}/log") if self._filled(spark, tmp_path) else None
        assert log is not None
        counted_from_here(s3_faults)
        with log.writer() as writer:
            assert writer.tail == 4
        time.sleep(0.1)
        assert dict(s3_faults.counts) == {"LIST": 1, "GET": 3}  # log.json, the last record, and the one after it

    def test_staged_objects_that_are_gone_or_damaged_are_refused(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        key = self._key(5)
        handle = self._stage(spark, sink, key, 5).handle
        name = handle["segments"][0][0]
        path = self.place.folder / f"logs/{tmp_path.name}/log/segments/rows/t1-0000000005/1.1/{name}"
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        with pytest.raises(StagedDamaged, match="bytes"):
            self.make(tmp_path).commit(key, handle)
        path.unlink()
        with pytest.raises(StagedGone):
            self.make(tmp_path).commit(key, handle)
        assert self._seen(spark, sink) == [1, 2, 3, 4]

    def test_abort_removes_one_attempt_under_its_lease_or_any(self, spark: Any, tmp_path: Path) -> None:
        sink = self._open(spark, tmp_path)
        keys = [self._key(1, attempt=attempt, lease=lease) for attempt in (1, 2) for lease in (1, 2)]
        for key in keys:
            self._stage(spark, sink, key, 1)
        assert len(self.objects(tmp_path)) == 4
        sink.abort(self._key(1, attempt=1, lease=2))
        sink.abort(self._key(1, attempt=1, lease=2))
        assert len(self.objects(tmp_path)) == 3
        sink.abort(self._key(1, attempt=2, lease=None))
        assert [each.split("/")[3] for each in self.objects(tmp_path)] == ["1.1"]

    def test_every_fifty_epochs_what_is_not_in_the_log_goes_and_nothing_else(self, spark: Any, tmp_path: Path) -> None:
        """Also in timeline 10, whose names sort before those of timeline 2."""
        sink = self._filled(spark, tmp_path)
        sink.take_back(self.owner, (1, 4), 2)
        self._epoch_of(spark, tmp_path, (2, 5), 15)
        sink.take_back(self.owner, (2, 5), 10)
        sink = self._open(spark, tmp_path)
        left = [self._key(epoch, attempt=9, timeline=10) for epoch in (48, 49, 50, 51)]
        for key in left:
            self._stage(spark, sink, key, 99)
        for epoch in (48, 49, 50):
            key = self._key(epoch, timeline=10)
            sink.commit(key, self._stage(spark, sink, key, epoch).handle)
        found = self.objects(tmp_path)
        assert [each.split("/")[2] for each in found if "/1.9/" in each] == ["t10-0000000050", "t10-0000000051"]
        assert self._seen(spark, sink) == [1, 2, 3, 4, 15, 48, 49, 50]
        key = self._key(100, timeline=10)
        sink.commit(key, {"rows": 0})
        assert [each.split("/")[2] for each in self.objects(tmp_path) if "/1.9/" in each] == [
            "t10-0000000050",
            "t10-0000000051",
        ], "the log does not hold a later epoch, so 50 may still be committed again"

    def test_a_rewind_removes_what_the_old_timeline_has_staged(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        key = self._key(5)
        handle = self._stage(spark, sink, key, 5).handle
        assert len(self.objects(tmp_path)) == 5
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert len(self.objects(tmp_path)) == 4, "abandoned events stay"
        with pytest.raises(TimelineEnded):
            sink.commit(key, handle)

    def test_the_whole_protocol_while_requests_fail(self, spark: Any, tmp_path: Path, s3_faults: FaultProxy) -> None:
        with_faults(s3_faults)
        sink = self._filled(spark, tmp_path)
        for _ in range(2):
            self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        self._epoch_of(spark, tmp_path, (2, 3), 13)
        for _ in range(2):
            self.make(tmp_path).put_back(self.owner, (2, 3), 3, 2)
        s3_faults.clear()
        assert self._seen(spark, sink) == [1, 2, 3, 4, 13]

    def test_two_addresses_of_one_log_are_one_target(self) -> None:
        assert LogSink(f"{self.root}/x").target == LogSink(f"{self.root}/x/").target

    def test_a_deep_prune_removes_what_lost_tasks_have_written(self, spark: Any, tmp_path: Path) -> None:
        """Objects of epochs that can still be committed stay, and so do those of a writer that may be alive."""
        sink = self._filled(spark, tmp_path)
        url = f"{self.root}/{tmp_path.name}/log"
        for epoch in (2, 4, 5):
            self._stage(spark, sink, self._key(epoch, attempt=7), 99)
        ObjectRepository(url).put_new("segments/_/lost.parquet", b"x")
        ObjectRepository(url).put_new("segments/another/t1-0000000001/1.1/00000-0.parquet", b"x")
        found = find_garbage(url)
        assert [each.split("/")[2] for each in found.keys] == ["t1-0000000002"]
        assert found.bytes > 0
        later = find_garbage(url, clock=lambda: time.time() + 2 * 24 * 3600)
        assert set(later.keys) == {*found.keys, "segments/_/lost.parquet"}
        before = set(self.objects(tmp_path))
        remove_garbage(later)
        remove_garbage(later)
        assert set(self.objects(tmp_path)) == before - set(later.keys)
        assert self._seen(spark, sink) == [1, 2, 3, 4]
        assert find_garbage(url).keys == ()

    @pytest.mark.parametrize("on_store", [False, True])
    def test_the_command_finds_the_logs_of_a_pipeline(self, on_store: bool, spark: Any, tmp_path: Path) -> None:
        root = f"{self.root}/{tmp_path.name}/root" if on_store else str(tmp_path / "root")
        sink = self._filled(spark, tmp_path)
        self._stage(spark, sink, self._key(2, attempt=7), 99)
        repository = open_repository(root)
        hf.repository.Identity.create(repository, "contract")
        record_targets(repository, "rows", 1, {"log": str(sink.target), "files": "files /x"})
        attempt = Attempt(stream="rows", timeline=1, epoch=1, attempt=1)
        hf.repository.Decisions(repository).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1))
        assert logs_on_stores(repository) == [f"{self.root}/{tmp_path.name}/log"]
        command = CliRunner()
        shown = command.invoke(app, ["prune", "-r", root, "--deep", "--dry-run"])
        assert shown.exit_code == 0, shown.output
        assert "1 objects" in shown.output
        done = command.invoke(app, ["prune", "-r", root, "--deep", "--yes", "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["result"]["deep"] == 1
        assert len(self.objects(tmp_path)) == 4
