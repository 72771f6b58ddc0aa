"""Models for benchmarks, made on the spot: float32, and with no token that ends a text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.utils import load_model, quantize_model, save_model
from safetensors.numpy import load_file, save_file

from tests.harness.families import MODELS, write_model
from tests.harness.random_qwen3 import random_weights

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "conf" / "tiny"
NEVER = "<|endoftext|>"


def endless_tiny(folder: Path) -> Path:
    """The bundled model in float32, its end-of-turn token taken away: every text runs to its
    length, so that all contestants make equally many tokens."""
    copy_tokenizer(folder)
    weights: dict[str, Any] = {}
    for path in TINY.glob("*.safetensors"):
        for name, value in load_file(path).items():
            weights[name] = value.astype(np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((TINY / "config.json").read_text())
    write_config(folder, {**config, "torch_dtype": "float32"})
    return folder


def random_qwen3(
    folder: Path, *, seed: int = 7, layers: int = 8, hidden: int = 512, context: int = 4096
) -> Path:
    """A Qwen3 of about 30 M parameters with random weights and the bundled tokenizer."""
    copy_tokenizer(folder)
    vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": hidden,
        "num_hidden_layers": layers, "intermediate_size": hidden * 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": vocabulary,
        "max_position_embeddings": context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    weights = random_weights(config, seed=seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    write_config(folder, config)
    return folder


STATES: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "num_experts": 0, "intermediate_size": 2048, "full_attention_interval": 4,
        "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "mamba2": {
        "num_heads": 16, "head_dim": 64, "state_size": 64, "intermediate_size": 1024,
        "chunk_size": 64,
    },
    "gemma3_text": {"intermediate_size": 2048, "sliding_window": 128, "sliding_window_pattern": 4},
}  # fmt: skip
"""Families whose KV cannot be cut: gated delta nets, states alone, and sliding windows."""


def random_states(folder: Path, family: str) -> Path:
    """A model of one of the families `STATES`, with random weights and the bundled tokenizer."""
    vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "vocab_size": vocabulary}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    write_model(folder, {**MODELS[family], **sizes, **heads, **STATES[family]})
    copy_tokenizer(folder)
    return folder


def random_qwen2(
    folder: Path, *, seed: int = 7, layers: int = 8, hidden: int = 512, bits: int = 0
) -> Path:
    """A Qwen2 of about 30 M parameters, which mlx-lm can split as a pipeline, too (for that it
    wants an index of the weights); packed into so many bits, 0 for none."""
    copy_tokenizer(folder)
    vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": hidden,
        "num_hidden_layers": layers, "intermediate_size": hidden * 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": hidden // 8, "vocab_size": vocabulary,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    weights = random_weights(config, seed=seed)
    for name in [name for name in weights if "q_norm" in name or "k_norm" in name]:
        del weights[name]
    biased = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    for name in [name for name in weights if name.endswith(biased)]:
        bias = np.zeros(weights[name].shape[0], np.float32)
        weights[name.replace(".weight", ".bias")] = bias
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_config(folder, config)
    if bits:
        pack(folder, bits)
    return folder


def pack(folder: Path, bits: int) -> None:
    """Quantise a model where it lies, in groups of 64."""
    model, config = load_model(folder)
    model, config = quantize_model(model, config, group_size=64, bits=bits)
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))


def copy_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in TINY.iterdir():
        if path.name.startswith(
            ("tokenizer", "chat_template", "special_tokens", "vocab", "merges")
        ):
            shutil.copy(path, folder / path.name)
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["eos_token"] = NEVER
    path.write_text(json.dumps(tokenizer))


def write_config(folder: Path, config: dict[str, Any]) -> None:
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    never = next(t["id"] for t in tokens if t["content"] == NEVER)
    config = {**config, "eos_token_id": never}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": never}))
