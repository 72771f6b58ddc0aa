"""The bill of a placement follows how KV is held, and who may share a group does, too."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.kv import KvKind
from bus.wire.messages.requests import DraftWeights
from master.placement.availability import PlacementSpec, card_as_computed
from master.placement.capacity import NodeCapacity
from master.placement.memory_cost import RunnerSizing, cost_text, layer_costs
from master.placement.place import Verdict, place
from master.placement.preview import plan_of
from master.placement.search import Placement
from master.placement.speed import Links
from tests.harness.placement_nodes import GB, MODEL, model, node

VALUES = 4096
GROUPED: dict[str, Any] = {"kv": 2 * VALUES, "kv_group": 64, "kv_value_bytes": 2}


def held(kind: KvKind, **more: Any) -> ModelCard:
    return model(**{**GROUPED, **more}).model_copy(update={"kv": kind})


def placed(spec: PlacementSpec, *cards: ModelCard) -> Verdict:
    nodes: list[NodeCapacity] = [
        node(number, models=(card,)) for number, card in enumerate(cards, 1)
    ]
    return place(spec, nodes, RunnerSizing(), Links())


@pytest.mark.parametrize(
    ("kind", "a_layer"), [("full", 2 * VALUES), ("8bit", VALUES + 256), ("4bit", VALUES // 2 + 256)]
)
def test_a_token_is_billed_with_codes_scales_and_offsets(kind: KvKind, a_layer: int) -> None:
    need = layer_costs(model(**GROUPED), 1_000, "mlx-metal", kind).whole
    assert need.kv_per_token == 8 * a_layer
    assert need.kv == 1_000 * 8 * a_layer
    assert (f"1,000 tokens in {kind}" in cost_text(need)) == (kind != "full")


def test_a_window_is_billed_by_the_row_whatever_the_context() -> None:
    card = model(**GROUPED, layer_kv_fixed=(500,) * 8)
    bills = [layer_costs(card, tokens, "mlx-metal", "window:60").whole for tokens in (100, 4_000)]
    for need in bills:
        assert need.kv_per_token == 0
        assert need.kv == need.kv_per_row == 8 * (500 + 64 * 2 * VALUES)
    assert bills[0].total == bills[1].total
    assert "for any context in window:60" in cost_text(bills[0])
    long = layer_costs(card, None, "mlx-metal", "window:9000000").whole
    assert long.kv_per_row == 8 * (500 + card.context_tokens * 2 * VALUES)


def test_a_window_gives_the_whole_context_of_the_model() -> None:
    card = model(**GROUPED).model_copy(update={"kv_windows": True})
    verdict = placed(PlacementSpec(MODEL, kv="window:64"), card)
    assert isinstance(verdict, Placement)
    assert verdict.lead.copy.kv == "window:64"
    assert verdict.context_tokens == card.context_tokens
    bare = model().model_copy(update={"kv_full_because": "it keeps an index"})
    refused = placed(PlacementSpec(MODEL, kv="window:64"), bare)
    assert isinstance(refused, Refusal)
    assert refused.field == "kv" and "it keeps an index" in refused.message
    fallen_back = placed(PlacementSpec(MODEL), bare.model_copy(update={"kv": "window:64"}))
    assert isinstance(fallen_back, Placement) and fallen_back.lead.copy.kv == "full"


def test_states_and_windows_are_billed_as_they_were() -> None:
    card = model(**GROUPED, layer_kv_fixed=(500,) * 8)
    assert layer_costs(card, None, "mlx-metal", "4bit").whole.kv_per_row == 8 * 500


def test_values_cast_to_32_bits_have_wider_scales() -> None:
    there = card_as_computed(model(**GROUPED), "mlx-cpu")
    assert there.kv_value_bytes == 4
    need = layer_costs(there, 1, "mlx-cpu", "8bit").whole
    assert need.kv_per_token == 8 * (VALUES + VALUES // 64 * 8)


@pytest.mark.parametrize("asked", [None, "full", "4bit"])
def test_what_is_asked_for_goes_before_the_card(asked: KvKind | None) -> None:
    verdict = placed(PlacementSpec(MODEL, kv=asked), held("8bit"))
    assert isinstance(verdict, Placement)
    assert verdict.lead.copy.kv == (asked or "8bit")
    assert plan_of(verdict, Links())["kv"] == (asked or "8bit")


def test_more_context_fits_where_kv_takes_less() -> None:
    contexts: list[int] = []
    for kind in ("full", "8bit", "4bit"):
        verdict = placed(
            PlacementSpec(MODEL, kv=kind), model((GB // 10,) * 8, **GROUPED | {"kv": 60_000})
        )
        assert isinstance(verdict, Placement)
        contexts.append(verdict.context_tokens)
    assert contexts == sorted(contexts) and contexts[0] < contexts[-1]


def test_a_model_whose_kv_stays_in_full_width_is_refused_by_name_where_it_is_asked_for() -> None:
    card = model().model_copy(update={"kv_full_because": "its heads are 80 wide"})
    verdict = placed(PlacementSpec(MODEL, kv="8bit"), card)
    assert isinstance(verdict, Refusal)
    assert verdict.field == "kv" and "its heads are 80 wide" in verdict.message
    assert isinstance(placed(PlacementSpec(MODEL, kv="full"), card), Placement)


def test_nodes_that_hold_kv_in_other_widths_are_no_group() -> None:
    large = {"layer_bytes": (2 * GB,) * 8}
    verdict = placed(PlacementSpec(MODEL), held("8bit", **large), held("4bit", **large))
    assert isinstance(verdict, Refusal)
    alike = placed(PlacementSpec(MODEL), held("8bit", **large), held("8bit", **large))
    assert isinstance(alike, Placement) and len(alike.ranks) == 2
    asked = placed(PlacementSpec(MODEL, kv="4bit"), held("8bit", **large), held("4bit", **large))
    assert isinstance(asked, Placement) and {rank.copy.kv for rank in asked.ranks} == {"4bit"}


def test_what_a_card_says_of_memory_goes_before_the_files() -> None:
    plain = model()
    said = plain.model_copy(update={"memory_bytes": 2 * plain.weights_bytes})
    files, card = (layer_costs(one, 1_000, "mlx-metal").whole for one in (plain, said))
    assert (card.weights, card.overhead) == (2 * files.weights, 1.0)
    assert card.kv == files.kv and "(memory_bytes of its card.toml) x 1.00" in cost_text(card)
    assert "card.toml" not in cost_text(files)
    costs = layer_costs(said, 1_000, "mlx-metal")
    halves = [costs.stage_cost(0, 3).weights, costs.stage_cost(3, costs.layers).weights]
    assert card.weights <= sum(halves) < card.weights + 100, "stages share it as they do the files"
    huge = plain.model_copy(update={"memory_bytes": 10_000 * GB})
    refused = placed(PlacementSpec(MODEL), huge)
    assert isinstance(refused, Refusal) and "memory_bytes of its card.toml" in refused.message


def test_a_draft_model_is_billed_to_the_rank_with_the_whole_model() -> None:
    draft = DraftWeights(model=MODEL, path="/d", weights_bytes=1_000, kv_bytes_per_token=10)
    plain, drafted = (
        layer_costs(held("full").model_copy(update={"draft": each}), 500, "mlx-metal")
        for each in (None, draft)
    )
    assert drafted.whole.weights == plain.whole.weights + 1_000
    assert drafted.whole.kv == plain.whole.kv + 500 * 10
    assert drafted.stage_cost(0, 4) == plain.stage_cost(0, 4)
    assert drafted.tensor_rank_cost(2, splits_kv=True) == plain.tensor_rank_cost(2, splits_kv=True)
