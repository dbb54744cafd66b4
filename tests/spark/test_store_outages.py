"""An outage of the object store under a running stream: it waits, whatever fails, and no restart is used."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from faultproxy import Fault, FaultProxy
from holdfast.policy import Backoff
from holdfast.repository import _s3, objectstore
from s3fixture import S3Place, environment
from s3spark import StoreRig, connect, executors
from storekinds import MAKE
from support import eventually

QUICK = Backoff(first=0.1, longest=0.2)
FAULTS = [Fault.DROP_BEFORE, Fault.ANSWER_503]
PLACES = {  # what fails: by the kind of pipeline, the requests, and the part that is blamed
    "an entry of a log": ("stateless", r"/spark/offsets/", "repository"),
    "a commit of Spark": ("stateless", r"/spark/commits/", "repository"),
    "state, in a task": ("stateful", r"/spark/state/", "repository"),
    "a decision": ("stateless", r"/epochs/", "repository"),
    "the heads": ("stateless", r"heads%2F", "repository"),
    "segments of a log, in a task": ("stateless log", r"/log/segments/", "sink"),
    "the record of a log": ("stateless log", r"/log/index/", "sink"),
    "everything": ("stateful log", r"", "repository sink"),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holdfast repeats its requests for a second, not for a minute."""
    monkeypatch.setattr(objectstore, "_GIVE_UP_S", 1.0)
    monkeypatch.setattr(_s3, "_RETRY_S", 1)


@pytest.fixture
def make(
    spark: SparkSession, s3: S3Place, s3_faults: FaultProxy, tmp_path: Path
) -> Iterator[Callable[[str], StoreRig]]:
    def made(kind: str) -> StoreRig:
        rig = MAKE[kind](spark, s3, tmp_path)
        connect(spark, s3, s3_faults.endpoint)
        return rig

    with executors(spark, environment(s3_faults.endpoint)):
        yield made


def rows(rig: StoreRig) -> list[Any]:
    return rig.targets[0].visible(rig.spark, "k total rows" if rig.output_mode == "update" else "n")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("what", PLACES)
def test_an_outage_of_the_store_is_waited_for(
    what: str, fault: Fault, make: Callable[[str], StoreRig], s3_faults: FaultProxy
) -> None:
    kind, requests, blamed = PLACES[what]
    rig = make(kind)
    rig.add(0, 1, 2)
    handle = rig.pipeline(outage="1h", backoff=QUICK).start(rig.spark, checkpoint_every=None)
    try:
        eventually(lambda: handle.status().streams["rows"].epoch == 1)
        s3_faults.fail(fault, key=requests, times=None)
        rig.add(3, 4, 5)
        eventually(lambda: handle.status().streams["rows"].outage is not None, 90)
        outage = handle.status().streams["rows"].outage
        s3_faults.clear()
        eventually(lambda: handle.status().streams["rows"].epoch == 2, 90)
        rig.add(6, 7, 8)
        eventually(lambda: handle.status().streams["rows"].epoch == 3, 90)
        status = handle.status().streams["rows"]
        assert (status.restarts, status.outage) == (0, None)
        assert outage is not None and outage.kind in blamed, outage
    finally:
        s3_faults.clear()
        handle.stop()
        handle.await_termination(120)
    versions = [(k, sum(range(k, 3 * n, 3)), n) for k in range(3) for n in (1, 2, 3)]
    assert rows(rig) == {"stateful": versions[2::3], "stateful log": versions}.get(kind, list(range(9)))
