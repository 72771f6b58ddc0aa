from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.readings import NodeReading
from master.placement.availability import PlacementSpec
from master.placement.capacity import MEMORY_SHARE, NodeCapacity, node_capacities, resolve_backend
from master.placement.explain import Crowded
from master.placement.memory_cost import FIXED_BYTES, MemoryCost, RunnerSizing, layer_costs
from master.placement.place import Verdict
from master.placement.place import place as place_over
from master.placement.preview import plan_of
from master.placement.search import Placement
from master.placement.speed import Links
from tests.harness.placement_nodes import reading

GB = 10**9
N1, N2 = NodeId("n1"), NodeId("n2")
MODEL = ModelId("m")


def card(weights: int = 1 * GB, *, context: int = 32_768, kv: int = 10_000) -> ModelCard:
    return ModelCard(
        model=MODEL, path="/m", family="qwen3", layers=4, weights_bytes=weights,
        size_bytes=weights, kv_bytes_per_token=kv, context_tokens=context, vocabulary=100,
    )  # fmt: skip


def capacity(
    node: NodeId = N1,
    *,
    memory: int = 16 * GB,
    free: int | None = 12 * GB,
    reserved: int = 0,
    loading: int = 0,
    shards: int = 0,
    models: tuple[ModelCard, ...] = (),
) -> NodeCapacity:
    said = NodeCard(
        node=node, name=node, memory_bytes=memory, slots=4, backends=("mlx-cpu",),
        models=models or (card(),), weights_addresses=("tcp://10.0.0.1:1",), platform="", cores=1,
        mlx_version="", shoal_version="", announced_at_s=0.0,
    )  # fmt: skip
    measured = None if free is None else reading(said, free)
    return NodeCapacity(said, measured, reserved, loading, shards)


def bill(card: ModelCard, context_tokens: int | None) -> MemoryCost:
    return layer_costs(card, context_tokens, "mlx-cpu").whole


def place(spec: PlacementSpec, nodes: list[NodeCapacity], sizing: RunnerSizing) -> Verdict:
    return place_over(spec, nodes, sizing, Links())


def test_the_bill_is_weights_with_overhead_plus_kv_for_8192_tokens_plus_256_mb() -> None:
    need = bill(card(), None)
    assert need.total == int(1.3 * GB) + 8_192 * 10_000 + 256_000_000
    assert bill(card(), 1_000).kv == 1_000 * 10_000
    assert bill(card(context=4_096), None).context_tokens == 4_096


def test_a_model_that_fits_is_placed_with_room_beyond_the_least() -> None:
    verdict = place(PlacementSpec(MODEL), [capacity()], RunnerSizing())
    assert isinstance(verdict, Placement)
    assert verdict.lead.copy.node.id == N1
    lead = verdict.lead
    assert lead.need.total < lead.reserved_bytes <= lead.usable_bytes
    assert verdict.context_tokens >= 8_192
    assert "1.30" in plan_of(verdict, Links())["arithmetic"]


def test_what_can_never_fit_is_refused_with_the_arithmetic() -> None:
    verdict = place(PlacementSpec(MODEL), [capacity(models=(card(20 * GB),))], RunnerSizing())
    assert isinstance(verdict, Refusal)
    assert (verdict.reason, verdict.retry_after_s) == ("insufficient_memory", None)
    assert "26.34 GB = weights 20.00 x 1.30 + KV 0.08 for 8,192 tokens + 0.26" in verdict.message
    assert "75% of 16.00 GB" in verdict.message
    assert verdict.facts["need_bytes"] == bill(card(20 * GB), None).total


def test_a_ceiling_is_told_with_what_sets_it() -> None:
    def told(card_facts: dict[str, Any], machine_bytes: int = 16 * GB) -> str:
        node = capacity(models=(card(60 * GB),))
        assert node.reading is not None
        said = node.card.model_copy(update=card_facts)
        measured = node.reading.model_copy(update={"memory_total_bytes": machine_bytes})
        node = replace(node, card=said, reading=measured)
        verdict = place(PlacementSpec(MODEL), [node], RunnerSizing())
        assert isinstance(verdict, Refusal)
        return verdict.message

    assert "75% of 16.00 GB)" in told({})
    assert "the memory_bytes setting; the machine has 64.00 GB" in told({}, 64 * GB)
    assert "iogpu.wired_limit_mb" in told({"working_set_bytes": 12 * GB})
    vram = told({"vram_bytes": 24 * GB, "backends": ("mlx-cuda",)})
    assert "90% of its GPU's 24.00 GB" in vram


def test_what_would_fit_if_others_left_is_crowded_by_so_many_bytes() -> None:
    verdict = place(PlacementSpec(MODEL), [capacity(free=1 * GB)], RunnerSizing())
    assert isinstance(verdict, Crowded)
    assert sum(verdict.shortages.values()) == bill(card(), None).total - 1 * GB
    assert verdict.refusal.reason == "no_capacity" and verdict.refusal.retry_after_s


def test_a_model_that_is_still_loading_counts_although_its_memory_is_not_taken_yet() -> None:
    free = place(PlacementSpec(MODEL), [capacity(free=3 * GB)], RunnerSizing())
    assert isinstance(free, Placement)
    taken = place(
        PlacementSpec(MODEL),
        [capacity(free=3 * GB, loading=2 * GB, reserved=2 * GB)],
        RunnerSizing(),
    )
    assert isinstance(taken, Crowded)


