"""How often an idle stream polls for new input.

Spark's default, every 10 ms, costs 6 % of a core for each idle stream, so many idle streams would keep a machine busy.
The delay therefore grows with the number of streams, up to a limit: until then, the total number of polls per second is
constant. New input is detected after at most one delay.

On an object store, requests cost money and time. A pipeline whose repository is there waits at least 50 ms between two
polls. One with an input path there, where each poll is a listing, waits 200 ms.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import BadValue
from holdfast.policy import seconds_of

SHORTEST_MS = 10  # Spark's default: one stream notices its input as fast as in plain Spark
LONGEST_MS = 200
_ON_STORE_MS = 50
_STORES = ("s3a:", "s3:", "s3n:", "gs:", "abfs:", "abfss:", "wasb:", "wasbs:")  # as Spark names them
_LIMIT_S = 60.0


def chosen_delay_ms(streams: int, paths: Iterable[str] = (), *, on_store: bool = False) -> int:
    """Return the delay between two polls for input, in milliseconds, for a pipeline of this many streams.

    `paths`: the inputs of sources that list them at each poll. `on_store`: whether the repository is on a store.
    """
    if any(path.lower().startswith(_STORES) for path in paths):
        return LONGEST_MS
    return min(max(streams * SHORTEST_MS, _ON_STORE_MS if on_store else SHORTEST_MS), LONGEST_MS)


def checked_delay_ms(poll_every: object, what: str = "poll_every") -> int | None:
    """Return a user-supplied delay in milliseconds; `None` if there is none. `what` names it in the error."""
    if poll_every is None:
        return None
    seconds = seconds_of(what, poll_every)
    if not 0.001 <= seconds <= _LIMIT_S:
        expected = f"a duration from 1ms to {_LIMIT_S:.0f}s"
        do = 'choose a shorter one; for fewer epochs, give the stream a trigger, as in trigger="5 minutes"'
        raise BadValue(what=what, value=poll_every, expected=expected, do=do)
    return round(seconds * 1000)
