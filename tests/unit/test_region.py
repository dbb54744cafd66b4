import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.eventlog import KindFilter, Region

texts = st.none() | st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable())
kinds = (
    st.none() | st.builds(KindFilter) | st.builds(KindFilter, st.integers(0, 65535), st.none() | st.integers(0, 65535))
)
clocks = st.none() | st.tuples(st.integers(0, 9), st.integers(10, 99))
regions = st.builds(Region, texts, texts, kinds, clocks)


@pytest.mark.parametrize(
    ("region", "identity"),
    [
        (Region(), "entity=*|scope=*|fact=none|clock=*"),
        (Region(entity="entity:roundtrip"), "entity=entity:roundtrip|scope=*|fact=none|clock=*"),
        (Region(scope="s", kind=KindFilter.any()), "entity=*|scope=s|fact=any|clock=*"),
        (Region(kind=KindFilter(0xF)), "entity=*|scope=*|fact=category:f|clock=*"),
        (Region(kind=KindFilter(0xF, 0x1A)), "entity=*|scope=*|fact=exact:f:1a|clock=*"),
        (Region(clock=(3, 9)), "entity=*|scope=*|fact=none|clock=3-9"),
        (Region(entity="*"), "entity=%2A|scope=*|fact=none|clock=*"),
        (Region(entity="a|scope=b"), "entity=a%7Cscope=b|scope=*|fact=none|clock=*"),
        (Region(entity="100%"), "entity=100%25|scope=*|fact=none|clock=*"),
    ],
)
def test_identities_are_exact(region: Region, identity: str) -> None:
    assert region.identity == identity


@given(regions, regions)
def test_two_different_regions_never_share_an_identity(one: Region, other: Region) -> None:
    assert (one.identity == other.identity) == (one == other)


def test_an_entity_matches_itself_and_what_is_below_it() -> None:
    region = Region(entity="user")
    assert [region.holds("s", entity, 0, 0, None) for entity in ("user", "user:7", "user:7:x", "users", "use")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_kinds_scopes_and_clocks_filter() -> None:
    assert Region(kind=KindFilter.any()).holds("s", "e", 4, 2, None)
    assert Region(kind=KindFilter(4)).holds("s", "e", 4, 2, None)
    assert not Region(kind=KindFilter(5)).holds("s", "e", 4, 2, None)
    assert Region(kind=KindFilter(4, 2)).holds("s", "e", 4, 2, None)
    assert not Region(kind=KindFilter(4, 3)).holds("s", "e", 4, 2, None)
    assert not Region(scope="t").holds("s", "e", 4, 2, None)
    assert [Region(clock=(2, 3)).holds("s", "e", 0, 0, clock) for clock in (1, 2, 3, 4, None)] == [
        False,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"entity": ""},
        {"scope": ""},
        {"entity": "\ud800"},
        {"entity": 5},
        {"clock": (5, 4)},
        {"clock": (-1, 4)},
        {"clock": 5},
        {"clock": (1, 2, 3)},
        {"kind": "any"},
    ],
)
def test_regions_that_can_hold_nothing_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid"):
        Region(**bad)


@pytest.mark.parametrize("bad", [(-1, None), (65536, None), (None, 1), (1, 70_000), (True, None)])
def test_kinds_out_of_range_are_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="invalid"):
        KindFilter(*bad)
