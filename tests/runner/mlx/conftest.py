"""Small random models in model directories, made once a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "eos_token_id": [2],
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "sliding_window": 32,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 10000.0,
        "rope_global_base_freq": 10000.0,
        "query_pre_attn_scalar": 16,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "norm_topk_prob": True,
        "full_attention_interval": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.5,
    },
}


def write_model(folder: Path, settings: dict[str, Any]) -> Path:
    """A model directory with random float32 weights."""
    config = {**SMALL, **settings}
    model_class, args_class = _get_classes(config)
    mx.random.seed(7)
    model = model_class(args_class.from_dict(config))
    weights = {
        name: 2.5 * mx.random.normal(array.shape) * array.shape[-1] ** -0.5
        if array.ndim > 1
        else array
        for name, array in tree_flatten(model.parameters())
    }
    mx.eval(weights)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = write_model(tmp_path_factory.mktemp("models") / name, MODELS[name])
        return made[name]

    return folder
