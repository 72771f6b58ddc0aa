"""How a forward passes hidden states on is found out, and what cannot be split is refused.

Two stages of small models with random weights, hand to hand, at every cut, against the whole.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import _get_classes

from runner.mlx.ranks.layer_probe import Unsplittable, flow_of
from runner.mlx.ranks.pipeline_stage import StageModel
from tests.harness.families import MODELS, ODD, SMALL
from tests.runner.mlx.ranks.test_pipeline_stage import Neighbours

STEPS = 40
PROMPT = 37
"""More than the window of those that have one."""


def built(settings: dict[str, Any]) -> list[nn.Module]:
    """One model three times: whole, and for two stages."""
    config = {**SMALL, **settings}
    model_class, args_class = _get_classes(config)
    args = args_class.from_dict(config)
    models = [model_class(args) for _ in range(3)]
    mx.random.seed(3)
    weights = [
        (name, 1.5 * mx.random.normal(array.shape) * array.shape[-1] ** -0.5)
        for name, array in tree_flatten(models[0].parameters())
        if array.ndim > 1 and mx.issubdtype(array.dtype, mx.floating)
    ]
    named = tree_flatten(models[0].parameters())
    weights += [(name, array + 0.5) for name, array in named if "embed_skip" in name]
    for model in models:
        model.load_weights(weights, strict=False)
        model.eval()
    return models


def parted(models: list[nn.Module], cut: int) -> tuple[list[StageModel], deque[mx.array]]:
    wire: deque[mx.array] = deque()
    _, later, first = models
    count = len(later.layers)
    return [
        StageModel(first, Neighbours(wire, leads=False), 0, cut),
        StageModel(later, Neighbours(wire, leads=True), cut, count),
    ], wire


REFUSED = {
    "nemotron_h": {3: "no cache"},
    "bailing_hybrid": {1: "read caches of other kinds of layers"},
}


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("family", sorted(ODD))
def test_two_stages_say_what_the_whole_says_or_are_refused(family: str, cut: int) -> None:
    models = built(ODD[family])
    why = REFUSED.get(family, {}).get(cut)
    if why is not None:
        with pytest.raises(Unsplittable, match=why):
            parted(models, cut)
        return
    parts, wire = parted(models, cut)
    whole = models[0]
    caches = make_prompt_cache(whole), *(part.make_cache() for part in parts)
    for step in range(STEPS):
        tokens = mx.array([[(7 * at + 13 * step) % 250 + 3 for at in range(1 if step else PROMPT)]])
        wanted = whole(tokens, cache=caches[0])
        found = [part(tokens, own) for part, own in zip(parts, caches[1:], strict=True)][-1]
        assert not wire
        assert mx.allclose(wanted, found, rtol=1e-4, atol=1e-4), f"step {step}"


@pytest.mark.parametrize("family", [*ODD, "llama"])
def test_a_stage_that_hears_no_tokens_must_not_need_them(family: str) -> None:
    """One between the first and the last knows of a decode step no more than hidden states."""
    model = built({**ODD, "llama": MODELS["llama"]}[family])[0]
    middle = Neighbours(deque(), leads=False, hears=False)
    if family in ("talkie", "gemma4_text"):
        with pytest.raises(Unsplittable, match="read the tokens"):
            StageModel(model, middle, 1, 3)
    else:
        StageModel(model, middle, 1, 3)


class Layer(nn.Module):
    """Adds a little, and a skip connection where it is given one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def __call__(self, hidden: mx.array, cache: KVCache, skip: mx.array | None = None) -> mx.array:
        cache.update_and_fetch(hidden[:, None], hidden[:, None])
        out = hidden + self.linear(hidden)
        return out if skip is None else out + skip


class Toy(nn.Module):
    """Four layers, called as a test wants it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.embed = nn.Embedding(4, 8)
        self.layers = [Layer() for _ in range(4)]

    def make_cache(self) -> list[KVCache]:
        return [KVCache() for _ in self.layers]

    def __call__(self, tokens: mx.array, cache: list[KVCache]) -> mx.array:
        hidden = start = self.embed(tokens)
        outs: list[mx.array] = []
        order = list(zip(self.layers, cache, strict=True))
        for layer, one in reversed(order) if self.way == "reversed" else order:
            skip = {"skips": outs[-2:-1], "made": [2 * out for out in outs[-2:-1]]}.get(self.way)
            own = cache[0] if self.way == "shares" else one
            given = [start] if self.way == "start" else skip or []
            hidden = layer(hidden, own, *given)
            outs.append(hidden)
            if self.way == "scales":
                hidden = 2 * hidden
        return hidden


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("skips", "pass more than hidden states"),
        ("made", "pass more than hidden states"),
        ("scales", "computes something between layers"),
        ("reversed", "every layer once and in order"),
    ],
)
def test_a_forward_that_could_only_be_split_into_wrong_numbers_is_refused(
    way: str, why: str
) -> None:
    toy = Toy(way)
    with pytest.raises(Unsplittable, match=why):
        flow_of(toy, toy.layers)


def test_layers_may_share_what_is_made_of_the_tokens_but_no_cache() -> None:
    for way in ("plain", "start"):
        toy = Toy(way)
        assert flow_of(toy, toy.layers).path.key == 0
    toy = Toy("shares")
    with pytest.raises(Unsplittable, match="share caches"):
        flow_of(toy, toy.layers).caches_of(0, 2)


def test_looking_leaves_the_model_as_it_was() -> None:
    toy = Toy("plain")
    kinds = [type(layer) for layer in toy.layers]
    tokens = mx.array([[1, 2]])
    before = toy(tokens, toy.make_cache())
    flow_of(toy, toy.layers)
    assert [type(layer) for layer in toy.layers] == kinds
    assert mx.array_equal(toy(tokens, toy.make_cache()), before)
