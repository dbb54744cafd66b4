"""How far a stream is behind: told where its sources tell, and never guessed."""

import json
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.spark.lag import behind_logs, behind_topics


def kafka(latest: object, description: str = "KafkaV2[Subscribe[orders]]") -> dict[str, object]:
    return {"sources": [{"description": description, "latestOffset": latest}]}


END = json.dumps({"orders": {"0": 10, "1": 20}})


@pytest.mark.parametrize("as_text", [False, True])
def test_kafka_is_counted_over_all_partitions(as_text: bool) -> None:
    latest = {"orders": {"0": 13, "1": 120}}
    assert behind_topics(kafka(json.dumps(latest) if as_text else latest), [END]) == 103


@pytest.mark.parametrize(
    ("progress", "ends"),
    [
        ({}, []),  # nothing has gone through yet
        (kafka({"orders": {"0": 13}}), []),
        (kafka({"orders": {"0": 13, "1": 20, "2": 7}}), [END]),  # a partition that is new
        (kafka(None), [END]),
        (kafka({"orders": {"0": 13}}, "FileStreamSource[file:/in]"), [END]),
        (kafka("12", "RateStreamV2[rowsPerSecond=1]"), ["10"]),
    ],
)
def test_what_does_not_tell_is_not_guessed(progress: dict[str, object], ends: list[str]) -> None:
    assert behind_topics(progress, ends) is None


def test_an_event_log_is_asked_for_its_tail(tmp_path: Path) -> None:
    log = hf.eventlog.EventLog.create(tmp_path / "log")
    assert behind_logs([log.path], []) == 0
    with hf.eventlog.LogWriter(log.path) as writer:
        writer.append([hf.eventlog.NewEvent(entity="e", payload=b"x") for _ in range(5)])
    assert behind_logs([log.path], []) == 5
    assert behind_logs([log.path], [json.dumps({"log": log.identity, "sequence": 3, "chain": "x"})]) == 2
