"""Every verb that only looks, on repositories in which something is damaged: an answer or a typed error.

One file or folder at a time is removed, emptied, cut, changed, or replaced by a folder, a file or a link that cannot be
followed. `mutations` says how to repeat a run and how to make it longer.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from epochfiles import EpochFiles
from fabricated import Fabricated
from holdfast import errors
from holdfast.cli.app import app
from holdfast.epoch import Attempt, CommitTimes, Decision, Facts, PhaseTimes, Share, Verdict
from holdfast.eventlog._cursor_file import CursorRecord
from holdfast.eventlog.worker import Quarantined
from holdfast.formats.sealed_json import is_sealed
from holdfast.repository import Decisions, Gaps, History
from holdfast.repository.activity import RECOVERED, Activity, ActivityEvent, Period, StreamActivity
from holdfast.repository.verdicts import LastVerify, Verdicts
from holdfast.sinks.places import record_places
from mutations import FACTOR, Mutator, Untyped
from support import events, new_log, rounds

DIGEST = "ab" * 32
INPUTS = rounds(750, 1500)
EACH = 5  # verbs after each damage


def verbs(root: Path) -> list[str]:
    """Return what is typed: every verb that only looks, on what was made here."""
    orders, shop = f"-r {root}/orders", f"-r {root}/shop/root"
    found = [
        *(f"ls {orders}", f"ls --all --last 2 {orders}", f"ls -r {root}"),
        *(f"show {orders}", f"show 2 --files {orders}", f"show before --files {orders}", f"show 9 {orders}"),
        *(f"verify {orders}", f"verify --all {orders}", f"verify 2 --quick {orders}", f"verify before {orders}"),
        *(f"diff {orders}", f"diff 1 3 {orders}", f"diff before {orders}"),
        *(f"log {orders}", f"log --last 1 {orders}", f"gaps {orders}", f"gaps --since 2h {orders}", f"doubt {orders}"),
        *(f"status {orders}", f"status -r {root}", f"runs {orders}", f"epochs orders --since 7d {orders}"),
        *(f"epochs orders --slowest {orders}", f"top {orders}"),
        *(f"prune --dry-run {orders}", f"prune --last 1 --dry-run {orders}"),
        *(f"compact --dry-run {shop}", f"compact {root}/shop/out --dry-run {shop}", f"ls {shop}", f"doubt {shop}"),
        *(f"doctor {root}/orders/timelines/1/streams/orders/spark --pause 0",),
        *(f"cursor ls {orders}", f"cursor show old {orders}", f"cursor show new {orders} --log {root}/events"),
    ]
    return [*found, *(f"{each} --json" for each in found)]


def make(root: Path) -> None:
    """Make a repository with a record of every kind, one of a file sink, and an event log."""
    made = Fabricated(hf.repository.LocalRepository(root / "orders"))
    repository = made.repository
    for text in "abc":
        made.take(text, "kept", cuts={"orders": {"offsets": ('{"logOffset":1}',), "sources": ("files",)}})
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["d"]}, savepoint="before", states={"orders/stage": b"x" * 40})
    made.checkpoints.abort(1, made.checkpoints.claim(1, 1), 1, "it took too long", ["orders"])
    made.checkpoints.claim(1, 1)
    for why in ("run", "prune"):
        hf.repository.Lease.take(repository, why=why).release()
    for why in ("first", "second"):
        History(repository).add("prune", why=why)
    for stream in ("orders", "totals"):
        facts = Facts(
            start=[None],
            end=['{"logOffset":1}'],
            offsets_digest=DIGEST,
            source_log={},
            source_entries={},
            sinks={"files": Share(handle={}, rows=2, stands=2, before=1)},
            rows=2,
            decided_at_ms=5,
            times=PhaseTimes(open=0.1, prepare=0.2, sinks={"files": 0.2}),
            last_commit=CommitTimes(epoch=2, decide=0.1, commit=0.2, sinks={"files": 0.2}, ended_at_ms=3),
        )
        attempt = Attempt(stream=stream, timeline=1, epoch=3, attempt=1)
        Decisions(repository).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain()))
        Gaps(repository).add(stream, 1, 2, kind="offsets", why="it was skipped", facts={})
        steps = {"build": 0.5}
        Activity(repository).add_event(ActivityEvent(at_ms=5, lease=1, kind=RECOVERED, stream=stream, steps=steps))
        commits = Path(repository.where) / f"timelines/1/streams/{stream}/spark/commits"
        commits.mkdir(parents=True)
        (commits / "1").write_text("v1\n{}")
    for start in (time.time() - 7200, time.time() - 60):
        streams = {"orders": StreamActivity(epochs=2, rows=3, phases={"open": 0.5}, behind=1)}
        period = Period(start_ms=int(start * 1000), end_ms=int(start * 1000) + 5, lease=1, streams=streams)
        Activity(repository).add_period(period)
    Activity(repository).tidy(lease=1)
    Verdicts(repository).record([LastVerify(checkpoint="1", ok=False, grade="digests", at_ms=5, text="a file is gone")])
    log = new_log(root / "events", events(*"abc"))
    old = hf.eventlog.Region().identity
    v1 = b"\x84\xa8position\x01\xa7started\xc3\xafprocess_boot_ns\xc0\xafregion_identity\xd9" + bytes([len(old)])
    repository.put("cursors/old.ckpt", v1 + old.encode())
    record = CursorRecord(position=1, started=True, region_identity=old, log_identity=log.identity)
    repository.put("cursors/new.ckpt", record.to_bytes())
    quarantined = Quarantined(cursor="new", first=0, last=1, events=2, failures=3, error="e", at_ms=5)
    repository.put("cursors/new.quarantine/0.json", quarantined.sealed())
    (root / "shop").mkdir()
    sink = EpochFiles(root / "shop")
    for epoch in range(1, 6):
        sink.commit(epoch)
    record_places(sink.repository, "s", 1, [sink.sink])


def damages(mutator: Mutator) -> dict[str, Callable[[Path], None]]:
    """Return the ways to damage what is at a path; folders are damaged by the last four only."""

    def written(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            data = path.read_bytes()
            path.unlink()  # not in place: other names may lead to the same bytes
            path.write_bytes(change(data))

        return damage

    def resealed(data: bytes) -> bytes:
        """Change a sealed record under a digest that is right; of several lines, the last."""
        if not is_sealed(data):
            return data[:-1]
        before, end, last = data.removesuffix(b"\n").rpartition(b"\n{")
        return before + b"\n" + mutator.resealed(b"{" + last) + b"\n" if end else mutator.resealed(data)

    def removed(path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def a_folder(path: Path) -> None:
        removed(path)
        path.mkdir()

    def a_file(path: Path) -> None:
        removed(path)
        path.write_bytes(b"not a folder")

    def a_loop(path: Path) -> None:
        removed(path)
        path.symlink_to(path.name)

    return {
        "emptied": written(lambda _: b""),
        "cut": written(lambda data: data[: len(data) // 2]),
        "changed": written(lambda data: mutator.damaged([data])),
        "resealed": written(resealed),
        "removed": removed,
        "a folder": a_folder,
        "a file": a_file,
        "a loop": a_loop,
    }


def inputs(root: Path, mutator: Mutator) -> Iterator[tuple[Path, str]]:
    """Give what to damage and how: everything in every way first, then at random."""
    ways = list(damages(mutator))
    paths = sorted(path for path in root.rglob("*") if ".tmp" not in path.parts)
    every = [(path, way) for path in paths for way in (ways[4:] if path.is_dir() else ways)]
    mutator.random.shuffle(every)
    yield from every
    while True:
        path = mutator.random.choice(paths)
        yield path, mutator.random.choice(ways[4:] if path.is_dir() else ways[2:4])


class Typed:
    """Runs a verb in this process, and notes whatever is not an answer or a typed error."""

    def __init__(self) -> None:
        self.untyped = Untyped()

    def run(self, words: str, after: str) -> tuple[int, str]:
        self.untyped.inputs += 1
        done = CliRunner().invoke(app, words.split(), env={"HOLDFAST_REPO": None, "COLUMNS": None})
        told = done.stdout + done.stderr
        verb = " ".join(word for word in words.split() if not word.startswith("/"))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            self.untyped.note(verb, repr(done.exception), told, after)
        elif done.exit_code not in (0, 1, 2) or "Traceback" in told or "defect" in told:
            self.untyped.note(verb, f"exit code {done.exit_code}", told, after)
        elif "--json" in words:
            self._check_json(verb, done.stdout, done.exit_code, after)
        elif done.exit_code == 2 and not _is_typed(done.stderr.rpartition("[")[2].partition("]")[0]):
            self.untyped.note(verb, "untyped", told, after)
        return done.exit_code, told

    def _check_json(self, verb: str, text: str, code: int, after: str) -> None:
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            self.untyped.note(verb, f"no JSON: {error}", text, after)
            return
        error = found.get("error")
        if found["exit"] != code or (error and not (_is_typed(error["kind"]) and error["next"])):
            self.untyped.note(verb, "untyped", text, after)


def _is_typed(kind: str) -> bool:
    found = getattr(errors, kind, None)
    return isinstance(found, type) and issubclass(found, errors.HoldfastError)


def held(root: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_every_verb_on_damaged_repositories(tmp_path: Path) -> None:
    sound, root = tmp_path / "sound", tmp_path / "root"
    sound.mkdir()
    make(sound)
    typed, mutator = Typed(), Mutator("command")
    shutil.copytree(sound, root)
    typed_words = verbs(root)
    for words in typed_words:
        code, told = typed.run(words, "nothing")
        assert code in (0, 1) or "show 9" in words, (words, told)
    before = held(root)
    damage = damages(mutator)
    for path, way in inputs(root, mutator):
        if typed.untyped.inputs >= INPUTS * FACTOR:
            break
        damage[way](path)
        name = path.relative_to(root)
        after = held(root) if not mutator.random.randrange(20) else None
        for words in mutator.random.sample(typed_words, EACH):
            typed.run(words, f"{name}: {way}")
        if after is not None and held(root) != after:
            typed.untyped.note("any", "a verb that only looks has changed a file", str(name), way)
        _restore(sound / name, path)
    assert held(root) == before
    typed.untyped.check()


def _restore(sound: Path, path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    shutil.copytree(sound, path) if sound.is_dir() else shutil.copyfile(sound, path)


# --- one bad file hides nothing else ---------------------------------------------------------------------------------

STREAMS = "orders/timelines/1/streams"
CHECKPOINTS = "orders/timelines/1/checkpoints"
SINKS = "timelines/1/streams/u/sinks.json"


@pytest.mark.parametrize("way", ["cut", "a folder", "a loop"])
@pytest.mark.parametrize(
    ("words", "bad", "shown"),
    [
        ("ls -r {root}/orders", f"{CHECKPOINTS}/2/manifest.json", ["before", "orders 1", "orders 3"]),
        ("ls -r {root}/orders", "orders/savepoints/before/manifest.json", ["orders 1", "orders 2", "orders 3"]),
        ("ls --all -r {root}/orders", f"{CHECKPOINTS}/aborted/5.json", ["before", "orders 1", "aborted"]),
        ("ls -r {root}/orders", "orders/lease/00000002.json", ["before", "orders 1", "lease/00000002.json"]),
        ("ls -r {root}", "orders/holdfast.json", ["/orders", "other"]),
        ("verify --all -r {root}/orders", f"{CHECKPOINTS}/2/manifest.json", ["before", "sound", "checkpoints/2/mani"]),
        ("gaps -r {root}/orders", f"{STREAMS}/orders/gaps/0000000002.offsets.json", ["totals", "gaps/0000000002"]),
        ("doubt -r {root}/orders", f"{STREAMS}/totals/epochs/3.1.json", ["orders", "totals/epochs/3.1.json"]),
        ("doubt -r {root}/orders", "orders/lease/00000002.json", ["orders", "totals", "lease/00000002.json"]),
        ("log -r {root}/orders", "orders/lease/00000001.json", ["first", "second", "lease 2", "lease/00000001.json"]),
        ("log -r {root}/orders", "orders/history.jsonl", ["lease 1", "lease 2", "history.jsonl"]),
        ("cursor ls -r {root}/orders", "orders/cursors/old.ckpt", ["new", "old", "old.ckpt"]),
        ("compact --dry-run -r {root}/shop/root", "shop/other/owner", ["1-3", "other"]),
        ("compact --dry-run -r {root}/shop/root", f"shop/root/{SINKS}", ["1-3", "u/sinks.json"]),
    ],
)  # fmt: skip
def test_a_list_reports_a_bad_file_and_shows_the_others(
    tmp_path: Path, words: str, bad: str, shown: list[str], way: str
) -> None:
    make(tmp_path)
    hf.repository.Identity.create(hf.repository.LocalRepository(tmp_path / "other"), "other")
    second = EpochFiles(tmp_path / "shop", name="other")
    second.commit(1, 2)
    record_places(second.repository, "u", 1, [second.sink])
    path = tmp_path / bad if not bad.endswith("/owner") else second.path / "_holdfast/owner.key"
    damages(Mutator("list"))[way](path)
    typed = Typed()
    code, told = typed.run(words.format(root=tmp_path), f"{bad}: {way}")
    typed.run(words.format(root=tmp_path) + " --json", f"{bad}: {way}")
    typed.untyped.check()
    assert code == (0 if "aborted" in bad else 1), told
    assert [each for each in shown if each not in told] == [], told
