from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.cards import ModelCard, PartialModel
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from bus.wire.topology import LinkCost
from master.placement.availability import PlacementSpec, card_as_computed, offering
from master.placement.capacity import NodeCapacity, limit_bytes
from master.placement.explain import Crowded
from master.placement.memory_cost import RunnerSizing, layer_costs
from master.placement.place import Verdict, alternatives, place, placement_problem
from master.placement.preview import plan_of, preview_of
from master.placement.search import Placement
from master.placement.speed import Links
from tests.harness.placement_nodes import GB, MB, MODEL, carded, model, node

CARD = model((2 * GB,) * 10, embedding=GB, head=GB)
"""22 GB, of which 1.30 times are needed, beside KV."""
CABLE = LinkCost(25e-6, 4e9)


def put(nodes: list[NodeCapacity], links: Links | None = None, **spec: Any) -> Verdict:
    return place(PlacementSpec(MODEL, **spec), nodes, RunnerSizing(), links or Links())


def placed(nodes: list[NodeCapacity], links: Links | None = None, **spec: Any) -> Placement:
    verdict = put(nodes, links, **spec)
    assert isinstance(verdict, Placement), verdict
    return verdict


def refused(nodes: list[NodeCapacity], **spec: Any) -> Refusal:
    verdict = put(nodes, **spec)
    assert isinstance(verdict, Refusal), verdict
    return verdict


def on(verdict: Placement) -> list[str]:
    return [rank.copy.node.id for rank in verdict.ranks]


def mesh(nodes: list[NodeCapacity], link: LinkCost) -> Links:
    return Links({a.id: {b.id: link for b in nodes if b != a} for a in nodes})


# --- how many, and which ---


def test_one_node_with_the_weights_is_enough_while_it_is_enough() -> None:
    nodes = [node(1, usable=40 * GB, models=(CARD,)), node(2, usable=90 * GB), node(3)]
    assert on(placed(nodes)) == ["n1"]
    assert placed(nodes).sharding == "none"


def test_a_node_without_the_weights_takes_it_whole_when_those_with_them_are_too_small() -> None:
    nodes = [node(1, models=(CARD,)), node(2, usable=40 * GB), node(3)]
    verdict = placed(nodes)
    assert on(verdict) == ["n2"]
    assert verdict.fetch_bytes == CARD.size_bytes
    assert plan_of(verdict, Links())["ranks"][0]["fetch_bytes"] == CARD.size_bytes


def test_what_no_node_holds_alone_goes_over_as_few_as_hold_it() -> None:
    nodes = [node(i, usable=12 * GB, models=(CARD,) if i == 0 else ()) for i in range(5)]
    verdict = placed(nodes)
    assert (len(verdict.ranks), verdict.sharding, verdict.collectives) == (3, "pipeline", "ring")
    assert "n0" in on(verdict), "the one that need not fetch"
    assert verdict.fetch_bytes == 2 * CARD.size_bytes


def test_rank_0_has_the_last_layers_and_each_layer_is_somewhere_once() -> None:
    verdict = placed([node(i, usable=12 * GB, models=(CARD,)) for i in range(3)])
    layers = [(rank.first_layer, rank.last_layer) for rank in verdict.ranks]
    assert layers[0][1] == 10 and layers[-1][0] == 0
    assert [a for a, _ in layers[:-1]] == [b for _, b in layers[1:]]
    assert [rank.rank for rank in verdict.ranks] == [0, 1, 2]


def test_at_least_so_many_nodes_means_as_many() -> None:
    nodes = [node(i, usable=90 * GB, models=(CARD,)) for i in range(4)]
    assert len(placed(nodes, min_nodes=3).ranks) == 3
    assert refused(nodes, min_nodes=5).field == "min_nodes"
    assert refused(nodes[:2], min_nodes=3).reason == "unsupported"


def test_a_group_has_at_most_32_ranks_and_who_asks_for_more_is_told() -> None:
    wide = model((GB,) * 40)
    nodes = [node(i, usable=90 * GB, models=(wide,)) for i in range(40)]
    refusal = refused(nodes, min_nodes=33)
    assert (refusal.reason, refusal.field) == ("unsupported", "min_nodes")
    assert "too many nodes: 33; a group has at most 32 ranks" in refusal.message
    by_hand = refused(nodes, layers={one.id: 1 for one in nodes})
    assert (by_hand.field, by_hand.facts) == ("layers", {"max_ranks": 32})


