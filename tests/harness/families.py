"""Talks to the disk: small models of many families with random weights, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, quantize_model
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 260,
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
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 32,
        "tie_word_embeddings": False,
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
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "intermediate_size": 128,
        "layer_norm_epsilon": 1e-5,
        "chunk_size": 32,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "time_step_limit": [0.0, 1000.0],
        "time_step_min": 0.001,
        "time_step_max": 0.1,
        "tie_word_embeddings": False,
        "residual_in_fp32": False,
    },
}
QUANTISED = {
    f"{family}, 4 bits": MODELS[family] | {"quantization": {"group_size": 32, "bits": 4}}
    for family in ("llama", "qwen3", "qwen3_moe")
}

TWO_KINDS = ["sliding_attention", "full_attention"] * 2
ODD: dict[str, dict[str, Any]] = {
    "talkie": {"model_type": "talkie", "num_key_value_heads": 4},
    "muse_glimmer": {"model_type": "muse_glimmer", "layer_types": TWO_KINDS},
    "gemma4_text": {
        "model_type": "gemma4_text",
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 260,
        "global_head_dim": 32,
        "sliding_window": 32,
        "layer_types": TWO_KINDS,
        "use_double_wide_mlp": False,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": ["M", "*", "M", "-"],
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
    },
    "bailing_hybrid": {
        "model_type": "bailing_hybrid",
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "layer_group_size": 2,
        "group_norm_size": 2,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
}
"""Families that pass on hidden states in ways of their own."""


def write_model(folder: Path, settings: dict[str, Any]) -> Path:
    """A model directory with random float32 weights, packed where the settings ask for it."""
    config = {**SMALL, **settings}
    packed = config.pop("quantization", None)
    model_class, args_class = _get_classes(config)
    mx.random.seed(7)
    model = model_class(args_class.from_dict(config))
    drawn = [
        (name, 2.5 * mx.random.normal(array.shape) * array.shape[-1] ** -0.5)
        if array.ndim > 1
        else (name, array)
        for name, array in tree_flatten(model.parameters())
    ]
    model.load_weights(drawn)
    if packed is not None:
        model, config = quantize_model(model, config, **packed)
    weights = dict(tree_flatten(model.parameters()))
    for name in [name for name in weights if "embed_skip" in name]:
        weights[name] = weights[name] + 0.5
    mx.eval(weights)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return write_tokenizer(folder)


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer of single bytes (ids 3..258) and three special tokens, 2 ending a row."""
    alphabet = sorted(ByteLevel.alphabet())
    specials = ["<pad>", "<start>", "<end>"]
    ids = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
