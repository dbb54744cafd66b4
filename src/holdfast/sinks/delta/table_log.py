"""The log of a Delta table, through delta-rs: the only module that imports it, and that translates its errors.

Rules:
- A commit is based on the version that was loaded last. If another writer has committed one of the same application
  ids since then, delta-rs refuses it. A failed commit may have taken effect (a lost answer): load the table and look.
  If commits at one version fail again and again, no other writer is the cause, and the error is raised.
- After other changes, delta-rs commits on top of them. It then does not notice that an OPTIMIZE has rewritten files
  that the commit removes: their rows would stay. So a commit that removes files is refused after any other one.
- delta-rs reads only newer versions, so it does not notice another table at the same place: one that was created again,
  or an older copy. So the entry of the version that was loaded last must still be the same one.
- On a disk, delta-rs syncs nothing: the log is synced here, after each commit and after each look that finds one.
- Endpoint, region and credentials on S3 come from the variables and the profile that Holdfast's own client reads.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from holdfast._extras import missing_extra
from holdfast._redaction import redacted_text
from holdfast.errors import HoldfastError, NotSupported, SinkFailed, SinkUnavailable
from holdfast.repository.aws_profile import ENDPOINTS, REGIONS, aws_profile, first_set
from holdfast.sinks.base import StreamIdentity
from holdfast.sinks.delta.ledger import Transactions
from holdfast.sinks.lake.epoch_files import LakeFile
from holdfast.sinks.lake.table_folder import TableFolder, failing_at

LOG = "_delta_log"
_VERSION = re.compile(r"\d{20}\.(json$|checkpoint\.)")  # a file with a version, in the folder of the log
_HISTORY = 200  # commits that are searched for the owner
_FOLLOWED = 50  # entries of the log that are read one by one
_FAILURES = 5  # of commits at one version
_LONGEST = 300  # characters of an error of delta-rs
_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
)
_OUTAGE = re.compile(
    r"error sending request|connection|timed? ?out|dns error|50[0-9] |slow ?down|no space left|server error", re.I
)


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A data file of a version of a table."""

    path: str  # as it is on the disk or store
    size: int


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table."""

    table: Any = field(repr=False)
    version: int
    partition_by: list[str]
    columns: str  # as Spark's JSON
    known: dict[str, int | None] = field(repr=False)  # application ids whose versions were looked up before

    @property
    def settings(self) -> dict[str, str]:
        """The table properties."""
        return dict(self.table.metadata().configuration)

    @property
    def features(self) -> list[str]:
        """The features that a reader or a writer must support, if the table lists them."""
        protocol = self.table.protocol()
        return sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})

    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application id. delta-rs reads the log back to its last checkpoint for it."""
        if app_id not in self.known:
            found = self.table.transaction_version(app_id)
            self.known[app_id] = None if found is None else int(found)
        return self.known[app_id]

    def last_owner(self) -> str | None:
        """Return the stream that wrote the last commit of Holdfast, if the log still has it."""
        for each in self.table.history(_HISTORY):
            about = json.loads(each.get("holdfast", "{}"))
            if "uid" in about:
                return StreamIdentity(about["pipeline"], about["uid"], about["stream"]).summary
        return None

    def files(self) -> list[ActiveFile]:
        """Return all data files. The log has their names percent-encoded."""
        found = self.table.get_add_actions(flatten=True)
        paths, sizes = found.column("path").to_pylist(), found.column("size_bytes").to_pylist()
        return [ActiveFile(unquote(path), int(size)) for path, size in zip(paths, sizes, strict=True)]


