"""Every built-in sink keeps what it promises to a rewind, without Spark: rows are staged by hand."""

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from handstaged import FilesByEpoch, Log, SqliteAppend, SqliteUndo, query, staged_files
from holdfast.errors import BadValue, NotSupported, SinkFailed, SinkForeign, TimelineEnded
from holdfast.sinks import _sqlite_rewind, _sqlite_undo
from holdfast.sinks.base import CannotTakeBack, EpochPlace, StreamIdentity, TakeBack
from holdfast.sinks.foreach import ForeachSink
from holdfast.sinks.owners import claim
from holdfast.sinks.sqlite import SqliteSink
from holdfast.sinks.staging import names_in

OTHER = StreamIdentity("contract", "0" * 31 + "2", "rows")


@pytest.fixture
def spark() -> None:
    return None


class TestFilesByEpoch(FilesByEpoch):
    def test_the_epochs_are_kept_next_to_the_folder(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert not isinstance(found, CannotTakeBack)
        assert found.kept == str(tmp_path / ".out.aside")
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        kept = names_in(tmp_path / ".out.aside" / "t2")
        assert kept == ["hf_epoch=t1-0000000003", "hf_epoch=t1-0000000004"]
        assert names_in(tmp_path / "out.staging") == []
        assert not (tmp_path / "out.compact").exists()
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert not (tmp_path / ".out.aside").exists()

    def test_a_folder_of_another_owner_is_not_touched(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(OTHER, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "belongs to stream 'rows'" in found.why
        with pytest.raises(SinkForeign):
            self.make(tmp_path).take_back(OTHER, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2, 3, 4]
        assert sink.inspect(self.owner, 2).epoch == 0


class TestFilesFlat(FilesByEpoch):
    layout = "flat"

    def test_it_cannot_unless_there_is_nothing_to_take_back(self, spark: Any, tmp_path: Path) -> None:
        assert self._can(tmp_path, (1, 2))
        sink = self._filled(spark, tmp_path)
        assert self._taken(tmp_path, (1, 4), 2)
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert self.make(tmp_path).inspect(self.owner, 3).epoch == 4
        assert self._seen(spark, sink) == [1, 2, 3, 4]
        with pytest.raises(NotSupported):
            self.make(tmp_path).take_back(self.owner, (1, 2), 4)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "layout='epochs'" in found.do


class TestSqliteAppend(SqliteAppend):
    def test_rows_of_others_stay_and_all_columns_return(self, spark: Any, tmp_path: Path) -> None:
        """A row without an epoch is not the stream's. Values come back with their types, generated columns by rule."""
        path = tmp_path / "out.db"
        query(path, "CREATE TABLE rows (n INTEGER, text TEXT, epoch INTEGER, more DECIMAL(5), twice AS (n * 2))")
        sink = self._filled(spark, tmp_path)
        query(path, "UPDATE rows SET more = 1.5 WHERE n = 4")
        query(path, "UPDATE rows SET more = x'00ff' WHERE n = 3")
        query(path, "INSERT INTO rows (n, text) VALUES (9, 'row 9')")
        before = query(path, "SELECT *, typeof(more) FROM rows ORDER BY n")
        self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2, 9]
        assert [row[0] for row in query(path, "SELECT name FROM sqlite_master WHERE name LIKE '%aside%'")] == [
            f"holdfast_aside_{sink._journal(self.owner).owner}_2"
        ]
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert query(path, "SELECT *, typeof(more) FROM rows ORDER BY n") == before
        assert query(path, "SELECT name FROM sqlite_master WHERE name LIKE '%aside%'") == []

    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            ("CREATE TRIGGER audit AFTER DELETE ON ROWS BEGIN SELECT 1; END", "trigger audit of its table"),
            ("CREATE TRIGGER audit AFTER INSERT ON rows BEGIN SELECT 1; END", "trigger audit of its table"),
            ("CREATE TABLE parts (n REFERENCES Rows (n) ON DELETE CASCADE)", "a foreign key of table parts"),
        ],
    )
    def test_a_table_that_others_depend_on_is_refused(
        self, spark: Any, tmp_path: Path, statement: str, why: str
    ) -> None:
        sink = self._filled(spark, tmp_path)
        query(tmp_path / "out.db", statement)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert why in found.why
        with pytest.raises(SinkFailed, match=why):
            self.make(tmp_path).take_back(self.owner, (1, 2), 2)
        assert self._seen(spark, sink) == [1, 2, 3, 4]
        assert sink.inspect(self.owner, 2).epoch == 0
        assert self._can(tmp_path, (1, 4)), "there is nothing to take back"

    def test_a_shared_table_is_refused(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        found = SqliteSink(tmp_path / "out.db", "rows", epoch_column="epoch", share=True).can_take_back(
            self.owner, (1, 2)
        )
        assert isinstance(found, CannotTakeBack)
        assert "share=True" in found.do

    def test_epochs_that_were_written_in_another_way_are_refused(self, spark: Any, tmp_path: Path) -> None:
        """The column was added later, so earlier rows do not show their epochs."""
        path = tmp_path / "out.db"
        query(path, "CREATE TABLE rows (n INTEGER, text TEXT, epoch INTEGER)")
        self.options = {}
        self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert "epoch_column" in found.do
        self.options = {"epoch_column": "epoch"}
        for epoch in (5, 6):
            self._epoch_of(spark, tmp_path, (1, epoch), epoch)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 3))
        assert isinstance(found, CannotTakeBack)
        assert "at epoch 4 or later" in found.do
        assert self._taken(tmp_path, (1, 4), 2)
        assert self._seen(spark, self.make(tmp_path)) == [1, 2, 3, 4]

    def test_rows_that_were_left_are_not_mistaken_for_later_ones(self, spark: Any, tmp_path: Path) -> None:
        """They have the epochs of the abandoned timeline. Going back is possible again after those."""
        self._filled(spark, tmp_path)
        self.make(tmp_path).stamp(self.owner, (1, 2), 2)
        for epoch in (3, 4, 5, 6):
            self._epoch_of(spark, tmp_path, (2, epoch), 10 + epoch)
        assert not self._can(tmp_path, (2, 3))
        assert self._taken(tmp_path, (2, 4), 3)
        assert self._seen(spark, self.make(tmp_path)) == [1, 2, 3, 4, 13, 14]

    def test_a_ledger_of_an_earlier_version(self, spark: Any, tmp_path: Path) -> None:
        """It does not record how epochs were written."""
        sink = self._filled(spark, tmp_path)
        for column in ("mode", "since"):
            query(tmp_path / "out.db", f"ALTER TABLE holdfast_epochs DROP COLUMN {column}")
        assert not self._can(tmp_path, (1, 2))
        assert self._can(tmp_path, (1, 4))
        for epoch in (5, 6):
            self._epoch_of(spark, tmp_path, (1, epoch), epoch)
        assert not self._can(tmp_path, (1, 3))
        assert self._taken(tmp_path, (1, 4), 2)
        assert self._seen(spark, sink) == [1, 2, 3, 4]

    def test_leaving_rows_in_a_table_with_a_unique_index_is_refused(self, spark: Any, tmp_path: Path) -> None:
        assert self.make(tmp_path).cannot_be_left(self.owner) is None
        self._filled(spark, tmp_path)
        assert self.make(tmp_path).cannot_be_left(self.owner) is None
        query(tmp_path / "out.db", "CREATE UNIQUE INDEX one ON rows (n)")
        assert "unique index on (n)" in (self.make(tmp_path).cannot_be_left(self.owner) or "")


