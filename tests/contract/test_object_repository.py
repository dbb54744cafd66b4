"""What only a repository on a store has: tokens, faults of the network, listings, probes, and records that change."""

import contextlib
import hashlib
import multiprocessing
import os
import pickle
import socket
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from faultproxy import Answer, Fault, FaultProxy
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import (
    BadValue,
    BucketMissing,
    BucketUnsuitable,
    Closed,
    EpochClosed,
    Fenced,
    HoldfastError,
    LeaseHeld,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    RecordCorrupt,
    StorageFailed,
    StoreDenied,
    StoreUnreachable,
    WrongRegion,
)
from holdfast.repository import Decisions, History, Identity, Lease, ObjectRepository, open_repository
from holdfast.repository import objectstore as objectstore_module
from holdfast.repository.lease import held_lease, newest_lease
from holdfast.repository.probe import probe
from holdfast.repository.storeguard import BeatTiming
from holdfast.repository.targets import newest_targets, record_targets
from s3fixture import KEY_ID, SECRET, S3Place, as_profile, environment, signed, using, with_faults
from support import refused_in_a_child

QUICK = BeatTiming(beat_s=0.2, wait_s=1.5, poll_s=0.05)


@pytest.fixture
def store(s3: S3Place) -> ObjectRepository:
    return ObjectRepository(s3.url())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after a second instead of a minute."""
    monkeypatch.setattr(objectstore_module, "_GIVE_UP_S", 1.0)


# --- one winner, whatever the network does ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(Fault))
def test_the_winner_knows_that_it_has_won_whatever_happens_to_its_request(
    s3_faults: FaultProxy, store: ObjectRepository, fault: Fault
) -> None:
    for times in (1, 2):
        s3_faults.fail(fault, "CREATE", times=times)
        put = store.put_if_absent(f"slot-{times}", b"ours")
        assert (put.won, put.data) == (True, b"ours")
        s3_faults.fail(fault, "CREATE", times=times)
        lost = store.put_if_absent(f"slot-{times}", b"theirs")
        assert (lost.won, lost.data) == (False, b"ours")


@pytest.mark.parametrize("fault", list(Fault))
def test_equal_bytes_of_two_writers_are_told_apart(
    s3_faults: FaultProxy, store: ObjectRepository, s3: S3Place, fault: Fault
) -> None:
    s3_faults.fail(fault, "CREATE")
    wins = [store.put_if_absent("slot", b"the same").won for _ in range(3)]
    assert wins == [True, False, False]
    assert (s3.folder / "root/slot").read_bytes() == b"the same", "the token is not in the bytes"


def test_what_cannot_be_found_out_is_unknown(
    s3_faults: FaultProxy, store: ObjectRepository, s3: S3Place, hasty: None
) -> None:
    s3_faults.fail(Fault.APPLIED_500, "CREATE", times=None)
    s3_faults.fail(Fault.DROP_BEFORE, "GET", times=None)
    with pytest.raises(OutcomeUnknown, match="slot"):
        store.put_if_absent("slot", b"x")
    assert (s3.folder / "root/slot").read_bytes() == b"x"
    s3_faults.clear()
    s3_faults.fail(Fault.ANSWER_503, times=None)
    for act in (
        lambda: store.put_if_absent("other", b"x"),
        lambda: store.put_new("other", b"x"),
        lambda: store.delete("other"),
        lambda: store.copy_all([("slot", "copy")]),
    ):
        with pytest.raises(OutcomeUnknown):
            act()


def test_a_request_that_is_denied_has_changed_nothing(s3: S3Place, store: ObjectRepository) -> None:
    with using({**s3.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}):
        for act in (
            lambda: ObjectRepository(s3.url()).put_if_absent("slot", b"x"),
            lambda: ObjectRepository(s3.url()).put_new("slot", b"x"),
            lambda: ObjectRepository(s3.url()).delete("slot"),
            lambda: ObjectRepository(s3.url()).read("slot"),
            lambda: ObjectRepository(s3.url()).list(),
        ):
            with pytest.raises(StoreDenied):
                act()
    assert store.flat() == []


def test_a_killed_server_is_waited_for(s3: S3Place, store: ObjectRepository) -> None:
    store.put_if_absent("a", b"1")
    s3.server.kill()
    with ThreadPoolExecutor() as pool:
        put = pool.submit(store.put_if_absent, "b", b"2")
        time.sleep(0.5)
        s3.server.start()
        assert put.result(60).won
    assert store.read_all(["a", "b"]) == {"a": b"1", "b": b"2"}


# --- listings, copies and parts --------------------------------------------------------------------------------------


def test_a_flat_listing_has_sizes_etags_and_times_and_no_markers_of_folders(
    s3: S3Place, store: ObjectRepository
) -> None:
    before = time.time()
    store.put_new("a/x", b"four")
    store.put_new("a/y/empty", b"")
    store.put_new("a/y/z", b"1")
    store.put_new("ab", b"1")
    for marker in ("a/y/", "a/nothing-in-it/", "markers/"):  # as S3A writes them
        assert signed(s3, "PUT", f"root/{marker}") == 200
    found = {each.key: each for each in store.flat("a")}
    assert sorted(found) == ["a/x", "a/y/empty", "a/y/z"]
    assert (found["a/x"].size, found["a/x"].etag) == (4, hashlib.md5(b"four").hexdigest())  # noqa: S324
    assert before - 2 < found["a/x"].modified_s < time.time() + 2
    assert [each.key for each in store.flat()] == ["a/x", "a/y/empty", "a/y/z", "ab"]
    assert store.list("a") == ["nothing-in-it/", "x", "y/"]
    assert store.list("a/y") == ["empty", "z"]
    assert store.list("a/nothing-in-it") == []
    store.clear("a")
    assert store.flat("a") == []


def test_a_listing_goes_beyond_a_thousand(store: ObjectRepository) -> None:
    keys = [f"many/{number:05}" for number in range(1_100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put_new(key, b"x"), keys))
    assert [each.key for each in store.flat("many")] == keys
    assert len(store.list("many")) == 1_100
    assert store.sizes([*keys, "many/none"]) == {**dict.fromkeys(keys, 1), "many/none": None}
    assert store.read_all(keys[:100]) == dict.fromkeys(keys[:100], b"x")
    store.delete_all(keys)
    assert store.flat() == []


def test_many_sizes_of_a_folder_cost_one_request(s3_faults: FaultProxy, store: ObjectRepository) -> None:
    keys = [f"many/{number:05}" for number in range(40)]
    for key in keys:
        store.put_new(key, b"x")
    s3_faults.reset()
    assert set(store.sizes(keys).values()) == {1}
    assert s3_faults.counts == {"LIST": 1}


def test_copies_are_made_by_the_server(s3_faults: FaultProxy, store: ObjectRepository) -> None:
    keys = [f"a/{number}" for number in range(40)]
    for key in keys:
        store.put_new(key, key.encode())
    s3_faults.reset()
    s3_faults.fail(Fault.APPLIED_500, "COPY", times=5)
    store.copy_all((key, f"b{key}") for key in keys)
    assert store.read_all(f"b{key}" for key in keys) == {f"b{key}": key.encode() for key in keys}
    assert s3_faults.counts["COPY"] == 45
    assert s3_faults.counts["PUT"] == s3_faults.counts["CREATE"] == 0
    with pytest.raises(NotFound):
        store.copy_all([("a/none", "b/none")])


def test_large_values_are_read_in_pieces(store: ObjectRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    large = os.urandom(1 << 20) * 12
    monkeypatch.setattr(objectstore_module, "_IN_PARTS", 8 << 20)
    store.put_new("large", large)
    assert store.digest("large") == hashlib.sha256(large).hexdigest()
    pieces = list(store.stream("large"))
    assert b"".join(pieces) == large
    assert len(pieces) > 1
    assert store.read_range("large", 10, 20) == large[10:20]
    with pytest.raises(NotFound):
        list(store.stream("none"))
    with pytest.raises(NotFound):
        store.read_range("none", 0, 1)


def test_a_repository_travels_as_its_address_and_not_with_its_client(store: ObjectRepository) -> None:
    store.put_new("a", b"1")
    data = pickle.dumps(store)
    assert SECRET.encode() not in data
    assert KEY_ID.encode() not in data
    again: ObjectRepository = pickle.loads(data)  # noqa: S301
    assert (again.where, again.read("a")) == (store.where, b"1")


# --- addresses, credentials and probes -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["gs", "az", "abfs", "abfss", "hdfs", "s3a"])
def test_other_stores_are_refused_by_name(scheme: str) -> None:
    with pytest.raises(NotSupported, match=f"{scheme}://"):
        open_repository(f"{scheme}://bucket/x")


def all_texts(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


def test_no_credential_is_in_an_error(s3: S3Place) -> None:
    wrong = "very-secret-and-wrong"
    for variables in (
        {"AWS_SECRET_ACCESS_KEY": wrong},
        {"AWS_ACCESS_KEY_ID": "AKIAWRONG", "AWS_SECRET_ACCESS_KEY": wrong},
        {"AWS_SESSION_TOKEN": "a-session-token", "AWS_SECRET_ACCESS_KEY": wrong},
        {"AWS_ENDPOINT_URL": f"http://user:{wrong}@127.0.0.1:{_closed_port()}"},
    ):
        with using({**s3.environment, **variables}):
            store = ObjectRepository(s3.url())
            assert wrong not in repr(store) + store.where
            for act in (lambda store=store: probe(store), lambda store=store: store.list()):
                with pytest.raises(HoldfastError) as caught:
                    act()
                text = all_texts(caught.value)
                for secret in (wrong, SECRET, KEY_ID, "AKIAWRONG", "a-session-token"):
                    assert secret not in text
    with pytest.raises(HoldfastError) as refused:
        open_repository(f"s3://key:{wrong}@bucket/x")
    assert wrong not in all_texts(refused.value)
    with pytest.raises(HoldfastError) as refused:
        open_repository(f"s3://bucket/x?secret={wrong}")
    assert wrong not in all_texts(refused.value)


def test_requests_without_encryption_must_be_allowed(s3: S3Place) -> None:
    variables = {name: value for name, value in s3.environment.items() if name != "AWS_ALLOW_HTTP"}
    with using(variables), pytest.raises(BadValue, match="AWS_ALLOW_HTTP=true"):
        ObjectRepository(s3.url()).list()


def test_missing_credentials_are_named(s3: S3Place) -> None:
    kept = ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION")
    port = _closed_port()
    with using({name: s3.environment[name] for name in kept} | {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{port}"}):
        with pytest.raises(StoreDenied, match="no credentials"):
            probe(ObjectRepository(s3.url()))


def test_credentials_and_the_place_may_come_from_a_profile(s3: S3Place, tmp_path: Path) -> None:
    with using(as_profile(s3, tmp_path)):
        store = ObjectRepository(s3.url())
        probe(store)
        store.put_new("a", b"1")
    assert ObjectRepository(s3.url()).read("a") == b"1"
    assert SECRET not in repr(store)
    assert SECRET.encode() not in pickle.dumps(store)


def test_a_good_bucket_passes_and_keeps_nothing(s3_faults: FaultProxy, store: ObjectRepository) -> None:
    probe(store)
    assert store.flat() == []
    assert sum(s3_faults.counts.values()) <= 8


@pytest.mark.parametrize(
    ("variables", "bucket", "kind"),
    [
        ({}, "no-such-bucket", BucketMissing),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, None, StoreDenied),
        ({"AWS_ACCESS_KEY_ID": "wrong"}, None, StoreDenied),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:{port}"}, None, StoreUnreachable),
        ({"AWS_ENDPOINT_URL": "http://no-such-host.invalid"}, None, StoreUnreachable),
    ],
    ids=["bucket", "secret", "key", "refused", "host"],
)
def test_a_start_finds_out_what_is_wrong_with_the_settings(
    s3: S3Place, variables: dict[str, str], bucket: str | None, kind: type[HoldfastError]
) -> None:
    port = _closed_port()
    named = {name: value.format(port=port) for name, value in variables.items()}
    with using({**s3.environment, **named}):
        began = time.monotonic()
        with pytest.raises(kind):
            probe(ObjectRepository(f"s3://{bucket or s3.bucket}/root"))
        assert time.monotonic() - began < 20
    assert not list(s3.folder.iterdir())


def test_a_server_that_hangs_or_fails_is_not_waited_for_long(s3_faults: FaultProxy, store: ObjectRepository) -> None:
    s3_faults.fail(Fault.ANSWER_503, times=None)
    began = time.monotonic()
    with pytest.raises(HoldfastError, match="SlowDown"):
        probe(store)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("code", ["PermanentRedirect", "AuthorizationHeaderMalformed"])
def test_a_bucket_in_another_region_is_named(s3_faults: FaultProxy, store: ObjectRepository, code: str) -> None:
    status = 301 if code == "PermanentRedirect" else 400
    s3_faults.fail(Answer(status, code, "<Region>eu-west-1</Region>"), times=None)
    with pytest.raises(WrongRegion, match="redirected" if status == 301 else "eu-west-1"):
        probe(store)


def test_a_server_that_ignores_conditions_is_refused(s3_faults: FaultProxy, store: ObjectRepository) -> None:
    s3_faults.ignore_conditions = True
    with pytest.raises(BucketUnsuitable, match="conditional"):
        probe(store)
    assert store.flat() == []


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown"), (409, "OperationAborted")])
def test_an_error_is_not_the_refusal_of_a_condition(
    s3_faults: FaultProxy, store: ObjectRepository, status: int, code: str
) -> None:
    """A server that fails on the second conditional write may still ignore conditions."""
    s3_faults.hang_s = 0
    s3_faults.fail(Fault.HANG, "CREATE")  # the first one is written
    s3_faults.fail(Answer(status, code), "CREATE", times=None)
    with pytest.raises(StorageFailed, match=code):
        probe(store)
    assert store.flat() == []


def test_a_server_without_conditional_writes_is_refused(
    s3_faults: FaultProxy, store: ObjectRepository, hasty: None
) -> None:
    s3_faults.fail(Answer(501, "NotImplemented"), "CREATE", times=None)
    with pytest.raises(BucketUnsuitable, match="If-None-Match"):
        probe(store)
    with pytest.raises(BucketUnsuitable, match="If-None-Match"):
        store.put_if_absent("a", b"1")
    assert store.flat() == []


def test_requests_that_may_not_list_or_delete_are_found_out(s3_faults: FaultProxy, store: ObjectRepository) -> None:
    for kind in ("LIST", "DELETE", "GET", "CREATE"):
        s3_faults.fail(Answer(403, "AccessDenied"), kind, times=None)
        with pytest.raises(StoreDenied):
            probe(store)
        s3_faults.clear()


# --- a client belongs to its process ---------------------------------------------------------------------------------


def test_a_forked_child_is_refused_and_does_not_hang(store: ObjectRepository) -> None:
    store.put_new("a", b"1")
    with Lease.take(store) as lease:
        assert refused_in_a_child(lambda: store.read("a"), NotSupported)
        assert refused_in_a_child(lambda: ObjectRepository(store.where).list(), NotSupported)
        assert refused_in_a_child(lease.check, Closed)
        lease.check()
    assert store.read("a") == b"1"


def test_a_spawned_child_has_a_client_of_its_own(store: ObjectRepository) -> None:
    store.put_new("a", b"1")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(store.read, ("a",)) == b"1"


# --- records that change ---------------------------------------------------------------------------------------------


class Paused(ObjectRepository):
    """Another driver acts just before the first conditional write of this one below a folder."""

    def __init__(self, url: str, below: str, meanwhile: Any) -> None:
        super().__init__(url)
        self._below, self._meanwhile = below, meanwhile

    def put_if_absent(self, key: str, data: Any) -> Any:
        if key.startswith(self._below) and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return super().put_if_absent(key, data)


def added(by: bytes) -> Any:
    return lambda old: (old or b"") + (b"" if by in (old or b"") else by)


def test_a_record_changes_under_the_next_number_and_two_are_kept(store: ObjectRepository) -> None:
    with pytest.raises(NotFound):
        store.heads.read("a/x.json")
    assert store.heads.create("a/x.json", b"1").won
    assert not store.heads.create("a/x.json", b"2").won
    for number in range(2, 6):
        store.heads.change("a/x.json", lambda old, number=number: (old or b"") + str(number).encode())
    assert store.heads.read("a/x.json") == b"12345"
    assert store.list("heads/a/x") == ["00000004.json", "00000005.json"]
    assert store.heads.change("a/x.json", lambda old: old) == b"12345"
    assert store.list("heads/a/x") == ["00000004.json", "00000005.json"]
    assert not store.heads.create("a/x.json", b"again").won


@pytest.mark.parametrize("others", [1, 2, 3, 5])
def test_a_paused_writer_never_undoes_what_others_have_written(
    s3: S3Place, store: ObjectRepository, others: int
) -> None:
    """With two or more others, its number is free again when it writes, because old numbers are removed."""
    store.heads.change("x.json", added(b"a"))

    def meanwhile() -> None:
        for number in range(others):
            store.heads.change("x.json", added(b"bcdef"[number : number + 1]))

    paused = Paused(s3.url(), "heads/x/", meanwhile)
    paused.heads.change("x.json", added(b"z"))
    assert store.heads.read("x.json") == b"abcdef"[: others + 1] + b"z"
    assert len(store.list("heads/x")) <= 2


def test_a_paused_writer_cannot_create_what_exists(s3: S3Place, store: ObjectRepository) -> None:
    def meanwhile() -> None:
        for text in (b"a", b"b", b"c"):
            store.heads.change("x.json", added(text))

    paused = Paused(s3.url(), "heads/x/", meanwhile)
    put = paused.heads.create("x.json", b"mine")
    assert (put.won, put.data) == (False, b"abc")
    assert store.heads.read("x.json") == b"abc"


def test_no_change_is_lost_between_eight_threads(s3_faults: FaultProxy, s3: S3Place) -> None:
    with_faults(s3_faults, 0.01)

    def add(name: int) -> None:
        heads = ObjectRepository(s3.url()).heads
        for number in range(5):
            heads.change("x.json", added(f"<{name}.{number}>".encode()))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    s3_faults.clear()
    text = ObjectRepository(s3.url()).heads.read("x.json").decode()
    assert sorted(text.strip("<>").split("><")) == sorted(f"{a}.{b}" for a in range(8) for b in range(5))


def test_a_level_only_rises(store: ObjectRepository) -> None:
    for level in (5, 9, 7, 12, 3):
        store.heads.rise("a/floor.json", level, b"record")
    assert store.heads.look().level("a/floor.json", lambda _: 0) == 12
    assert store.heads.look().level("a/other.json", lambda _: 0) == 0
    assert len(store.list("heads/a/floor")) == 2


def test_identity_and_targets_are_heads(store: ObjectRepository) -> None:
    identity = Identity.create(store, "orders")
    assert Identity.load(store) == identity
    newer = identity.with_several_timelines(store)
    assert Identity.load(store) == newer
    assert store.list("heads/holdfast") == ["00000001.json", "00000002.json"]
    for targets in ({"a": "x"}, {"a": "x"}, {"a": "y"}):
        record_targets(store, "orders", 1, targets)
    store.put_new("timelines/1/streams/orders/stream.json", b"{}")
    assert newest_targets(store) == ({"orders": {"a": "y"}}, [])


def decision(epoch: int) -> Decision:
    attempt = Attempt(stream="orders", timeline=1, epoch=epoch, attempt=1)
    return Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1)


def test_a_driver_that_was_paused_finds_its_epoch_closed(s3: S3Place, store: ObjectRepository) -> None:
    decisions = Decisions(store)
    for epoch in (1, 2, 3):
        decisions.close(decision(epoch))
    assert decisions.prune("orders", 1, before=3) == 2
    with pytest.raises(EpochClosed):
        decisions.close(decision(1))
    assert store.list("timelines/1/streams/orders/epochs") == ["3.1.json"]


def test_closing_an_epoch_costs_two_requests_and_checking_the_lease_one(
    s3_faults: FaultProxy, store: ObjectRepository
) -> None:
    decisions = Decisions(store)
    for epoch in (1, 2, 3):
        decisions.close(decision(epoch))
    decisions.prune("orders", 1, before=3)
    with Lease.take(store) as lease:
        s3_faults.reset()
        decisions.close(decision(4))
        assert s3_faults.counts == {"CREATE": 1, "LIST": 1}
        s3_faults.reset()
        lease.check()
        assert s3_faults.counts == {"LIST": 1}


# --- the history -----------------------------------------------------------------------------------------------------


def test_history_is_one_object_per_entry(store: ObjectRepository) -> None:
    history = History(store)
    for what in ("one", "two", "three"):
        history.add(what)
    assert [each.what for each in history.entries()] == ["one", "two", "three"]
    assert store.list("history") == ["00000001.json", "00000002.json", "00000003.json"]
    good = store.read("history/00000002.json")
    for data, wrong in ((good.replace(b'"two"', b'"TWO"'), 2), (store.read("history/00000001.json"), 2)):
        store.put_new("history/00000002.json", data)
        with pytest.raises(RecordCorrupt, match=f"0000000{wrong}"):
            history.entries()
        with pytest.raises(RecordCorrupt):
            history.add("four")
    store.delete("history/00000002.json")
    with pytest.raises(RecordCorrupt, match="00000002"):
        history.entries()
    seen, bad = history.seen()
    assert ([each.what for each in seen], len(bad)) == (["one", "three"], 1)


def test_no_entry_is_lost_between_threads(s3: S3Place) -> None:
    def add(name: int) -> None:
        for number in range(5):
            History(ObjectRepository(s3.url())).add(f"{name}.{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    found = [each.what for each in History(ObjectRepository(s3.url())).entries()]
    assert sorted(found) == sorted(f"{a}.{b}" for a in range(4) for b in range(5))


# --- the lease -------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(s3: S3Place) -> ObjectRepository:
    """A store whose leases are given up after a second and a half."""
    return ObjectRepository(s3.url(), timing=QUICK)


@contextlib.contextmanager
def silent(lease: Lease) -> Iterator[None]:
    """End the beat without the mark of a release, as a kill does."""
    lease._lock._writer._ended.set()  # type: ignore[union-attr]
    yield


def test_a_lease_that_was_released_is_followed_at_once(store: ObjectRepository) -> None:
    first = Lease.take(store)
    assert held_lease(store) == first.record
    first.release()
    assert held_lease(store) is None
    began = time.monotonic()
    with Lease.take(store) as second:
        assert time.monotonic() - began < 5
        assert second.number == 2
        assert newest_lease(store) == second.record
        with pytest.raises(Closed):
            first.check()


def test_a_live_holder_keeps_others_out(quick: ObjectRepository) -> None:
    with Lease.take(quick) as lease:
        with pytest.raises(LeaseHeld) as caught:
            Lease.take(quick)
        assert caught.value.holder == lease.record.holder
        lease.check()
        assert quick.list("heads/clock") == []
    assert [name.partition(".")[2] for name in quick.list("heads/lease")] == ["beat", "json", "released"]


def test_a_dead_holder_is_followed_after_a_while(quick: ObjectRepository) -> None:
    lease = Lease.take(quick)
    with silent(lease):
        began = time.monotonic()
        with Lease.take(quick) as next_one:
            assert QUICK.wait_s <= time.monotonic() - began < 20
            assert next_one.number == 2
            with pytest.raises(Fenced):
                lease.check()
        with Lease.take(quick):  # it was released
            pass
    assert quick.list("heads/clock") == []


def test_a_take_over_does_not_wait(store: ObjectRepository) -> None:
    first = Lease.take(store)
    began = time.monotonic()
    second = Lease.take(store, take_over=True)
    assert time.monotonic() - began < 5
    with pytest.raises(Fenced):
        first.check()
    second.check()
    second.release()
    first.release()


def test_old_leases_go_with_their_beats(store: ObjectRepository) -> None:
    for _ in range(20):
        Lease.take(store).release()
    numbers = {name[:8] for name in store.list("heads/lease")}
    assert len(numbers) == 16


def test_a_lease_that_was_taken_again_or_is_gone_is_fenced(store: ObjectRepository) -> None:
    """As when the bucket is put back from an older copy."""
    one = Lease.take(store, take_over=True)
    store.delete("heads/lease/00000001.json")
    with pytest.raises(Fenced, match="missing"):
        one.check()
    two = Lease.take(store, take_over=True)
    assert two.number == one.number
    with pytest.raises(Fenced):
        one.check()
    two.check()
    one.release()
    two.release()


def _closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_environment_of_the_fixture_is_the_only_one(s3: S3Place, tmp_path: Path) -> None:
    assert {name for name in os.environ if name.startswith("AWS_")} == set(environment(s3.endpoint))
