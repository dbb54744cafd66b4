"""The requests to an S3 bucket, by obstore: the only module that imports it, and that translates its errors.

Rules:
- Credentials, region and endpoint come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, …),
  from a profile (`aws_profile.py`), or from the role of the machine, never from the address.
- No text of an error is passed on as it is: the answer of a server may contain a key id. Only the code and the message
  of S3's own XML are, and the plain cause of a failed connection.
- A request that changes something is sent once (`Bucket.put`, `Bucket.create`, `Bucket.delete`): the caller decides
  whether it may be repeated. Reads are repeated by obstore.
- A client belongs to the process that made it. A process that was forked from one that has used obstore cannot use it:
  its requests would never return, not even those of a new client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast._extras import missing_extra
from holdfast._redaction import redacted_text
from holdfast.errors import (
    BadValue,
    BucketMissing,
    BucketUnsuitable,
    NotFound,
    NotSupported,
    StorageFailed,
    StoreDenied,
    StoreUnreachable,
    WrongRegion,
)
from holdfast.repository.aws_profile import ENDPOINTS, REGIONS, AwsProfile, aws_profile
from holdfast.repository.base import StoredObject
from holdfast.repository.s3address import S3Address

TOKEN = "holdfast-token"  # noqa: S105 - the name of the metadata field that tells two writers of one key apart
_XML = {name: re.compile(rf"<{name}>([^<]*)</{name}>") for name in ("Code", "Message", "Region")}
_REGION_CODES = {
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_DENIED_CODES = {
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_REFUSAL_CODES = {"PreconditionFailed", ""}  # of a conditional write; some servers send no text with 412
_UNAVAILABLE_CODES = {"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
_UNAVAILABLE = re.compile(r"\b50[0234] (?:Internal|Bad|Service|Gateway)")  # an answer without S3's own code
_UNREACHABLE = {  # a part of the text, in lower case, and what it means
    "dns error": "its host name is unknown",
    "connectionrefused": "the connection was refused",
    "connectionreset": "the connection was reset",
    "timedout": "it did not answer in time",
    "incompletemessage": "the connection ended before the answer",
    "error sending request": "the connection failed",
    "error decoding response body": "the connection ended before the end of the answer",
}
_ENDPOINT = re.compile(
    r"(https?)://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[A-Za-z0-9._/-]*)?", re.IGNORECASE
)
_ROLE_PATHS = ("/latest/api/token", "/latest/meta-data")  # where a machine on AWS finds the credentials of its role
_REDIRECTED = "Received redirect without LOCATION"
_LONGEST = 200  # characters of a text that is not S3's own
_SILENCE_S = 30  # a read fails if no byte arrives for so long
_WHOLE_READ = timedelta(hours=6)  # a large object takes its time
_CONNECT_S = 5
_RETRY_S = 60


@dataclass(frozen=True, slots=True)
class Fetched:
    """The content of an object, and the token of its writer."""

    data: bytes
    token: str | None


class Bucket:
    """The requests to one place in a bucket. Keys are relative to it. Safe to use from several threads."""

    def __init__(self, address: S3Address, *, patient: bool = True) -> None:
        """Open the place; nothing is requested. `patient`: reads are repeated for a minute if the store fails."""
        self.address = address
        self._library = _obstore()
        self._pid = _required_own_process()
        self._profile = _options_of(aws_profile())
        silence = timedelta(seconds=_SILENCE_S if patient else _SILENCE_S / 3)
        self._reads = self._client(10 if patient else 1, {"timeout": _WHOLE_READ, "read_timeout": silence})
        self._writes = self._client(0, {"timeout": 2 * silence})

    @property
    def is_ours(self) -> bool:
        """Whether this process made the client: in a forked child its requests would hang."""
        return self._pid == os.getpid()

    def get(self, key: str) -> Fetched:
        """Return an object, or raise `NotFound`."""
        try:
            found = self._library.get(self._reads, self._path(key))
            return Fetched(bytes(found.bytes()), found.attributes.get(TOKEN))
        except Exception as error:
            raise self._translated(error, "read", key) from None

    def stream(self, key: str, chunk: int) -> Iterator[bytes]:
        """Yield an object in pieces of at least `chunk` bytes, except for the last one, or raise `NotFound`."""
        try:
            yield from self._library.get(self._reads, self._path(key)).stream(chunk)
        except Exception as error:
            raise self._translated(error, "read", key) from None

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` to before `end`, or raise `NotFound`."""
        try:
            return bytes(self._library.get_range(self._reads, self._path(key), start=start, end=end))
        except Exception as error:
            raise self._translated(error, "read", key) from None

    def head(self, key: str) -> StoredObject | None:
        """Return the size, ETag and time of an object; `None` if there is none, or no bucket."""
        try:
            return self._stored(self._library.head(self._reads, self._path(key)))
        except Exception as error:
            translated = self._translated(error, "look up", key)
        if isinstance(translated, NotFound):
            return None
        raise translated

    def put(self, key: str, data: bytes, *, parts: bool = False) -> None:
        """Write an object with one request, or in parts.

        Any error but `BucketMissing`, `StoreDenied` and `WrongRegion` may have come after the object was written.
        """
        try:
            self._library.put(self._writes, self._path(key), data, use_multipart=parts)
        except FileNotFoundError:
            raise self._no_bucket("write", key) from None
        except Exception as error:
            raise self._translated(error, "write", key) from None

    def create(self, key: str, data: bytes, token: str) -> bool:
        """Write an object on condition that there is none; return False if the store refused it because there is one.

        After any error except `BucketMissing`, `BucketUnsuitable`, `StoreDenied` and `WrongRegion`, the object may have
        been written. The same is true of a refusal, if the request repeats an earlier one with the same token.
        """
        try:
            self._library.put(self._writes, self._path(key), data, mode="create", attributes={TOKEN: token})
        except FileNotFoundError:
            raise self._no_bucket("write", key) from None
        except Exception as error:
            code = _element(str(error), "Code")
            if type(error).__name__ == "AlreadyExistsError" and code in _REFUSAL_CODES:
                return False  # obstore has the same error for 409, which only means that the request may be repeated
            if code == "NotImplemented":
                why = "it does not support conditional writes (If-None-Match)"
                raise BucketUnsuitable(where=str(self.address), why=why) from None
            raise self._translated(error, "write", key) from None
        return True

    def put_file(self, key: str, path: Path, *, parts: bool) -> None:
        """Write an object from a local file. The same errors as for `put` may come after it was written."""
        try:
            data = path if parts else path.read_bytes()
            self._library.put(self._writes, self._path(key), data, use_multipart=parts)
        except Exception as error:
            raise self._translated(error, "write", key) from None

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the server's side, or raise `NotFound`."""
        try:
            self._library.copy(self._writes, self._path(source), self._path(target))
        except Exception as error:
            raise self._translated(error, "copy", source) from None

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error. One request per thousand."""
        try:
            self._library.delete(self._writes, [self._path(key) for key in keys])
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._translated(error, "delete", keys[0]) from None

    def flat(self, folder: str) -> list[StoredObject]:
        """List all objects below a folder, in no order. One request per thousand."""
        prefix = self._path(folder) if folder else self.address.prefix
        try:
            found = self._library.list(self._reads, prefix or None).collect()
        except Exception as error:
            raise self._of_list(error, folder) from None
        return [self._stored(each) for each in found]

    def page(self, folder: str, after: str | None, most: int) -> list[StoredObject]:
        """List the first objects below a folder, in the order of their names, from after a key on."""
        after = self._path(after) if after is not None else None
        try:
            stream = self._library.list(self._reads, self._path(folder), offset=after, chunk_size=most)
            found = next(iter(stream), ())
        except Exception as error:
            raise self._of_list(error, folder) from None
        return [self._stored(each) for each in found]

    def level(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        """List the objects directly inside a folder, and the names of the folders in it."""
        prefix = self._path(folder) if folder else self.address.prefix
        try:
            found = self._library.list_with_delimiter(self._reads, prefix or None)
        except Exception as error:
            raise self._of_list(error, folder) from None
        names = [each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]
        return [self._stored(each) for each in found["objects"]], names

    def _client(self, retries: int, timeouts: dict[str, timedelta]) -> Any:
        options: dict[str, Any] = {
            **timeouts,
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "allow_http": _allows_http(),  # options that are given replace those of the environment
        }
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=_RETRY_S)}
        try:
            return self._library.store.S3Store(
                self.address.bucket, client_options=options, retry_config=retry, **self._profile
            )
        except Exception as error:
            raise self._translated(error, "open", str(self.address)) from None

    def _path(self, key: str) -> str:
        return f"{self.address.prefix}/{key}" if self.address.prefix else key

    def _stored(self, meta: Any) -> StoredObject:
        key = meta["path"]
        if self.address.prefix:
            key = key.removeprefix(f"{self.address.prefix}/")
        return StoredObject(key, meta["size"], (meta["e_tag"] or "").strip('"'), meta["last_modified"].timestamp())

    def _of_list(self, error: Exception, folder: str) -> Exception:
        found = self._translated(error, "list", folder or str(self.address))
        if isinstance(found, NotFound):  # a listing of nothing is no error, so what is missing is the bucket
            return self._no_bucket("list", folder)
        return found

    def _no_bucket(self, action: str, key: str) -> BucketMissing:
        return BucketMissing(action=action, key=key, why=f"there is no bucket {self.address.bucket!r}")

    def _translated(self, error: Exception, action: str, key: str) -> Exception:
        text = str(error)
        code, message, region = (_element(text, name) for name in _XML)
        if code == "NoSuchBucket":
            return self._no_bucket(action, key)
        if isinstance(error, FileNotFoundError):
            return NotFound(key=key, where=str(self.address))
        kind, why = _kind(error, text, code, region)
        return kind(
            action=action, key=key, why=why or redacted_text(f"{code}: {message}" if code else "") or _plain(text)
        )


def _element(text: str, name: str) -> str:
    return found[1] if (found := _XML[name].search(text)) else ""


def _kind(error: Exception, text: str, code: str, region: str) -> tuple[type[StorageFailed], str]:
    """Return the kind of a failure, and its reason if S3's own message does not state it."""
    if code in _REGION_CODES or region or _REDIRECTED in text:
        return WrongRegion, f"{code}, use {region}" if region else "the request was redirected"
    if code in _DENIED_CODES or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return StoreDenied, "" if code else "the credentials do not permit it"
    if any(part in text for part in _ROLE_PATHS):
        why = "no credentials were found: not in the environment, in ~/.aws, or from the role of this machine"
        return StoreDenied, why
    if code in _UNAVAILABLE_CODES or (not code and _UNAVAILABLE.search(text)):
        return StoreUnreachable, ""
    lowered = text.lower()
    if not code and (cause := next((why for part, why in _UNREACHABLE.items() if part in lowered), None)):
        return StoreUnreachable, cause
    return StorageFailed, ""


