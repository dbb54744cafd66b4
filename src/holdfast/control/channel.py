"""The driver's side of the control channel: find requests, take them, answer them.

Rules:
- A driver sees only requests to its own lease. It checks the lease before it takes one, so a driver that was replaced
  takes nothing.
- A request is taken when its work begins, not when it is first seen: until then, its asker can withdraw it.
- A claim or an answer that cannot be written (a full disk) is tried again at the next look.
- A request that cannot be read, or of an unknown kind, is answered with the reason. Other files in the folder are
  reported once and ignored.
- Files are deleted a day after the request was closed. The request is deleted first, so that no request without a claim
  remains.

Not guaranteed: that an answer reaches its asker, which may have ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from holdfast.control.protocol import RequestMove, RequestState, driver_move
from holdfast.control.records import (
    CLOSED,
    FOLDER,
    OPEN,
    REQUEST_NAME,
    ChannelRecord,
    ControlAnswer,
    ControlRequest,
    RequestClaim,
    answer_key,
    channel_folder,
    claim_key,
    read_request,
    request_key,
)
from holdfast.errors import (
    Closed,
    Fenced,
    HoldfastError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    RecordCorrupt,
    Storage,
    UnsupportedVersion,
)
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.repository import Lease, Repository
from holdfast.repository.base import now_ms

_log = logging.getLogger(__name__)
KEPT_MS = 24 * 3600 * 1000  # closed requests are kept for a day
_SUFFIXES = (".claim.json", ".done.json")


class ControlChannel:
    """The requests to one driver. Its methods may be called from any thread."""

    def __init__(
        self,
        repository: Repository,
        lease: Lease,
        kinds: Iterable[str],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._lease = lease
        self._kinds = tuple(map(str, kinds))
        self._clock = clock
        self._monotonic = monotonic
        self._mutex = threading.RLock()
        self._folder = channel_folder(lease.number)
        self._handed: set[str] = set()  # ids that `look` has returned
        self._seen_at: dict[str, float] = {}  # by id: when it was first seen
        self._claims: dict[str, RequestClaim] = {}  # by id: the claim that this driver wrote or tries to write
        self._unsent: dict[str, ControlAnswer] = {}  # by id: answers that could not be written yet
        self._at_end: dict[str, Callable[[], ControlAnswer]] = {}  # by id: answers to write when the driver ends
        self._reported: set[str] = set()
        self._is_open = False

    def open(self) -> None:
        """Announce that the driver listens; idempotent."""
        with self._mutex:
            if not self._is_open:
                record = ChannelRecord(lease=self._lease.number, at_ms=self.now_ms(), kinds=list(self._kinds))
                self._repository.put_if_absent(f"{self._folder}/{OPEN}", record.sealed())
                self._is_open = True

    def now_ms(self) -> int:
        """Return the time of the driver's clock."""
        return now_ms(self._clock)

    # --- requests ---

    def look(self) -> list[ControlRequest]:
        """Return the requests that were not returned before, oldest first; write what could not be written before.

        Raises `StorageFailed` if the folder cannot be read; the next look finds the same requests.
        """
        with self._mutex:
            self._send_unsent()
            names = self._repository.list(self._folder)
            asked = {match[1] for name in names if (match := REQUEST_NAME.fullmatch(name))}
            self._report_others(names, asked)
            claimed = {name.removesuffix(".claim.json") for name in names if name.endswith(".claim.json")}
            for gone in self._handed - asked:
                self._handed.discard(gone)
                self._seen_at.pop(gone, None)
            new = [each for name in sorted(asked - claimed - self._handed) if (each := self._read(name))]
            self._handed |= {each.id for each in new}
            return sorted(new, key=lambda each: each.asked_at_ms)

    def take(self, request: ControlRequest) -> bool:
        """Close a request as taken; return whether it must be carried out now.

        1. Check the lease: a driver that was replaced raises `Fenced`.  2. A request whose time is over is closed as
        expired.  3. Otherwise close it as taken; if the asker has withdrawn it, nothing is done. If the lease could not
        be checked or the claim could not be written, the request is found again by the next look.
        """
        with self._mutex:
            if not self._is_ours(request.id):  # 1
                return False
            valid_s = (request.until_ms - request.asked_at_ms) / 1000
            known_s = self._monotonic() - self._seen_at.setdefault(request.id, self._monotonic())
            move = driver_move(now_ms=self.now_ms(), until_ms=request.until_ms, known_s=known_s, valid_s=valid_s)
            if move is RequestMove.TAKE:
                return self._close_claim(request.id, RequestState.TAKEN)  # 3
            _log.warning("%s request of %s was not carried out: it had expired", request.kind, request.asker)
            if not self._close_claim(request.id, RequestState.EXPIRED) and request.id in self._claims:  # 2
                late = NotSupported(what="an expired request", why="it could not be taken in time", do="repeat it")
                self.answer(request, ControlAnswer.of_error(self.now_ms(), late))  # an earlier write took effect
            return False

    def hand_back(self, requests: Iterable[ControlRequest]) -> None:
        """Let the next look return these requests again, because nothing was done about them."""
        with self._mutex:
            self._handed -= {each.id for each in requests}

    def answer(self, request: ControlRequest, answer: ControlAnswer) -> None:
        """Answer a request that was taken. If the answer cannot be written now, it is written later."""
        with self._mutex:
            self._unsent[request.id] = answer
            self._send_unsent()

    def answer_at_end(self, request: ControlRequest, make: Callable[[], ControlAnswer]) -> None:
        """Answer a request that was taken when the driver ends, just before it releases its lease."""
        with self._mutex:
            self._at_end[request.id] = make

    def refuse(self, request: ControlRequest, error: Exception) -> None:
        """Take a request and answer it with an error."""
        if self.take(request):
            self.answer(request, ControlAnswer.of_error(self.now_ms(), error))

    def close(self) -> None:
        """Answer what is left, and announce that the driver has ended. The lease is still held."""
        with self._mutex:
            if not self._is_open:
                return
            self._is_open = False
            self._unsent |= {name: make() for name, make in self._at_end.items()}
            for name in self._claims.keys() - self._unsent.keys() - self._at_end.keys():
                if self._repository.sizes([key := answer_key(self._lease.number, name)])[key] is None:
                    ended = Closed(what="the pipeline", do="start it, then repeat the request: it has ended")
                    self._unsent[name] = ControlAnswer.of_error(self.now_ms(), ended)
            self._send_unsent()
            record = ChannelRecord(lease=self._lease.number, at_ms=self.now_ms())
            try:
                self._repository.put_if_absent(f"{self._folder}/{CLOSED}", record.sealed())
            except Storage as error:  # the asker detects the end by the lock
                _log.warning("the end of lease %d could not be recorded: %s", self._lease.number, error.summary)

    # --- internal ---

    def _read(self, name: str) -> ControlRequest | None:
        """Read a request; answer one that cannot be carried out."""
        self._seen_at.setdefault(name, self._monotonic())
        try:
            found = read_request(self._repository, self._lease.number, name)
        except NotFound:
            return None
        except (RecordCorrupt, UnsupportedVersion, Storage) as error:  # of the storage: the asker's file permissions
            self._refuse_unread(name, error)
            return None
        if found.kind in self._kinds:
            return found
        why = f"this driver carries out: {', '.join(self._kinds)}"
        unknown = NotSupported(what=f"a request of kind {found.kind!r}", why=why, do="update the driver")
        self._refuse_unread(name, unknown)
        return None

    def _refuse_unread(self, name: str, error: HoldfastError) -> None:
        _log.warning("a request was refused: %s", error.summary)
        if self._is_ours(name) and self._close_claim(name, RequestState.TAKEN):
            self._unsent[name] = ControlAnswer.of_error(self.now_ms(), error)
            self._send_unsent()

    def _is_ours(self, name: str) -> bool:
        """Whether the lease is still held. If that cannot be read, the next look returns the request again."""
        try:
            self._lease.check()
        except (Fenced, Closed):
            raise
        except HoldfastError as error:
            self._warn_once(f"the lease could not be checked: {error.summary}")
            self._handed.discard(name)
            return False
        return True

    def _close_claim(self, name: str, verdict: RequestState) -> bool:
        """Close a request; return whether it is closed with this verdict by this driver.

        After a write whose outcome is unknown, the same claim is written again: if it is there, it is ours.
        """
        record, earlier = self._lease.record, self._claims.get(name)
        claim = RequestClaim(verdict=verdict, who=record.holder, token=record.token, at_ms=self.now_ms())
        if earlier is not None and verdict is RequestState.TAKEN:
            claim = earlier
        try:
            put = self._repository.put_if_absent(claim_key(self._lease.number, name), claim.sealed())
        except Storage as error:  # the asker may withdraw it meanwhile; otherwise the next look tries again
            self._warn_once(f"a request could not be closed: {error.summary}")
            self._handed.discard(name)
            if isinstance(error, OutcomeUnknown) and verdict is RequestState.TAKEN:
                self._claims[name] = claim
            return False
        if put.data == claim.sealed():
            if verdict is RequestState.TAKEN:
                self._claims[name] = claim
            return True
        if earlier is None or put.data != earlier.sealed():
            self._claims.pop(name, None)
        return False

    def _send_unsent(self) -> None:
        for name, answer in list(self._unsent.items()):
            try:
                self._repository.put_if_absent(answer_key(self._lease.number, name), answer.sealed())
            except Storage as error:
                self._warn_once(f"an answer could not be written: {error.summary}")
                return
            del self._unsent[name]
            self._claims.pop(name, None)
            self._at_end.pop(name, None)

    def _report_others(self, names: list[str], asked: set[str]) -> None:
        ours = {f"{each}{suffix}" for each in asked for suffix in _SUFFIXES} | {f"{each}.json" for each in asked}
        for name in set(names) - ours - {OPEN, CLOSED} - self._reported:
            self._reported.add(name)
            if not (name.endswith(_SUFFIXES) and REQUEST_NAME.fullmatch(f"{name[:32]}.json")):
                _log.warning("%s/%s is not a request; it is ignored. Next: delete it", self._folder, ascii(name)[1:-1])

    def _warn_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            _log.warning("%s; it is tried again", text)

    # --- old files ---

    def forget(self) -> None:
        """Delete requests that were closed a day ago, and those to drivers that have ended."""
        with self._mutex:
            self._lease.check()
            for name in self._repository.list(FOLDER):
                lease = name.removesuffix("/")
                if not (name.endswith("/") and lease.isascii() and lease.isdecimal()):
                    continue
                if int(lease) < self._lease.number:
                    self._forget_ended(int(lease))
            names = set(self._repository.list(self._folder))
            for ident in sorted({name[:32] for name in names if name.endswith(_SUFFIXES)}):
                if REQUEST_NAME.fullmatch(f"{ident}.json"):
                    self._forget_one(self._lease.number, ident, names)

    def _forget_one(self, lease: int, ident: str, names: set[str]) -> bool:
        """Delete the files of one request if its newest record is old, the request first."""
        keys = [key(lease, ident) for key in (request_key, claim_key, answer_key)]
        there = [key for key in keys if key.rpartition("/")[2] in names]
        if max(map(self._written_at, there), default=0) > self.now_ms() - KEPT_MS:
            return False
        for key in there:
            self._repository.delete(key)
        return True

    def _forget_ended(self, lease: int) -> None:
        """Delete the folder of a driver that has ended, once no asker needs it."""
        names = set(self._repository.list(channel_folder(lease)))
        idents = {name[:32] for name in names if REQUEST_NAME.fullmatch(f"{name[:32]}.json")}
        kept = [ident for ident in sorted(idents) if not self._forget_one(lease, ident, names)]
        if not kept:
            self._repository.clear(channel_folder(lease))

    def _written_at(self, key: str) -> int:
        """Return the time of a record; 0 if it cannot be read: it is of no use."""
        try:
            found = from_json(self._repository.read(key), _Dated)
        except (NotFound, Undecodable):
            return 0
        return found.at_ms or found.asked_at_ms


class _Dated(msgspec.Struct):
    at_ms: int = 0
    asked_at_ms: int = 0
