"""Which home an address has: a local disk or an object store."""

from __future__ import annotations

import os

from holdfast.eventlog.home import LogHome
from holdfast.eventlog.local_home import LocalHome
from holdfast.eventlog.store_home import StoreHome
from holdfast.repository.opening import is_store
from holdfast.repository.s3address import parsed


def home_of(address: str | os.PathLike[str]) -> LogHome:
    """Return the home of a log: a path, a `file:` URL, or `s3://bucket/path`."""
    return StoreHome(str(parsed(address, "event log"))) if is_store(address) else LocalHome.at(address)
