"""What goes of a store, over random stores: held against the rules one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from worker.eviction import Holding, fetched_bytes, plan

holdings = st.lists(
    st.builds(
        Holding,
        model=st.sampled_from([ModelId(name) for name in "abcdefgh"]),
        path=st.uuids().map(str),
        size_bytes=st.integers(0, 50),
        what=st.sampled_from(["fetched", "fetched", "fetched", "put", "made", "bundled"]),
        used_at_s=st.integers(0, 5),
        in_part=st.booleans(),
        why=st.sampled_from(["", "", "", "it is in use"]),
    ),
    min_size=2,
    max_size=12,
)
limits = st.integers(0, 60) | st.integers(0, 200)


@given(holdings, limits)
def test_only_what_was_fetched_and_has_no_reason_to_stay_goes(
    known: list[Holding], limit: int
) -> None:
    for one in plan(known, limit):
        assert one.what == "fetched" and not one.why and one in known


@given(holdings, limits)
def test_no_more_goes_than_is_needed(known: list[Holding], limit: int) -> None:
    going = plan(known, limit)
    assert len(set(going)) == len(going)
    total = fetched_bytes(known)
    for count in range(len(going)):
        assert total - sum(one.size_bytes for one in going[:count]) > limit


@given(holdings, limits)
def test_what_is_left_fits_or_has_to_stay(known: list[Holding], limit: int) -> None:
    left = [one for one in known if one not in plan(known, limit)]
    stays = all(one.why for one in left if one.what == "fetched" and one.size_bytes)
    assert fetched_bytes(left) <= limit or stays


@given(holdings, limits)
def test_what_was_used_longest_ago_goes_first(known: list[Holding], limit: int) -> None:
    going = plan(known, limit)
    assert [one.used_at_s for one in going] == sorted(one.used_at_s for one in going)
    left = [
        one
        for one in known
        if one.what == "fetched" and not one.why and one.size_bytes and one not in going
    ]
    if going and left:
        assert min(one.used_at_s for one in left) >= going[-1].used_at_s


@given(holdings)
def test_a_limit_of_nothing_lets_all_go_that_may(known: list[Holding]) -> None:
    may_go = {one.path for one in known if one.what == "fetched" and not one.why and one.size_bytes}
    assert {one.path for one in plan(known, 0)} == may_go


@given(holdings, limits)
def test_what_is_refused_makes_the_next_one_go(known: list[Holding], limit: int) -> None:
    going = plan(known, limit)
    if not going:
        return
    refused = [replace(one, why="refused") if one is going[0] else one for one in known]
    again = plan(refused, limit)
    assert going[0] not in again and set(going[1:]) <= set(again)
