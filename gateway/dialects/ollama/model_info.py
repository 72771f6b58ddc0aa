"""A model's configuration under the names of `model_info`, which are GGUF's.

Pure. Configurations are Hugging Face's; a multimodal one has its language part under `text_config`.
The result has only numbers from the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

# fmt: off
FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("embedding_length", ("hidden_size", "n_embd", "d_model")),
    ("feed_forward_length", ("intermediate_size", "n_inner", "ffn_dim")),
    ("expert_feed_forward_length", ("moe_intermediate_size",)),
    ("expert_count", ("num_local_experts", "num_experts", "n_routed_experts")),
    ("expert_used_count", ("num_experts_per_tok", "num_experts_per_token")),
    ("attention.head_count", ("num_attention_heads", "n_head")),
    ("attention.head_count_kv", ("num_key_value_heads",)),
    ("attention.key_length", ("head_dim",)),
    ("attention.value_length", ("v_head_dim", "head_dim")),
    ("attention.layer_norm_rms_epsilon", ("rms_norm_eps",)),
    ("attention.layer_norm_epsilon", ("layer_norm_epsilon", "layer_norm_eps")),
    ("rope.freq_base", ("rope_theta",)),
)
"""Names of numbers in `model_info` after `<architecture>.`, each with its possible names in the
configuration. The first name that is present counts."""
# fmt: on
TOKENS = ("bos_token_id", "eos_token_id")


def figures_of(architecture: str, config: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the numbers of a configuration under their names in `model_info`."""
    inner = config.get("text_config")
    text = cast(Mapping[str, Any], inner) if isinstance(inner, Mapping) else config
    figures: dict[str, int | float] = {}
    for word, names in FIGURES:
        figure = next((text[name] for name in names if _is_number(text.get(name))), None)
        if figure is not None:
            figures[f"{architecture}.{word}"] = figure
    for name in TOKENS:
        token: Any = text.get(name, config.get(name))
        first = _first(token)
        if _is_number(first):
            figures[f"tokenizer.ggml.{name}"] = first
    return figures


def _first(value: object) -> object:
    """Return the first element of a list (None if empty); any other value is returned as it is."""
    return next(iter(cast(list[object], value)), None) if isinstance(value, list) else value


def _is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that fits into 64 bits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
