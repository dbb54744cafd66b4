"""Objects of an event log on a store that never became part of the log, found by reading the whole index.

Rules:
- The objects are listed first, and the index is read afterwards: an object that is committed meanwhile is named.
- An object of an epoch is garbage if no record names it and its epoch lies before the last one that the log holds for
  its owner. No driver can commit such an epoch. Objects of later epochs are kept.
- An object of a `LogWriter` is garbage if no record names it and it is a day old: its writer has ended, or its append
  has failed.
- Objects of other streams than the owner are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.eventlog._files import SEGMENTS
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.store_home import StoreHome
from holdfast.eventlog.store_writer import OWN_SEGMENTS
from holdfast.repository import Repository
from holdfast.repository.base import StoredObject
from holdfast.repository.files import TEMP_MAX_AGE_S
from holdfast.repository.opening import is_store
from holdfast.repository.targets import newest_targets
from holdfast.sinks._log_ranges import place_in
from holdfast.sinks._log_store import StorePlace, named_objects, place_of
from holdfast.sinks.base import EpochPlace, StreamIdentity

_TARGET = "log "  # the target of every LogSink begins with it


@dataclass(frozen=True, slots=True)
class LogGarbage:
    """What can be removed from one log."""

    path: str  # the address of the log
    keys: tuple[str, ...]
    bytes: int  # their total size


def logs_on_stores(repository: Repository) -> list[str]:
    """Return the addresses of a pipeline's event logs that are on object stores."""
    newest, _ = newest_targets(repository)
    targets = {target.removeprefix(_TARGET) for each in newest.values() for target in each.values() if _is_log(target)}
    return sorted(each for each in targets if is_store(each))


def find_garbage(address: str, *, clock: Callable[[], float] = time.time) -> LogGarbage:
    """Return the objects of a log that no reader sees and no driver can commit. Changes nothing."""
    home = StoreHome(address)
    listed = home.repository.flat(SEGMENTS)
    log, found = EventLog.open(address), StorePlace(home, "").owner()
    owner = None if found is None else found.owner
    named = named_objects(log)
    last = _last_place(log, owner)
    unnamed = [each for each in listed if each.key not in named]
    garbage = [each for each in unnamed if _is_garbage(each, owner, last, clock() - TEMP_MAX_AGE_S)]
    return LogGarbage(address, tuple(each.key for each in garbage), sum(each.size for each in garbage))


def remove_garbage(garbage: LogGarbage) -> None:
    """Remove these objects. They can never become part of the log, so the plan does not become outdated."""
    StoreHome(garbage.path).repository.delete_all(garbage.keys)


def _is_log(target: str) -> bool:
    return target.startswith(_TARGET)


def _is_garbage(each: StoredObject, owner: StreamIdentity | None, last: EpochPlace, oldest: float) -> bool:
    if each.key.startswith(f"{OWN_SEGMENTS}/"):
        return each.modified_s < oldest
    place = None if owner is None else place_of(each.key, owner.stream)
    return place is not None and place < last


def _last_place(log: EventLog, owner: StreamIdentity | None) -> EpochPlace:
    keys: Iterable[str] = log.known_keys(0) if owner is not None else ()
    places = (found[0] for key in keys if owner is not None and (found := place_in(key, owner)) is not None)
    return max(places, default=(0, 0))
