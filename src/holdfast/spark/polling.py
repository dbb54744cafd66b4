"""How often an idle stream polls for new input.

Spark's default, every 10 ms, costs 6 % of a core for each idle stream, so many idle streams would keep a machine busy.
The delay therefore grows with the number of streams, up to a limit: until then, the total number of polls per second is
constant. New input is detected after at most one delay.
"""

from __future__ import annotations

from holdfast.errors import BadValue
from holdfast.policy import seconds_of

SHORTEST_MS = 10  # Spark's default: one stream notices its input as fast as in plain Spark
LONGEST_MS = 200
_LIMIT_S = 60.0


def chosen_delay_ms(streams: int) -> int:
    """Return the delay between two polls for input, in milliseconds, for a pipeline of this many streams."""
    return min(max(streams, 1) * SHORTEST_MS, LONGEST_MS)


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
