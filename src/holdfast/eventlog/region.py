"""Regions: filters over the events of a log, and the string that identifies a region.

The identity is `entity=E|scope=S|fact=F|clock=C`. A part that is not filtered is `*`; F is `none`, `any`,
`category:<hex>` or `exact:<hex>:<hex>`; C is `a-b`. `%`, `|` and `*` in values are percent-encoded, so that two
different regions never have the same identity.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._validation import checked_type, checked_u64
from holdfast.errors import BadValue

KIND_MAX = (1 << 16) - 1
_ESCAPES = str.maketrans({"%": "%25", "|": "%7C", "*": "%2A"})


def checked_kind_part(what: str, value: object) -> int:
    """Return `value` if it is an unsigned 16-bit integer, as event categories and types are."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= KIND_MAX:
        raise BadValue(what=what, value=value, expected=f"an integer from 0 to {KIND_MAX}")
    return value


def checked_coordinate(what: str, value: object) -> str:
    """Return `value` if it is a valid scope or entity: non-empty text that can be encoded as UTF-8."""
    if not isinstance(value, str) or not value:
        raise BadValue(what=what, value=value, expected="a non-empty str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadValue(what=what, value=value, why="it cannot be written as UTF-8") from error
    return value


@dataclass(frozen=True, slots=True)
class KindFilter:
    """A filter by event kind: any kind, one category, or one type of a category."""

    category: int | None = None  # None: any category
    type: int | None = None  # None: any type of the category

    def __post_init__(self) -> None:
        if self.category is not None:
            checked_kind_part("category", self.category)
        elif self.type is not None:
            raise BadValue(what="type", value=self.type, why="a type requires a category")
        if self.type is not None:
            checked_kind_part("type", self.type)

    @classmethod
    def any(cls) -> KindFilter:
        """Return a filter that matches every kind."""
        return cls()

    def __str__(self) -> str:
        if self.category is None:
            return "any"
        return f"category:{self.category:x}" if self.type is None else f"exact:{self.category:x}:{self.type:x}"


@dataclass(frozen=True, slots=True)
class Region:
    """A filter over the events of a log; a field that is `None` matches everything.

    `entity` matches itself and everything below it: `user` matches `user` and `user:7`, not `users`. `clock` is an
    inclusive range of clock values; the clock of an event is its number within its entity.
    """

    entity: str | None = None
    scope: str | None = None  # an exact match
    kind: KindFilter | None = None  # category and type
    clock: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.entity is not None:
            checked_coordinate("entity", self.entity)
        if self.scope is not None:
            checked_coordinate("scope", self.scope)
        if self.kind is not None:
            checked_type("kind", self.kind, KindFilter)
        if self.clock is not None:
            if not isinstance(self.clock, tuple) or len(self.clock) != 2:
                raise BadValue(what="clock", value=self.clock, expected="a tuple (first, last)")
            first, last = (checked_u64("clock", each) for each in self.clock)
            if first > last:
                raise BadValue(what="clock", value=self.clock, why="the range is empty")

    @classmethod
    def everything(cls) -> Region:
        """Return a region that matches every event."""
        return cls()

    @property
    def identity(self) -> str:
        """The string that identifies this region."""
        entity = "*" if self.entity is None else self.entity.translate(_ESCAPES)
        scope = "*" if self.scope is None else self.scope.translate(_ESCAPES)
        kind = "none" if self.kind is None else str(self.kind)
        clock = "*" if self.clock is None else f"{self.clock[0]}-{self.clock[1]}"
        return f"entity={entity}|scope={scope}|fact={kind}|clock={clock}"

    def holds(self, scope: str, entity: str, category: int, type_: int, clock: int | None) -> bool:
        """Whether an event with these coordinates is in the region."""
        if self.scope is not None and scope != self.scope:
            return False
        if self.entity is not None and entity != self.entity and not entity.startswith(f"{self.entity}:"):
            return False
        if self.kind is not None and not (self.kind.category in (None, category) and self.kind.type in (None, type_)):
            return False
        return self.clock is None or (clock is not None and self.clock[0] <= clock <= self.clock[1])
