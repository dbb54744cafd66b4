"""The settings of Hadoop's connector for S3, and the packages that contain it."""

from pathlib import Path

import pytest

from holdfast.spark.s3a import FOLDER, jars_folder, packages, s3a_settings, submit_line


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile of the user who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_credentials_are_never_copied_into_a_setting() -> None:
    secret = {"AWS_ACCESS_KEY_ID": "the-id", "AWS_SECRET_ACCESS_KEY": "the-secret", "AWS_SESSION_TOKEN": "the-token"}
    found = s3a_settings({**secret, "AWS_REGION": "eu-central-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert found == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.input.stream.type": "classic",
        "fs.s3a.path.style.access": "true",
    }


@pytest.mark.parametrize(
    ("environment", "name", "value"),
    [
        ({}, "fs.s3a.endpoint.region", None),
        ({"AWS_DEFAULT_REGION": "us-west-2"}, "fs.s3a.endpoint.region", "us-west-2"),
        ({"AWS_ENDPOINT_URL": "https://minio"}, "fs.s3a.endpoint.region", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "https://minio"}, "fs.s3a.connection.ssl.enabled", "true"),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "fs.s3a.endpoint", "http://b"),
        ({"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, "fs.s3a.path.style.access", "false"),
    ],
)
def test_settings_follow_the_variables(environment: dict[str, str], name: str, value: str | None) -> None:
    assert s3a_settings(environment).get(name) == value


def test_the_packages_fit_the_version_of_hadoop() -> None:
    assert packages("3.4.2").startswith("org.apache.hadoop:hadoop-aws:3.4.2,software.amazon.awssdk:s3:2.29.52,")
    assert packages("3.5.0").count("2.35.4") == 3
    assert submit_line("3.5.0").startswith("--packages org.apache.hadoop:hadoop-aws:3.5.0,")
    assert "--exclude-packages software.amazon.awssdk:bundle," in submit_line("3.5.0")


def test_jars_are_taken_from_the_folder_that_is_named(tmp_path: Path) -> None:
    assert jars_folder({FOLDER: str(tmp_path)}) is None
    (tmp_path / "hadoop-aws-3.5.0.jar").touch()
    assert jars_folder({FOLDER: str(tmp_path)}) == tmp_path
