"""A small model of Spark on an object store: drivers that are paused and replaced, late uploads, checkpoints, clean-up.

Each step is one request to the store, or the decision to stop making requests. `World.check` loads the state as Spark
would after a crash at this moment, and every checkpoint that is kept.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.cleaning.rules import FolderCleaning, FolderFacts, KeptCut, ListedFile

PARTITIONS = 2
RETAIN = 3
COMPACT_EVERY = 3


class StateLost(AssertionError):
    """The state, or a checkpoint, cannot be loaded."""


@dataclass(frozen=True)
class Sst:
    """A file of RocksDB on the disk of an executor."""

    number: int


@dataclass
class Snapshot:
    """A snapshot that an executor has taken and not uploaded yet."""

    zip: str
    ssts: tuple[Sst, ...]
    history: tuple[str, ...]


@dataclass
class Instance:
    """A state store that an executor has loaded: its files, and the names under which they were uploaded."""

    store: str
    version: int
    history: tuple[str, ...]
    live: tuple[Sst, ...]
    uploaded: dict[Sst, str]
    pending: Snapshot | None = None


@dataclass
class Driver:
    """A driver with its executors; it may have been replaced without knowing it."""

    batch: int  # the last committed one
    instances: list[Instance]
    ran: dict[str, str] | None = None  # of the batch that it has run and not committed: the id of each store's version
    cleaning: list[str] = field(default_factory=list)  # what it will delete
    moving: tuple[int, list[str]] | None = None  # a store that another executor is loading, and the files that it found
    ended: bool = False


class World:
    """The store, all drivers, and what is true."""

    def __init__(self, seed: int, cleaning: type[FolderCleaning] = FolderCleaning) -> None:
        self.chance = random.Random(seed)
        self.cleaning = cleaning
        self.store: dict[str, tuple[int, object]] = {}
        self.truth: dict[int, dict[str, str]] = {}  # by batch: what the commit log has said
        self.cuts: list[KeptCut] = []
        self.deleted = 0
        self.log: list[str] = []
        self._time = 0
        self._ids = itertools.count(1)
        self._ssts = itertools.count(1)
        self.uploads: list[tuple[Instance, Snapshot]] = []  # of stores that were moved to another executor
        self.drivers = [self.started()]

    # --- the store ---

    def put(self, path: str, value: object) -> None:
        self.store[path] = (self._time, value)

    def put_new(self, path: str, value: object) -> bool:
        if path in self.store:
            return False
        self.put(path, value)
        return True

    # --- Spark ---

    def committed(self) -> int:
        return max((int(path[8:]) for path in self.store if path.startswith("commits/")), default=-1)

    def ids(self, version: int) -> dict[str, str]:
        """Return the ids of a version, from the commit log."""
        entry = self.store.get(f"commits/{version - 1}")
        if entry is None:
            raise StateLost(f"commits/{version - 1} is gone")
        return entry[1]  # type: ignore[return-value]

    def chain(self, store: str, version: int, counts: Callable[[str], bool] = lambda _: True) -> Iterator[str]:
        """Yield the files of a version, newest first, as Spark walks them: changelogs, then a snapshot."""
        while version > 0:
            stem = f"{store}/{version}_{self.ids(version)[store]}"
            if f"{stem}.zip" in self.store and counts(f"{stem}.zip"):
                yield f"{stem}.zip"
                return
            if f"{stem}.changelog" not in self.store:
                raise StateLost(f"{stem}.changelog is gone")
            yield f"{stem}.changelog"
            version -= 1

    def loaded(self, store: str, version: int, found: list[str] | None = None) -> Instance:
        """Load a version, from the files that were found now or before."""
        chain = list(self.chain(store, version)) if found is None else found
        made = Instance(store, version, (), (), {})
        for path in reversed(chain):
            if path not in self.store:
                raise StateLost(f"{path} is gone")
            value = self.store[path][1]
            if path.endswith(".zip"):
                names, made.history = value  # type: ignore[misc]
                for name in names:
                    if name not in self.store:
                        raise StateLost(f"{name}, which {path} lists, is gone")
                    sst = Sst(next(self._ssts))
                    made.live += (sst,)
                    made.uploaded[sst] = name
            else:
                made.history += (str(value),)
                made.live += (Sst(next(self._ssts)),)
        return made

    def started(self) -> Driver:
        batch = self.committed()
        return Driver(batch, [self.loaded(f"state/0/{each}", batch + 1) for each in range(PARTITIONS)])

    def is_whole(self, path: str) -> bool:
        """Whether every file that a snapshot lists is there."""
        return all(name in self.store for name in self.store[path][1][0])  # type: ignore[index]

    # --- steps of a driver ---

    def run(self, driver: Driver) -> None:
        """Run a batch up to its commit: new versions of all stores, and perhaps snapshots, which are uploaded later."""
        if driver.ran is not None or driver.moving is not None or driver is not self.drivers[-1]:
            return  # a driver that was replaced cannot decide an epoch
        driver.ran = {}
        self.put_new(f"offsets/{driver.batch + 1}", "")
        for each in driver.instances:
            name = f"{next(self._ids):x}"
            each.version += 1
            each.history += (name,)
            each.live += (Sst(next(self._ssts)),)
            if self.chance.random() < 0.3:
                each.live = (Sst(next(self._ssts)),)  # RocksDB has merged all files into one
            driver.ran[each.store] = name
            self.put(f"{each.store}/{each.version}_{name}.changelog", name)
            if self.chance.random() < 0.5:
                each.pending = Snapshot(f"{each.store}/{each.version}_{name}.zip", each.live, each.history)

    def commit(self, driver: Driver) -> None:
        if driver.ran is None:
            return
        won = self.put_new(f"commits/{driver.batch + 1}", driver.ran)
        if won and driver.batch + 1 > max(self.truth, default=-1):
            self.truth[driver.batch + 1] = driver.ran
        driver.ended = not won
        driver.batch, driver.ran = driver.batch + 1, None

    def upload(self, instance: Instance, snapshot: Snapshot) -> bool:
        """Upload one more file of a snapshot; return whether it is complete."""
        for sst in snapshot.ssts:
            if sst not in instance.uploaded:
                name = f"{instance.store}/SSTs/{next(self._ids)}.sst"
                instance.uploaded[sst] = name
                self.put(name, "")
                return False
        self.put(snapshot.zip, (tuple(instance.uploaded[each] for each in snapshot.ssts), snapshot.history))
        return True

    def maintain(self, driver: Driver) -> None:
        each = self.chance.choice(driver.instances)
        if each.pending is not None and self.upload(each, each.pending):
            each.pending = None

    def upload_late(self, driver: Driver) -> None:
        """An executor that lost its store uploads what it had begun."""
        del driver
        if self.uploads:
            at = self.chance.randrange(len(self.uploads))
            if self.upload(*self.uploads[at]):
                del self.uploads[at]

    def move(self, driver: Driver) -> None:
        """Spark moves a store to another executor, which loads it; the old one may still upload a snapshot.

        The new one looks which files there are, and reads them later. No batch runs meanwhile.
        """
        if driver.ran is not None or driver is not self.drivers[-1] or driver.batch != self.committed():
            return
        if driver.moving is None:
            at = self.chance.randrange(PARTITIONS)
            old = driver.instances[at]
            driver.moving = at, list(self.chain(old.store, old.version))
            return
        at, chain = driver.moving
        old, driver.moving = driver.instances[at], None
        if old.pending is not None:
            self.uploads.append((old, old.pending))
        driver.instances[at] = self.loaded(old.store, old.version, chain)

    def replace(self, driver: Driver) -> None:
        """Start another driver; the old one does not know it."""
        del driver
        self.drivers.append(self.started())

    # --- steps of Holdfast ---

    def checkpoint(self, driver: Driver) -> None:
        batch = self.committed()
        if driver is not self.drivers[-1] or batch < 0:
            return
        files = [path for each in driver.instances for path in self.chain(each.store, batch + 1, self.is_whole)]
        inside = [name for path in files if path.endswith(".zip") for name in self.store[path][1][0]]  # type: ignore[index]
        copied = {f"offsets/{batch}", f"commits/{batch}"}
        self.cuts.append(KeptCut(next(self._ids), batch + 1, frozenset([*files, *inside]), frozenset(copied)))

    def plan(self, driver: Driver) -> None:
        """Drop some checkpoints, and plan a clean-up, which is carried out in later steps."""
        if driver is not self.drivers[-1] or driver.cleaning:
            return
        epoch = self.committed() + 1
        old = [each for each in self.cuts if each.epoch <= epoch - RETAIN]
        kept = {*self.cuts[-1:], *old[-1:], *(each for each in self.cuts if self.chance.random() < 0.5)}
        self.cuts = [each for each in self.cuts if each in kept]
        files = [ListedFile(path, 1, time) for path, (time, _) in self.store.items()]
        listed = {path: frozenset(self.store[path][1][0]) for path in self.store if path.endswith(".zip")}  # type: ignore[index]
        facts = FolderFacts(files=files, cuts=list(self.cuts), epoch=epoch, retain=RETAIN, listed=listed)
        driver.cleaning = [each.path for each in self.cleaning(facts).plan().deletes]
        self.chance.shuffle(driver.cleaning)

    def clean(self, driver: Driver) -> None:
        """Delete some of the files: a driver that was replaced too, if it was paused after it looked at its lease."""
        for _ in range(min(len(driver.cleaning), self.chance.choice([1, 2, 100]))):
            self.deleted += self.store.pop(driver.cleaning.pop(), None) is not None

    # --- what must hold ---

    def check(self) -> None:
        last = max(self.truth, default=-1)
        for store in (f"state/0/{each}" for each in range(PARTITIONS)):
            found = self.loaded(store, last + 1).history
            expected = tuple(self.truth[each][store] for each in range(last + 1))
            if found != expected:
                raise StateLost(f"{store} has {found}, expected {expected}")
        for cut in self.cuts:
            gone = [path for path in cut.in_place if path not in self.store]
            if gone:
                raise StateLost(f"checkpoint {cut.checkpoint} lacks {gone}")

    STEPS = (run, run, commit, commit, maintain, maintain, checkpoint, plan, clean, upload_late, move, replace)
    WEIGHTS = (8, 8, 10, 10, 8, 8, 5, 4, 6, 2, 3, 1)

    def step(self) -> None:
        self._time += self.chance.choice([0, 1, 1])
        current = [self.drivers[-1]] * 6
        driver = self.chance.choice([*current, *self.drivers[-4:]])
        if driver.ended:
            if driver is not self.drivers[-1]:
                return
            self.drivers.append(self.started())
            driver = self.drivers[-1]
        step = self.chance.choices(self.STEPS, self.WEIGHTS)[0]
        self.log.append(f"{self._time} {step.__name__} driver {self.drivers.index(driver)}")
        step(self, driver)


def walk(seed: int, steps: int, cleaning: type[FolderCleaning] = FolderCleaning) -> World:
    """Walk at random; raise `StateLost` if state or a checkpoint is lost on the way."""
    world = World(seed, cleaning)
    for _ in range(steps):
        world.step()
        world.check()
    return world
