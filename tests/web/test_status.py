"""The status of a pipeline: which run it is about."""

from pathlib import Path

from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import RunState
from webfixture import Sample


def test_the_failure_of_an_earlier_run_is_not_reported_for_a_run_that_left_no_event(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.event("failed", "no disk", stream="orders", next="free some space", ago_s=0.5)
    sample.event("restart", "no disk", stream="orders", ago_s=0.6)
    before = status_of(sample.repository)
    assert (before.state, before.restarts) == (RunState.FAILED, 1)
    assert [each.what for each in before.problems] == ["no disk"]
    sample.lease(2, ago_s=0.1, closed=False)
    after = status_of(sample.repository)
    assert (after.state, after.restarts) == (RunState.KILLED, 0)
    assert ["no disk" in each.what for each in after.problems] == [False]
