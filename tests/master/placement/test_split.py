from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.placement.memory_cost import FIXED_BYTES, LayerCosts
from master.placement.split import fits, split
from tests.harness.placement_nodes import GB, MB, costs_of, model


def every_split(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations(range(1, layers), stages - 1):
        yield (0, *cuts, layers)


def times(costs: LayerCosts, bounds: tuple[int, ...], read_s: list[float]) -> list[float]:
    return [
        costs.read_bytes_of(a, b) * s
        for a, b, s in zip(bounds[:-1], bounds[1:], read_s, strict=True)
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[LayerCosts, list[int], list[float]]:
    sizes_of = draw(st.sampled_from([st.integers(1, 400), st.sampled_from([10, 200])]))
    stages = draw(st.integers(1, 4))
    layers = draw(st.lists(sizes_of, min_size=draw(st.sampled_from([1, stages])), max_size=9))
    embedding, head = draw(st.integers(0, 300)), draw(st.integers(0, 300))
    active = draw(st.sampled_from([1, 2, 10]))
    sizes = [size * MB for size in layers]
    card = model(
        sizes,
        embedding=embedding * MB,
        head=head * MB,
        kv=draw(st.integers(0, 20_000)),
        layer_active_bytes=tuple(size // active for size in sizes),
    )
    roomy = st.integers(1000, 8000)
    of_rooms = draw(st.sampled_from([st.integers(0, 2000), roomy, roomy]))
    rooms = draw(st.lists(of_rooms, min_size=stages, max_size=stages))
    speeds = draw(st.lists(st.sampled_from([1, 2, 5, 20]), min_size=stages, max_size=stages))
    return costs_of(card), [room * MB for room in rooms], [1e-9 / speed for speed in speeds]


@given(case=cases())
def test_a_split_is_within_memory_whole_and_its_slowest_stage_is_the_fastest_there_is(
    case: tuple[LayerCosts, list[int], list[float]],
) -> None:
    costs, rooms, read_s = case
    possible = [
        bounds for bounds in every_split(costs.layers, len(rooms)) if fits(costs, bounds, rooms)
    ]
    found = split(costs, rooms, read_s)
    if not possible:
        assert found is None
        return
    assert found is not None
    assert (found[0], found[-1], len(found)) == (0, costs.layers, len(rooms) + 1)
    assert all(a < b for a, b in pairwise(found))
    assert fits(costs, found, rooms)
    if len(rooms) > 1:
        for first, last, room in zip(found[:-1], found[1:], rooms, strict=True):
            assert costs.stage_cost(first, last).total <= room
    best = min(max(times(costs, bounds, read_s)) for bounds in possible)
    assert max(times(costs, found, read_s)) <= best * (1 + 1e-9)


def test_equal_nodes_share_equally_and_a_faster_one_takes_more() -> None:
    costs = costs_of(model((GB,) * 10))
    assert split(costs, [50 * GB] * 3, [1e-9] * 3) in ((0, 3, 6, 10), (0, 3, 7, 10), (0, 4, 7, 10))
    assert split(costs, [50 * GB] * 2, [1e-9, 4e-9]) == (0, 8, 10)


def test_memory_overrules_speed() -> None:
    costs = costs_of(model((GB,) * 10, kv=0))
    room = FIXED_BYTES + int(3 * 1.3 * GB) + 1000
    assert split(costs, [room, 50 * GB], [1e-9, 9e-9]) == (0, 3, 10)


@pytest.mark.parametrize(("first", "last", "expected"), [(4, 0, (0, 2, 8)), (0, 4, (0, 6, 8))])
def test_embeddings_weigh_on_the_first_stage_and_the_head_on_the_last(
    first: int, last: int, expected: tuple[int, ...]
) -> None:
    costs = costs_of(model((GB,) * 8, embedding=first * GB, head=last * GB, kv=0))
    room = FIXED_BYTES + int(6 * 1.3 * GB) + 1000
    assert split(costs, [room, room], [1e-9, 1e-9]) == expected


def test_a_stage_takes_less_than_it_can_where_the_next_could_take_nothing_else() -> None:
    costs = costs_of(model([20 * MB, 20 * MB, 200 * MB], kv=0))
    rooms = [FIXED_BYTES + 100 * MB, FIXED_BYTES + 30 * MB, FIXED_BYTES + 300 * MB]
    assert split(costs, rooms, [1e-9] * 3) == (0, 1, 2, 3)


def test_more_stages_than_layers_is_no_split() -> None:
    assert split(costs_of(model((GB, GB))), [9 * GB] * 3, [1e-9] * 3) is None
