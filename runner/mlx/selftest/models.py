# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx_lm is partially typed)
"""Talks to MLX and the disk: writes models with random weights, for measurements for which the
bundled model is not suitable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from runner.library import model_classes

SIZED: Mapping[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "num_experts": 48,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 2039,
    "eos_token_id": 2041,
    "pad_token_id": 2039,
}
"""A model of some 620 MB in float32, for the check of memory. It is so large that the fixed part of
the memory estimate does not matter. A token uses only two of its 48 experts, so that slow machines
finish too. It has the bundled model's vocabulary."""
DRAWN: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 2048,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": [2],
}
"""A model for the check of sampling. It is so small that thousands of rows take little time."""
ROTATING: Mapping[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "sliding_window": 32,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 10000.0,
    "rope_global_base_freq": 10000.0,
    "query_pre_attn_scalar": 16,
    "torch_dtype": "float32",
    "eos_token_id": [2],
}
"""A model in which every second layer has a sliding window, whose KV mlx-lm keeps in a rotating
cache."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_random_model(
    folder: Path, settings: Mapping[str, Any], *, tokenizer_of: Path | None = None
) -> Path:
    """Write a model with random float32 weights into a new folder, and return the folder. The
    weights are the same in each call. The model gets the tokenizer of the model `tokenizer_of`, if
    that is given."""
    folder.mkdir(parents=True)
    mx.random.seed(7)
    model_class, arguments_class = model_classes(config=dict(settings))
    model = model_class(arguments_class.from_dict(dict(settings)))
    mx.eval(model.parameters())
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    weights = {name: _as_stored(name, value) for name, value in parameters}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    for name in TOKENIZER_FILES if tokenizer_of is not None else ():
        shutil.copyfile(Path(str(tokenizer_of)) / name, folder / name)
    (folder / "config.json").write_text(json.dumps(dict(settings)))
    return folder


def _as_stored(name: str, value: mx.array) -> mx.array:
    """Return a weight in the form that is stored. Random matrices are multiplied by 2.5, so that
    the likeliest token is clearly likelier than the others."""
    is_matrix = value.ndim == 2 and "embed" not in name
    return (value * 2.5 if is_matrix else value).astype(mx.float32)
