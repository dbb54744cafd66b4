"""The state stores: which files the next start reads, whether they are there and complete, and how the state grows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from holdfast.doctor.examination import StateSize, VersionSize
from holdfast.doctor.files import CheckpointFiles
from holdfast.doctor.findings import CheckpointFinding, Code, finding
from holdfast.doctor.logs import Logs
from holdfast.errors import HoldfastError, SparkFileDamaged
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.statefiles import (
    VERSIONED,
    StoreFolder,
    Vanished,
    VersionNames,
    descriptions_in,
    sizes_in_zip,
    stores_in,
)

_PARTITIONS = "spark.sql.shuffle.partitions"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_NO_KEY = re.compile(rb'"fields":\[(?:\]|\{"name":"\w+","type":"void")')
_DEFAULT = "default"  # the name of a partition's only store, which has no folder of its own
_GROWTH = 10  # versions
_REPORTED = 20  # missing partitions of one operator
_PARTITIONS_MOST = 1 << 31
_DIGITS = 18  # of a version: a 64-bit number
_ZIP_MOST = 1 << 28  # a larger zip file is not read


class _Store(msgspec.Struct):
    """The fields that are read from the description of a store."""

    storeName: str = _DEFAULT  # noqa: N815 - Spark's names
    numPartitions: int = 0  # noqa: N815


class _Operator(msgspec.Struct):
    """The fields that are read from the description of an operator."""

    operatorInfo: dict[str, Any] = {}  # noqa: N815
    stateStoreInfo: list[_Store] = []  # noqa: N815


@dataclass(slots=True)
class _Needed:
    """The files of one operator that the next start reads."""

    files: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    formats: set[int] = field(default_factory=set)


class _VersionReader:
    """Reads the files that name state versions."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def commit(self, batch: int) -> bytes | None:
        """Return an entry of the commit log, or `None`."""
        return self._files.read(f"commits/{batch}")

    def changelog(self, path: str) -> bytes:
        """Return the bytes of a changelog."""
        return self._files.read(path) or b""

    def path_of(self, path: str) -> str:
        """Return the path of a file."""
        return str(self._files.folder / path)


