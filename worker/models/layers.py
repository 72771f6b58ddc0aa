"""A model's layers and the tensors of each, from its tensor names and its configuration, for
splitting the model.

Pure. Layer i is everything under `layers.i.` (or `h.i.`, `blocks.i.`) of the language part.
Embeddings belong to the first layers. The output projection belongs to the last; if the files have
none, the embedding is used for it. Tensors of no layer (final norm, a vision tower, layers for
multi-token prediction) count with the head.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from bus.wire.kv import GROUPS, group_of

Kind = Literal["growing", "windowed", "recurrent"]
Place = int | Literal["embedding", "projection", "rest"]
"""The part of a model to which a tensor belongs: the number of its layer, or a part outside the
layers."""

TENSOR_FAMILIES = frozenset({
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v41", "exaone_moe", "glm4_moe",
    "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "iquestloopcoder", "kimi_k25", "kimi_k3", "llama",
    "mistral", "iquestcoder", "xverse", "longcat_flash", "longcat_flash_ngram", "minimax",
    "minimax_m2", "minimax_m3_vl", "ministral3", "mistral4", "muse_spark", "nemotron_h",
    "prism_hadamard_qwen35", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe",
    "qwen3_next", "solar_open", "step3p5",
})  # fmt: skip
"""Families whose mlx-lm 0.32.2 model has a `shard` method, or that the runner shards itself."""
FETCHED_IN_PARTS = frozenset({
    "deepseek_v3", "gemma3_text", "llama", "mamba2", "mistral", "qwen2", "qwen3", "qwen3_moe",
    "qwen3_next",
})  # fmt: skip
"""Families for which tests showed that a pipeline stage computes the same from its own bytes as
from all; other families are fetched completely."""
_SHARES_KV = "the model's layers share KV with each other"
_PASSES_MORE = "the model's layers pass more than hidden states to each other"
UNSPLIT: Mapping[str, str] = {
    "gemma3n": _SHARES_KV,
    "gemma3n_text": _SHARES_KV,
    "deepseek_v41": _PASSES_MORE,
    "rwkv7": _PASSES_MORE,
    "iquestloopcoder": "the model's forward goes through the layers twice",
}
"""Families that the generic pipeline cannot split, and why. The runner detects other such families
when it loads its stage, and refuses with the reason."""
STATES_ONLY = frozenset({"mamba", "mamba2", "rwkv7"})
"""Families without attention: all their layers have a recurrent state of fixed size."""
_DIVIDED_INPUTS = {
    "intermediate_size": "MLP",
    "moe_intermediate_size": "expert",
    "shared_expert_intermediate_size": "shared expert",
    "moe_shared_expert_intermediate_size": "shared expert",
}
_DIVIDED_COUNTS = {
    "linear_num_key_heads": "linear key heads",
    "linear_num_value_heads": "linear value heads",
    "n_groups": "mixer groups",
}
_MIXER_INPUTS = (
    ("linear_num_value_heads", "linear_value_head_dim"),
    ("mamba_num_heads", "mamba_head_dim"),
)
"""Configuration fields (heads, width of a head) whose product is the input width of a state mixer's
output projection."""
KEEPS_MORE = frozenset({
    "baichuan_m1", "deepseek_v32", "falcon_h1", "glm_moe_dsa", "longcat_flash",
    "longcat_flash_ngram", "minimax_m3_vl",
})  # fmt: skip
"""Families whose layers keep KV and something else in one cache."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_ELSEWHERE = re.compile(r"(?:^|\.)(?:vision|visual|audio|mtp)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|tok_embeddings|word_embeddings)\.")
_PROJECTION = re.compile(r"(?:^|\.)(?:lm_head|output)\.")
_EXPERTS = re.compile(r"\.(?:experts|switch_mlp)\.")


@dataclass(frozen=True, slots=True)
class PlacedBytes:
    """The bytes of a model's weights by part. `active` has the bytes of each layer that one token
    reads."""

    layers: tuple[int, ...]
    active: tuple[int, ...]
    embedding: int
    head: int


def placed_bytes(
    tensors: Iterable[tuple[str, int]], layers: int, expert_share: float
) -> PlacedBytes:
    """Return how the bytes of a model divide over its parts. `tensors` are names with their bytes.
    For one token, the share `expert_share` (0..1] of a mixture's experts is read.

    If the names do not show all layers, the result has no layers, because their sizes are unknown.
    """
    whole, active = [0.0] * layers, [0.0] * layers
    outside = Counter[Place]()
    for name, bytes_ in tensors:
        place = place_of(name, layers)
        if isinstance(place, int):
            whole[place] += bytes_
            active[place] += bytes_ * (expert_share if _EXPERTS.search(name) else 1.0)
        else:
            outside[place] += bytes_
    if not all(whole):
        return PlacedBytes((), (), 0, 0)
    return PlacedBytes(
        tuple(int(size) for size in whole),
        tuple(int(size) for size in active),
        outside["embedding"],
        outside["rest"] + (outside["projection"] or outside["embedding"]),
    )


def why_unsplit(family: str, text: Mapping[str, Any]) -> str:
    """Return why no pipeline can run a model of this family with this configuration; empty if one
    can."""
    if family in ("gemma4", "gemma4_text"):
        return _SHARES_KV if text.get("num_kv_shared_layers", 1) else ""
    return UNSPLIT.get(family, "")


