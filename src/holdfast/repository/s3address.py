"""Addresses on S3, and the object stores that are refused. An address never contains credentials or options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast._redaction import redacted_text
from holdfast._validation import checked_key
from holdfast.errors import BadName, BadValue, NotSupported

SCHEME = "s3://"
OTHER_SCHEMES = {  # why each is refused
    "s3a": "it is Hadoop's name for S3; write s3://",
    "s3n": "it is an old name for S3; write s3://",
    "gs": "Google Cloud Storage is not tested yet",
    "az": "Azure shows an empty file before its bytes are written",
    "abfs": "Azure shows an empty file before its bytes are written",
    "abfss": "Azure shows an empty file before its bytes are written",
    "wasb": "Azure shows an empty file before its bytes are written",
    "wasbs": "Azure shows an empty file before its bytes are written",
    "hdfs": "repositories on HDFS are not tested yet",
}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class S3Address:
    """A place in a bucket, from `s3://bucket/prefix`."""

    bucket: str
    prefix: str  # without slashes at its ends; may be empty

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".removesuffix("/")


def parsed(url: object, what: str = "repository address") -> S3Address:
    """Return the bucket and the prefix of an address, or raise `BadValue`. It must not contain credentials."""
    text = os.fsdecode(url) if isinstance(url, str | bytes | os.PathLike) else ""
    shown = redacted_text(text) or url
    expected = "s3://bucket/prefix"
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise BadValue(what=what, value=shown, expected=expected, why=str(error)) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        why = "an address must not contain credentials or options"
        do = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL in the environment"
        value = f"{parts.scheme}://..."  # a password may contain any of the characters that end it
        raise BadValue(what=what, value=value, expected=expected, why=why, do=do)
    if parts.scheme != "s3" or not _BUCKET.match(parts.netloc) or ".." in parts.netloc:
        raise BadValue(what=what, value=shown, expected=expected)
    prefix = parts.path.strip("/")
    try:
        return S3Address(parts.netloc, checked_key(prefix) if prefix else "")
    except BadName as error:
        raise BadValue(what=what, value=shown, expected=expected, why=error.why) from None


def refuse_other_schemes(address: str) -> None:
    """Raise `NotSupported` for an object store that cannot hold a repository yet, by its scheme."""
    scheme = address.partition("://")[0].lower()
    if "://" in address and (why := OTHER_SCHEMES.get(scheme)):
        do = f"s3://{address.partition('://')[2]}" if scheme in ("s3a", "s3n") and "@" not in address else None
        raise NotSupported(
            what=f"a repository at {scheme}://", why=why, do=f"write {do}" if do else "use s3://, or a local folder"
        )