def test_an_excluded_node_holds_nothing_but_may_be_fetched_from() -> None:
    nodes = [node(1, usable=90 * GB, models=(CARD,)), node(2, usable=90 * GB)]
    for name in ("n1", "box1"):
        verdict = placed(nodes, excluded_nodes=(NodeId(name),))
        assert on(verdict) == ["n2"] and verdict.fetch_bytes
    both = refused(nodes, excluded_nodes=(NodeId("n1"), NodeId("n2")))
    assert (both.reason, both.field) == ("unsupported", "excluded_nodes")


def test_a_node_whose_disk_is_full_cannot_fetch() -> None:
    nodes = [node(1, models=(CARD,)), node(2, usable=90 * GB, disk_free_bytes=GB)]
    verdict = put(nodes)
    assert isinstance(verdict, Refusal)
    assert verdict.reason == "insufficient_memory"


def test_a_disk_with_room_for_some_layers_makes_a_stage_of_a_family_fetched_in_parts() -> None:
    whole = CARD.model_copy(update={"fetched_in_parts": True})
    holder = node(1, usable=24 * GB, models=(whole,))
    small = node(2, usable=90 * GB, disk_free_bytes=13 * GB)
    verdict = placed([holder, small])
    assert {rank.copy.node.id for rank in verdict.ranks} == {"n1", "n2"}
    assert verdict.sharding == "pipeline"
    (stage,) = [rank for rank in verdict.ranks if rank.copy.node.id == "n2"]
    assert stage.need.weights <= 13 * GB - DISK_MARGIN_BYTES < stage.need.total
    assert stage.fetch_bytes == stage.need.weights < whole.size_bytes
    assert put([holder, small], sharding="tensor") != verdict
    alone = put([node(1, models=(whole,)), small], excluded_nodes=(NodeId("n1"),))
    assert isinstance(alone, Refusal)
    assert "disk space limits its files to: box2 11.9" in alone.message


def test_what_lies_on_a_full_disk_is_used_and_not_fetched_again() -> None:
    whole = CARD.model_copy(update={"fetched_in_parts": True})
    holder = node(1, usable=24 * GB, models=(whole,))
    full = node(2, usable=90 * GB, disk_free_bytes=DISK_MARGIN_BYTES)
    assert isinstance(put([holder, full]), Refusal)
    part = PartialModel(model=MODEL, layers=((0, 5),), have_bytes=11 * GB, size_bytes=22 * GB)
    verdict = placed([holder, carded(full, parts=(part,))])
    (stage,) = [rank for rank in verdict.ranks if rank.copy.node.id == "n2"]
    assert (stage.first_layer, stage.last_layer, stage.fetch_bytes) == (0, 5, 0)
    other = part.model_copy(update={"model": "another"})
    assert isinstance(put([holder, carded(full, parts=(other,))]), Refusal)


SPLIT = CARD.model_copy(update={"fetched_in_parts": True, "digest": "one"})


def part_of(first: int, last: int, card: ModelCard = SPLIT) -> PartialModel:
    return PartialModel(
        model=MODEL, layers=((first, last),), have_bytes=GB, size_bytes=22 * GB, card=card
    )


def split_nodes(*spans: tuple[int, int]) -> list[NodeCapacity]:
    """Nodes with room for everything, each with only these layers on its disk."""
    return [
        node(n, usable=90 * GB, parts=(part_of(*span),)) for n, span in enumerate(spans, start=1)
    ]