class StateLook:
    """One look at the state of all operators."""

    def __init__(self, files: CheckpointFiles, logs: Logs, *, may_be_ahead: bool) -> None:
        self._files = files
        self._logs = logs
        self._may_be_ahead = may_be_ahead
        self._needed: dict[str, _Needed] = {}
        self._names: dict[str, str | None] = {}
        self._stores: dict[str, list[StoreFolder]] = {}
        for operator in _operators(files):
            self._stores[operator] = []
        for store in stores_in(LocalSparkFolder(files.folder)):
            if store.partition >= _PARTITIONS_MOST:
                continue  # not Spark's
            self._stores.setdefault(store.operator, []).append(store)
        self.findings = list(self._check())

    def operators(self) -> tuple[StateSize, ...]:
        """Return the operators, with the sizes of their state."""
        return tuple(self._operator(operator, stores) for operator, stores in self._stores.items())

    def _operator(self, operator: str, stores: list[StoreFolder]) -> StateSize:
        facts = self._files.facts
        below = [path for path in facts if path.startswith(f"state/{operator}/") and "/." not in path]
        needed = self._needed.get(operator, _Needed())
        return StateSize(
            operator=operator,
            name=self._names.get(operator),
            provider=", ".join(sorted(needed.kinds)) or None,
            format=max(needed.formats, default=None),
            partitions=len({store.partition for store in stores}),
            stores=len(stores),
            files=len(below),
            bytes=sum(facts[path].size for path in below),
            needed_files=len(needed.files),
            needed_bytes=sum(self._files.size(path) for path in needed.files),
            growth=_growth(self._files, stores),
        )

    def _check(self) -> Iterator[CheckpointFinding]:
        commit = self._logs.commits.get(self._logs.last_committed)
        for operator in commit.ids if commit is not None else ():
            if operator not in self._stores:
                message = f"state/{operator} is missing, although the last commit names its state"
                yield finding(Code.STATE_MISSING, message, f"state/{operator}")
        for operator, stores in self._stores.items():
            needed = self._needed[operator] = _Needed()
            described = self._description(operator)
            self._names[operator] = str(described.operatorInfo.get("operatorName")) if described.operatorInfo else None
            expected = self._partitions(described, stores)
            yield from self._presence(operator, described, stores, expected)
            for store in stores:
                if store.partition < expected:
                    yield from self._store(store, needed)
        for path in descriptions_in(LocalSparkFolder(self._files.folder)):
            fault = self._files.state_fault(path)
            if fault is not None:
                yield finding(Code.STATE_TORN, f"{path} is damaged: {fault.why}", path)

    def _description(self, operator: str) -> _Operator:
        """Return Spark's description of an operator: the newest one, or an empty one if there is none."""
        folder = f"state/{operator}/_metadata"
        newer = [name for name in self._files.names(f"{folder}/v2") if name.isdecimal()]
        path = f"{folder}/v2/{max(newer, key=int)}" if newer else f"{folder}/metadata"
        text = (self._files.read(path) or b"").partition(b"\n")[2]
        try:
            return from_json(text, _Operator)
        except Undecodable:
            return _Operator()

    def _partitions(self, described: _Operator, stores: list[StoreFolder]) -> int:
        """Return how many partitions the operator has: as recorded, or those that exist.

        An operator without a key, such as a limit or an aggregation of all rows, has one. Spark records the number of
        shuffle partitions for it, too.
        """
        if any(self._is_keyless(store) for store in stores):
            return 1
        recorded = max((each.numPartitions for each in described.stateStoreInfo), default=0)
        newest = self._logs.newest
        setting = newest.confs.get(_PARTITIONS, "") if newest is not None else ""
        if recorded > 1 and re.fullmatch(r"[1-9]\d{0,6}", setting):
            return int(setting)  # state that was repartitioned has more folders, or another description
        return recorded or max((store.partition + 1 for store in stores), default=0)

    def _is_keyless(self, store: StoreFolder) -> bool:
        """Whether a partition's state has a key without columns, by its schema; false if the schema is elsewhere."""
        schema = self._files.read(f"state/{store.operator}/{store.partition}/_metadata/schema") or b""
        first = schema.find(b'"fields"')  # of the key, which precedes the value
        return first >= 0 and _NO_KEY.match(schema, first) is not None

    def _presence(
        self, operator: str, described: _Operator, stores: list[StoreFolder], expected: int
    ) -> Iterator[CheckpointFinding]:
        if self._logs.last_committed < 0:
            return
        if not stores:
            message = f"state/{operator} has no state of any partition"
            yield finding(Code.STATE_MISSING, message, f"state/{operator}")
            return
        there = {(store.partition, _store_name(store)) for store in stores}
        names = {each.storeName for each in described.stateStoreInfo} or {name for _, name in there}
        every = ((partition, name) for partition in range(expected) for name in sorted(names))
        for partition, name in islice((each for each in every if each not in there), _REPORTED):
            where = f"state/{operator}/{partition}" + ("" if name == _DEFAULT else f"/{name}")
            yield finding(Code.STATE_PARTITION, f"{where} has no state, one of {expected} partitions", where)

    def _store(self, store: StoreFolder, needed: _Needed) -> Iterator[CheckpointFinding]:
        kinds = {_kind(match[3]) for name in store.names if (match := VERSIONED.fullmatch(name))}
        formats = {2 if match[2] else 1 for name in store.names if (match := VERSIONED.fullmatch(name))}
        needed.kinds |= kinds
        needed.formats |= formats
        if len(kinds) > 1:
            message = f"{store.path} has files of both providers, HDFS-backed and RocksDB"
            yield finding(Code.STATE_PROVIDERS, message, store.path)
            return
        if len(formats) > 1:
            yield finding(Code.STATE_FORMATS, f"{store.path} has files with and without ids", store.path)
        yield from self._provider(store)
        yield from self._ahead(store, formats)
        if self._logs.last_committed >= 0:
            yield from self._version(store, self._logs.last_committed, needed)

    def _provider(self, store: StoreFolder) -> Iterator[CheckpointFinding]:
        newest = self._logs.newest
        setting = newest.confs.get(_PROVIDER, "") if newest is not None else ""
        recorded = "rocksdb" if "RocksDB" in setting else "hdfs" if "HDFSBacked" in setting else store.kind
        if recorded != store.kind:
            message = f"{store.path} has files of the provider {store.kind}, but the offset log records {setting}"
            yield finding(Code.STATE_PROVIDER, message, store.path)

    def _ahead(self, store: StoreFolder, formats: set[int]) -> Iterator[CheckpointFinding]:
        versions = [int(match[1]) for name in store.names if (match := VERSIONED.fullmatch(name))]
        last = max(self._logs.last_begun, self._logs.last_committed)
        if formats == {1} and max(versions) > last + 1 and not self._may_be_ahead:
            message = f"{store.path} has version {max(versions)}, but the last batch of the logs is {last}"
            yield finding(Code.STATE_AHEAD, message, store.path)

    def _version(self, store: StoreFolder, batch: int, needed: _Needed) -> Iterator[CheckpointFinding]:
        """Check the files that make up the state after a batch."""
        commit = self._logs.commits.get(batch)
        if commit is None:
            return  # the commit cannot be read, which is reported
        try:
            chain = store.chain(batch + 1, VersionNames(_VersionReader(self._files), batch, commit))
        except Vanished as gone:
            message = f"{gone} is missing, which the state of batch {batch} needs"
            yield finding(Code.STATE_VERSION, message, str(gone))
            return
        except HoldfastError as error:
            yield finding(Code.STATE_TORN, f"{store.path}: {error.summary}", store.path)
            return
        for name in chain:
            path = f"{store.path}/{name}"
            needed.files.add(path)
            yield from self._file(path)
            if name.endswith(".zip"):
                yield from self._archive(store, path, needed)

    def _file(self, path: str) -> Iterator[CheckpointFinding]:
        fault = self._files.state_fault(path)
        if fault is not None:
            yield finding(Code.STATE_TORN, f"{path} is damaged: {fault.why}", path)

    def _archive(self, store: StoreFolder, path: str, needed: _Needed) -> Iterator[CheckpointFinding]:
        data = self._files.read(path, _ZIP_MOST)
        if not data or len(data) == _ZIP_MOST:
            return
        try:
            sizes = sizes_in_zip(data, str(self._files.folder / path))
        except SparkFileDamaged as error:
            yield finding(Code.STATE_TORN, f"{path} is damaged: {error.why}", path)
            return
        for name, size in sizes.items():
            beside = f"{store.path}/{name}"
            needed.files.add(beside)
            if not self._files.has(beside):
                yield finding(Code.STATE_FILE, f"{beside} is missing, which {path} lists", beside)
            elif size is not None and self._files.size(beside) != size:
                message = f"{beside} is damaged: it has {self._files.size(beside)} bytes instead of {size}"
                yield finding(Code.STATE_TORN, message, beside)


def _operators(files: CheckpointFiles) -> list[str]:
    found = {parts[1] for folder in files.folders() if len(parts := folder.split("/")) > 1 and parts[0] == "state"}
    return sorted((each for each in found if each.isascii() and each.isdecimal()), key=int)


def _store_name(store: StoreFolder) -> str:
    parts = store.path.split("/")
    return parts[3] if len(parts) > 3 else _DEFAULT


def _kind(suffix: str) -> str:
    return "hdfs" if suffix in ("delta", "snapshot") else "rocksdb"


def _growth(files: CheckpointFiles, stores: list[StoreFolder]) -> tuple[VersionSize, ...]:
    count: Counter[int] = Counter()
    size: Counter[int] = Counter()
    for store in stores:
        for name in store.names:
            if (match := VERSIONED.fullmatch(name)) and len(match[1]) <= _DIGITS:
                count[int(match[1])] += 1
                size[int(match[1])] += files.size(f"{store.path}/{name}")
    return tuple(VersionSize(version, count[version], size[version]) for version in sorted(count)[-_GROWTH:])
