# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: tensor shards of families that mlx-lm does not shard: Qwen3-Next and Nemotron-H.

Heads, the groups of a mixer and the inner sides of MLPs and experts are divided evenly between the
ranks; routers, norms over one head and latent projections are whole on each. Where something does
not divide, Unsplittable names it. A block's ranks hold parts of a sum after its last projection,
and the sum is made there: an exchange for each mixer, MLP or mixture, as in mlx-lm's own shards.
Arrays are cut lazily, so a rank reads what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.distributed import shard_inplace, shard_linear

from runner.mlx.ranks.layer_probe import Unsplittable, retype

Segments = int | list[int]
"""Parts of an output that are cut each by itself: how many equal ones, or where one ends."""


def own_shard(module: Any) -> Callable[[Any, Any], None] | None:
    """Return what shards a model of this family, given it and the group; None: nothing here."""
    return OWN_SHARDS.get(type(module).__module__.rpartition(".")[2])


def divided(what: str, count: int, size: int) -> int:
    """Return a rank's part of a count. Unsplittable where it does not divide."""
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
    """Cut by key heads: a key head lies together with its value heads in both projections."""
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
    """Cut every expert, the shared one too; the block itself makes the one sum."""
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
                raise Unsplittable(f"its blocks of kind {kind!r} are not known")


def _mamba2(mixer: Any, group: Any) -> None:
    """Cut by groups, of which each has its heads, its B and C, and a norm of its own. The first
    projection makes the gate, x, B, C and dt, behind each other."""
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
    """Cut every expert, the shared ones too. Biases behind the last cut are added by each rank, so
    each adds its part of them."""
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
        """Return the sum of what the ranks make of `x`."""
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
    """Have each rank compute a part of these layers' outputs."""
    for name in names:
        _outputs_divide(owner, name, group)
        cut = shard_linear(owner[name], "all-to-sharded", segments=segments, group=group)
        setattr(owner, name, cut)


def _rows(owner: Any, name: str, group: Any) -> None:
    """Have each rank compute a layer of its part of the inputs, and sum what comes of it."""
    _inputs_divide(owner, name, group)
    setattr(owner, name, shard_linear(owner[name], "sharded-to-all", group=group))


def _columns_within(owner: Any, names: Sequence[str], group: Any) -> None:
    for name in names:
        _outputs_divide(owner, name, group)
        shard_inplace(owner[name], "all-to-sharded", group=group)


def _rows_within(owner: Any, name: str, group: Any) -> None:
    """Cut a layer's inputs; its owner makes the sum."""
    _inputs_divide(owner, name, group)
    shard_inplace(owner[name], "sharded-to-all", group=group)


def _outputs_divide(owner: Any, name: str, group: Any) -> None:
    divided(f"outputs of {name}", owner[name].weight.shape[-2], group.size())


def _inputs_divide(owner: Any, name: str, group: Any) -> None:
    """Inputs are cut between quantization groups, where the layer has such."""
    layer = owner[name]
    if "scales" in layer:
        divided(f"quantization groups of {name}", layer.scales.shape[-1], group.size())
    else:
        divided(f"inputs of {name}", layer.weight.shape[-1], group.size())


def _convolution(layer: Any, segments: list[int], group: Any) -> None:
    """Cut a convolution whose channels are each by itself."""

    def sides(path: str, weight: mx.array) -> tuple[int, list[int]]:
        """Return along which side any of its arrays is cut, and in which segments."""
        return 0, segments

    shard_inplace(layer, sides, group=group)
    layer.groups //= group.size()


def _values(owner: Any, names: Sequence[str], group: Any) -> None:
    """Keep a rank's part of what has one value for each head, or for each channel of heads."""
    for name in names:
        parts = cast(list[mx.array], mx.split(owner[name], group.size()))
        setattr(owner, name, mx.contiguous(parts[group.rank()]))


OWN_SHARDS: Mapping[str, Callable[[Any, Any], None]] = {
    "qwen3_next": _qwen3_next,
    "nemotron_h": _nemotron_h,
}
"""What cuts a model, given it and the group, by the module of mlx-lm's that it is of."""
