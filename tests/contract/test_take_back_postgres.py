"""PostgreSQL tables keep what they promise to a rewind, against a real server and without Spark."""

import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.errors import HoldfastError, SinkFailed, SinkForeign
from holdfast.sinks.base import CannotTakeBack, StreamIdentity, TakeBack
from holdfast.sinks.postgres.sink import PostgresSink
from pgfixture import server
from pgstaged import PostgresPrepared, PostgresStaged

OTHER = StreamIdentity("contract", "0" * 31 + "2", "rows")


@pytest.fixture
def spark() -> None:
    return None


@pytest.fixture(autouse=True)
def _running() -> None:
    server().start_again()


class _Append(PostgresPrepared):
    def test_nothing_of_the_old_timeline_stays_prepared(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        for epoch in (5, 6):
            self._stage(spark, sink, self._key(epoch), epoch, epoch + 10)
        assert self.left(tmp_path) >= 2
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self.left(tmp_path) == 0
        assert self._seen(spark, sink) == [1, 2]

    def test_an_epoch_whose_commit_stopped_halfway_is_taken_back(self, spark: Any, tmp_path: Path) -> None:
        """With prepared transactions, a part of its rows is visible, and the ledger does not close the epoch."""

        class Stopped(Exception): ...

        def stop(point: str) -> None:
            if point == "committing":
                raise Stopped

        sink = self._filled(spark, tmp_path)
        dying = self._open(spark, tmp_path, reach=stop)
        handle = self._stage(spark, dying, self._key(5), 5, 15, 25).handle
        with pytest.raises(Stopped):
            dying.commit(self._key(5), handle)
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2]
        assert self.left(tmp_path) == 0

    def test_a_commit_that_loses_its_lock_finds_nothing_to_commit(self, spark: Any, tmp_path: Path) -> None:
        """Its driver is paused for so long that the server ends its transaction; then it resumes."""
        options, self.options = self.options, {**self.options, "lock_timeout": 4}
        sink = self._filled(spark, tmp_path)
        paused, resumed, failures = threading.Event(), threading.Event(), []

        def pause(point: str) -> None:
            if point == "committing":
                paused.set()
                resumed.wait(60)

        late = self._open(spark, tmp_path, reach=pause)
        handle = self._stage(spark, late, self._key(5), 5, 15, 25).handle

        def commit() -> None:
            try:
                late.commit(self._key(5), handle)
            except HoldfastError as error:
                failures.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        assert paused.wait(60)
        self.options = {**options, "lock_timeout": 30}
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2]
        resumed.set()
        thread.join()
        assert len(failures) == 1
        assert self._seen(spark, sink) == [1, 2]
        assert self.left(tmp_path) == 0

    def test_what_is_prepared_is_gone_before_the_rows_are(self, spark: Any, tmp_path: Path) -> None:
        """A paused driver commits its transactions without the lock, when the rows are moved and nothing is durable."""
        sink = self._filled(spark, tmp_path)
        self._stage(spark, sink, self._key(5), 5, 15)

        def commit_prepared(point: str) -> None:
            gids = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            for (gid,) in self.run(tmp_path, gids) if point == "stamped" else ():
                self.run(tmp_path, f"COMMIT PREPARED '{gid}'")

        self._open(spark, tmp_path, reach=commit_prepared).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2]

    def test_rows_of_others_stay_and_all_columns_return(self, spark: Any, tmp_path: Path) -> None:
        """A row without an epoch is not the stream's; nor is one of a table that inherits."""
        self.run(
            tmp_path,
            "CREATE TABLE rows (n int8, text text, epoch int8, id int GENERATED ALWAYS AS IDENTITY, "
            "twice int8 GENERATED ALWAYS AS (n * 2) STORED, more numeric(5, 1), tags text[])",
        )
        self.run(tmp_path, "CREATE TABLE child () INHERITS (rows)")
        sink = self._filled(spark, tmp_path)
        self.run(tmp_path, "UPDATE rows SET more = 1.5, tags = ARRAY['a', NULL] WHERE n = 4")
        self.run(tmp_path, "INSERT INTO rows (n, text) VALUES (9, 'row 9')")
        self.run(tmp_path, "INSERT INTO child (n, text, epoch, id) VALUES (8, 'row 8', 4, 77)")
        before = self.run(tmp_path, "SELECT * FROM rows ORDER BY n")
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2, 8, 9]
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert self.run(tmp_path, "SELECT * FROM rows ORDER BY n") == before
        assert self.run(tmp_path, "SELECT relname FROM pg_class WHERE relname LIKE '%aside%'") == []

    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            (
                "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
                "CREATE TRIGGER audit AFTER DELETE ON rows EXECUTE FUNCTION f()",
                "trigger audit of its table",
            ),
            ("CREATE RULE quiet AS ON DELETE TO rows DO ALSO SELECT 1", "rule quiet of its table"),
            (
                "ALTER TABLE rows ADD UNIQUE (n); CREATE TABLE parts (n int8 REFERENCES rows (n) ON DELETE CASCADE)",
                "a foreign key of table parts",
            ),
        ],
    )
    def test_a_table_that_others_depend_on_is_refused(
        self, spark: Any, tmp_path: Path, statement: str, why: str
    ) -> None:
        sink = self._filled(spark, tmp_path)
        self.run(tmp_path, statement)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert why in found.why
        with pytest.raises(SinkFailed, match=why):
            self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2, 3, 4]
        assert sink.inspect(self.owner, 2).epoch == 0

    def test_a_table_of_another_owner_is_not_touched(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        with pytest.raises(SinkForeign):
            self.make(tmp_path).take_back(OTHER, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2, 3, 4]

    def test_rows_that_were_left_are_not_mistaken_for_later_ones(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        self.make(tmp_path).stamp(self.owner, (1, 2), 2)
        for epoch in (3, 4, 5, 6):
            self._epoch_of(spark, tmp_path, (2, epoch), 10 + epoch)
        assert not self._can(tmp_path, (2, 3))
        assert self._taken(tmp_path, (2, 4), 3)
        assert self._seen(spark, self.make(tmp_path)) == [1, 2, 3, 4, 13, 14]

    def test_epochs_that_were_written_in_another_way_are_refused(self, spark: Any, tmp_path: Path) -> None:
        options, self.options = self.options, {"method": self.options["method"]}
        self.run(tmp_path, "CREATE TABLE rows (n int8, text text, epoch int8)")
        self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "epoch_column" in found.do
        self.options = options
        for epoch in (5, 6, 7):
            self._epoch_of(spark, tmp_path, (1, epoch), epoch)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 4))
        assert isinstance(found, CannotTakeBack), "epoch 5 may have been decided before the restart"
        assert "at epoch 5 or later" in found.do
        assert self._taken(tmp_path, (1, 5), 2)
        assert self._seen(spark, self.make(tmp_path)) == [1, 2, 3, 4, 5]

    def test_a_ledger_of_an_earlier_version(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        self.run(tmp_path, "DELETE FROM holdfast_epochs WHERE gid LIKE '%:mode:%'")
        assert not self._can(tmp_path, (1, 2))
        for epoch in (5, 6):
            self._epoch_of(spark, tmp_path, (1, epoch), epoch)
        assert not self._can(tmp_path, (1, 4))
        assert self._taken(tmp_path, (1, 5), 2)
        assert self._seen(spark, self.make(tmp_path)) == [1, 2, 3, 4, 5]


class TestPrepared(_Append):
    def test_leaving_rows_in_a_table_with_a_unique_index_is_refused(self, spark: Any, tmp_path: Path) -> None:
        assert self.make(tmp_path).cannot_be_left(self.owner) is None
        self._filled(spark, tmp_path)
        assert self.make(tmp_path).cannot_be_left(self.owner) is None
        self.run(tmp_path, "CREATE UNIQUE INDEX one ON rows (n)")
        assert "unique" in (self.make(tmp_path).cannot_be_left(self.owner) or "")

    def test_a_shared_table_is_refused(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        shared = PostgresSink(server().dsn(self.database(tmp_path)), "rows", epoch_column="epoch", share=True)
        found = shared.can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "share=True" in found.do

    def test_missing_privileges_are_named(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        self.run(tmp_path, "DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN")
        self.run(tmp_path, "GRANT SELECT, INSERT ON rows, holdfast_epochs TO weak")
        weak = PostgresSink(server().dsn(self.database(tmp_path), user="weak"), "rows", epoch_column="epoch")
        found = weak.can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "DELETE" in found.do


class TestStaged(_Append):
    options: ClassVar[dict[str, Any]] = PostgresStaged.options


class TestPlain(PostgresPrepared):
    options: ClassVar[dict[str, Any]] = {"method": "staged"}


class TestUpsert(PostgresPrepared):
    options: ClassVar[dict[str, Any]] = {"key": "n", "epoch_column": "epoch"}

    def test_it_cannot_for_now(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "changelog=True" in found.do
        assert self._can(tmp_path, (1, 4)), "there is nothing to take back"
        assert self.make(tmp_path).cannot_be_left(self.owner) is None


class TestReplace(PostgresPrepared):
    output_mode = "complete"
    options: ClassVar[dict[str, Any]] = {}

    def test_nothing_is_kept(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        assert self.make(tmp_path).can_take_back(self.owner, (1, 2)) == TakeBack(0, None, "")