def test_a_model_in_parts_is_a_pipeline_of_the_layers_that_each_node_holds() -> None:
    verdict = placed(split_nodes((4, 7), (0, 4), (7, 10)))
    held = {rank.copy.node.id: (rank.first_layer, rank.last_layer) for rank in verdict.ranks}
    assert held == {"n1": (4, 7), "n2": (0, 4), "n3": (7, 10)}
    assert verdict.sharding == "pipeline" and verdict.fetch_bytes == 0
    empty = node(9, usable=90 * GB)
    assert len(placed([*split_nodes((0, 4), (4, 10)), empty]).ranks) == 2
    everywhere = split_nodes((0, 10), (0, 10))
    assert len(placed(everywhere).ranks) == 2, "a part is never loaded as a whole"
    many = [(n, n + 1) for n in reversed(range(10))]
    assert [rank.first_layer for rank in placed(split_nodes(*many)).ranks] == list(range(10))[::-1]


def test_layers_that_no_node_holds_are_named() -> None:
    gap = refused(split_nodes((0, 4), (6, 10)))
    assert gap.reason == "unknown_model"
    assert "no available node holds layers 4 to 5" in gap.message
    assert "box1 holds layers 0 to 3 of 10" in gap.message
    nodes = split_nodes((0, 4), (4, 10))
    away = refused(nodes, excluded_nodes=(NodeId("n2"),))
    assert "no available node holds layers 4 to 9" in away.message
    tensor = refused(nodes, sharding="tensor")
    assert tensor.reason == "unsupported" and "no pipeline of the layers" in tensor.message


def test_layers_of_other_files_do_not_count() -> None:
    other = SPLIT.model_copy(update={"digest": "other"})
    first, second = split_nodes((0, 4), (4, 10))
    strange = node(2, usable=90 * GB, parts=(part_of(4, 10, other),))
    assert refused([first, strange]).reason == "unknown_model"
    third = node(3, usable=90 * GB, parts=(part_of(4, 10, other),))
    verdict = placed([first, second, third])
    assert {rank.copy.node.id for rank in verdict.ranks} == {"n1", "n2"}
    whole = node(4, usable=24 * GB, models=(other,))
    mixed = put([first, whole])
    assert not isinstance(mixed, Placement) or "n1" not in on(mixed)


def test_a_manual_split_follows_the_layers_on_the_disks() -> None:
    nodes = split_nodes((0, 4), (4, 10))
    assert on(placed(nodes, layers={"n1": 4, "n2": 6})) == ["n2", "n1"]
    wrong = refused(nodes, layers={"n1": 5, "n2": 5})
    assert "box1 holds layers 0 to 3 of 10, not 0 to 4" in wrong.message


def test_a_hub_offers_a_model_to_nodes_by_their_disks() -> None:
    nodes = [node(n, usable=90 * GB, disk_free_bytes=10 * GB) for n in (1, 2, 3)]
    spec = PlacementSpec(MODEL, min_nodes=3, sharding="pipeline")
    offered, spec = offering(nodes, spec, SPLIT)
    verdict = place(spec, offered, RunnerSizing(), Links())
    assert isinstance(verdict, Placement) and len(verdict.ranks) == 3
    for rank in verdict.ranks:
        assert rank.fetch_bytes <= 10 * GB - DISK_MARGIN_BYTES
    full = [node(1, usable=90 * GB, disk_free_bytes=0), *nodes[1:]]
    offered, spec = offering(full, spec, SPLIT)
    assert isinstance(place(spec, offered, RunnerSizing(), Links()), Refusal)


@given(
    st.lists(st.tuples(st.integers(1, 4 * GB), st.integers(0, 10**6)), min_size=1, max_size=6),
    st.integers(0, 3 * GB),
    st.integers(0, 3 * GB),
    st.integers(0, 30 * GB),
)
def test_what_needs_no_more_memory_than_a_disk_has_room_for_fits_on_it(
    layers: list[tuple[int, int]], embedding: int, head: int, disk: int
) -> None:
    sizes, kv = zip(*layers, strict=True)
    card = model(sizes, embedding=embedding, head=head).model_copy(update={"layer_kv": kv})
    costs = layer_costs(card, None, "mlx-metal")
    for first in range(len(sizes)):
        for last in range(first + 1, len(sizes) + 1):
            stage = costs.stage_cost(first, last)
            assert stage.weights <= disk or stage.total > costs.stage_limit(disk)


PARTS = st.tuples(st.integers(0, 9), st.integers(1, 10)).map(
    lambda span: PartialModel(
        model=MODEL, layers=((min(span), max(span)),), have_bytes=GB, size_bytes=22 * GB
    )
)


