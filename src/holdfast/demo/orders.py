"""The orders that the demo streams, and the expected outputs, computed in plain Python.

Rules:
- The same seed gives the same orders. The random generator is used for nothing else.
- The orders come in two parts. All times of the second part are after those of the first.
- Each order is one event. Some events are late, in a later file than their time belongs to; some arrive twice.
- All delays are shorter than `WATERMARK`: the watermark never passes an event that is still to arrive. So the expected
  outputs depend neither on the boundaries of epochs nor on the kills.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

WATERMARK = timedelta(hours=16)
_SLOT = timedelta(hours=2)  # the range of event time in one file, apart from late events
_LATE_FILES = 3  # the maximum delay of an event, in files
_AGAIN_FILES = 2  # the maximum delay of its second copy, in files
_LATE, _TWICE = 0.12, 0.08  # fractions of all events
_BEGIN = datetime(2025, 3, 1, 18, tzinfo=UTC)  # the first files include midnight: there are totals of several days

PRODUCTS = {  # product: category, price in cents
    "espresso": ("coffee", 260),
    "filter": ("coffee", 340),
    "assam": ("tea", 310),
    "sencha": ("tea", 420),
    "bagel": ("food", 480),
    "quiche": ("food", 690),
    "apple pie": ("food", 530),
}
LISTED_TWICE = (
    "tea"  # the bug of the demo: its products are in the list twice, so the join doubles each of their orders
)


class OrderEvent(NamedTuple):
    """One order as an input event."""

    event: str
    time: datetime
    product: str
    quantity: int

    def line(self) -> str:
        """Return the event as a line of JSON."""
        return json.dumps(self._asdict() | {"time": f"{self.time:%Y-%m-%dT%H:%M:%SZ}"}) + "\n"


class Row(NamedTuple):
    """One order as the sinks must store it. The first stream has these columns, in this order."""

    event: str
    day: str
    product: str
    category: str
    quantity: int
    cents: int


class Total(NamedTuple):
    """The expected result of the second stream for one day and category."""

    orders: int
    cents: int


@dataclass(frozen=True, slots=True)
class Orders:
    """The input files in the order of arrival, and the numbers of late and of duplicate events."""

    files: tuple[tuple[OrderEvent, ...], ...]
    late: int
    twice: int
    first: int = 0  # the number of the first file

    @property
    def events(self) -> Iterator[OrderEvent]:
        """Every event in the order of arrival, including duplicates."""
        return (event for file in self.files for event in file)

    def rows(self) -> Counter[Row]:
        """Return the expected rows of both sinks of the first stream: each event once."""
        return Counter(_row(event) for event in set(self.events))

    def totals(self) -> dict[tuple[str, str], Total]:
        """Return the expected totals of the second stream, by day and category."""
        found: dict[tuple[str, str], Total] = {}
        for row in self.rows():
            orders, cents = found.get((row.day, row.category), (0, 0))
            found[row.day, row.category] = Total(orders + 1, cents + row.cents)
        return found

    def followed_by(self, later: Orders) -> Orders:
        """Return these orders and later ones."""
        return Orders(self.files + later.files, self.late + later.late, self.twice + later.twice, self.first)

    def write(self, folder: Path) -> None:
        """Write the input files. Spark reads the oldest file first, so each is a second older than the next."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, events in enumerate(self.files):
            path = folder / f"{self.first + number:03}.json"
            path.write_text("".join(event.line() for event in events))
            age = len(self.files) - number
            os.utime(path, (path.stat().st_mtime - age,) * 2)


def write_products(path: Path) -> None:
    """Write the list of products."""
    known = [{"product": name, "category": of, "price": price} for name, (of, price) in PRODUCTS.items()]
    path.write_text("".join(json.dumps(each) + "\n" for each in known))


def generate(seed: int, files: int, per_file: int, first: int = 0) -> Orders:
    """Generate the orders of `files` input files at random. `first` is the number of earlier files."""
    chance = random.Random(f"orders {seed} after {first}")
    arriving: list[list[OrderEvent]] = [[] for _ in range(files)]
    late = twice = 0
    for number in range(first * per_file, (first + files) * per_file):
        slot = number // per_file - first
        time = _BEGIN + (first + slot) * _SLOT + timedelta(seconds=chance.randrange(int(_SLOT.total_seconds())))
        event = OrderEvent(f"order-{number:06}", time, chance.choice(list(PRODUCTS)), chance.randint(1, 5))
        file = slot
        if chance.random() < _LATE:
            file = min(slot + chance.randint(1, _LATE_FILES), files - 1)
            late += file > slot
        arriving[file].append(event)
        if chance.random() < _TWICE:
            arriving[min(file + chance.randint(0, _AGAIN_FILES), files - 1)].append(event)
            twice += 1
    for events in arriving:
        chance.shuffle(events)
    return Orders(tuple(map(tuple, arriving)), late, twice, first)


def _row(event: OrderEvent) -> Row:
    category, price = PRODUCTS[event.product]
    return Row(event.event, f"{event.time:%Y-%m-%d}", event.product, category, event.quantity, event.quantity * price)
