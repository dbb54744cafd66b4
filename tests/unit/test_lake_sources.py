"""The lake tables of a stream, with tables made up: which offset belongs to which, and what is only a warning."""

import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from holdfast._lake_tables import LostTableInput, TableLossKind
from holdfast.errors import NotSupported, SourceGap, SourceUnavailable
from holdfast.spark import adapter
from holdfast.spark.lake_sources import LakeSources
from holdfast.spark.last_decided import LastDecided

OFFSET = '{"sourceVersion":1,"reservoirId":"a","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'


@dataclass(frozen=True)
class MadeUpTable(adapter.LakeInput):
    """A table that has lost what follows some offsets."""

    name: str
    lost: tuple[str, ...] = ()
    skips_loss: bool = False  # type: ignore[misc] - a field instead of a property
    can_skip: ClassVar[bool] = True

    def lost_after(self, offset: str | None) -> LostTableInput | None:
        if offset in (None, "unreadable"):
            raise adapter.NotComparable("a catalog has it") if offset is None else adapter.TableUnreadable("it is away")
        return LostTableInput(TableLossKind.EXPIRED, self.name, "gone") if offset in self.lost else None


def sources(monkeypatch: pytest.MonkeyPatch, *inputs: adapter.LakeInput | None) -> LakeSources:
    monkeypatch.setattr(adapter, "lake_inputs", lambda _df: list(inputs))
    parts: Any = SimpleNamespace(name="rows", accepts=lambda _word: False)
    return LakeSources(parts)


def check(made: LakeSources, *ends: str | None, epoch: int = 3) -> bool:
    df: Any = None
    return made.check(df, LastDecided(epoch=epoch, ends=ends))


def test_offsets_belong_to_sources_by_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sources(monkeypatch, None, MadeUpTable("a", lost=("1",)), MadeUpTable("b", lost=("2",)))
    assert check(made, "2", "2", "1")
    with pytest.raises(SourceGap, match="epoch 4 of stream 'rows' cannot continue in source 2: table 'b': gone"):
        check(made, "1", "2", "2")


def test_a_table_that_the_plan_has_twice_has_one_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = MadeUpTable("a", lost=("1",)), MadeUpTable("b", lost=("2",))
    made = sources(monkeypatch, first, second, first)
    assert check(made, "2", "1")
    with pytest.raises(SourceGap, match="table 'b'"):
        check(made, "2", "2")


def test_nothing_is_compared_before_the_first_epoch_or_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(sources(monkeypatch, MadeUpTable("a", lost=("1",))), "1", epoch=0)
    assert not check(sources(monkeypatch, None), "1")


@pytest.mark.parametrize(
    ("inputs", "ends", "why"),
    [
        ([MadeUpTable("a")], [None], "table 'a': not compared with the last epoch: a catalog has it"),
        ([MadeUpTable("a")], ["unreadable"], "table 'a': not compared with the last epoch: it is away"),
        ([MadeUpTable("a"), None, None], ["1", "2"], "Spark reads some of its sources as one"),
        ([None], [OFFSET % 3], "the plan does not show which connector reads them"),
    ],
)
def test_a_table_that_cannot_be_compared_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, inputs: list[Any], ends: list[Any], why: str
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        check(sources(monkeypatch, *inputs), *ends)
    (record,) = caplog.records
    assert why in record.getMessage()


def test_a_table_that_skips_losses_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would report nothing, and the next epoch is compared from its own position, after the lost versions."""
    made = sources(monkeypatch, MadeUpTable("a", skips_loss=True), None)
    assert check(made, "1", "1")
    with pytest.raises(SourceUnavailable, match="source 0 of stream 'rows' cannot be reached: table 'a' cannot be"):
        made.check_again(LastDecided(epoch=4, ends=("unreadable", "1")))
    with pytest.raises(NotSupported, match=r"failOnDataLoss=false in stream 'rows'.*a catalog has it"):
        made.check_again(LastDecided(epoch=4, ends=(None, "1")))
    with pytest.raises(NotSupported, match="Spark reads some of its sources as one"):
        check(made, "1")


def test_before_a_decision_only_tables_that_skip_losses_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sources(monkeypatch, MadeUpTable("a", lost=("later",)), MadeUpTable("b", lost=("later",), skips_loss=True))
    assert check(made, "1", "1")
    made.check_again(LastDecided(epoch=4, ends=("later", "2")))
    with pytest.raises(SourceGap, match="table 'b'"):
        made.check_again(LastDecided(epoch=4, ends=("later", "later")))
