"""Functions that run at the same time."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.spark import side_by_side
from holdfast.spark.side_by_side import SideBySide


def outside() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def test_one_function_runs_in_the_callers_thread_without_another() -> None:
    before = threading.active_count()
    sides = SideBySide("sides")
    (result,) = sides.run([threading.get_ident], outside)
    assert result.value == threading.get_ident()
    assert threading.active_count() == before


def test_functions_run_at_the_same_time_and_results_keep_their_order() -> None:
    barrier, sides = threading.Barrier(3), SideBySide("sides")
    waits: list[Callable[[], int]] = [lambda: barrier.wait(30) * 0 + 1, lambda: barrier.wait(30) * 0 + 2]
    results = sides.run([*waits, lambda: barrier.wait(30) * 0 + 3], outside)
    assert [each.value for each in results] == [1, 2, 3]
    sides.close()


def test_all_have_ended_when_run_returns_even_if_the_first_fails_at_once() -> None:
    sides, ended, go = SideBySide("sides"), threading.Event(), threading.Event()

    def slow() -> None:
        assert go.wait(30)
        ended.set()

    def fails() -> None:
        threading.Timer(0.05, go.set).start()
        raise KeyboardInterrupt  # not an `Exception` either

    first, second = sides.run([fails, slow], outside)
    assert isinstance(first.error, KeyboardInterrupt)
    assert second.error is None
    assert ended.is_set()
    sides.close()


def test_only_the_calls_in_other_threads_are_inside() -> None:
    inside: list[int] = []

    @contextlib.contextmanager
    def within() -> Iterator[None]:
        inside.append(threading.get_ident())
        yield

    barrier, sides = threading.Barrier(2), SideBySide("sides")

    def where() -> int:
        barrier.wait(30)
        return threading.get_ident()

    here, there = sides.run([where, where], within)
    assert here.value == threading.get_ident()
    assert inside == [there.value]
    sides.close()


def test_what_fails_to_enter_is_the_error_of_its_call() -> None:
    def within() -> contextlib.AbstractContextManager[None]:
        raise OSError("no properties")

    barrier, sides = threading.Barrier(1), SideBySide("sides")
    results = sides.run([lambda: threading.Event().wait(0.05), barrier.wait], within)
    assert isinstance(results[1].error, OSError)
    sides.close()


def test_threads_are_kept_and_end_when_closed() -> None:
    sides = SideBySide("kept-by-test")

    def names() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "kept-by-test"]

    for _ in range(3):
        barrier = threading.Barrier(2)
        sides.run([barrier.wait, barrier.wait], outside)
        assert len(names()) == 1
    threads = [each for each in threading.enumerate() if each.name == "kept-by-test"]
    sides.close()
    for each in threads:
        each.join(30)
    assert not names()
    barrier = threading.Barrier(2)
    sides.run([barrier.wait, barrier.wait], outside)  # a closed one starts again
    sides.close()


def test_threads_are_bounded_and_every_function_runs() -> None:
    sides, seen, mutex = SideBySide("bounded"), set[int](), threading.Lock()

    def note() -> None:
        with mutex:
            seen.add(threading.get_ident())

    results = sides.run([note] * 50, outside)
    assert all(each.error is None for each in results)
    assert len(seen) <= side_by_side.MOST_THREADS + 1
    sides.close()


def test_the_caller_runs_all_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    results = SideBySide("none").run([threading.get_ident] * 3, outside)
    assert [each.value for each in results] == [threading.get_ident()] * 3


def test_closed_while_it_runs() -> None:
    """The JVM has died: the query is given up while its last epoch still waits for the sinks."""
    sides = SideBySide("closing")
    results = sides.run([sides.close, threading.get_ident, threading.get_ident], outside)
    assert all(each.error is None for each in results)