def _plain(text: str) -> str:
    """Return the beginning of a text that is not S3's own, without markup, addresses and secrets."""
    first = re.sub(r"<[^>]*>|\s+", " ", redacted_text(text)).split("Debug source:")[0].strip()
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


def _allows_http() -> bool:
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")


def _options_of(profile: AwsProfile) -> dict[str, str]:
    """Return the options of a client that come from a profile; the environment wins.

    Refuse an endpoint that is malformed, contains credentials, or would be used without encryption by mistake.
    """
    found = dict(profile.keys)
    if profile.region and not any(os.environ.get(name) for name in REGIONS):
        found["region"] = profile.region
    given = {name: value for name in ENDPOINTS if (value := os.environ.get(name))}
    if profile.endpoint and not given:
        given = {"endpoint_url in the profile": profile.endpoint}
        found["endpoint"] = profile.endpoint
    for name, value in given.items():
        match = _ENDPOINT.fullmatch(value)
        if match is None:
            expected = "https://host or https://host:port, without credentials"
            raise BadValue(what=name, value="(not shown)", expected=expected, do=f"correct {name}")
        if match[1].lower() == "http" and not _allows_http():
            do = "use an https:// endpoint, or set AWS_ALLOW_HTTP=true"
            raise BadValue(what=name, value=value, why="requests would not be encrypted", do=do)
    return found


_used_by: int | None = None  # the process that has used obstore first


def _required_own_process() -> int:
    """Return the id of this process; raise `NotSupported` if it was forked from one that has used obstore."""
    global _used_by  # noqa: PLW0603 - obstore has one runtime per process, which a fork breaks
    if _used_by not in (None, os.getpid()):
        raise NotSupported(
            what="S3 in a forked process",
            why="the process that it was forked from has used S3 before, so its requests would never return",
            do="start it by multiprocessing.get_context('spawn'), or fork before the first use",
        )
    _used_by = os.getpid()
    return _used_by


def _obstore() -> ModuleType:
    try:
        import obstore  # noqa: PLC0415 - optional
        import obstore.store  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    return obstore