def test_without_a_slot_it_is_crowded_though_memory_is_there() -> None:
    verdict = place(PlacementSpec(MODEL), [capacity(shards=4)], RunnerSizing())
    assert isinstance(verdict, Crowded)
    assert sum(verdict.shortages.values()) == 0 and "slots" in verdict.refusal.message


def test_waiting_helps_while_the_cluster_is_still_unknown() -> None:
    for nodes in ([], [capacity(free=None)]):
        verdict = place(PlacementSpec(MODEL), nodes, RunnerSizing())
        assert isinstance(verdict, Refusal)
        assert verdict.reason == "pending" and verdict.retry_after_s


def test_conditions_that_cannot_be_met_are_refused_by_name() -> None:
    def reason(spec: PlacementSpec) -> tuple[str, str | None]:
        verdict = place(spec, [capacity()], RunnerSizing())
        assert isinstance(verdict, Refusal)
        return verdict.reason, verdict.field

    assert reason(PlacementSpec(ModelId("other"))) == ("unknown_model", "model")
    assert reason(PlacementSpec(MODEL, excluded_nodes=(N1,))) == ("unsupported", "excluded_nodes")
    assert reason(PlacementSpec(MODEL, min_nodes=2)) == ("unsupported", "min_nodes")
    assert reason(PlacementSpec(MODEL, context_tokens=99_999)) == ("unsupported", "context_tokens")


def test_the_node_with_most_usable_memory_is_chosen_and_exclusions_are_honoured() -> None:
    nodes = [capacity(N1, free=5 * GB), capacity(N2, free=9 * GB)]
    best = place(PlacementSpec(MODEL), nodes, RunnerSizing())
    other = place(PlacementSpec(MODEL, excluded_nodes=(N2,)), nodes, RunnerSizing())
    assert isinstance(best, Placement) and best.lead.copy.node.id == N2
    assert isinstance(other, Placement) and other.lead.copy.node.id == N1


SIZES = st.integers(min_value=0, max_value=40 * GB)


@given(
    memory=st.integers(min_value=1 * GB, max_value=40 * GB),
    free=SIZES,
    weights=st.lists(st.integers(min_value=1, max_value=20 * GB), min_size=1, max_size=8),
    context=st.none() | st.integers(min_value=1, max_value=32_768),
    rows=st.integers(min_value=1, max_value=64),
)
def test_however_models_are_placed_memory_is_never_promised_twice(
    memory: int, free: int, weights: list[int], context: int | None, rows: int
) -> None:
    free = min(free, memory)
    models = tuple(
        card(w).model_copy(update={"model": ModelId(f"m{i}")}) for i, w in enumerate(weights)
    )
    announced = {
        N1: NodeCard(
            node=N1, name="n1", platform="linux", cores=2, memory_bytes=memory,
            backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=4, models=models,
            announced_at_s=0.0,
        )
    }  # fmt: skip
    readings = {
        N1: NodeReading(
            node=N1, memory_total_bytes=memory, memory_available_bytes=free, cpu_ratio=0.0,
            load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
        )
    }  # fmt: skip
    instances: dict[str, Instance] = {}
    for model in models:
        spec = PlacementSpec(model.model, context_tokens=context)
        verdict = place(
            spec, node_capacities(announced, readings, instances), RunnerSizing(max_rows=rows)
        )
        if isinstance(verdict, Placement):
            assert verdict.lead.reserved_bytes >= verdict.lead.need.total >= FIXED_BYTES
            assert verdict.context_tokens <= model.context_tokens
            assert context is None or verdict.context_tokens >= context
            instances[model.model] = _placed(verdict)
        promised = sum(s.bytes_reserved for i in instances.values() for s in i.shards)
        assert promised <= free
        assert promised <= MEMORY_SHARE * memory
        assert len(instances) <= 4


def _placed(placement: Placement, *, ready: bool = False) -> Instance:
    shard = Shard(
        rank=0, node=N1, first_layer=0, last_layer=4, bytes_reserved=placement.lead.reserved_bytes
    )
    lead = RankReady(rank=0, node=N1, process="runner:00", addresses=(), pid=1)
    return Instance(
        instance=InstanceId(placement.card.model), model=placement.card.model, shards=(shard,),
        context_tokens=placement.context_tokens, keep_alive_s=1.0,
        status="ready" if ready else "placed", ready=(lead,) if ready else (),
    )  # fmt: skip


def test_a_ready_copy_is_in_the_measurement_and_not_counted_again() -> None:
    first = place(PlacementSpec(MODEL), [capacity()], RunnerSizing())
    assert isinstance(first, Placement)
    loading = node_capacities({}, {}, {})
    assert loading == []
    announced = NodeCard(
        node=N1, name="n1", platform="linux", cores=2, memory_bytes=16 * GB, backends=(),
        mlx_version="", shoal_version="", slots=4, models=(card(),), announced_at_s=0.0,
    )  # fmt: skip
    for ready in (False, True):
        one = node_capacities({N1: announced}, {}, {"i": _placed(first, ready=ready)})[0]
        assert one.reserved_bytes == first.lead.reserved_bytes
        assert one.loading_bytes == (0 if ready else first.lead.reserved_bytes)
        assert resolve_backend(card(), one.card.backends) == "mlx-cpu"
