import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._validation import checked_key, checked_name
from holdfast.epoch import Attempt
from holdfast.errors import BadInput, BadName
from holdfast.repository import Identity, LocalRepository, MemoryRepository
from holdfast.stores import CheckpointId, CheckpointState, MemoryCheckpointStore

HOSTILE = [
    "../x",
    "..",
    ".",
    ".hidden",
    "/etc/passwd",
    "C:\\x",
    "",
    "x" * 300,
    "x" * 65,
    "a\nb",
    "a\0b",
    "a\x1b[31m",
    "a\x7f",
    "a/b",
    "a\\b",
    "na\udcffme",  # what the file system gives for a name that is not UTF-8
    b"\xff\xfe",
    "naïve",
    "a b",
    "-rf",
    "a\n",
    "\u202ename",
    None,
    7,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_hostile_names_are_refused_at_every_edge(name: object, tmp_path: object) -> None:
    from holdfast.eventlog._cursor_slot import cursor_key

    edges = [
        lambda: checked_name("stream", name),
        lambda: cursor_key(name),
        lambda: Identity.create(MemoryRepository(), name),
        lambda: Attempt(stream=name, timeline=1, epoch=1, attempt=1),
        lambda: MemoryCheckpointStore(1).save(CheckpointState(CheckpointId(name, 1))),
        lambda: MemoryCheckpointStore(1).latest(name),
    ]
    for edge in edges:
        with pytest.raises(BadInput) as caught:
            edge()
        text = str(caught.value)
        assert text.isprintable()
        assert len(text) < 400


@pytest.mark.parametrize(
    "key", ["../x", "/x", "a//b", "a/../b", "a/", "", ".tmp-1", "a/.b", "a\0", "x" * 300, "a\\b", 5]
)
def test_hostile_keys_reach_no_backend(key: str, tmp_path: object) -> None:
    for repository in (MemoryRepository(), LocalRepository(str(tmp_path))):
        for action in (repository.read, repository.delete, repository.lock):
            with pytest.raises(BadName):
                action(key)
        with pytest.raises(BadName):
            repository.put(key, b"")
        with pytest.raises(BadName):
            repository.put_if_absent(key, b"")


def test_a_number_too_long_to_print_is_refused_in_words() -> None:
    with pytest.raises(BadInput, match="<int: ValueError>"):
        CheckpointId("s", 10**5000)
    with pytest.raises(BadInput):
        Attempt(stream="s", timeline=1, epoch=10**5000, attempt=1)


def test_the_quick_look_at_a_key_says_what_the_rule_says() -> None:
    """Many keys are looked at, so one pattern takes the whole of each; part by part it is the same."""
    part = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*\Z")

    def allowed(key: str) -> bool:
        return all(len(each) <= 200 and part.match(each) for each in key.split("/"))

    keys = ["".join(each) for length in range(1, 6) for each in itertools.product("a/.=\n", repeat=length)]
    keys += [f"x/{'a' * length}/y" for length in (199, 200, 201)]
    for key in keys:
        try:
            passed = checked_key(key) == key
        except BadName:
            passed = False
        assert passed is allowed(key), key


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True))
def test_plain_names_pass_and_are_keys_too(name: str) -> None:
    assert checked_name("stream", name) == name
    assert checked_key(f"streams/{name}/x.json")


@given(st.text())
def test_whatever_passes_stays_inside_its_folder(name: str) -> None:
    try:
        checked_name("stream", name)
    except BadName:
        return
    assert "/" not in name
    assert name not in (".", "..")
    assert 0 < len(name.encode()) <= 64
