"""Talks to MLX: how nearly a mixture's router chose other experts.

Ranks add their sums in other orders than one rank does, so where two experts score alike to the
last digits either may be chosen; then logits differ by much, although nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

ROUTER_NOISE = 5e-6
"""Of softmax scores; what is nearer may be either way round."""


def router_gap(folder: Path, prompt: Sequence[int], said: Sequence[int]) -> float:
    """The least difference between the last chosen expert's score and the first passed over, in
    any layer, over the steps that say `said` behind `prompt` and the one after; infinite without a
    router that is known here."""
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    gaps: list[mx.array] = []
    for _, block in model.named_modules():
        if hasattr(block, "top_k") and hasattr(block, "gate"):
            block.gate = _Watched(block.gate, block.top_k, gaps)
    caches = make_prompt_cache(model)
    model(mx.array([prompt[:-1]]), cache=caches)
    gaps.clear()
    model(mx.array([[prompt[-1], *said]]), cache=caches)
    return min((gap.min().item() for gap in gaps), default=float("inf"))


class _Watched:
    """A router that notes how near its choices are."""

    def __init__(self, gate: Any, chosen: int, gaps: list[mx.array]) -> None:
        self._gate, self._chosen, self._gaps = gate, chosen, gaps

    def __call__(self, hidden: mx.array) -> mx.array:
        scores = self._gate(hidden)
        ranked = mx.sort(mx.softmax(scores, axis=-1), axis=-1)[..., ::-1]
        self._gaps.append(ranked[..., self._chosen - 1] - ranked[..., self._chosen])
        return scores