class TableLog:
    """The log of one table. It keeps the version that it has loaded last, so that loading reads only newer ones.

    So do the versions of application ids: those of newer commits are read from their entries in the log.
    """

    def __init__(self, sink: str, folder: TableFolder) -> None:
        self.sink = sink
        self.folder = folder
        self._table: Any = None
        self._known: dict[str, int | None] = {}
        self._version = -1  # of the table that `_known` belongs to
        self._entry: bytes | None = None  # what the log has for this version
        self._failed: list[int] = []  # the version of each commit that has failed since the last one that did not
        self._loading = threading.Lock()

    def forget(self) -> None:
        """Load the table from the start the next time."""
        self._table = None
        self._known, self._version, self._entry = {}, -1, None

    def exists(self) -> bool:
        """Whether there is a table. A process that died while it created one may have left another file."""
        with self._failing("be inspected"):
            return any(_VERSION.match(name) for name in self.folder.names(LOG))

    def load(self, action: str) -> TableState:
        """Return the newest version. `action` is what the sink was about to do, for errors.

        The object of delta-rs is the same in all of them, so a commit is possible for the last one only.
        """
        library = _deltalake()
        with self._loading, self._failing(action):
            if self._table is not None and not self._is_same():
                self.forget()
            if self._table is None:
                self._table = library.DeltaTable(self.folder.url, storage_options=self._options())
            else:
                try:
                    self._table.update_incremental()
                except Exception:
                    self.forget()
                    raise
            table = self._table
            version, columns = int(table.version()), table.schema().to_json()
            self._known, self._version = self._known_at(version), version
            self._entry = self.folder.read(_entry(version))
            return TableState(table, version, list(table.metadata().partition_columns), columns, self._known)

    def _is_same(self) -> bool:
        """Whether the log still has the entry of the version that was loaded last."""
        return self._entry is not None and self.folder.read(_entry(self._version)) == self._entry

    def _known_at(self, version: int) -> dict[str, int | None]:
        """Return what is known about application ids at a version; nothing, if an entry in between is missing."""
        found = dict(self._known)
        if self._version < 0 or not 0 <= version - self._version <= _FOLLOWED:
            return {}
        for number in range(self._version + 1, version + 1):
            data = self.folder.read(_entry(number))
            if data is None:
                return {}
            for line in data.splitlines():
                if line.startswith(b'{"txn"'):
                    entry = json.loads(line)["txn"]
                    found[entry["appId"]] = int(entry["version"])
                elif b'"txn"' in line and b'"appId"' in line:  # written by a program with another habit
                    return {}
        return found

    def create(
        self, columns: str, partition_by: Sequence[str], settings: Mapping[str, str], txns: Transactions
    ) -> None:
        """Create the table, unless another process has just done it."""
        library = _deltalake()
        with self._failing("create its table"):
            library.DeltaTable.create(
                self.folder.url,
                schema=library.Schema.from_json(columns),
                mode="ignore",
                partition_by=list(partition_by) or None,
                configuration=dict(settings) or None,
                storage_options=self._options(),
                commit_properties=self._properties(txns, {}),
            )
        self.forget()

    def commit(
        self,
        state: TableState,
        txns: Transactions,
        about: Mapping[str, Any],
        *,
        add: Sequence[tuple[LakeFile, int]] = (),
        remove: Sequence[LakeFile] = (),
        mode: str = "append",
    ) -> HoldfastError | None:
        """Write the next version: files to add, with the times at which they were written, and files to remove.

        Return an error if it may not have taken effect: the caller loads the table and looks. Raise it after several
        failures at this version.
        """
        library = _deltalake()
        now = time.time_ns() // 1_000_000
        actions = [
            library.transaction.AddAction(each.path, each.size, each.partition, written, True, each.stats)
            for each, written in add
        ] + [library.transaction.RemoveAction(each.path, True, now, each.size, each.partition) for each in remove]
        return self._tried(
            state,
            lambda: state.table.create_write_transaction(
                actions,
                mode=mode,
                schema=state.table.schema(),
                partition_by=state.partition_by,
                commit_properties=self._properties(txns, about, on_top=not remove and mode != "overwrite"),
            ),
        )

    def merge(
        self, state: TableState, txns: Transactions, about: Mapping[str, Any], rows: Any, key: Sequence[str]
    ) -> HoldfastError | None:
        """Write the next version: Arrow rows replace those with the same key, and are added where there is none.

        Return an error if it may not have taken effect.
        """
        columns = {name: f"rows.{_quoted(name)}" for name in rows.column_names}

        def act() -> None:
            merger = state.table.merge(
                rows,
                " AND ".join(f"own.{_quoted(name)} = rows.{_quoted(name)}" for name in key),
                source_alias="rows",
                target_alias="own",
                commit_properties=self._properties(txns, about),
            )
            merger.when_matched_update(columns).when_not_matched_insert(columns).execute()

        return self._tried(state, act)

    def _tried(self, state: TableState, act: Callable[[], None]) -> HoldfastError | None:
        if int(state.table.version()) != state.version:
            why = "the table was loaded again since its ledger was read"
            return SinkFailed(sink=self.sink, action="commit", why=why)
        try:
            with self._failing("commit"):
                act()
        except HoldfastError as error:
            self.forget()
            self._failed.append(state.version)
            if self._failed.count(state.version) >= _FAILURES:
                self._failed = []
                raise
            return error
        self._failed = []
        return None

    def sync(self, since: int, *, merged: bool = False) -> None:
        """Make the log durable from a version on, with the checkpoint that delta-rs may have written.

        `merged`: also the data files that these versions add, because delta-rs wrote them.
        """
        if self.folder.bucket is not None:
            return
        with self._failing("sync its log"):
            entries = self._entries(since)
            if merged:
                self.folder.sync(each for name in entries for each in self._added(name))
            checkpoints = [name.replace(".json", ".checkpoint.parquet") for name in entries]
            others = [name for name in (*checkpoints, f"{LOG}/_last_checkpoint") if self.folder.exists(name)]
            self.folder.sync([*entries, *others])

    def _entries(self, since: int) -> list[str]:
        """Return the entries of the log from a version on. They are numbered without gaps, so nothing is listed."""
        found = [first] if self.folder.exists(first := _entry(since)) else []
        while self.folder.exists(name := _entry(since + 1)):
            found.append(name)
            since += 1
        return found

    def _added(self, entry: str) -> list[str]:
        """Return the files that an entry of the log adds and that still exist: data, and the feed of its changes."""
        lines = [json.loads(line) for line in (self.folder.read(entry) or b"").splitlines()]
        found = [unquote(line[kind]["path"]) for line in lines for kind in ("add", "cdc") if kind in line]
        return [name for name in found if self.folder.exists(name)]

    def _properties(self, txns: Transactions, about: Mapping[str, Any], *, on_top: bool = True) -> Any:
        """Return what a commit records, and whether delta-rs may write it after one that it has not loaded."""
        library = _deltalake()
        return library.CommitProperties(
            custom_metadata={"holdfast": json.dumps(dict(about))} if about else None,
            max_commit_retries=None if on_top else 0,
            app_transactions=[library.Transaction(name, version) for name, version in txns.items()],
        )

    def _options(self) -> dict[str, str] | None:
        if self.folder.bucket is None:
            return None
        profile = aws_profile()
        found = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
        found |= {f"AWS_{name.upper()}": value for name, value in profile.keys.items()}
        place = {
            "AWS_ENDPOINT_URL": first_set(ENDPOINTS) or profile.endpoint,
            "AWS_REGION": first_set(REGIONS) or profile.region,
        }
        return found | {name: value for name, value in place.items() if value} | {"aws_conditional_put": "etag"}

    @contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        library = _deltalake()
        with failing_at(self.sink, action):  # what the folder raises
            try:
                yield
            except library.exceptions.TableNotFoundError as error:
                do = "restore the table; to begin again with an empty one, start a new pipeline"
                why = f"there is no Delta table at {self.folder.url}"
                raise SinkFailed(sink=self.sink, action=action, why=why, do=do) from error
            except (library.exceptions.DeltaError, OSError, ValueError) as error:
                text = _text(error)
                kind = SinkUnavailable if _OUTAGE.search(text) else SinkFailed
                raise kind(sink=self.sink, action=action, why=text) from error


def _entry(version: int) -> str:
    """Return the name of a version's entry."""
    return f"{LOG}/{version:020}.json"


def _quoted(name: str) -> str:
    """Return a column name quoted for the SQL of delta-rs."""
    return '"' + name.replace('"', '""') + '"'


def _text(error: Exception) -> str:
    """Return the beginning of an error of delta-rs: without colours, markup, line breaks and secrets."""
    text = re.sub(r"\x1b\[[0-9;]*m|↳|<[^>]*>", " ", redacted_text(str(error))).split("Debug source:")[0]
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_used_by: int | None = None  # the process that has used delta-rs first


def _deltalake() -> ModuleType:
    global _used_by  # noqa: PLW0603 - delta-rs has one runtime per process, which a fork breaks
    if _used_by not in (None, os.getpid()):
        raise NotSupported(
            what="a Delta table in a forked process",
            why="the process that it was forked from has used delta-rs before, whose threads do not survive a fork",
            do="start it by multiprocessing.get_context('spawn'), or fork before the first use",
        )
    _used_by = os.getpid()
    try:
        import deltalake  # noqa: PLC0415 - optional
        import deltalake.exceptions  # noqa: PLC0415
        import deltalake.transaction  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    return deltalake
