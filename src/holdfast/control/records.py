"""The files of the control channel: requests of other processes to a driver, claims and answers.

requests/<lease>/open.json              the driver listens; which kinds of requests it carries out
requests/<lease>/<32 hex>.json          a request to the driver that holds this lease
requests/<lease>/<32 hex>.claim.json    closes it once: taken, withdrawn or expired
requests/<lease>/<32 hex>.done.json     the answer
requests/<lease>/closed.json            the driver has ended and no longer answers
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.control.protocol import RequestState
from holdfast.errors import HoldfastError, NotFound, RecordCorrupt, UnsupportedVersion, describe_error
from holdfast.formats.sealed_json import Record
from holdfast.repository import Repository

FOLDER = "requests"
REQUEST_NAME = re.compile(r"([0-9a-f]{32})\.json")
OPEN, CLOSED = "open.json", "closed.json"
MAX_WHY = 1000  # characters of a reason
VERDICTS = (RequestState.TAKEN, RequestState.WITHDRAWN, RequestState.EXPIRED)


class RequestKind(StrEnum):
    """What a request asks for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    CANCEL = "cancel"
    PRUNE = "prune"


class ControlRequest(Record, frozen=True, kw_only=True):
    """A request. Its times are those of the asker's clock."""

    id: str
    kind: str  # one of `RequestKind`; a later version may write others
    lease: int  # of the driver that it is addressed to
    who: str  # user and host of the asker
    pid: int
    asked_at_ms: int
    until_ms: int  # it is not carried out after that
    why: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def asker(self) -> str:
        """The asker, for display; the text comes from another process, so control characters are removed."""
        return _printable(f"{self.who} (process {self.pid})")

    @property
    def reason(self) -> str:
        """The reason, for display."""
        return _printable(self.why)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


class RequestClaim(Record, frozen=True, kw_only=True):
    """The record that closes a request: only the first one is kept."""

    verdict: RequestState  # taken, withdrawn or expired
    who: str  # which process closed it, for display
    token: str  # distinguishes two processes with the same name
    at_ms: int


class ControlAnswer(Record, frozen=True, kw_only=True):
    """The answer to a request: a result, or the reason why it failed."""

    at_ms: int
    result: dict[str, Any] | None = None
    failed: str | None = None
    error: str | None = None  # the class of the error
    do: str | None = None  # the next step

    @classmethod
    def of_error(cls, at_ms: int, error: BaseException) -> ControlAnswer:
        """Return the answer that reports an error."""
        do = error.next_step.format(e=error) if isinstance(error, HoldfastError) else None
        return cls(at_ms=at_ms, failed=describe_error(error), error=type(error).__name__, do=do)


class ChannelRecord(Record, frozen=True, kw_only=True):
    """The content of `open.json` and `closed.json`."""

    lease: int
    at_ms: int
    kinds: list[str] = msgspec.field(default_factory=list)


def channel_folder(lease: int) -> str:
    """Return the folder of the requests to one driver."""
    return f"{FOLDER}/{lease:08}"


def request_key(lease: int, name: str) -> str:
    """Return the key of a request."""
    return f"{channel_folder(lease)}/{name}.json"


def claim_key(lease: int, name: str) -> str:
    """Return the key of a claim."""
    return f"{channel_folder(lease)}/{name}.claim.json"


def answer_key(lease: int, name: str) -> str:
    """Return the key of an answer."""
    return f"{channel_folder(lease)}/{name}.done.json"


def read_request(repository: Repository, lease: int, name: str) -> ControlRequest:
    """Read and check a request."""
    key = request_key(lease, name)
    found = ControlRequest.unsealed(repository.read(key), key)
    if (found.id, found.lease) != (name, lease):
        raise RecordCorrupt(key=key, why=f"it contains request {found.id!r} to lease {found.lease}")
    return found


def read_state(repository: Repository, lease: int, name: str) -> tuple[RequestState, ControlAnswer | None]:
    """Return the state of a request, and its answer if there is one."""
    answer = _read_answer(repository, lease, name)
    if answer is not None:
        return RequestState.ANSWERED, answer
    return _read_verdict(repository, lease, name) or RequestState.PENDING, None


def _read_answer(repository: Repository, lease: int, name: str) -> ControlAnswer | None:
    key = answer_key(lease, name)
    try:
        return ControlAnswer.unsealed(repository.read(key), key)
    except NotFound:
        return None


def _read_verdict(repository: Repository, lease: int, name: str) -> RequestState | None:
    key = claim_key(lease, name)
    try:
        verdict = RequestClaim.unsealed(repository.read(key), key).verdict
    except NotFound:
        return None
    if verdict not in VERDICTS:
        raise RecordCorrupt(key=key, why=f"its verdict is {verdict}")
    return verdict


def read_channel(repository: Repository, lease: int) -> ChannelRecord | None:
    """Return the record of an open channel, or `None` if the driver does not listen (yet, or any longer).

    A record that cannot be read, for example of a later version, lists no kinds: the driver decides what it supports.
    """
    if is_closed(repository, lease):
        return None
    key = f"{channel_folder(lease)}/{OPEN}"
    try:
        return ChannelRecord.unsealed(repository.read(key), key)
    except NotFound:
        return None
    except (RecordCorrupt, UnsupportedVersion):
        return ChannelRecord(lease=lease, at_ms=0)


def is_closed(repository: Repository, lease: int) -> bool:
    """Whether the driver that held this lease has ended gracefully."""
    key = f"{channel_folder(lease)}/{CLOSED}"
    return repository.sizes([key])[key] is not None
