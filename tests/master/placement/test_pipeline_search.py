from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.topology import LinkCost
from master.placement.memory_cost import LayerCosts
from master.placement.pipeline_search import SearchSpace, TimedOrder, pipeline_order, split_and_time
from master.placement.speed import tensor_s
from master.placement.tensor_search import tensor_order
from tests.harness.placement_nodes import GB, MB, costs_of, model, search_space

FACTOR = 2.0
"""How much slower than the best of all subsets and orders a pipeline of up to 4 ranks may be that
the search finds among eight to ten nodes. (Of 1,203 random ones, many of them tight, the worst took
1.12 times as long. Beyond, there is no bound: of 1,723 among eleven, 98 % were the best itself and
one took 2.06 times as long.)"""


def best_order(space: SearchSpace, ranks: int) -> TimedOrder | None:
    lines = [
        split_and_time(space, order) for order in permutations(range(len(space.members)), ranks)
    ]
    return min((one for one in lines if one), key=lambda one: one.token_s, default=None)


@st.composite
def spaces(draw: st.DrawFn, counts: st.SearchStrategy[int]) -> tuple[SearchSpace, int]:
    count, ranks = draw(counts), draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(20, 200), min_size=2, max_size=8))
    costs: LayerCosts = costs_of(
        model([size * MB for size in sizes], embedding=50 * MB, head=60 * MB, kv=1000)
    )
    rooms = draw(st.lists(st.integers(250, 1500), min_size=count, max_size=count))
    speeds = draw(st.lists(st.sampled_from([20, 68, 100, 400]), min_size=count, max_size=count))
    kinds = [
        LinkCost(25e-6, 4e9),
        LinkCost(2e-4, 0.1e9),
        LinkCost(3e-3, 0.04e9),
        LinkCost(2e-2, 0.01e9),
    ]
    pairs = [(a, b) for a in range(count) for b in range(a)]
    hops = {pair: draw(st.sampled_from(kinds)) for pair in pairs}
    read_s = [1e-9 / speed for speed in speeds]
    return search_space(costs, [room * MB for room in rooms], read_s, hops), ranks


def check(case: tuple[SearchSpace, int], factor: float) -> None:
    space, ranks = case
    best, found = best_order(space, ranks), pipeline_order(space, ranks)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert len({member.node.id for member in found.members}) == ranks
    bounds = found.bounds
    for stage, member in enumerate(found.members):
        assert space.costs.stage_cost(bounds[stage], bounds[stage + 1]).total <= member.room
    assert found.token_s <= factor * best.token_s * (1 + 1e-9)


@settings(max_examples=80)
@given(case=spaces(st.integers(2, 7)))
def test_among_few_nodes_the_fastest_pipeline_is_found(case: tuple[SearchSpace, int]) -> None:
    check(case, 1.0)


@settings(max_examples=30)
@given(case=spaces(st.integers(8, 10)))
def test_among_more_nodes_a_pipeline_is_found_where_there_is_one_and_is_nearly_the_fastest(
    case: tuple[SearchSpace, int],
) -> None:
    check(case, FACTOR)


def test_a_tight_fit_with_one_bad_link_still_finds_the_fastest_pipeline() -> None:
    """One node can close, two others can open, three hold no layer at all; the bad link lies
    between one of those that open and the one that closes."""
    costs = costs_of(model([20 * MB] * 3, embedding=50 * MB, head=60 * MB, kv=1000))
    rooms = [250, 250, 291, 356, 357, 433, 290]
    hops = {(a, b): LinkCost(25e-6, 4e9) for a in range(7) for b in range(a)}
    hops[5, 4] = LinkCost(2e-2, 0.01e9)
    read_s = [1e-9 / speed for speed in (20, 20, 20, 20, 20, 20, 68)]
    space = search_space(costs, [room * MB for room in rooms], read_s, hops)
    check((space, 3), 1.0)


def test_a_pair_on_one_cable_is_preferred_to_faster_machines_far_away() -> None:
    costs = costs_of(model((100 * MB,) * 8))
    cable = {(1, 3): LinkCost(25e-6, 4e9)}
    slow = {(a, b): LinkCost(2e-2, 0.01e9) for a in range(6) for b in range(a)}
    hops = {**slow, (3, 1): cable[1, 3]}
    read_s = [1 / 120e9, 1 / 100e9, 1 / 120e9, 1 / 100e9, 1 / 120e9, 1 / 120e9]
    space = search_space(costs, [2 * GB] * 6, read_s, hops)
    found = pipeline_order(space, 2)
    assert found is not None
    assert {member.node.id for member in found.members} == {"n1", "n3"}


def test_a_slow_node_is_left_out_where_a_fast_one_will_do() -> None:
    costs = costs_of(model((100 * MB,) * 8))
    space = search_space(costs, [2 * GB] * 4, [1 / 400e9, 1 / 20e9, 1 / 400e9, 1 / 20e9])
    found = pipeline_order(space, 2)
    assert found is not None
    assert {member.node.id for member in found.members} == {"n0", "n2"}


@settings(max_examples=80)
@given(case=spaces(st.integers(2, 5)))
def test_among_few_nodes_the_fastest_tensor_group_is_found(
    case: tuple[SearchSpace, int],
) -> None:
    space, ranks = case
    each = space.costs.tensor_rank_cost(ranks, splits_kv=True).total
    roomy = [i for i, member in enumerate(space.members) if member.room >= each]
    times: list[float] = []
    for order in permutations(roomy, ranks):
        read_s = [space.members[i].read_s for i in order]
        times.append(tensor_s(space.costs, read_s, space.around(order), mesh=False))
    found = tensor_order(space, ranks, splits_kv=True)
    assert (found is None) == (not times)
    if found is not None:
        assert all(member.room >= each for member in found.members)
        assert found.token_s <= min(times) * (1 + 1e-9)


def test_tensor_ranks_all_need_the_same_room() -> None:
    costs = costs_of(model((GB,) * 8))
    each = costs.tensor_rank_cost(2, splits_kv=True).total
    assert (
        tensor_order(search_space(costs, [each, each - 1], [1e-11] * 2), 2, splits_kv=True) is None
    )
    found = tensor_order(search_space(costs, [each, each], [1e-11] * 2), 2, splits_kv=True)
    assert found is not None and found.bounds == ()
    assert (
        costs.tensor_rank_cost(2, splits_kv=False).kv
        == 2 * costs.tensor_rank_cost(2, splits_kv=True).kv
    )


def test_a_slow_link_takes_the_profit_out_of_tensor_parallelism() -> None:
    costs = costs_of(model((100 * MB,) * 32))

    def faster(link: LinkCost) -> bool:
        space = search_space(costs, [9 * GB] * 2, [1 / 100e9] * 2, {(0, 1): link})
        tensor, pipeline = tensor_order(space, 2, splits_kv=True), pipeline_order(space, 2)
        assert tensor is not None and pipeline is not None
        return tensor.token_s < pipeline.token_s

    assert faster(LinkCost(25.5e-6, 4.5e9))
    assert not faster(LinkCost(3e-3, 0.04e9))
