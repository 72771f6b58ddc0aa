"""Random float32 weights for a Qwen3 of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np


def random_weights(
    config: dict[str, Any], *, seed: int = 7, scale: float = 1.0
) -> dict[str, np.ndarray[Any, Any]]:
    """By mlx-lm's names, for a `config.json` with tied embeddings; matrices of standard
    deviation `scale` / sqrt(inputs)."""
    rng = np.random.default_rng(seed)
    hidden, wide, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    inner = config["num_attention_heads"] * head
    kv_inner = config["num_key_value_heads"] * head

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (scale * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    weights: dict[str, np.ndarray[Any, Any]] = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        weights |= {
            at + "self_attn.q_proj.weight": matrix(inner, hidden),
            at + "self_attn.k_proj.weight": matrix(kv_inner, hidden),
            at + "self_attn.v_proj.weight": matrix(kv_inner, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, inner),
            at + "self_attn.q_norm.weight": np.ones(head, np.float32),
            at + "self_attn.k_norm.weight": np.ones(head, np.float32),
            at + "mlp.gate_proj.weight": matrix(wide, hidden),
            at + "mlp.up_proj.weight": matrix(wide, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, wide),
            at + "input_layernorm.weight": np.ones(hidden, np.float32),
            at + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
        }
    return weights
