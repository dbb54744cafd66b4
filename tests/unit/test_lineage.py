"""The lineage of timelines: which of them, and which of their epochs and checkpoints, are the current history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RecordCorrupt
from holdfast.repository import Identity, Lineage, MemoryRepository, TimelineRecord
from holdfast.repository.lineage import begin_timeline, branches, lineage_key

STREAMS = ("orders", "totals")


def lineage(*records: TimelineRecord) -> Lineage:
    repository = MemoryRepository()
    Identity.create(repository, "shop")
    for record in records:
        begin_timeline(repository, record)
    return Lineage.load(repository)


def timeline(number: int, parent: int, checkpoint: int | None = None, **bases: int) -> TimelineRecord:
    return TimelineRecord(timeline=number, parent=parent, bases=bases, checkpoint=checkpoint)


def test_a_repository_begins_with_one_timeline_that_holds_everything() -> None:
    found = lineage()
    assert (found.current, found.timelines) == (1, (1,))
    assert found.timeline_of("orders") == 1
    assert found.holds_epoch("orders", 1, 10**9)
    assert found.holds_checkpoint(1, 10**9)
    assert not found.holds_checkpoint(2, 1)


def test_a_rewind_abandons_what_came_after_its_base() -> None:
    found = lineage(timeline(2, 1, 5, orders=41, totals=12))
    assert (found.current, found.timelines) == (2, (1, 2))
    assert found.timeline_of("orders") == 2
    assert [found.holds_epoch("orders", 1, epoch) for epoch in (41, 42)] == [True, False]
    assert found.holds_epoch("orders", 2, 42)
    assert [found.holds_checkpoint(1, number) for number in (5, 6)] == [True, False]


def test_streams_that_a_rewind_leaves_stay_in_their_timeline() -> None:
    found = lineage(timeline(2, 1, 5, totals=12))
    assert (found.timeline_of("totals"), found.timeline_of("orders")) == (2, 1)
    assert found.holds_epoch("orders", 1, 99)
    assert not found.holds_epoch("totals", 1, 13)
    assert not found.holds_checkpoint(1, 6), "it contains epochs of totals that were abandoned"


def test_an_undo_is_a_new_timeline_that_continues_the_old_one() -> None:
    found = lineage(timeline(2, 1, 5, orders=41), timeline(3, 1, orders=50))
    assert found.timelines == (1, 3)
    assert found.holds_epoch("orders", 1, 50)
    assert not found.holds_epoch("orders", 2, 42)
    assert found.holds_checkpoint(1, 9)
    assert not found.holds_checkpoint(2, 10)


def test_a_base_in_an_older_timeline_abandons_all_of_the_one_between() -> None:
    found = lineage(timeline(2, 1, 5, orders=41), timeline(3, 2, 4, orders=30))
    assert found.places("orders") == [(1, 30), (2, 30), (3, None)]
    assert not found.holds_epoch("orders", 2, 42)
    assert not found.holds_epoch("orders", 1, 31)
    assert not found.holds_checkpoint(2, 6)
    assert not found.holds_checkpoint(1, 5)


@pytest.mark.parametrize(
    "record",
    [timeline(2, 2), timeline(2, 3), timeline(2, 0), timeline(9, 8)],
    ids=["its own parent", "a later parent", "no parent", "a parent without a record"],
)
def test_a_chain_that_does_not_lead_to_the_first_timeline_is_damage(record: TimelineRecord) -> None:
    with pytest.raises(RecordCorrupt, match="timeline"):
        lineage(record)


def test_a_record_in_the_wrong_place_or_damaged_is_never_skipped() -> None:
    repository = MemoryRepository()
    Identity.create(repository, "shop")
    begin_timeline(repository, timeline(2, 1))
    repository.put(lineage_key(repository, 3), repository.read(lineage_key(repository, 2)))
    with pytest.raises(RecordCorrupt, match="timelines/3"):
        Lineage.load(repository)
    repository.put(lineage_key(repository, 3), b"{}")
    with pytest.raises(RecordCorrupt, match="timelines/3"):
        Lineage.load(repository)


def test_folders_of_unfinished_timelines_do_not_count() -> None:
    repository = MemoryRepository()
    identity = Identity.create(repository, "shop")
    repository.put("timelines/7/streams/orders/stream.json", b"built, but never made current")
    repository.put("timelines/odd/lineage.json", b"?")
    assert Lineage.load(repository) == Lineage(identity)


class Model:
    """Rows as a list per stream, and what every timeline kept: the lineage must say the same."""

    def __init__(self) -> None:
        self.repository = MemoryRepository()
        Identity.create(self.repository, "shop")
        self.rows: dict[str, list[tuple[int, int]]] = {stream: [] for stream in STREAMS}  # (timeline, epoch)
        self.at = dict.fromkeys(STREAMS, 1)
        self.current = 1
        self.next_checkpoint = 1
        self.kept: list[tuple[int, int, dict[str, int]]] = []  # checkpoints of the lineage: timeline, id, epochs
        self.ever: set[tuple[str, int, int]] = set()
        self.every_checkpoint: set[tuple[int, int]] = set()

    def write(self, stream: str) -> None:
        last = self.rows[stream][-1][1] if self.rows[stream] else 0
        self.rows[stream].append((self.at[stream], last + 1))
        self.ever.add((stream, *self.rows[stream][-1]))

    def take(self) -> None:
        epochs = {stream: len(self.rows[stream]) for stream in STREAMS}
        self.kept.append((self.current, self.next_checkpoint, epochs))
        self.every_checkpoint.add((self.current, self.next_checkpoint))
        self.next_checkpoint += 1

    def rewind(self, choice: int, streams: list[str]) -> None:
        if not self.kept:
            return
        place = choice % len(self.kept)
        _, number, epochs = self.kept[place]
        new = max([1, *branches(self.repository)]) + 1
        begin_timeline(
            self.repository, timeline(new, self.current, number, **{stream: epochs[stream] for stream in streams})
        )
        for stream in streams:
            self.rows[stream] = self.rows[stream][: epochs[stream]]
            self.at[stream] = new
        self.current = new
        self.kept = self.kept[: place + 1]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(STREAMS)),
        st.tuples(st.just("take")),
        st.tuples(st.just("rewind"), st.integers(0, 20), st.sampled_from([list(STREAMS), ["totals"]])),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_lineage_holds_exactly_the_rows_and_checkpoints_that_were_not_taken_back(steps: list[tuple]) -> None:
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    found = Lineage.load(model.repository)
    assert found.current == model.current
    for stream in STREAMS:
        assert found.timeline_of(stream) == model.at[stream]
        held = {place for place in model.ever if place[0] == stream and found.holds_epoch(*place)}
        assert held == {(stream, *place) for place in model.rows[stream]}
    kept = {(at, number) for at, number, _ in model.kept}
    assert {each for each in model.every_checkpoint if found.holds_checkpoint(*each)} == kept
