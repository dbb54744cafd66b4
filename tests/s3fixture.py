"""A real S3 server for tests: s3proxy on loopback, one per process that runs tests. tools/s3proxy.py fetches it.

How to use it:

    def test_something(s3: S3Place) -> None:
        repository = ObjectRepository(s3.url("orders"))      # a bucket of its own, empty
        (s3.folder / "orders/heads").iterdir()               # objects are plain files: look at them, or damage them
        subprocess.run(…, env={**os.environ, **s3.environment})   # os.environ already has it, so child processes too

    def test_faults(s3_faults: FaultProxy) -> None: …        # the same server behind a proxy that fails on request

Both set `AWS_ENDPOINT_URL`, the credentials, the region and `AWS_ALLOW_HTTP` for the time of the test. A test that uses
one of them is marked `jvm` and `s3` by conftest.py; parametrize with `S3_PARAMS` where only some cases need the server.

`server()` is the server itself: `server().kill()` and `server().start()` for outages; its data survives them. Where the
jar is missing, these tests are skipped with the reason. With HOLDFAST_REQUIRE_S3=1 they fail, and so do those that miss
Spark's connector for S3, or machines for a cluster (`unavailable`).

Not like S3: If-Match is not reliable (Holdfast does not use it), there is one region, and all requests of one key pair
are permitted.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import hmac
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import pytest

from faultproxy import Fault, FaultProxy

JAR = Path(os.environ.get("HOLDFAST_S3PROXY", Path(sys.prefix) / "s3proxy.jar"))
KEY_ID, SECRET, REGION = "holdfast-tests", "secret-of-the-tests", "us-east-1"
FIXTURES = {"s3", "s3_faults"}
S3_PARAMS = [
    pytest.param("s3", marks=[pytest.mark.jvm, pytest.mark.s3]),
    pytest.param("s3-faults", marks=[pytest.mark.jvm, pytest.mark.s3]),
]
_START_S = 60
_NUMBERS = itertools.count(1)


class S3Server:
    """One server process. Its buckets are folders, its objects plain files."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hfs3", dir=_place_with_metadata()))
        self.buckets = self.folder / "buckets"
        self.buckets.mkdir()
        self.port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._remove)
        self.start()

    def start(self) -> None:
        """Start the server, at the same address and with the same data, unless it is running."""
        if self._process is not None and self._process.poll() is None:
            return
        settings = self.folder / "s3proxy.conf"
        settings.write_text(
            f"s3proxy.endpoint={self.endpoint}\n"
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={KEY_ID}\n"
            f"s3proxy.credential={SECRET}\n"
            "jclouds.provider=filesystem-nio2\n"
            f"jclouds.filesystem.basedir={self.buckets}\n"
        )
        java = [Path(os.environ["JAVA_HOME"]) / "bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*java, "-DLOG_LEVEL=warn", "-jar", JAR, "--properties", settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc
            )
        self._wait()

    def kill(self) -> None:
        """End the server at once, as an outage does. What it has confirmed is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def bucket(self) -> str:
        """Make an empty bucket and return its name."""
        name = f"bucket-{os.getpid()}-{next(_NUMBERS)}"
        (self.buckets / name).mkdir()
        return name

    def _wait(self) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(self.endpoint, timeout=5)  # noqa: S310
            except urllib.error.HTTPError:
                return  # it answers: the request was not signed
            except OSError:
                if self._process is None or self._process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"s3proxy did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class S3Place:
    """A bucket for one test."""

    server: S3Server
    bucket: str
    endpoint: str

    def url(self, prefix: str = "root") -> str:
        """Return the address of a place in the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    @property
    def folder(self) -> Path:
        """The folder of the bucket: objects are files in it."""
        return self.server.buckets / self.bucket

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name the server and its credentials."""
        return environment(self.endpoint)


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables for an endpoint in front of the server of the tests."""
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


@cache
def server() -> S3Server:
    """Return the server of this process, or skip the test."""
    if not JAR.is_file():
        note = JAR.with_suffix(".missing")
        why = note.read_text() if note.is_file() else f"{JAR} is missing; make test fetches it"
        unavailable(f"no S3 server: {why}")
    return S3Server()


def unavailable(why: str) -> NoReturn:
    """Skip a test of object stores or clusters that cannot run here; with HOLDFAST_REQUIRE_S3=1, fail it."""
    if os.environ.get("HOLDFAST_REQUIRE_S3"):
        pytest.fail(why)
    pytest.skip(why)


@contextlib.contextmanager
def using(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables, and no other ones of AWS."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def s3() -> Iterator[S3Place]:
    """A bucket of its own on the server of this process."""
    found = server()
    found.start()  # a test may have left it stopped
    place = S3Place(found, found.bucket(), found.endpoint)
    with using(place.environment):
        yield place
    shutil.rmtree(place.folder, ignore_errors=True)


@pytest.fixture
def s3_faults(s3: S3Place) -> Iterator[FaultProxy]:
    """A proxy in front of the server: all requests of the test go through it. `s3` is the bucket behind it."""
    with FaultProxy(s3.endpoint) as proxy, using(environment(proxy.endpoint)):
        yield proxy


def as_profile(place: S3Place, folder: Path) -> dict[str, str]:
    """Return the variables for a bucket whose credentials, region and endpoint are in a profile."""
    keys = f"aws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\n"
    (folder / "credentials").write_text(f"[tests]\n{keys}")
    (folder / "config").write_text(f"[profile tests]\nregion={REGION}\nendpoint_url={place.endpoint}\n")
    files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    named = {name: str(folder / file) for name, file in files.items()}
    return {**named, "AWS_PROFILE": "tests", "AWS_ALLOW_HTTP": "true"}


def signed(place: S3Place, method: str, key: str, body: bytes = b"") -> int:
    """Send a signed request, for a key that obstore would change: one that ends with a slash. Return the status."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    host, path = place.endpoint.removeprefix("http://"), quote(f"/{place.bucket}/{key}")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
    names = ";".join(headers)
    lines = [method, path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, digest]
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
    secret = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    authorization = f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders={names}, Signature={signature}"
    request = urllib.request.Request(  # noqa: S310
        f"{place.endpoint}{path}", body, {**headers, "authorization": authorization}, method=method
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return int(answer.status)


def with_faults(proxy: FaultProxy, chance: float = 0.02) -> FaultProxy:
    """Let each kind of fault happen at random: with the default, about one request in seven fails."""
    for fault in Fault:
        only = "CREATE" if fault in (Fault.ANSWER_409, Fault.APPLIED_409) else None
        proxy.fail(fault, only, chance=chance)
    proxy.hang_s = 0.2
    return proxy


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _place_with_metadata() -> str:
    """Return a folder whose file system stores attributes: the server keeps the metadata of objects in them."""
    for folder in (tempfile.gettempdir(), "/var/tmp", sys.prefix):  # noqa: S108
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder) as trial:
            os.setxattr(trial.name, "user.holdfast", b"1")
            return folder
    unavailable("no S3 server: no folder for its data supports extended attributes")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