def place_of(name: str, layers: int) -> Place:
    """Return the part to which a tensor of this name belongs, in a model with this many layers."""
    if _ELSEWHERE.search(name):
        return "rest"
    match = _LAYER.search(name)
    if match is not None:
        return int(match.group(1)) if int(match.group(1)) < layers else "rest"
    if _EMBEDDING.search(name):
        return "embedding"
    return "projection" if _PROJECTION.search(name) else "rest"


def expert_share(text: Mapping[str, Any]) -> float:
    """Return the share of a mixture's experts that one token uses; 1 without experts."""
    experts = first_of(text, "num_experts", "n_routed_experts", "num_local_experts")
    chosen = first_of(text, "num_experts_per_tok", "experts_per_token", "moe_topk")
    return min(1.0, chosen / experts) if experts and chosen else 1.0


def layer_kinds(text: Mapping[str, Any], layers: int) -> list[Kind]:
    """Return what each layer keeps for a row: KV that grows, a window of KV, or a recurrent
    state."""
    named = cast(Sequence[str], text.get("layer_types") or ())
    if named:
        kinds: dict[str, Kind] = {"full_attention": "growing", "sliding_attention": "windowed"}
        return [kinds.get(name, "recurrent") for name in named]
    rests: Mapping[str, Kind] = {
        "full_attention_interval": "recurrent",
        "sliding_window_pattern": "windowed",
    }
    for field, rest in rests.items():
        if every := int(text.get(field) or 0):
            return ["growing" if (i + 1) % every == 0 else rest for i in range(layers)]
    return ["growing"] * layers


def why_whole(family: str, text: Mapping[str, Any], layers: int) -> str:
    """Return why KV must be stored as the model itself stores it: neither in reduced precision nor
    as a window. The text is written to follow a colon; it is empty if there is no such reason."""
    if family in STATES_ONLY or "growing" not in layer_kinds(text, layers):
        return "the model's layers keep windows or states, not growing KV"
    if text.get("index_head_dim"):
        return "the model's attention keeps an index beside the KV"
    if family in KEEPS_MORE:
        return "the model's layers keep KV and something else in one cache"
    return ""


def kv_group(family: str, text: Mapping[str, Any], layers: int) -> tuple[int, str]:
    """Return how many values of the KV cache can share one scale if the cache is quantized, and "".
    If the cache cannot be quantized, return 0 and the reason, written to follow a colon. Some
    reasons can only be seen in the weights; the runner finds those."""
    if why := why_whole(family, text, layers):
        return 0, why
    if text.get("kv_lora_rank"):
        widths = (int(text["kv_lora_rank"]), int(text.get("qk_rope_head_dim") or 0))
    else:
        head = _head_dim(text, int(text.get("num_attention_heads") or 1))
        widths = tuple(int(text.get(name) or head) for name in ("global_head_dim", "v_head_dim"))
    group = group_of(*widths)
    if group:
        return group, ""
    heads = " and ".join(str(width) for width in dict.fromkeys(widths))
    return 0, f"the model's head sizes ({heads}) are not divisible by {GROUPS[-1]}"


def layer_kv(text: Mapping[str, Any], layers: int, value_bytes: int) -> list[tuple[int, int]]:
    """Return (bytes per token, fixed bytes per row) of each layer's cache. Multi-head latent
    attention keeps (rank + rope) values per token."""
    if text.get("kv_lora_rank"):
        values = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0)
        return [(values * value_bytes, 0)] * layers
    heads = int(text.get("num_attention_heads") or 1)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    growing_bytes = 2 * kv_heads * _head_dim(text, heads) * value_bytes
    state = int(text["hidden_size"]) * int(text.get("state_size") or 128) * value_bytes
    cost: dict[Kind, tuple[int, int]] = {
        "growing": (growing_bytes, 0),
        "windowed": (0, int(text.get("sliding_window") or 0) * growing_bytes),
        "recurrent": (0, state),
    }
    return [cost[kind] for kind in layer_kinds(text, layers)]


def tensor_sizes(family: str, text: Mapping[str, Any], group: int) -> dict[str, int]:
    """Return the numbers that a tensor-parallel degree must divide (such as the heads), by name;
    empty for a family that does not shard. `group` is the quantization's group size, 0 without: a
    rank's inputs must be whole groups."""
    if family not in TENSOR_FAMILIES:
        return {}
    heads = int(text.get("num_attention_heads") or 1)
    sizes = {"heads": heads}
    if not text.get("kv_lora_rank"):
        sizes["KV heads"] = int(text.get("num_key_value_heads") or heads)
    inputs = {"attention": heads * _head_dim(text, heads)}
    for field, name in _DIVIDED_INPUTS.items():
        if text.get(field):
            inputs[name] = int(text[field])
    for field, name in _DIVIDED_COUNTS.items():
        if text.get(field):
            sizes[name] = int(text[field])
    for count, width in _MIXER_INPUTS:
        if text.get(count) and text.get(width):
            inputs["mixer"] = int(text[count]) * int(text[width])
    for name, size in inputs.items():
        if not group:
            sizes[f"{name} inputs"] = size
        else:
            sizes[f"{name} quantization groups"] = size // group if size % group == 0 else 1
    return sizes


def _head_dim(text: Mapping[str, Any], heads: int) -> int:
    return int(text.get("head_dim") or int(text["hidden_size"]) // heads)


def first_of(text: Mapping[str, Any], *names: str) -> int:
    """Return the first of these settings that is not zero; 0 if there is none."""
    return next((int(text[name]) for name in names if text.get(name)), 0)