@settings(max_examples=300)
@given(st.data())
def test_whatever_is_fetched_has_room_on_the_disk(data: st.DataObject) -> None:
    whole = CARD.model_copy(update={"fetched_in_parts": data.draw(st.booleans())})
    free = data.draw(st.lists(st.none() | st.integers(0, 40 * GB), min_size=3, max_size=5))
    nodes = [
        node(
            i,
            usable=data.draw(st.integers(6, 40)) * GB,
            disk_free_bytes=room,
            parts=data.draw(st.just(()) | st.tuples(PARTS)),
        )
        for i, room in enumerate(free)
    ]
    verdict = put([node(9, usable=12 * GB, models=(whole,)), *nodes])
    if not isinstance(verdict, Placement):
        return
    for rank in verdict.ranks:
        assert rank.copy.node.reading is not None
        room = rank.copy.node.reading.disk_free_bytes
        if rank.copy.has_layers(rank.first_layer, rank.last_layer):
            assert rank.fetch_bytes == 0
            continue
        assert rank.fetch_bytes <= room - DISK_MARGIN_BYTES
        is_whole = rank.last_layer - rank.first_layer == whole.layers
        assert not is_whole or whole.size_bytes <= room - DISK_MARGIN_BYTES


def test_weights_that_nobody_gives_to_others_stay_where_they_are() -> None:
    holder = node(1, usable=90 * GB, models=(CARD,), weights_addresses=())
    nodes = [holder, node(2, usable=90 * GB)]
    assert on(placed(nodes)) == ["n1"]
    refusal = refused(nodes, excluded_nodes=(NodeId("n1"),))
    assert refusal.reason == "unsupported" and "box2 lacks the weights" in refusal.message


def test_the_fastest_of_equal_size_wins_unless_it_would_have_to_fetch_for_next_to_nothing() -> None:
    quick = node(1, usable=40 * GB, memory_bytes_per_s=400e9, models=(CARD,))
    roomy = node(2, usable=90 * GB, memory_bytes_per_s=100e9, models=(CARD,))
    assert on(placed([quick, roomy])) == ["n1"]
    near = node(3, usable=90 * GB, memory_bytes_per_s=390e9, models=(CARD,))
    assert on(placed([quick, near])) == ["n3"]


# --- tensors ---


def test_a_cable_makes_tensor_parallelism_the_faster_group_and_wifi_a_pipeline() -> None:
    nodes = [node(i, usable=24 * GB, models=(CARD,)) for i in range(2)]
    quick = placed(nodes, mesh(nodes, CABLE))
    slow = placed(nodes, mesh(nodes, LinkCost(3e-3, 4e7)))
    assert (quick.sharding, slow.sharding) == ("tensor", "pipeline")
    assert quick.tokens_per_s > slow.tokens_per_s
    assert [(rank.first_layer, rank.last_layer) for rank in quick.ranks] == [(0, 10), (0, 10)]


def test_sizes_that_do_not_divide_are_refused_by_name() -> None:
    nodes = [node(i, usable=24 * GB, models=(CARD,)) for i in range(3)]
    links = mesh(nodes, CABLE)
    refusal = put(nodes, links, min_nodes=3, sharding="tensor")
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "unsupported" and "32 heads are not divisible by 3" in refusal.message
    none = model((2 * GB,) * 10, tensor_sizes={}, family="gemma3")
    nodes = [node(i, usable=24 * GB, models=(none,)) for i in range(2)]
    assert "gemma3 does not support tensor" in refused(nodes, sharding="tensor").message


def test_a_family_that_cannot_be_a_pipeline_is_a_tensor_group_or_refused_by_name() -> None:
    odd = model((2 * GB,) * 10, unsplit_because="its layers share KV", family="gemma4")
    nodes = [node(i, usable=24 * GB, models=(odd,)) for i in range(2)]
    assert placed(nodes, mesh(nodes, CABLE)).sharding == "tensor"
    assert "share KV" in refused(nodes, sharding="pipeline").message


