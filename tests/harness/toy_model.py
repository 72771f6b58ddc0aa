"""Talks to the disk: a Qwen3 with random weights and the toy tokenizer, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.harness.toy_tokenizer import VOCABULARY, save_toy


def save_toy_model(
    folder: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    wide: int = 128,
    context_tokens: int = 2048,
) -> Path:
    """Write it to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_toy(folder)
    rng = np.random.default_rng(7)
    head, kv_heads = hidden // heads, heads // 2

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (2.0 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    weights: dict[str, Any] = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        weights |= {
            at + "self_attn.q_proj.weight": matrix(heads * head, hidden),
            at + "self_attn.k_proj.weight": matrix(kv_heads * head, hidden),
            at + "self_attn.v_proj.weight": matrix(kv_heads * head, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, heads * head),
            at + "self_attn.q_norm.weight": np.ones(head, np.float32),
            at + "self_attn.k_norm.weight": np.ones(head, np.float32),
            at + "mlp.gate_proj.weight": matrix(wide, hidden),
            at + "mlp.up_proj.weight": matrix(wide, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, wide),
            at + "input_layernorm.weight": np.ones(hidden, np.float32),
            at + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    config = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 0],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
