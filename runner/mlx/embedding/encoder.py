# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (mlx.nn is partially typed)
"""Talks to MLX: computes the encoders of BERT and RoBERTa, from token ids to one hidden state per
token. It also finds the weights of a reranker's head.

Each layer is bidirectional attention over the row's tokens, followed by two linear layers. The
output of each of these two halves is added to its input, and the sum is normalised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

QUERIES_AT_ONCE = 1024
"""Number of queries whose attention is computed at once. This limits memory: it grows with this
number times the row's length, not with the square of the length."""
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu_approx",
    "gelu_fast": "gelu_approx",
    "gelu_pytorch_tanh": "gelu_approx",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Maps activation names of config.json to those of `mlx.nn`."""
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")
_IN_LAYER = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "mixed",
    "attention.output.LayerNorm": "attended",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "computed",
}
_BEFORE = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "embedded",
}
_PREFIX = re.compile(r"^(?:model\.)?(?:bert|roberta|encoder_model|transformer)\.")
_UNUSED = re.compile(r"^(?:pooler|cls|lm_head|classifier)\.|position_ids$|token_type_ids$")
"""Matches the names of weights that embeddings do not need: the masked-word head, the pooling
layer, and stored position numbers."""


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Sizes of an encoder. The token at position i of a row gets the position embedding
    `first_position` + i."""

    vocabulary: int
    hidden: int
    heads: int
    inner: int
    layers: int
    positions: int
    types: int
    first_position: int
    epsilon: float
    activation: str


class Encoder(nn.Module):
    """The embeddings of tokens, positions and token types, and the layers after them."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self._first = shape.first_position
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden)
        self.types = nn.Embedding(shape.types, shape.hidden)
        self.embedded = nn.LayerNorm(shape.hidden, shape.epsilon)
        self.layers = [EncoderLayer(shape) for _ in range(shape.layers)]

    def __call__(
        self, tokens: mx.array, lengths: mx.array, seconds: mx.array | None = None
    ) -> mx.array:
        """Return hidden states, (rows, tokens, hidden), for token ids (rows, tokens). `seconds`:
        the index in each row from which tokens have the second token type; None: all tokens have
        the first. The hidden states of padding are meaningless, and no token attends to them."""
        count = tokens.shape[1]
        positions = mx.arange(self._first, self._first + count)
        types = mx.array(0) if seconds is None else self._types(seconds, count)
        hidden = self.words(tokens) + self.positions(positions) + self.types(types)
        hidden = self.embedded(hidden)
        seen = (mx.arange(count) < lengths[:, None])[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, seen)
        return hidden

    def _types(self, seconds: mx.array, count: int) -> mx.array:
        """Return the token type of each token, (rows, tokens). If the model has only one type, all
        tokens have it."""
        types = (mx.arange(count) >= seconds[:, None]).astype(mx.int32)
        return mx.minimum(types, self.types.weight.shape[0] - 1)


class EncoderLayer(nn.Module):
    """One layer of an encoder: attention and two linear layers."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self._heads = shape.heads
        self._activation: Callable[[mx.array], mx.array] = getattr(
            nn, ACTIVATIONS[shape.activation]
        )
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, shape.hidden)
        self.value = nn.Linear(shape.hidden, shape.hidden)
        self.mixed = nn.Linear(shape.hidden, shape.hidden)
        self.attended = nn.LayerNorm(shape.hidden, shape.epsilon)
        self.inner = nn.Linear(shape.hidden, shape.inner)
        self.outer = nn.Linear(shape.inner, shape.hidden)
        self.computed = nn.LayerNorm(shape.hidden, shape.epsilon)

    def __call__(self, hidden: mx.array, seen: mx.array) -> mx.array:
        """Return the next hidden states of all tokens; the attention mask `seen` (rows, 1, 1,
        tokens) is true for tokens that are not padding."""
        hidden = self.attended(hidden + self.mixed(self._attention(hidden, seen)))
        return self.computed(hidden + self.outer(self._activation(self.inner(hidden))))

    def _attention(self, hidden: mx.array, seen: mx.array) -> mx.array:
        queries, keys, values = map(self._by_head, (self.query, self.key, self.value), 3 * [hidden])
        scale = queries.shape[-1] ** -0.5
        blocks = [
            mx.fast.scaled_dot_product_attention(
                queries[:, :, at : at + QUERIES_AT_ONCE], keys, values, scale=scale, mask=seen
            )
            for at in range(0, hidden.shape[1], QUERIES_AT_ONCE)
        ]
        joined = blocks[0] if len(blocks) == 1 else mx.concatenate(blocks, axis=2)
        return joined.transpose(0, 2, 1, 3).reshape(hidden.shape)

    def _by_head(self, projection: nn.Linear, hidden: mx.array) -> mx.array:
        rows, count, _ = hidden.shape
        return projection(hidden).reshape(rows, count, self._heads, -1).transpose(0, 2, 1, 3)


def encoder_shape(config: Mapping[str, Any], first_position: int) -> EncoderShape:
    """Return the sizes of an encoder from its config.json. Raises ValueError, naming the field."""
    epsilon = config.get("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 <= epsilon < 1:
        raise ValueError("config.json: layer_norm_eps is not a small positive number")
    shape = EncoderShape(
        vocabulary=_size(config, "vocab_size"),
        hidden=_size(config, "hidden_size"),
        heads=_size(config, "num_attention_heads"),
        inner=_size(config, "intermediate_size"),
        layers=_size(config, "num_hidden_layers", most=1024),
        positions=_size(config, "max_position_embeddings"),
        types=_size(config, "type_vocab_size"),
        first_position=first_position,
        epsilon=float(epsilon),
        activation=str(config.get("hidden_act", "gelu")),
    )
    if shape.hidden % shape.heads:
        raise ValueError("config.json: hidden_size is not divisible by num_attention_heads")
    if shape.activation not in ACTIVATIONS:
        raise ValueError(f"config.json: unknown hidden_act {shape.activation[:80]!r}")
    return shape


def head_of(weights: Mapping[str, mx.array], name: str) -> dict[str, mx.array]:
    """Return the tensors of the head's linear layer `name`, under the keys "linear.weight" and
    "linear.bias". A tensor that the checkpoint lacks is left out."""
    bare = {_PREFIX.sub("", key): array for key, array in weights.items()}
    named = {f"linear.{kind}": bare.get(f"{name}.{kind}") for kind in ("weight", "bias")}
    return {key: array for key, array in named.items() if array is not None}


def own_names(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return the weights of a transformers checkpoint under this module's names, without weights
    that embeddings do not need. Raises ValueError for an unknown weight."""
    renamed: dict[str, mx.array] = {}
    for name, array in weights.items():
        bare = _PREFIX.sub("", name).replace(".gamma", ".weight").replace(".beta", ".bias")
        if _UNUSED.search(bare):
            continue
        if (own := _own_name(bare)) is None:
            raise ValueError(f"unknown weight {name[:80]!r}")
        renamed[own] = array
    return renamed


def _own_name(name: str) -> str | None:
    if layer := _LAYER.fullmatch(name):
        number, part, kind = layer.groups()
        return f"layers.{int(number)}.{_IN_LAYER[part]}.{kind}" if part in _IN_LAYER else None
    part, _, kind = name.rpartition(".")
    return f"{_BEFORE[part]}.{kind}" if part in _BEFORE else None


def _size(config: Mapping[str, Any], name: str, most: int = 1 << 24) -> int:
    size = config.get(name)
    if type(size) is not int or not 1 <= size <= most:
        raise ValueError(f"config.json: {name} is {str(size)[:80]}; it must be 1 to {most}")
    return size
