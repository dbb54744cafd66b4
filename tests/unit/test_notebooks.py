"""What notebooks display: tables of everything, with every text escaped."""

from pathlib import Path

import pytest

import holdfast as hf
from fabricated import Fabricated
from holdfast._html import escaped, h, table
from holdfast.pruning import plan_prune
from holdfast.repository import Checkpoints, LocalRepository
from holdfast.spark.pipeline_status import CheckpointStatus, PipelineStatus
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


def test_a_pipeline_that_does_not_run_shows_its_streams(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("shop", tmp_path)
    pipeline.stream(lambda spark: spark, name="orders", sinks=hf.FileSink(tmp_path / "out"))
    assert "orders" in pipeline._repr_html_()
    assert not (tmp_path / "shop").exists()
