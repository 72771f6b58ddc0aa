# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: builds the MTP head of a model from its tensors, and tries it out.

Every tensor must have the expected name and shape. The head's decoder layer is built like the
model's last layer, with the same class and the same quantisation. mlx-lm's code for the family
converts the names of its tensors.

In original checkpoints of Qwen3-Next and Qwen3.5, a norm with the stored weight w multiplies by
1 + w. mlx-lm adds this 1 when it converts a model. MTP heads exist in both forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from bus.wire.ids import TokenId
from runner.engine import EngineFacts
from runner.mlx.kv import RowKV
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import Precision, bring_in, computes_in, open_model
from runner.mlx.mtp.tensors import HeadTensors, Tensors, UnusableHead, read_head

TRIAL_TOKENS = 5
ZERO_CENTRED = ("qwen3_next", "qwen3_5")
"""Families in whose original checkpoints the weights of norms are around 0, not 1."""


class Block(nn.Module):
    """An MTP head without the embedding and the projection onto the vocabulary, for which it uses
    those of the model."""

    def __init__(self, layer: nn.Module, width: int, eps: float) -> None:
        super().__init__()
        self.embedding_norm = nn.RMSNorm(width, eps=eps)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.projection = nn.Linear(2 * width, width, bias=False)
        self.layer: Any = layer
        self.norm = nn.RMSNorm(width, eps=eps)

    def __call__(self, hidden: mx.array, embedded: mx.array, cache: RowKV) -> mx.array:
        """Return the layer's output (1, tokens, width), and add the KV of its tokens to the cache.
        `hidden` are hidden states, and `embedded` the embeddings of the tokens after them, both
        (1, tokens, width)."""
        parts = [self.embedding_norm(embedded), self.hidden_norm(hidden)]
        both = self.projection(mx.concatenate(parts, axis=-1))
        mask = cache.make_mask(both.shape[1], return_array=True)
        return self.layer(both, mask, cache)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A loaded MTP head, which guesses up to `depth` tokens in succession. `feeds_normed`: guesses
    after the first start from its normed output. `tap` gives it the model's embedding and
    projection."""

    block: Block
    tap: LastTokenHead
    feeds_normed: bool
    weights_bytes: int
    context_tokens: int
    depth: int
    kv_bytes_per_token: int = 0

    def run(self, hidden: mx.array, tokens: Sequence[TokenId] | mx.array, cache: RowKV) -> mx.array:
        """Return the head's output (1, tokens, width) for hidden states and the tokens after
        them."""
        ids = tokens if isinstance(tokens, mx.array) else mx.array([list(tokens)], mx.int32)
        return self.block(hidden, self.tap.embedded(ids), cache)

    def logits(self, out: mx.array) -> tuple[mx.array, mx.array]:
        """Return the logits (1, vocabulary) of the last token of an output, and the hidden state
        (1, 1, width) from which the next guess starts."""
        last = out[:, -1:]
        normed = self.block.norm(last)
        return self.tap.projected(normed)[:, -1], normed if self.feeds_normed else last


def open_head(
    folder: Path,
    depth: int,
    facts: EngineFacts,
    target: Path,
    tap: LastTokenHead,
    precision: Precision,
) -> LoadedHead | str:
    """Load the MTP head in `folder` for the loaded model in the folder `target`, which has these
    facts. The head guesses up to `depth` tokens in succession. If it cannot be used, return the
    reason as text."""
    try:
        if not tap.can_tap:
            raise UnusableHead("the model's embedding or projection was not found")
        model, config = open_model(target)
        layers: list[nn.Module] = list(cast(Any, model).layers)
        tensors = read_head(folder, target, len(layers), facts.vocabulary)
        block = _filled(model, layers, _eps(config), tensors)
        if str(config.get("model_type")).startswith(ZERO_CENTRED):
            block.load_weights(norms_around_one(tensors), strict=False)
        if (dtype := computes_in(precision)) is not None:
            block.set_dtype(dtype)
        block.eval()
        weights = cast(list[tuple[str, mx.array]], tree_flatten(block.parameters()))
        head = LoadedHead(
            block,
            tap,
            feeds_normed=tensors.feeds_normed,
            weights_bytes=bring_in([array for _, array in weights], lambda _: None),
            context_tokens=facts.context_tokens,
            depth=depth,
        )
        return replace(head, kv_bytes_per_token=_tried(head, facts.vocabulary))
    except UnusableHead as error:
        return f"the MTP head cannot be used: {error}"
    except Exception as error:
        return f"the MTP head cannot be used: {type(error).__name__}: {error}"


def norms_around_one(tensors: HeadTensors) -> list[tuple[str, mx.array]]:
    """Return the weights of all norms of a head, by their names in a `Block`, in the form around 1.
    If most of them are around 0, 1 is added to all."""
    parts = {
        "embedding_norm": tensors.embedding_norm,
        "hidden_norm": tensors.hidden_norm,
        "norm": tensors.norm,
        "layer": {n: array for n, array in tensors.layer.items() if n.endswith("norm.weight")},
    }
    norms = [(f"{part}.{name}", own[name]) for part, own in parts.items() for name in own]
    means = mx.stack([mx.mean(array.astype(mx.float32)) for _, array in norms])
    if bool((mx.median(means) >= 0.5).item()):
        return norms
    return [(name, array + 1) for name, array in norms]


def _eps(config: Mapping[str, Any]) -> float:
    text = config.get("text_config") or config
    return float(text.get("rms_norm_eps") or text.get("layer_norm_eps") or 1e-6)


def _filled(
    model: nn.Module, layers: Sequence[nn.Module], eps: float, tensors: HeadTensors
) -> Block:
    """Return a head with these tensors, unevaluated. Raises UnusableHead if a tensor is unknown or
    missing, or has a wrong shape."""
    width = tensors.norm["weight"].shape[-1] if "weight" in tensors.norm else 0
    block = Block(layers[-1], width, eps)
    packed = _packing(layers[-1])
    parts = {
        "embedding_norm": tensors.embedding_norm,
        "hidden_norm": tensors.hidden_norm,
        "projection": tensors.projection,
        "norm": tensors.norm,
        "layer": _as_family(model, len(layers) - 1, tensors.layer),
    }
    given = {f"{part}.{name}": array for part, own in parts.items() for name, array in own.items()}
    if packed is not None:
        nn.quantize(block, class_predicate=lambda path, _: path == "projection" and packed)
        given = _packed(block, given)
    wanted = dict(cast(list[tuple[str, mx.array]], tree_flatten(block.parameters())))
    if unknown := sorted(given.keys() - wanted.keys()):
        raise UnusableHead(f"the model has no counterpart of its tensor {unknown[0]}")
    if missing := sorted(wanted.keys() - given.keys()):
        raise UnusableHead(f"its tensor {missing[0]} is missing")
    for name, array in given.items():
        if array.shape != wanted[name].shape:
            shape, other = list(array.shape), list(wanted[name].shape)
            raise UnusableHead(f"its tensor {name} has the shape {shape}; {other} is required")
    block.load_weights(list(given.items()))
    return block


def _as_family(model: nn.Module, number: int, tensors: Tensors) -> Tensors:
    """Return the head's layer tensors with the names and the stacking that mlx-lm gives to those of
    layer `number`. Names that mlx-lm's conversion for the family does not know are unchanged."""
    convert = getattr(model, "sanitize", None)
    prefix = f"model.layers.{number}."
    renamed = {f"{prefix}{name}": array for name, array in tensors.items()}
    try:
        converted = cast(dict[str, mx.array], convert(dict(renamed))) if convert else renamed
    except (KeyError, ValueError):
        converted = renamed
    within = re.compile(rf"(?:^|\.)layers\.{number}\.(.+)")
    named = ((within.search(name), array) for name, array in converted.items())
    return {match[1]: array for match, array in named if match is not None}


