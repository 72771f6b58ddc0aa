"""A model with adapters may be a group of either kind, and each of its ranks has room for them."""

from __future__ import annotations

from bus.models.lora import AdapterFiles, Pair, stacked_bytes
from bus.wire.cards import AdapterCard, ModelCard
from master.placement.memory_cost import layer_costs
from master.placement.search import why_unshardable
from tests.harness.placement_nodes import GB, model

LAYERS, WIDTH = 4, 1 << 12


def adapter(name: str, rank: int) -> tuple[AdapterCard, AdapterFiles]:
    """One for each layer, in 16 bits."""
    pair = Pair("a", "b", rank, WIDTH, WIDTH)
    pairs = {f"layers.{at}.q_proj": pair for at in range(LAYERS)}
    card = AdapterCard(name=name, rank=rank, size_bytes=LAYERS * 2 * WIDTH * rank * 2)
    return card, AdapterFiles(pairs, scale=1.0, transposed=False, value_bytes=2)


def test_a_model_with_adapters_may_be_a_group_of_either_kind() -> None:
    adapted = model(adapters=(AdapterCard(name="a", rank=4, size_bytes=9),))
    assert why_unshardable(adapted, "tensor", 2) is None
    assert why_unshardable(adapted, "pipeline", 2) is None


def weights_of_a_rank(card: ModelCard, ranks: int) -> int:
    costs = layer_costs(card, None, "mlx-metal")
    return costs.tensor_rank_cost(ranks, splits_kv=True).weights


def test_a_tensor_rank_is_billed_for_all_of_the_adapters() -> None:
    cards, files = zip(*(adapter("a", 8), adapter("b", 32)), strict=True)
    for dtype in ("auto", "float32"):
        whole = sum(stacked_bytes(files, float32=dtype == "float32").values())
        plain = model((GB,) * LAYERS, dtype=dtype)
        sizes = tuple(GB + whole // LAYERS for _ in range(LAYERS))
        adapted = model(sizes, adapters=cards, dtype=dtype)
        for ranks in (2, 4):
            more = weights_of_a_rank(adapted, ranks) - weights_of_a_rank(plain, ranks)
            assert whole <= more <= 1.01 * whole, (dtype, ranks)
