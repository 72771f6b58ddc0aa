# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (mlx.nn is partially typed)
"""Talks to MLX: pools the hidden states of tokens into one vector per row.

Vectors are computed in float32 for every dtype of the model. Tokens beyond a row's length (padding)
are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from bus.models.embedding_parts import PoolingMode

LEAST_LENGTH = 1e-12
"""When a vector is normalised, it is divided by its length, but at least by this number, so that a
zero vector stays zero."""
ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "tanh": mx.tanh,
    "identity": lambda vectors: vectors,
    "gelu": nn.gelu,
    "relu": nn.relu,
}


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer and its activation; `weight` is (outputs, inputs)."""

    weight: mx.array
    bias: mx.array | None
    activation: str

    def __call__(self, vectors: mx.array) -> mx.array:
        """Return the layer's outputs, (rows, outputs), for vectors (rows, inputs)."""
        outputs = vectors @ self.weight.T
        return ACTIVATIONS[self.activation](outputs if self.bias is None else outputs + self.bias)


def pooled(hidden: mx.array, lengths: mx.array, modes: Sequence[PoolingMode]) -> mx.array:
    """Return one vector per row, (rows, modes x hidden), from hidden states (rows, tokens, hidden)
    and the rows' lengths. It joins the results of all pooling modes; each has `hidden` numbers."""
    hidden = hidden.astype(mx.float32)
    real = (mx.arange(hidden.shape[1]) < lengths[:, None])[..., None]
    vectors = [_pooled(hidden, real, lengths, mode) for mode in modes]
    return vectors[0] if len(vectors) == 1 else mx.concatenate(vectors, axis=-1)


def normalised(vectors: mx.array) -> mx.array:
    lengths = mx.sqrt(mx.sum(vectors * vectors, axis=-1, keepdims=True))
    return vectors / mx.maximum(lengths, LEAST_LENGTH)


def _pooled(hidden: mx.array, real: mx.array, lengths: mx.array, mode: PoolingMode) -> mx.array:
    counts = lengths[:, None].astype(mx.float32)
    match mode:
        case "cls":
            return hidden[:, 0]
        case "lasttoken":
            return hidden[mx.arange(hidden.shape[0]), lengths - 1]
        case "max":
            return mx.where(real, hidden, -mx.inf).max(axis=1)
        case "mean":
            return mx.where(real, hidden, 0).sum(axis=1) / counts
        case "mean_sqrt_len_tokens":
            return mx.where(real, hidden, 0).sum(axis=1) / mx.sqrt(counts)
        case "weightedmean":
            weights = mx.arange(1, hidden.shape[1] + 1).astype(mx.float32)[None, :, None]
            whole = counts * (counts + 1) / 2
            return mx.where(real, hidden * weights, 0).sum(axis=1) / whole