class TestSqlitePlain(SqliteAppend):
    options: ClassVar[dict[str, Any]] = {}


class TestSqliteUpsert(SqliteAppend):
    options: ClassVar[dict[str, Any]] = {"key": "n"}

    def test_it_names_the_setting(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        assert isinstance(found, CannotTakeBack)
        assert found.do == "pass undo=True; it applies to later epochs"
        assert self.make(tmp_path).cannot_be_left(self.owner) is None


class TestSqliteReplace(SqliteAppend):
    output_mode = "complete"
    options: ClassVar[dict[str, Any]] = {}

    def test_nothing_is_kept(self, spark: Any, tmp_path: Path) -> None:
        self._filled(spark, tmp_path)
        assert self.make(tmp_path).can_take_back(self.owner, (1, 2)) == TakeBack(0, None, "")


class TestSqliteUndo(SqliteUndo):
    def versions(self, spark: Any, folder: Path, place: EpochPlace, **texts: str) -> None:
        """Commit an epoch that gives each row a text."""
        sink = self._open(spark, folder)
        assert isinstance(sink, SqliteSink)
        key = self._key(place[1], timeline=place[0])
        rows = {"n": [int(name[1:]) for name in texts], "text": list(texts.values())}
        handle = staged_files(sink._staging, key, pa.table(rows)) | {"effect": "upsert", "key": ["n"]}
        sink.commit(key, handle)

    def now(self, folder: Path) -> dict[str, str]:
        return {f"r{n}": text for n, text in query(folder / "out.db", "SELECT n, text FROM rows ORDER BY n")}

    def test_previous_versions_are_restored(self, spark: Any, tmp_path: Path) -> None:
        self.versions(spark, tmp_path, (1, 1), r1="a", r2="a")
        self.versions(spark, tmp_path, (1, 2), r2="b", r3="b")
        self.versions(spark, tmp_path, (1, 3), r1="c", r3="c", r4="c")
        self.versions(spark, tmp_path, (1, 4), r1="d", r4="d")
        last = self.now(tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 1))
        assert isinstance(found, TakeBack)
        assert (found.epochs, found.rows) == (3, 7)
        self._taken(tmp_path, (1, 1), 2)
        assert self.now(tmp_path) == {"r1": "a", "r2": "a"}
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert self.now(tmp_path) == last == {"r1": "d", "r2": "b", "r3": "c", "r4": "d"}
        self._taken(tmp_path, (1, 2), 4)
        assert self.now(tmp_path) == {"r1": "a", "r2": "b", "r3": "b"}
        self.versions(spark, tmp_path, (4, 3), r1="e", r5="e")
        self._taken(tmp_path, (1, 1), 5)
        assert self.now(tmp_path) == {"r1": "a", "r2": "a"}
        self.make(tmp_path).put_back(self.owner, (4, 3), 6, 5)
        assert self.now(tmp_path) == {"r1": "e", "r2": "b", "r3": "b", "r5": "e"}

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE rows SET text = 'mine' WHERE n = 1",
            "DELETE FROM rows WHERE n = 1",
        ],
    )
    def test_rows_that_another_program_changed_are_listed(self, spark: Any, tmp_path: Path, change: str) -> None:
        self.versions(spark, tmp_path, (1, 1), r1="a")
        self.versions(spark, tmp_path, (1, 2), r1="b", r2="b")
        query(tmp_path / "out.db", change)
        before = self.now(tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 1))
        assert isinstance(found, CannotTakeBack)
        assert "changed rows that the stream wrote: n=1" in found.why
        with pytest.raises(SinkFailed, match="n=1"):
            self.make(tmp_path).take_back(self.owner, (1, 1), 2)
        assert self.now(tmp_path) == before

    def test_a_change_between_two_epochs_is_found(self, spark: Any, tmp_path: Path) -> None:
        self.versions(spark, tmp_path, (1, 1), r1="a")
        self.versions(spark, tmp_path, (1, 2), r1="b")
        query(tmp_path / "out.db", "UPDATE rows SET text = 'mine' WHERE n = 1")
        self.versions(spark, tmp_path, (1, 3), r1="c")
        assert not self._can(tmp_path, (1, 1))
        assert self._taken(tmp_path, (1, 2), 2)
        assert self.now(tmp_path) == {"r1": "mine"}

    def test_an_undo_does_not_overwrite_changes(self, spark: Any, tmp_path: Path) -> None:
        self.versions(spark, tmp_path, (1, 1), r1="a")
        self.versions(spark, tmp_path, (1, 2), r1="b", r2="b")
        self._taken(tmp_path, (1, 1), 2)
        query(tmp_path / "out.db", "INSERT INTO rows VALUES (2, 'mine')")
        with pytest.raises(SinkFailed, match="n=2"):
            self.make(tmp_path).put_back(self.owner, (1, 2), 3, 2)
        assert self.now(tmp_path) == {"r1": "a", "r2": "mine"}
        query(tmp_path / "out.db", "DELETE FROM rows WHERE n = 2")
        self.make(tmp_path).put_back(self.owner, (1, 2), 3, 2)
        assert self.now(tmp_path) == {"r1": "b", "r2": "b"}

    def test_a_column_that_was_added_is_not_a_change(self, spark: Any, tmp_path: Path) -> None:
        self.versions(spark, tmp_path, (1, 1), r1="a")
        self.versions(spark, tmp_path, (1, 2), r1="b", r2="b")
        query(tmp_path / "out.db", "ALTER TABLE rows ADD COLUMN note TEXT")
        self._taken(tmp_path, (1, 1), 2)
        assert self.now(tmp_path) == {"r1": "a"}

    def test_the_journal_does_not_grow_without_end(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (_sqlite_undo, _sqlite_rewind):
            monkeypatch.setattr(module, "KEPT_EPOCHS", 3)
        for epoch in range(1, 8):
            self.versions(spark, tmp_path, (1, epoch), r1=f"{epoch}")
        sink = self.make(tmp_path)
        assert isinstance(sink, SqliteSink)
        assert query(sink.path, f"SELECT epoch FROM {sink._journal(self.owner).name}") == [(5,), (6,), (7,)]  # noqa: S608
        found = sink.can_take_back(self.owner, (1, 3))
        assert isinstance(found, CannotTakeBack)
        assert "at epoch 4 or later" in found.do
        assert self._taken(tmp_path, (1, 4), 2)
        assert self.now(tmp_path) == {"r1": "4"}

    def test_it_needs_a_key(self) -> None:
        with pytest.raises(BadValue, match="undo"):
            SqliteSink("out.db", "rows", undo=True)


class TestLog(Log):
    pass


class TestForeach:
    """Its commits need Spark: `tests/spark` runs the suite. Its stamps do not."""

    owner = StreamIdentity("contract", "0" * 31 + "1", "rows")

    def called(self, folder: Path, *places: EpochPlace) -> ForeachSink:
        sink = ForeachSink(print, path=folder)
        folder.mkdir(exist_ok=True)
        claim(folder, self.owner, "calls of a function")
        for place in places:
            sink._add(self.owner, place, 1, "0" * 16)
        return sink

    def test_it_cannot_be_taken_back_but_left(self, tmp_path: Path) -> None:
        sink = self.called(tmp_path, (1, 3), (1, 4))
        found = sink.can_take_back(self.owner, (1, 3))
        assert isinstance(found, CannotTakeBack)
        assert "--leave print" in found.do or "--leave foreach" in found.do
        with pytest.raises(NotSupported):
            sink.take_back(self.owner, (1, 3), 2)
        assert sink.inspect(self.owner, 2).epoch == 0
        for _ in range(2):
            sink.stamp(self.owner, (1, 3), 2)
            assert sink.inspect(self.owner, 2).epoch == 3
        sink.stamp(self.owner, (1, 3), 3)
        with pytest.raises(TimelineEnded):
            sink.stamp(self.owner, (1, 3), 2)
        with pytest.raises(SinkForeign):
            sink.stamp(OTHER, (1, 3), 4)

    def test_it_can_if_nothing_was_called_after_the_base(self, tmp_path: Path) -> None:
        sink = self.called(tmp_path, (1, 3), (1, 4))
        assert sink.can_take_back(self.owner, (1, 4)) == TakeBack(0, 0, "")
        sink.take_back(self.owner, (1, 4), 2)
        assert sink.inspect(self.owner, 2).epoch == 4
        sink.put_back(self.owner, (1, 4), 3, 2)
        assert sink.inspect(self.owner, 3).epoch == 4

    def test_its_folder_may_be_in_the_repository(self, tmp_path: Path) -> None:
        sink = ForeachSink(print)
        sink.set_folder(tmp_path / "sinks")
        sink.stamp(self.owner, (1, 4), 2)
        assert sink.inspect(self.owner, 2).epoch == 4
        assert (tmp_path / "sinks" / "t2-0000000004.key").exists()
