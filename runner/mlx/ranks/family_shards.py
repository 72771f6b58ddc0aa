# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: cuts models of families for which mlx-lm has no tensor sharding: Qwen3-Next and
Nemotron-H.

Heads, mixer groups and the inner dimensions of MLPs and experts are divided evenly between the
ranks. Every rank has whole routers, norms over one head and latent projections. If a size is not
divisible by the number of ranks, Unsplittable names it. After the last projection of a block, the
ranks have partial results, which they sum in one exchange. So there is one exchange per mixer, MLP
or mixture of experts, as in mlx-lm's own shards. Arrays are cut lazily, so a rank reads only its
own part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.distributed import shard_inplace, shard_linear

from runner.mlx.ranks.layer_probe import Unsplittable, retype

Segments = int | list[int]
"""The segments of a layer's output, each of which is divided between the ranks: the number of equal
segments, or the indices at which one ends and the next begins."""


def own_shard(module: Any) -> Callable[[Any, Any], None] | None:
    """Return the function that shards a model of this family (arguments: model, group); None if
    this module has none."""
    return OWN_SHARDS.get(type(module).__module__.rpartition(".")[2])


def divided(what: str, count: int, size: int) -> int:
    """Return this rank's part of a `count` that is divided among `size` ranks. Raises Unsplittable,
    naming `what`, if the count is not divisible."""
    if count % size:
        raise Unsplittable(f"{what} = {count} is not divisible by {size} ranks")
    return count // size


# --- Qwen3-Next ---


def _qwen3_next(module: Any, group: Any) -> None:
    for layer in module.layers:
        if layer.is_linear:
            _gated_delta_net(layer.linear_attn, group)
        else:
            _attention(layer.self_attn, "num_attention_heads", group)
        if hasattr(layer.mlp, "switch_mlp"):
            _qwen3_next_mixture(layer.mlp, group)
        else:
            _columns(layer.mlp, ("gate_proj", "up_proj"), group)
            _rows(layer.mlp, "down_proj", group)


def _gated_delta_net(mixer: Any, group: Any) -> None:
    """Cut a gated delta net by key heads. A key head and its value heads stay on one rank, in both
    input projections."""
    size = group.size()
    heads = divided("linear_num_key_heads", mixer.num_k_heads, size)
    keys = mixer.key_dim
    _columns(mixer, ("in_proj_qkvz", "in_proj_ba"), group)
    _convolution(mixer.conv1d, [keys, 2 * keys], group)
    _values(mixer, ("dt_bias", "A_log"), group)
    _rows(mixer, "out_proj", group)
    mixer.num_k_heads = heads
    mixer.num_v_heads //= size
    mixer.key_dim //= size
    mixer.value_dim //= size
    mixer.conv_dim //= size


def _qwen3_next_mixture(mixture: Any, group: Any) -> None:
    """Cut every expert, including the shared one; the block sums the ranks' results once."""
    for experts in (mixture.switch_mlp, mixture.shared_expert):
        _columns_within(experts, ("gate_proj", "up_proj"), group)
        _rows_within(experts, "down_proj", group)
    mixture.sharding_group = group


# --- Nemotron-H ---


def _nemotron_h(module: Any, group: Any) -> None:
    for layer in module.layers:
        match layer.block_type:
            case "M":
                _mamba2(layer.mixer, group)
            case "*":
                _attention(layer.mixer, "num_heads", group)
            case "-":
                _columns(layer.mixer, ("up_proj",), group)
                _rows(layer.mixer, "down_proj", group)
            case "E":
                _nemotron_h_mixture(layer.mixer, group)
            case kind:
                raise Unsplittable(f"shoal cannot divide a layer of the type {kind!r}")


def _mamba2(mixer: Any, group: Any) -> None:
    """Cut a Mamba-2 mixer by its groups. Each group has its own heads, B, C and norm. The output of
    the first projection is the gate, x, B, C and dt, in this order."""
    size = group.size()
    groups = divided("n_groups", mixer.n_groups, size)
    inner, state = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
    ends = [inner, 2 * inner, 2 * inner + state, 2 * (inner + state)]
    _columns(mixer, ("in_proj",), group, ends)
    _convolution(mixer.conv1d, [inner, inner + state], group)
    _values(mixer, ("dt_bias", "A_log", "D"), group)
    _values(mixer.norm, ("weight",), group)
    _rows(mixer, "out_proj", group)
    mixer.n_groups = groups
    mixer.num_heads //= size
    mixer.intermediate_size //= size
    mixer.conv_dim //= size


