"""What notebooks display: tables of everything, with every text escaped."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import holdfast as hf
from fabricated import Fabricated
from holdfast._html import escaped, h, table
from holdfast.plainspark import AdoptPlan
from holdfast.plainspark.looking import FolderLook
from holdfast.program.changes import ChangeEffect, ProgramChange
from holdfast.pruning import PrunePlan, plan_prune
from holdfast.recovery import RecoveryPlan
from holdfast.repository import Checkpoints, LocalRepository
from holdfast.restore import RestorePlan, plan_restore
from holdfast.rewind.plan import RewindPlan
from holdfast.sinks.compaction.plan import CompactPlan
from holdfast.spark.pipeline_status import CheckpointStatus, PipelineStatus
from holdfast.spark.program_plan import ProgramPlan
from holdfast.spark.status import StreamStatus

BAD = "<script>alert('x')</script>"


def test_values_are_escaped_and_control_characters_replaced() -> None:
    assert escaped(BAD) == "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;"
    assert escaped("a\x00\u202eb") == "a\ufffd\ufffdb"
    assert h("<b>{}</b>", h("<i>{}</i>", "&")) == "<b><i>&amp;</i></b>"
    assert BAD not in table((BAD,), [(BAD,)])


def test_a_status_is_a_table() -> None:
    stream = StreamStatus(stream="orders", state="running", epoch=5, rows=1234, restarts=1, last_error=BAD)
    status = PipelineStatus("shop", "uid", 2, 7, {"orders": stream}, CheckpointStatus(last=3))
    text = status._repr_html_()
    assert "1,234" in text
    assert "timeline 2, checkpoint 3" in text
    assert BAD not in text


@pytest.fixture
def made(tmp_path: Path) -> Fabricated:
    found = Fabricated(LocalRepository(tmp_path / "orders"))
    found.take("a", "b")
    found.take("a", "c")
    return found


def test_checkpoints_a_difference_and_a_plan_are_displayed(made: Fabricated) -> None:
    text = Checkpoints(made.repository)._repr_html_()
    assert "2 checkpoints" in text
    assert text.count("<tr>") == 3
    assert "files" in hf.diff(made.repository, 1, 2)._repr_html_()
    plan = plan_prune(made.repository, hf.Retention(last=1))
    assert "checkpoints to delete: 1" in plan._repr_html_()


class NamedPlan(NamedTuple):
    """A plan with a hostile name in it, and a word that it must show."""

    plan: Any
    word: str


def plans() -> list[NamedPlan]:
    change = ProgramChange(
        stream="orders", what="sink", before=BAD, now="", effect=ChangeEffect.TAKES_EFFECT, means="it is left"
    )
    rewind = RewindPlan(
        pipeline="shop",
        uid="u",
        timeline=2,
        to="3",
        base="checkpoint 3",
        checkpoint=3,
        digest="",
        undoes=None,
        only=None,
        leave=(),
        streams=(),
        problems=(BAD,),
    )
    adopt = AdoptPlan(
        pipeline="shop",
        stream="orders",
        checkpoint=BAD,
        query="q",
        committed=4,
        in_doubt=None,
        last_batch={},
        sinks=("table",),
        sources=(),
        state=(),
        settings={},
        files=1,
        look=cast("FolderLook", None),
    )
    return [
        NamedPlan(RecoveryPlan(BAD, 4, False, ("table",), {"table": 4}), "continues after epoch 4"),
        NamedPlan(ProgramPlan(pipeline="shop", since={"orders": 1}, changes=(change,)), "it is left"),
        NamedPlan(rewind, "refused:"),
        NamedPlan(adopt, "last committed batch 4"),
    ]


@pytest.mark.parametrize(("plan", "word"), plans())
def test_a_plan_is_displayed_and_escaped(plan: Any, word: str) -> None:
    text = plan._repr_html_()
    assert word in text
    assert "&lt;script&gt;" in text
    assert BAD not in text


def test_every_public_plan_is_displayed(made: Fabricated) -> None:
    assert "after epoch 2" in plan_restore(made.repository, 2)._repr_html_()
    for plan in (CompactPlan, RestorePlan, AdoptPlan, ProgramPlan, RecoveryPlan, RewindPlan, PrunePlan):
        assert hasattr(plan, "_repr_html_"), plan


def test_a_pipeline_that_does_not_run_shows_its_streams(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("shop", tmp_path)
    pipeline.stream(lambda spark: spark, name="orders", sinks=hf.FileSink(tmp_path / "out"))
    assert "orders" in pipeline._repr_html_()
    assert not (tmp_path / "shop").exists()