def _packing(layer: nn.Module) -> dict[str, Any] | None:
    """Return the quantisation of a layer (group size, bits and mode); None if it has none."""
    for _, module in layer.named_modules():
        if isinstance(module, nn.QuantizedLinear):
            return {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
    return None


def _packed(block: Block, given: Tensors) -> dict[str, mx.array]:
    """Return the tensors. A tensor is first quantised if its module in the block is quantised and
    the tensor is not."""
    packed = dict(given)
    for path, module in cast(list[tuple[str, Any]], block.named_modules()):
        weight = packed.get(f"{path}.weight")
        if not hasattr(module, "bits") or weight is None or f"{path}.scales" in packed:
            continue
        how = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        names = (f"{path}.weight", f"{path}.scales", f"{path}.biases")
        packed.update(zip(names, mx.quantize(weight, **how), strict=False))
    return packed


def _tried(head: LoadedHead, vocabulary: int) -> int:
    """Compute some tokens, and return the KV bytes per token. Raises UnusableHead if the output has
    a wrong shape."""
    cache = RowKV()
    tokens = [TokenId((3 + 7 * at) % vocabulary) for at in range(TRIAL_TOKENS)]
    hidden = head.block.norm(head.tap.embedded(mx.array([tokens], mx.int32)))
    out = head.run(hidden, tokens, cache)
    logits, again = head.logits(out)
    mx.eval(logits, head.run(again, tokens[:1], cache))
    if out.shape != hidden.shape or logits.shape[-1] < vocabulary:
        raise UnusableHead(f"its output has the shape {list(out.shape)}")
    return cache.nbytes // cache.parts[0].shape[2]