def _nemotron_h_mixture(mixture: Any, group: Any) -> None:
    """Cut every expert, including the shared ones. The biases of the last projections are divided
    by the number of ranks, because every rank adds them before the sum."""
    _columns_within(mixture.switch_mlp, ("fc1",), group)
    _rows_within(mixture.switch_mlp, "fc2", group)
    behind: list[Any] = []
    if "shared_experts" in mixture:
        _columns_within(mixture.shared_experts, ("up_proj",), group)
        _rows_within(mixture.shared_experts, "down_proj", group)
        behind.append(mixture.shared_experts.down_proj)
    if "fc2_latent_proj" in mixture:
        behind.append(mixture.fc2_latent_proj)
    for layer in behind if mixture.config.mlp_bias else ():
        layer.bias = layer.bias / group.size()
    plain = type(mixture).__call__

    def called(self: Any, x: mx.array) -> mx.array:
        """Return the layer's result for `x`, summed over all ranks."""
        return mx.distributed.all_sum(plain(self, x), group=group)

    retype(mixture, "Summed", called)


# --- what both have ---


def _attention(attention: Any, heads_name: str, group: Any) -> None:
    size = group.size()
    heads = divided("num_attention_heads", getattr(attention, heads_name), size)
    kv_heads = divided("num_key_value_heads", attention.num_key_value_heads, size)
    _columns(attention, ("q_proj", "k_proj", "v_proj"), group)
    _rows(attention, "o_proj", group)
    setattr(attention, heads_name, heads)
    attention.num_key_value_heads = kv_heads


def _columns(owner: Any, names: Sequence[str], group: Any, segments: Segments = 1) -> None:
    """Cut these layers by their outputs: each rank computes its part of every segment."""
    for name in names:
        _outputs_divide(owner, name, group)
        cut = shard_linear(owner[name], "all-to-sharded", segments=segments, group=group)
        setattr(owner, name, cut)


def _rows(owner: Any, name: str, group: Any) -> None:
    """Cut a layer by its inputs: each rank computes with its part of the inputs, and the layer sums
    the results of all ranks."""
    _inputs_divide(owner, name, group)
    setattr(owner, name, shard_linear(owner[name], "sharded-to-all", group=group))


def _columns_within(owner: Any, names: Sequence[str], group: Any) -> None:
    for name in names:
        _outputs_divide(owner, name, group)
        shard_inplace(owner[name], "all-to-sharded", group=group)


def _rows_within(owner: Any, name: str, group: Any) -> None:
    """Cut a layer by its inputs, as `_rows` does, but without the sum: the module that contains the
    layer sums the ranks' results."""
    _inputs_divide(owner, name, group)
    shard_inplace(owner[name], "sharded-to-all", group=group)


def _outputs_divide(owner: Any, name: str, group: Any) -> None:
    divided(f"outputs of {name}", owner[name].weight.shape[-2], group.size())


def _inputs_divide(owner: Any, name: str, group: Any) -> None:
    """Raise Unsplittable if a cut of the layer's inputs would fall inside a quantization group."""
    layer = owner[name]
    if "scales" in layer:
        divided(f"quantization groups of {name}", layer.scales.shape[-1], group.size())
    else:
        divided(f"inputs of {name}", layer.weight.shape[-1], group.size())


def _convolution(layer: Any, segments: list[int], group: Any) -> None:
    """Cut a depthwise convolution by its channels."""

    def sides(path: str, weight: mx.array) -> tuple[int, list[int]]:
        """Return along which dimension an array of the layer is cut, and the segments."""
        return 0, segments

    shard_inplace(layer, sides, group=group)
    layer.groups //= group.size()


def _values(owner: Any, names: Sequence[str], group: Any) -> None:
    """Keep only this rank's part of arrays that have one value per head or per channel."""
    for name in names:
        parts = cast(list[mx.array], mx.split(owner[name], group.size()))
        setattr(owner, name, mx.contiguous(parts[group.rank()]))


OWN_SHARDS: Mapping[str, Callable[[Any, Any], None]] = {
    "qwen3_next": _qwen3_next,
    "nemotron_h": _nemotron_h,
}
"""The functions that cut a model (arguments: model, group), by the model's module in mlx-lm."""
