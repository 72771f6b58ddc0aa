# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` untyped)
"""Talks to MLX: what holding KV in fewer bits changes of what a model says, in figures.

All of a text is computed at once on caches of a codec: attention sees what is held, so this is what
a row that decodes would see. Full width is what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx

from bus.wire.kv import KvKind
from runner.mlx.kv import Shape, new_caches
from runner.mlx.model.capabilities import measure


@dataclass(frozen=True, slots=True)
class Figures:
    """Over all positions of all texts: the mean KL divergence from full width (nats a token), the
    largest error of a logit, the share of positions whose best token is the same, and the
    perplexity of the texts."""

    kl: float
    largest_error: float
    same_best: float
    perplexity: float


def in_kind(kind: KvKind) -> Callable[[Any], Shape]:
    """Return what measures a model with its KV held as `kind`."""
    return lambda model: measure(model, kind)


def figures(
    model: Any, shape_of: Callable[[Any], Shape], texts: Sequence[Sequence[int]]
) -> Figures:
    """Return the figures of some texts, each of two tokens or more."""
    wide, held = measure(model), shape_of(model)
    kl, largest, same, surprise, count = 0.0, 0.0, 0.0, 0.0, 0
    for text in texts:
        tokens = mx.array([list(text)])
        full, other = (_logits(model, shape, tokens) for shape in (wide, held))
        ours, theirs = (one - mx.logsumexp(one, -1, keepdims=True) for one in (other, full))
        kl += _number(mx.sum(mx.exp(theirs) * (theirs - ours)))
        largest = max(largest, _number(mx.max(mx.abs(full - other))))
        same += _number(mx.sum(mx.argmax(full, -1) == mx.argmax(other, -1)))
        said = mx.take_along_axis(ours[:-1], tokens[0, 1:, None], -1)
        surprise -= _number(mx.sum(said))
        count += len(text)
    perplexity = math.exp(surprise / (count - len(texts)))
    return Figures(kl / count, largest, same / count, perplexity)


def _number(array: mx.array) -> float:
    return float(cast(float, array.item()))


def _logits(model: Any, shape: Shape, tokens: mx.array) -> mx.array:
    """Return (tokens, vocabulary) in 32 bits."""
    out = model(tokens, cache=new_caches(model, shape, 0))[0].astype(mx.float32)
    mx.eval(out)
    return out
