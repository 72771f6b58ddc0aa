"""Small configurations of the families that mlx-lm knows: as many as can be made from one table."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import pkgutil
from functools import cache
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from tests.harness.families import MODELS, ODD, SMALL, TWO_KINDS

MOST_VALUES = 8_000_000
OF_ONE_KIND: dict[str, Any] = {
    "attention_bias": False, "mlp_bias": False, "use_bias": False, "post_norm": False,
    "tie_word_embeddings": False, "qk_norm": True, "use_qk_norm": True, "use_qkv_bias": False,
    "hidden_dim": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "block_size": 2048,
    "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 2048, "n_ctx": 2048, "n_inner": 128,
    "n_kv_heads": 2, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "rope_scaling": None, "partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rotary_dim": 8,
    "rotary_emb_base": 10000, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "logits_scaling": 1.0, "attention_multiplier": 0.25, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0, "hidden_act": "relu2", "scale_depth": 1.4, "scale_emb": 1.0,
    "dim_model_base": 64,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "sliding_window": 32, "sliding_window_pattern": 2, "layer_types": TWO_KINDS,
    "attention_window_size": 32, "logits_soft_cap": 30.0,
}  # fmt: skip
MIXTURES: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_experts": 4, "moe_topk": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "moe_layer_freq": 1, "num_dense_layers": 1, "use_expert_bias": True,
    "is_moe_layer": [False, True, True, True], "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 0,
}  # fmt: skip
STATES: dict[str, Any] = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "state_size": 16, "conv_kernel": 4, "use_conv_bias": True,
    "time_step_rank": 4, "conv_bias": False, "conv_L_cache": 3, "block_dim": 64,
    "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": False,
    "conv1d_width": 4, "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1,
    "expert_layer_period": 2, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
    "mamba_proj_bias": False, "mamba_conv_bias": True, "mamba_dt_rank": 4, "a_low_rank_dim": 16,
    "v_low_rank_dim": 16, "gate_low_rank_dim": 16, "decay_low_rank_dim": 16,
}  # fmt: skip
COMMON = OF_ONE_KIND | WINDOWS | MIXTURES | STATES
"""What is given to a family that asks for it and has no word of its own."""
OWN: dict[str, dict[str, Any]] = {
    **MODELS,
    **ODD,
    "lfm2": {"full_attn_idxs": [1, 3], "block_ff_dim": 128, "intermediate_size": None},
    "ministral3": {
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 2048,
        },
    },
    "mistral3": {"text_config": {**SMALL, "model_type": "llama", "tie_word_embeddings": False}},
    "granitemoehybrid": {"layer_types": ["attention"] * 4},
    "olmo3": {"sliding_window": 32, "layer_types": TWO_KINDS},
}


@cache
def model_classes(family: str) -> tuple[Any, Any] | None:
    """The classes of a module of mlx-lm's; None for one that is no family, or cannot be imported
    here."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module(f"mlx_lm.models.{family}")
    except (ImportError, SystemExit):
        return None
    found = getattr(module, "Model", None), getattr(module, "ModelArgs", None)
    return found if all(found) else None


def settings_of(family: str) -> dict[str, Any]:
    """A small configuration, which the family may not take."""
    own = {**SMALL, **OWN.get(family, {}), "model_type": family}
    classes = model_classes(family)
    if classes is None or not dataclasses.is_dataclass(classes[1]):
        return own
    missing = dataclasses.MISSING
    for one in dataclasses.fields(classes[1]):
        needed = one.default is missing and one.default_factory is missing
        if needed and one.name not in own and one.name in COMMON:
            own[one.name] = COMMON[one.name]
    return own


def can_be_built(family: str) -> bool:
    """Whether a small model of the family computes here."""
    classes = model_classes(family)
    if classes is None:
        return False
    try:
        model = classes[0](classes[1].from_dict(settings_of(family)))
        if sum(one.size for _, one in tree_flatten(model.parameters())) > MOST_VALUES:
            return False
        mx.eval(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)))
    except Exception:
        return False
    return True


def known_families() -> list[str]:
    """Every family that mlx-lm has a module for, as this machine can import it."""
    names = sorted(one.name for one in pkgutil.iter_modules(mlx_lm.models.__path__))
    return [name for name in names if model_classes(name) is not None]
