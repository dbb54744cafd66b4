"""Two descriptions of a stream are compared, and the stored one is found again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.program.changes import ChangeEffect as E
from holdfast.program.changes import changes
from holdfast.program.description import (
    ColumnDescription,
    SinkDescription,
    SourceDescription,
    StateDescription,
    StreamDescription,
)
from holdfast.program.records import Programs
from holdfast.repository import Identity, Lineage, LocalRepository
from holdfast.repository.lineage import TimelineRecord, begin_timeline


def column(name: str, kind: str = "bigint") -> ColumnDescription:
    return ColumnDescription(name=name, type=kind)


COUNT = StateDescription(kind="Aggregate", keys=["string"], columns=[column("k", "string"), column("n")])
BEFORE = StreamDescription(
    sources=[SourceDescription(kind="FileSource", reads="/in", options={"maxfilespertrigger": "1"})],
    sinks={
        "files": SinkDescription(kind="FileSink", target="files /out", settings={"format": "parquet"}),
        "table": SinkDescription(kind="SqliteSink", target="sqlite /db t", settings={"key": ["k"]}),
    },
    columns=[column("k", "string"), column("n")],
    state=[COUNT],
    output_mode="append",
    options={"a": "1"},
    stage=None,
    partitions="2",
)


def source(**facts: Any) -> dict[str, Any]:
    return {"sources": [msgspec.structs.replace(BEFORE.sources[0], **facts)]}


def sinks(**facts: SinkDescription | None) -> dict[str, Any]:
    return {"sinks": {name: each for name, each in {**BEFORE.sinks, **facts}.items() if each is not None}}


def state(**facts: Any) -> dict[str, Any]:
    return {"state": [msgspec.structs.replace(COUNT, **facts)]}


LOG = SinkDescription(kind="LogSink", target="log /log")
CASES: list[tuple[str, dict[str, Any], list[tuple[str, E]]]] = [
    ("nothing", {}, []),
    ("rate", source(options={"maxfilespertrigger": "9"}), [("option maxfilespertrigger", E.SAFE)]),
    (
        "option of a source",
        source(options={"maxfilespertrigger": "1", "x": "y"}),
        [("option x", E.TAKES_EFFECT)],
    ),
    ("path", source(reads="/other"), [("source (FileSource)", E.IMPOSSIBLE)]),
    ("path that only begins alike", source(reads="/i"), [("source (FileSource)", E.IMPOSSIBLE)]),
    ("pattern", source(reads="/other/*"), [("source (FileSource)", E.TAKES_EFFECT)]),
    ("folder above", source(reads="/"), [("source (FileSource)", E.TAKES_EFFECT)]),
    ("kind of source", source(kind="kafka"), [("sources", E.IMPOSSIBLE)]),
    ("one more source", {"sources": BEFORE.sources * 2}, [("sources", E.IMPOSSIBLE)]),
    ("a new sink", sinks(more=LOG), [("sink more", E.TAKES_EFFECT)]),
    ("a sink less", sinks(table=None), [("sink table", E.TAKES_EFFECT)]),
    ("another kind of sink", sinks(table=LOG), [("sink table", E.TAKES_EFFECT)]),
    (
        "another target",
        sinks(table=SinkDescription(kind="SqliteSink", target="sqlite /db u", settings={"key": ["k"]})),
        [("sink table", E.TAKES_EFFECT)],
    ),
    (
        "another key",
        sinks(table=SinkDescription(kind="SqliteSink", target="sqlite /db t", settings={"key": ["k", "n"]})),
        [("key of sink table", E.TAKES_EFFECT)],
    ),
    (
        "another format",
        sinks(files=SinkDescription(kind="FileSink", target="files /out", settings={"format": "orc"})),
        [("format of sink files", E.IMPOSSIBLE)],
    ),
    ("a column", {"columns": [*BEFORE.columns, column("x")]}, [("columns", E.TAKES_EFFECT)]),
    ("the output mode", {"output_mode": "update"}, [("output mode", E.IMPOSSIBLE)]),
    ("no state", {"state": []}, [("operators with state", E.IMPOSSIBLE)]),
    ("another operator", state(kind="Deduplicate"), [("operators with state", E.IMPOSSIBLE)]),
    ("another key of the state", state(keys=["bigint"]), [("keys of operator Aggregate", E.IMPOSSIBLE)]),
    (
        "another aggregate",
        state(columns=[column("k", "string"), column("sum")]),
        [("columns of operator Aggregate", E.TAKES_EFFECT)],
    ),
    ("a stage", {"stage": "dict"}, [("stage", E.TAKES_EFFECT)]),
    ("an option", {"options": {}}, [("option a", E.TAKES_EFFECT)]),
    ("partitions", {"partitions": "8"}, [("spark.sql.shuffle.partitions", E.SAFE)]),
]


def test_the_command_that_fills_a_new_sink_can_be_typed() -> None:
    (added,) = changes("orders", BEFORE, msgspec.structs.replace(BEFORE, **sinks(more=LOG)))
    assert "holdfast backfill app.py:pipeline --stream orders --sink more; or" in added.do
    added, _ = changes("orders", BEFORE, msgspec.structs.replace(BEFORE, **sinks(more=LOG, table=None)))
    assert "holdfast backfill app.py:pipeline --stream orders --sink more --accept sinks; or" in added.do


@pytest.mark.parametrize(("what", "facts", "expected"), CASES, ids=[each[0] for each in CASES])
def test_each_change_has_its_effect(what: str, facts: dict[str, Any], expected: list[tuple[str, E]]) -> None:
    found = changes("orders", BEFORE, msgspec.structs.replace(BEFORE, **facts))
    assert len(found) == len(expected), found
    for change, (start, effect) in zip(found, expected, strict=True):
        assert change.what.startswith(start), what
        assert change.effect is effect
        verb = {"a new sink": "is new", "a sink less": "was removed"}.get(what, "changed from ")
        assert change.summary.startswith(f"stream orders: {change.what} {verb}")
        if effect is E.IMPOSSIBLE:
            assert change.do


def test_columns_of_an_event_log_cannot_change() -> None:
    with_log = msgspec.structs.replace(BEFORE, **sinks(log=LOG))
    now = msgspec.structs.replace(with_log, columns=[column("k", "string")])
    [change] = changes("orders", with_log, now)
    assert change.effect is E.IMPOSSIBLE
    assert "the schema of an event log cannot change (log)" in change.means


def test_a_moved_folder_of_files_is_impossible_unless_another_source_may_have_the_last_rows() -> None:
    """Spark reads the files of the last batch again at a start, and requires that they are below the path."""
    files, rate = SourceDescription(kind="FileSource", reads="/in"), SourceDescription(kind="rate")
    moved = msgspec.structs.replace(files, reads="/copy/in")
    [change] = changes("orders", *(msgspec.structs.replace(BEFORE, sources=[each]) for each in (files, moved)))
    assert change.effect is E.IMPOSSIBLE
    assert "move the folder back, or give the stream a new name" in change.summary
    [change] = changes("orders", *(msgspec.structs.replace(BEFORE, sources=[each, rate]) for each in (files, moved)))
    assert change.effect is E.TAKES_EFFECT


def test_an_event_log_or_a_table_may_be_moved_and_topics_may_change() -> None:
    """Only a start can tell whether it is the same log or table: it compares the uid or the id."""
    for kind in ("holdfast_log", "delta", "kafka"):
        one, other = (
            msgspec.structs.replace(BEFORE, sources=[SourceDescription(kind=kind, reads=place)]) for place in ("a", "b")
        )
        [change] = changes("orders", one, other)
        assert change.effect is E.TAKES_EFFECT


def test_a_stage_that_is_removed_is_impossible_and_streams_come_and_go() -> None:
    with_stage = msgspec.structs.replace(BEFORE, stage="dict")
    [change] = changes("orders", with_stage, BEFORE)
    assert change.effect is E.IMPOSSIBLE
    [new] = changes("orders", None, BEFORE)
    [gone] = changes("orders", BEFORE, None)
    assert (new.now, gone.before, new.effect, gone.effect) == ("new", "there", *[E.TAKES_EFFECT] * 2)


def test_the_description_that_counts_is_the_newest_one_of_the_lineage(tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    identity = Identity.create(repository, "p")
    programs = Programs(repository)
    first = Lineage(identity)
    assert programs.newest("orders", first) is None
    other = msgspec.structs.replace(BEFORE, output_mode="update")
    programs.store("orders", 1, 1, BEFORE)
    programs.store("orders", 1, 7, other)
    found = programs.newest("orders", first)
    assert found is not None and (found.epoch, found.description) == (7, other)
    assert programs.streams() == ["orders"]
    begin_timeline(repository, TimelineRecord(timeline=2, parent=1, bases={"orders": 5}, checkpoint=3))
    found = programs.newest("orders", Lineage.load(repository))
    assert found is not None and (found.epoch, found.description) == (1, BEFORE)


def test_equal_descriptions_have_equal_hashes() -> None:
    again = msgspec.json.decode(msgspec.json.encode(BEFORE), type=StreamDescription)
    assert (again, again.hash) == (BEFORE, BEFORE.hash)
    assert msgspec.structs.replace(BEFORE, output_mode="update").hash != BEFORE.hash
