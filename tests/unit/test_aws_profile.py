"""Profiles in the files of AWS: which one is read, what wins over it, and that no secret leaves it."""

import os
from pathlib import Path

import pytest

from holdfast.errors import BadValue
from holdfast.repository.aws_profile import AwsProfile, aws_profile
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.spark.s3a import s3a_settings

CREDENTIALS = """
[default]
aws_access_key_id = id-default
aws_secret_access_key = secret%default

[work]
aws_access_key_id=id-work
aws_secret_access_key=secret-work
aws_session_token=token-work
region=us-west-1
"""
CONFIG = """
[default]
region = eu-west-1
s3 =
    max_concurrent_requests = 20

[profile work]
region = eu-central-1
endpoint_url = https://minio.example
aws_access_key_id = never, the other file wins

[profile role]
role_arn = arn:aws:iam::1:role/x

[work-without-prefix]
region = nowhere
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "credentials").write_text(CREDENTIALS)
    (tmp_path / "config").write_text(CONFIG)
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }


def test_the_default_profile_is_read(files: dict[str, str]) -> None:
    keys = {"access_key_id": "id-default", "secret_access_key": "secret%default"}
    assert aws_profile(files) == AwsProfile(keys, "eu-west-1", None)


def test_the_profile_that_is_named_is_read_from_both_files(files: dict[str, str]) -> None:
    keys = {"access_key_id": "id-work", "secret_access_key": "secret-work", "session_token": "token-work"}
    found = aws_profile({**files, "AWS_PROFILE": "work"})
    assert found == AwsProfile(keys, "us-west-1", "https://minio.example")
    assert "secret" not in repr(found) and "token" not in repr(found)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_the_environment_wins(files: dict[str, str], name: str) -> None:
    for profile in ("work", "role", "missing"):
        assert aws_profile({**files, "AWS_PROFILE": profile, name: "given"}).keys == {}


def test_without_files_there_is_no_profile(tmp_path: Path) -> None:
    nowhere = {"AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/a", "AWS_CONFIG_FILE": f"{tmp_path}/b/c"}
    assert aws_profile(nowhere) == AwsProfile()


@pytest.mark.parametrize(
    ("name", "why"), [("role", "no access keys"), ("missing", "no such"), ("work-without-prefix", "no such")]
)
def test_a_profile_that_cannot_be_used_is_refused_by_name(files: dict[str, str], name: str, why: str) -> None:
    with pytest.raises(BadValue, match=f"{name}.*{why}.*export-credentials"):
        aws_profile({**files, "AWS_PROFILE": name})


def test_a_file_that_cannot_be_read_is_named_without_its_text(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("aws_secret_access_key = the-secret\n")
    with pytest.raises(BadValue, match=r"AWS_SHARED_CREDENTIALS_FILE.*MissingSectionHeaderError") as caught:
        aws_profile(files)
    assert "the-secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_spark_is_told_to_read_the_same_profile(files: dict[str, str]) -> None:
    found = s3a_settings({**files, "AWS_PROFILE": "work"})
    assert found["fs.s3a.aws.credentials.provider"].endswith(
        ",software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"
    )
    assert found["fs.s3a.endpoint"] == "https://minio.example"
    assert found["fs.s3a.endpoint.region"] == "us-west-1"
    assert "work" not in str(found) and "secret" not in str(found)
    assert "fs.s3a.aws.credentials.provider" not in s3a_settings({**files, "AWS_ACCESS_KEY_ID": "given"})


def test_spark_is_told_to_use_a_web_identity(files: dict[str, str]) -> None:
    found = s3a_settings({**files, "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/token"})["fs.s3a.aws.credentials.provider"]
    assert found.endswith(".WebIdentityTokenFileCredentialsProvider")


def test_delta_tables_use_the_profile_too(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {**files, "AWS_PROFILE": "work"}.items():
        monkeypatch.setenv(name, value)
    options = DeltaSink("s3://bucket/table")._log._options()
    assert options == {
        "AWS_ACCESS_KEY_ID": "id-work",
        "AWS_SECRET_ACCESS_KEY": "secret-work",
        "AWS_SESSION_TOKEN": "token-work",
        "AWS_ENDPOINT_URL": "https://minio.example",
        "AWS_REGION": "us-west-1",
        "aws_conditional_put": "etag",
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id-here")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    options = DeltaSink("s3://bucket/table")._log._options() or {}
    assert (options["AWS_ACCESS_KEY_ID"], options["AWS_REGION"]) == ("id-here", "eu-north-1")
    assert "AWS_SECRET_ACCESS_KEY" not in options
