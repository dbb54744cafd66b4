"""The addresses that `bench/openpages.py` opens: they differ, and there is a view at each."""

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from bench.openpages import PAGES, VIEWS, open_views
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
