"""The addresses that `bench/openpages.py` opens: they differ, and there is a view at each."""

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from bench.openpages import PAGES, VIEWS, open_views
from holdfast.repository import LocalRepository
from holdfast.web.book import Book
from holdfast.web.places import Places
from webfixture import Sample


def test_each_open_page_is_another_view() -> None:
    found = open_views("bench", "job")
    assert len(found) == len(set(found)) == PAGES


def test_there_is_a_view_at_every_address_that_is_measured(tmp_path: Path) -> None:
    Sample(tmp_path, "large", streams=("orders",)).healthy(3, 1)
    book = Book(Places([str(tmp_path)]))
    titles = set()
    for address in [*VIEWS.values(), *open_views("large", "orders")]:
        rendered = book.look(address.format(name="large", stream="orders", checkpoint=1))
        assert rendered is not None, address
        assert rendered.status == 200, address
        titles.add(rendered.view.title)
    assert titles >= {
        "Pipelines",
        "large",
        "orders",
        "Checkpoints",
        "Checkpoint 1",
        "Runs",
        "Doubt and gaps",
        "Timelines",
    }


def test_no_view_lists_the_decisions_of_all_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with an epoch per second has more than half a million of them in a week."""
    Sample(tmp_path, "large", streams=("orders",)).healthy(30, 1)
    listed, found = [], LocalRepository.list

    def spied(self: LocalRepository, folder: str = "") -> list[str]:
        listed.append(folder)
        return found(self, folder)

    monkeypatch.setattr(LocalRepository, "list", spied)
    book = Book(Places([str(tmp_path)]))
    for address in VIEWS.values():
        book.look(address.format(name="large", stream="orders", checkpoint=1))
    assert listed
    assert [each for each in listed if each.endswith("/epochs")] == []


def test_no_view_reads_all_attempts_of_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sample(tmp_path, "large", streams=("orders",)).healthy(30, 1).aborts("orders", 31, 200)
    keys, found = [], LocalRepository.read

    def spied(self: LocalRepository, key: str) -> bytes:
        keys.append(key)
        return found(self, key)

    monkeypatch.setattr(LocalRepository, "read", spied)
    book = Book(Places([str(tmp_path)]))
    for address in ("/", "/p/large", "/p/large/ledger"):
        keys.clear()
        assert book.look(address) is not None
        assert len([each for each in keys if "/epochs/31." in each]) < 20, address
