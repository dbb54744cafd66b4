"""The jars that a cluster gets: in `spark.jars` of a session that Holdfast creates, or on the command line."""

import shlex
from pathlib import Path

import pytest

from holdfast.spark import s3a
from holdfast.spark.localfiles import JAR
from holdfast.spark.shipping import installed_hadoop, submit_arguments, with_own_jars


@pytest.fixture
def connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = ["hadoop-aws-3.5.0.jar", "s3-2.35.4.jar"]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setenv(s3a.FOLDER, str(tmp_path))
    return [str(tmp_path / name) for name in names]


def test_the_users_jars_are_kept_and_no_jar_is_named_twice(connector: list[str]) -> None:
    assert with_own_jars(None).split(",") == [str(JAR), *connector]
    assert with_own_jars(f"mine.jar,{JAR}").split(",") == ["mine.jar", str(JAR), *connector]


def test_without_a_connector_only_the_jar_of_holdfast_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(s3a.FOLDER, str(tmp_path))
    assert with_own_jars("") == str(JAR)


def test_the_arguments_name_the_jar_and_the_packages_of_the_installed_hadoop() -> None:
    words = shlex.split(submit_arguments(installed_hadoop()))
    assert words[::2] == ["--jars", "--packages", "--exclude-packages"]
    assert Path(words[1]).is_file()
    assert f"org.apache.hadoop:hadoop-aws:{installed_hadoop()}" in words[3].split(",")
    assert words[5].split(",") == list(s3a.EXCLUDED)