def test_rdma_from_everyone_to_everyone_makes_it_jaccl() -> None:
    nodes = [
        node(i, usable=24 * GB, models=(CARD,), rdma={f"n{1 - i}": "rdma_en2"}) for i in range(2)
    ]
    assert placed(nodes, mesh(nodes, CABLE)).collectives == "jaccl"


# --- backends and types ---


def test_backends_that_cannot_run_a_model_are_out_and_preferred_ones_come_first() -> None:
    card = model(compatible_backends=("mlx-metal", "mlx-cuda"), backend_preference=("mlx-cuda",))
    nodes = [
        node(1, usable=90 * GB, models=(card,), backends=("mlx-cpu",)),
        node(2, usable=40 * GB, models=(card,), backends=("mlx-metal",)),
        node(3, usable=30 * GB, models=(card,), backends=("mlx-metal", "mlx-cuda")),
    ]
    verdict = placed(nodes)
    assert on(verdict) == ["n3"] and verdict.lead.copy.backend == "mlx-cuda"
    assert placed(nodes[:2]).lead.copy.backend == "mlx-metal"
    refusal = refused(nodes[:1])
    assert refusal.reason == "unsupported" and "box1 has backends mlx-cpu" in refusal.message


def test_sixteen_bits_are_counted_twofold_where_they_are_cast() -> None:
    plain = card_as_computed(CARD, "mlx-cpu")
    assert plain.weights_bytes == 2 * CARD.weights_bytes
    assert plain.kv_bytes_per_token == 2 * CARD.kv_bytes_per_token
    assert card_as_computed(CARD, "mlx-metal") is CARD
    packed = card_as_computed(CARD.model_copy(update={"quantization": "4-bit"}), "mlx-cpu")
    assert CARD.weights_bytes < packed.weights_bytes < 1.2 * CARD.weights_bytes


def test_ranks_of_a_group_compute_alike() -> None:
    metal = [node(i, usable=12 * GB, models=(CARD,)) for i in range(3)]
    cpu = node(3, usable=30 * GB, backends=("mlx-cpu",))
    assert refused([*metal[:2], cpu]).reason == "insufficient_memory"
    assert isinstance(put([*metal, cpu]), Placement)


def test_other_files_under_the_same_name_are_never_in_one_group() -> None:
    one, other = (CARD.model_copy(update={"digest": digest}) for digest in ("aa", "bb"))
    nodes = [node(i, models=(card,)) for i, card in enumerate((one, other))]
    assert refused(nodes).reason == "insufficient_memory"
    assert set(on(placed([*nodes, node(2, models=(other,))]))) == {"n1", "n2"}


def test_nodes_of_one_machine_share_its_memory() -> None:
    twins = [node(i, usable=24 * GB, models=(CARD,), machine="m") for i in range(2)]
    assert refused(twins).reason == "insufficient_memory", "12 GB each are 24 together"
    roomy = [node(i, usable=34 * GB, models=(CARD,), machine="m") for i in range(2)]
    verdict = placed(roomy, min_nodes=2)
    assert sum(rank.reserved_bytes for rank in verdict.ranks) <= 34 * GB


def test_what_a_device_may_give_is_as_it_says_else_three_quarters_of_the_memory() -> None:
    from bus.wire.cards import NodeCard

    card = NodeCard(
        node=NodeId("n"), name="n", platform="", cores=1, memory_bytes=64 * GB,
        backends=("llamacpp-rocm",),
        mlx_version="", shoal_version="", slots=1, announced_at_s=0.0,
    )  # fmt: skip

    def limit(**facts: Any) -> int | None:
        return limit_bytes(card.model_copy(update=facts))

    assert limit() is None
    assert limit(working_set_bytes=48 * GB) == 48 * GB
    assert limit(vram_bytes=24 * GB) == int(21.6 * GB)
    assert limit(vram_bytes=24 * GB, backends=("mlx-cpu",)) is None, "nothing computes there"
    assert limit(vram_bytes=GB, gtt_bytes=64 * GB) == int(0.9 * GB) + 48 * GB
    assert limit(vram_bytes=GB, gtt_bytes=60 * GB) == int(0.9 * GB), "GTT below the memory"
    assert limit(vram_bytes=80 * GB, gtt_bytes=70 * GB) == 72 * GB, "GTT below the VRAM"


