"""The delay between two looks for input, in queries that run."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.spark.adapter import POLLING_DELAY
from rig import polling_delays_ms


def pipeline_of(streams: int, folder: Path) -> hf.Pipeline:
    made = hf.Pipeline("idle", root=folder / "root")
    (folder / "in").mkdir(exist_ok=True)

    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").json(str(folder / "in"))

    for number in range(streams):
        made.stream(read, name=f"s{number}", sinks=[hf.FileSink(folder / f"out{number}")])
    return made


@pytest.mark.parametrize(("streams", "ms"), [(1, 10), (3, 30)])
def test_the_delay_grows_with_the_number_of_streams(streams: int, ms: int, spark: SparkSession, tmp_path: Path) -> None:
    with pipeline_of(streams, tmp_path).start(spark, checkpoint_every=None) as handle:
        assert polling_delays_ms(handle) == {ms}
    assert spark.conf.get(POLLING_DELAY, None) is None
    for record in tmp_path.rglob("stream.json"):
        assert "pollingDelay" not in record.read_text()  # otherwise the first run would fix it for all later ones


def test_a_setting_of_the_session_wins_over_the_choice_and_an_option_over_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set(POLLING_DELAY, "77ms")
    try:
        with pipeline_of(2, tmp_path).start(spark, checkpoint_every=None) as handle:
            assert polling_delays_ms(handle) == {77}
        with pipeline_of(2, tmp_path).start(spark, checkpoint_every=None, poll_every="55ms") as handle:
            assert polling_delays_ms(handle) == {55}
        assert spark.conf.get(POLLING_DELAY) == "77ms"
    finally:
        spark.conf.unset(POLLING_DELAY)
