"""What an executor lacks is found by functions that need only the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.repository import ObjectRepository
from holdfast.spark import adapter, executor_probe, store_cluster
from holdfast.spark.executor_probe import probe_python


def problems(*packages: str, version: str = "1", reach: object = None) -> list[str]:
    return list(probe_python(packages, version, reach)([0]))  # type: ignore[arg-type]


def test_a_package_that_is_missing_is_named_with_its_host() -> None:
    import socket

    (found,) = problems("json", "no_such_package")
    assert found.startswith(f"{socket.gethostname()}: the Python package no_such_package cannot be imported")


def test_an_empty_folder_is_no_package(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "hollow").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = problems("hollow")
    assert "the Python package hollow is not installed" in found


def test_another_version_of_holdfast_is_reported() -> None:
    (found,) = problems("holdfast", version="0.0.9")
    assert "and 0.0.9 on the driver" in found


def test_a_store_that_cannot_be_used_is_reported_with_its_reason() -> None:
    def reach() -> None:
        raise OSError("no credentials\nwere found")

    (found,) = problems("json", reach=reach)
    assert "Python cannot use the object store: OSError: no credentials were found" in found


def test_the_store_is_not_tried_without_the_packages() -> None:
    assert len(problems("no_such_package", reach=lambda: 1 / 0)) == 1


def test_the_probe_needs_only_the_standard_library() -> None:
    """An executor may lack Holdfast: the code of the probe runs by itself, in a Python without any package."""
    code = Path(executor_probe.__file__).read_text() + "\nprint(list(probe_python(('holdfast',), '1', None)([0])))"
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert "the Python package holdfast cannot be imported" in answer.stdout


def test_python_must_reach_the_store_whatever_the_sinks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may only read an event log there, which no sink shows."""
    required: dict[str, object] = {}
    monkeypatch.setattr(adapter, "is_local", lambda _: False)
    monkeypatch.setattr(adapter, "settings_of_bucket", lambda *_: {})
    monkeypatch.setattr(store_cluster, "require_executors", lambda _, **given: required.update(given))
    store_cluster.require_cluster(None, ObjectRepository("s3://bucket/root"), [])  # type: ignore[arg-type]
    assert required["packages"] == ["obstore", "pyarrow"]
    assert required["reach"] is not None
