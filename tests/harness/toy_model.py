"""Talks to the disk: a Qwen3 with random weights and the toy tokenizer, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.harness.random_qwen3 import random_weights
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
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": hidden // heads,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 0],
    }
    weights = random_weights(config, scale=2.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
