"""Even shares: nothing lies idle, nobody starves, no place moves back and forth."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from bus.wire.shares import Sharer, Shares, has_share, in_turn

PLACES = 8

sharers = st.builds(
    lambda key, client, address: (key, client, address),
    st.sampled_from("KL"),
    st.sampled_from("abc"),
    st.sampled_from("12"),
)


def settled(asking: list[Sharer], places: int, taken: list[Sharer]) -> tuple[Shares, int]:
    """Give places out, and have them given up, until nothing changes; return the shares and how
    many moved."""
    shares, waiting = Shares(taken), list(asking)
    moved = 0
    while waiting:
        waiting.sort(key=shares.weight)
        for sharer in waiting:
            giver = shares.gives_way(sharer)
            if shares.held(()) < places or giver is not None:
                if shares.held(()) >= places:
                    assert giver is not None
                    shares.give_back(giver)
                    waiting.append(giver)
                    moved += 1
                shares.take(sharer)
                waiting.remove(sharer)
                break
        else:
            break
    return shares, moved


def test_one_who_asks_alone_may_have_everything() -> None:
    shares, moved = settled([("K", "a", "1")] * 20, PLACES, [])
    assert shares.held(()) == shares.held(("K", "a", "1")) == PLACES and moved == 0
    assert shares.gives_way(("K", "a", "1")) is None


def test_a_newcomer_is_given_half_place_by_place() -> None:
    shares, moved = settled([("K", "b", "1")] * 20, PLACES, [("K", "a", "1")] * PLACES)
    assert shares.held(("K", "a")) == shares.held(("K", "b")) == PLACES // 2
    assert moved == PLACES // 2


def test_keys_share_evenly_however_many_clients_each_has() -> None:
    crowd: list[Sharer] = [("K", name, "1") for name in "abcdefgh"]
    shares, _ = settled([("L", "z", "1")] * 20, PLACES, crowd)
    assert shares.held(("K",)) == shares.held(("L",)) == PLACES // 2


@given(st.lists(sharers, max_size=30), st.lists(sharers, max_size=PLACES))
def test_places_end_up_even_on_every_level_and_none_is_idle(
    asking: list[Sharer], taken: list[Sharer]
) -> None:
    shares, moved = settled(asking, PLACES, taken)
    wanted = Counter([*asking, *taken])
    assert shares.held(()) == min(PLACES, len(asking) + len(taken))
    assert moved <= len(taken) + len(asking)
    waiting = [one for one in wanted if shares.held(one) < wanted[one]]
    for sharer in waiting:
        for depth in range(3):
            mine = shares.held(sharer[: depth + 1])
            siblings = {one[: depth + 1] for one in wanted if one[:depth] == sharer[:depth]}
            assert all(shares.held(one) <= mine + 1 for one in siblings), (sharer, depth)


@given(st.lists(sharers, min_size=1, max_size=30))
def test_no_place_moves_back(holders: list[Sharer]) -> None:
    shares = Shares(holders)
    for to in holders:
        giver = shares.gives_way(to)
        if giver is not None:
            after = shares.copy()
            after.give_back(giver)
            after.take(to)
            assert after.gives_way(giver) != to
            assert shares.held(()) == after.held(())


@example(
    [
        (False, ("K", "a", "1")), (True, ("L", "a", "1")), (True, ("L", "b", "2")),
        (True, ("L", "b", "2")), (False, ("L", "a", "1")), (True, ("L", "a", "1")),
        (True, ("L", "a", "2")),
    ]
)  # fmt: skip
@given(st.lists(st.tuples(st.booleans(), sharers), max_size=40))
def test_what_is_given_back_leaves_nothing_behind(acts: list[tuple[bool, Sharer]]) -> None:
    shares, held = Shares(), Counter[Sharer]()
    for takes, sharer in acts:
        if takes:
            shares.take(sharer)
            held[sharer] += 1
        elif held[sharer]:
            shares.give_back(sharer)
            held[sharer] -= 1
    fresh = Shares(held.elements())
    for _, sharer in acts:
        assert shares.weight(sharer) == fresh.weight(sharer)
        assert decided(shares, sharer) == decided(fresh, sharer)


def decided(shares: Shares, to: Sharer) -> tuple[int, ...]:
    """What the giver's branches hold down to the level that decides; empty where none gives way.
    Among branches that hold as many, who asked first goes first: below, they may differ."""
    giver = shares.gives_way(to)
    if giver is None:
        return ()
    common = next(depth for depth in range(len(to)) if giver[depth] != to[depth])
    return shares.weight(giver)[: common + 1]


@given(st.lists(sharers, max_size=30))
def test_turns_rotate_on_every_level_and_each_keeps_its_own_order(asking: list[Sharer]) -> None:
    order = in_turn(asking)
    assert sorted(order) == list(range(len(asking)))
    for depth in (1, 2, 3):
        for branch in {one[:depth] for one in asking}:
            mine = [n for n in order if asking[n][:depth] == branch]
            if depth == 3:
                assert mine == sorted(mine)
    had: Counter[Sharer] = Counter()
    left = Counter(one[:1] for one in asking)
    for n in order:
        key = asking[n][:1]
        assert all(had[key] <= had[other] for other in left if had[other] < left[other])
        had[key] += 1


def test_a_full_house_makes_room_for_who_has_less_and_for_one_key_at_most_twice_as_much() -> None:
    hog: list[Sharer] = [("K", "a", "1")] * PLACES
    assert not has_share(hog, ("K", "a", "1"), PLACES)
    assert has_share(hog, ("K", "b", "1"), PLACES)
    crowd = [*hog, *(("K", str(n), "1") for n in range(PLACES))]
    assert not has_share(crowd, ("K", "b", "1"), PLACES)
    assert has_share(crowd, ("L", "b", "1"), PLACES)
