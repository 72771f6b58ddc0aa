# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: cuts a lazily loaded model to the part of one rank, and finds the weights that this
part needs.

A pipeline works for any family whose layers pass only hidden states to each other. Tensor sharding
uses mlx-lm's `shard` method of the family or, if there is none, `family_shards`. Every size that is
divided must be divisible by the number of ranks. Only the weights of the part are loaded.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from runner.mlx.ranks.comm import GroupComm
from runner.mlx.ranks.family_shards import divided, own_shard
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.linear_shares import LinearShare, numbered, shares_of
from runner.mlx.ranks.pipeline_stage import StageModel

HEADS = ("num_attention_heads", "num_key_value_heads", "n_head", "n_heads")


def own_part(
    comm: GroupComm, module: nn.Module, config: dict[str, Any]
) -> tuple[StageModel, list[mx.array]]:
    """Return this rank's part of the model, and the weights that it needs, unevaluated. The weights
    of other ranks' layers are dropped. Raises Unsplittable with the reason."""
    part = _part(comm, module, config)
    return part, _weights(part, comm)


def _part(comm: GroupComm, module: nn.Module, config: dict[str, Any]) -> StageModel:
    family = config.get("model_type", type(module).__name__)
    context = comm.context
    try:
        if context.sharding == "tensor":
            shard(module, config, comm.group)
            return StageModel(module, comm, 0, len(cast(list[Any], module.layers)))
        return StageModel(module, comm, context.first_layer, context.last_layer)
    except Unsplittable as error:
        raise Unsplittable(f"{family} cannot be run as {context.sharding}: {error}") from error
    except Exception as error:
        raise Unsplittable(
            f"{family} cannot be run as {context.sharding}: {type(error).__name__}: {error}"
        ) from error


def _weights(part: StageModel, comm: GroupComm) -> list[mx.array]:
    """Return the weights of this rank's layers, and those of the embedding and the head if this
    rank needs them."""
    own: list[mx.array] = []
    for layer in part.own_layers:
        own += [array for _, array in cast(list[Any], tree_flatten(layer.parameters()))]
    own_ids = {id(array) for array in own}
    everything = cast(list[tuple[str, mx.array]], tree_flatten(part.module.parameters()))
    rest = [(name, array) for name, array in everything if id(array) not in own_ids]
    has_head = any("lm_head" in name for name, _ in rest)
    return own + [array for name, array in rest if _needed(name, has_head, comm)]


def _needed(name: str, has_head: bool, comm: GroupComm) -> bool:
    is_head = "lm_head" in name
    is_embedding = any(part.startswith(("embed", "wte", "wpe")) for part in name.split("."))
    if not comm.pipes:
        return comm.leads or not is_head
    if comm.leads:
        return not (has_head and is_embedding)
    return comm.is_first_stage and is_embedding


def shard(module: Any, config: dict[str, Any], group: Any) -> None:
    """Cut a lazily loaded model to this rank's part of a tensor group. Raises Unsplittable with the
    reason, or an error of mlx-lm."""
    own = own_shard(module)
    if own is None and not hasattr(module, "shard"):
        raise Unsplittable("the model family does not support tensor sharding; use a pipeline")
    for source in (config, config.get("text_config") or {}):
        for name in HEADS:
            if isinstance(source.get(name), int):
                divided(name, source[name], group.size())
    if own is None:
        module.shard(group)
    else:
        own(module, group)


def tensor_shares(module: Any, config: dict[str, Any], group: Any) -> dict[str, LinearShare]:
    """Return this rank's shares of a model's linear layers, by path. `module` is a copy of the
    model whose weights are not read, and which cannot be used afterwards. Layers whose cut is not
    recognised are left out."""
    wholes = numbered(module)
    try:
        shard(module, config, group)
    except Exception:  # The real model was cut before, so only the numbered biases cannot be cut.
        return {}
    return shares_of(module, wholes, group.rank(), group.size())