# --- by hand ---


def test_a_split_by_hand_is_taken_as_it_is() -> None:
    nodes = [node(i, models=(CARD,)) for i in range(3)]
    verdict = placed(nodes, layers={"box2": 3, "n0": 3, "n1": 4})
    assert [(r.copy.node.id, r.first_layer, r.last_layer) for r in verdict.ranks] == [
        ("n1", 6, 10), ("n0", 3, 6), ("n2", 0, 3),
    ]  # fmt: skip
    assert on(placed([node(1, usable=90 * GB, models=(CARD,))], layers={"n1": 10})) == ["n1"]


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ({"n0": 5, "n1": 6}, "11 layers are assigned; m has 10"),
        ({"n0": 10, "n1": 0}, "at least one"),
        ({"n0": 5, "n9": 5}, "n9 names no available node"),
        ({"n0": 5, "box0": 5}, "named twice"),
    ],
)
def test_a_split_by_hand_that_makes_no_sense_is_refused(layers: dict[str, int], says: str) -> None:
    refusal = refused([node(i, models=(CARD,)) for i in range(2)], layers=layers)
    assert (refusal.reason, refusal.field) == ("bad_request", "layers")
    assert says in refusal.message


def test_nodes_of_the_same_name_are_told_apart_by_id() -> None:
    nodes = [node(i, name="vm", models=(CARD,)) for i in range(3)]
    assert "vm names 3 nodes" in refused(nodes, layers={"vm": 5, "n1": 5}).message
    assert on(placed(nodes, layers={"n2": 5, "n1": 5})) == ["n1", "n2"]
    assert set(on(placed(nodes, excluded_nodes=(NodeId("n1"),)))) == {"n0", "n2"}


def test_a_split_by_hand_beyond_memory_is_refused_with_the_numbers() -> None:
    nodes = [node(i, models=(CARD,)) for i in range(2)]
    refusal = refused(nodes, layers={"n0": 9, "n1": 1})
    assert refusal.reason == "insufficient_memory"
    nodes[0] = node(0, models=(CARD,), usable=40 * GB, reserved_bytes=39 * GB)
    crowded = put(nodes, layers={"n0": 9, "n1": 1})
    assert isinstance(crowded, Crowded)
    assert list(crowded.shortages) == ["n0"]


# --- refusals ---


def test_what_all_nodes_together_cannot_hold_is_refused_with_their_sum() -> None:
    refusal = refused([node(1, models=(CARD,)), node(2, usable=10 * GB)])
    assert refusal.reason == "insufficient_memory" and refusal.retry_after_s is None
    assert "weights 22.00 x 1.30" in refusal.message and "26.00 GB together" in refusal.message


def test_a_group_that_would_fit_if_others_left_says_where_and_how_much() -> None:
    small: dict[str, Any] = {"usable": 12 * GB, "models": (CARD,)}
    nodes = [node(1, **small), node(2, free_bytes=GB, **small), node(3, shards=4, **small)]
    crowded = put(nodes)
    assert isinstance(crowded, Crowded)
    assert set(crowded.shortages) == {"n2", "n3"}
    short = crowded.shortages
    assert short["n2"] > 0 and short["n3"] == 0
    assert crowded.refusal.retry_after_s and "slots of box3 are taken" in crowded.refusal.message


def test_unmeasured_nodes_that_could_make_it_possible_are_waited_for() -> None:
    nodes = [node(1, models=(CARD,)), node(2, free_bytes=None)]
    assert refused(nodes).reason == "pending"


# --- previews ---


