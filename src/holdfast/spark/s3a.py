"""Hadoop's connector for S3 (`s3a`), by which Spark reads and writes its checkpoint folders on a store.

Rules:
- Endpoint, region and addressing come from the same variables that Holdfast's own client reads. A setting of the
  session wins.
- Credentials are never copied into a setting: the connector reads the same variables, the same profile, or the role of
  the machine. For a profile and a web identity, the class that reads them is set: by default it would not be asked.
- Files are read by the connector's plain stream. The default since Hadoop 3.5 has a cache of up to 2 GB in the heap of
  Java, which is often smaller.
- Spark does not include the connector. Where it is missing, the error has the line to add.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.repository.aws_profile import ENDPOINTS, REGIONS, WEB_IDENTITY, aws_profile

FOLDER = "HOLDFAST_S3A_JARS"  # names a folder with the jars of the connector
CLASS = "org.apache.hadoop.fs.s3a.S3AFileSystem"
EXCLUDED = ("software.amazon.awssdk:bundle", "org.wildfly.openssl:wildfly-openssl")  # 680 MB that are not needed
_PARTS_OF_SDK = ("s3", "s3-transfer-manager", "sts")
_SDK = {"3.4.2": "2.29.52", "3.4.3": "2.35.4", "3.5.0": "2.35.4"}  # by the version of Hadoop: what it was built with
_NEWEST_SDK = "2.35.4"
_OF_SESSION = ("TemporaryAWSCredentialsProvider", "SimpleAWSCredentialsProvider")  # keys that the session itself sets
_OF_SDK = "software.amazon.awssdk.auth.credentials"
_VIRTUAL = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"


def jars_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder with the jars of the connector: `HOLDFAST_S3A_JARS`, or `s3a` in the Python environment."""
    folder = Path(environment.get(FOLDER) or Path(sys.prefix) / "s3a")
    return folder if any(folder.glob("hadoop-aws-*.jar")) else None


def packages(hadoop: str) -> str:
    """Return the packages of the connector for a version of Hadoop, as `spark.jars.packages` takes them."""
    sdk = _SDK.get(hadoop, _NEWEST_SDK)
    parts = [f"software.amazon.awssdk:{each}:{sdk}" for each in _PARTS_OF_SDK]
    return ",".join([f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts])


def submit_line(hadoop: str) -> str:
    """Return the arguments of `spark-submit` with which Spark downloads the connector."""
    return f"--packages {packages(hadoop)} --exclude-packages {','.join(EXCLUDED)}"


def s3a_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the connector that correspond to the AWS variables. They contain no credentials."""
    profile = aws_profile(environment)
    endpoint = _first(environment, ENDPOINTS) or profile.endpoint
    region = _first(environment, REGIONS) or profile.region
    found = {
        "fs.s3a.input.stream.type": "classic",
        "fs.s3a.path.style.access": str(environment.get(_VIRTUAL, "").lower() not in ("1", "true")).lower(),
    }
    if endpoint:
        found["fs.s3a.endpoint"] = endpoint
        found["fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if region or endpoint:
        found["fs.s3a.endpoint.region"] = region or "us-east-1"  # a server of one's own has none
    if profile.keys:
        found["fs.s3a.aws.credentials.provider"] = _providers("ProfileCredentialsProvider")
    elif environment.get(WEB_IDENTITY) and not environment.get("AWS_ACCESS_KEY_ID"):
        found["fs.s3a.aws.credentials.provider"] = _providers("WebIdentityTokenFileCredentialsProvider")
    return found


def _providers(sdk: str) -> str:
    return ",".join([*(f"org.apache.hadoop.fs.s3a.{each}" for each in _OF_SESSION), f"{_OF_SDK}.{sdk}"])


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)
