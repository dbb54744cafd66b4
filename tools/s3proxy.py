"""Fetch s3proxy, a small S3 server in Java for the tests, into the environment folder: one file, pinned by its digest.

Usage: python -m tools.s3proxy TARGET

Without a network the tests that need it are skipped. So this reports the reason and ends with exit code 0; the reason
is also written beside the target, where the tests read it. A file with another digest is an error.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

VERSION = "4.1.0"
SHA256 = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
NAME = f"s3proxy-{VERSION}-jar-with-dependencies.jar"
REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2")
_TIMEOUT_S = 60
_TRIES = 3


def why_missing(target: Path) -> Path:
    """Return the file that states why the target could not be fetched."""
    return target.with_suffix(".missing")


def is_whole(target: Path) -> bool:
    """Whether the file exists and has the pinned digest."""
    return target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SHA256


def fetch(target: Path) -> str | None:
    """Fetch the file; return why it could not be, or `None`."""
    address = f"{REPOSITORY}/org/gaul/s3proxy/{VERSION}/{NAME}"
    if not address.startswith("https://"):
        return f"{address} is not an https address"
    why = ""
    for _ in range(_TRIES):
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - https, as checked above
                data = answer.read()
            break
        except (OSError, HTTPException) as error:
            why = f"{address} could not be fetched: {error}"
    else:
        return why
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"set-up: {address} does not have the pinned digest {SHA256}")
    partial = target.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(target)
    return None


def main() -> None:
    """Fetch the file unless it is there."""
    target = Path(sys.argv[1])
    if is_whole(target):
        target.touch()  # newer than what `make` compares it with
        return
    print(f"set-up: fetching s3proxy {VERSION} for the tests on S3 (55 MB)", file=sys.stderr)
    why = fetch(target)
    if why is None:
        why_missing(target).unlink(missing_ok=True)
        return
    why_missing(target).write_text(why)
    print(f"set-up: the tests on S3 will be skipped: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