def test_previews_tell_of_every_size_and_kind_with_bytes_or_a_reason() -> None:
    nodes = [node(i, usable=24 * GB, models=(CARD,)) for i in range(3)]
    problem = placement_problem(PlacementSpec(MODEL), nodes, RunnerSizing(), mesh(nodes, CABLE))
    assert not isinstance(problem, Refusal)
    chosen = placed(nodes, mesh(nodes, CABLE))
    found = [preview_of(*one, chosen, Links()) for one in alternatives(problem, 2)]
    assert [(one["size"], one["sharding"], one["fits"], one["chosen"]) for one in found] == [
        (1, "none", False, False),
        (2, "pipeline", True, False),
        (2, "tensor", True, True),
        (3, "pipeline", True, False),
        (3, "tensor", False, False),
    ]
    alone, pipeline, *_, three = found
    assert alone["refusal"]["reason"] == "insufficient_memory"
    assert "are not divisible by 3" in three["refusal"]["message"]
    plan = pipeline["plan"]
    assert sum(rank["last_layer"] - rank["first_layer"] for rank in plan["ranks"]) == 10
    assert plan["tokens_per_s"] > 0
    assert all(rank["need_bytes"] <= rank["usable_bytes"] for rank in plan["ranks"])


def test_a_plan_names_the_links_of_its_ring_and_whether_they_were_measured() -> None:
    nodes = [node(i, usable=12 * GB, models=(CARD,)) for i in range(3)]
    links = Links({nodes[1].id: {nodes[0].id: CABLE}})
    found = {
        frozenset((one["from"], one["to"])): one
        for one in plan_of(placed(nodes, links), links)["links"]
    }
    pair = frozenset((nodes[0].name, nodes[1].name))
    assert len(found) == 3, "around the ring"
    assert found[pair]["measured"] and found[pair]["bytes_per_s"] == round(CABLE.bytes_per_s)
    assert not any(one["measured"] for names, one in found.items() if names != pair)
    two = placed([node(i, usable=20 * GB, models=(CARD,)) for i in range(2)], Links())
    assert len(plan_of(two, Links())["links"]) == 1


# --- whatever the cluster ---


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeCapacity], dict[str, Any]]:
    count = draw(st.integers(1, 5))
    roomy = st.integers(1500, 8000)
    usable = draw(st.sampled_from([st.integers(200, 2000), roomy, roomy, roomy]))
    sizes = draw(st.lists(st.integers(10, 300), min_size=1, max_size=8))
    card = model(
        [size * MB for size in sizes],
        embedding=draw(st.integers(0, 100)) * MB,
        head=draw(st.integers(0, 100)) * MB,
        kv=draw(st.integers(0, 5000)),
    )
    nodes = [
        node(
            i,
            usable=draw(usable) * MB,
            reserved_bytes=draw(st.sampled_from([0, 0, 100 * MB])),
            memory_bytes_per_s=draw(st.sampled_from([20e9, 100e9, 400e9])),
            shards=draw(st.sampled_from([0, 0, 0, 4])),
            models=(card,) if i == 0 or draw(st.booleans()) else (),
        )
        for i in range(count)
    ]
    spec = {
        "min_nodes": draw(st.integers(1, count)),
        "sharding": draw(st.sampled_from([None, None, "pipeline", "tensor"])),
        "context_tokens": draw(st.sampled_from([None, 512, 20_000])),
    }
    return nodes, spec


@settings(max_examples=200)
@given(case=clusters())
def test_a_placement_is_never_over_memory_and_covers_each_layer_once(
    case: tuple[list[NodeCapacity], dict[str, Any]],
) -> None:
    nodes, spec = case
    verdict = put(nodes, **spec)
    if isinstance(verdict, Crowded):
        assert verdict.shortages and verdict.refusal.reason == "no_capacity"
        return
    if isinstance(verdict, Refusal):
        assert verdict.message
        return
    assert len(verdict.ranks) >= spec["min_nodes"]
    assert len(set(on(verdict))) == len(verdict.ranks)
    for rank in verdict.ranks:
        assert rank.copy.node.has_slot
        assert rank.need.total <= rank.reserved_bytes <= rank.copy.node.usable_bytes
    layers = verdict.card.layers
    if verdict.sharding == "tensor":
        assert all((rank.first_layer, rank.last_layer) == (0, layers) for rank in verdict.ranks)
    else:
        held = [i for rank in verdict.ranks for i in range(rank.first_layer, rank.last_layer)]
        assert sorted(held) == list(range(layers))
    assert verdict.context_tokens >= (spec["context_tokens"] or 8192)
    assert verdict.context_tokens <= verdict.card.context_tokens
