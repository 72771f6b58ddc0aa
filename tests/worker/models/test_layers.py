from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.cards import Notes, notes_from
from conf.paths import bundled_models
from worker.models.layers import (
    expert_share,
    layer_kinds,
    layer_kv,
    placed_bytes,
    tensor_sizes,
    why_unsplit,
)
from worker.models.weights import Shelf, Weights

QWEN: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
    "intermediate_size": 192,
}  # fmt: skip


def test_bytes_lie_with_their_layer_the_embedding_first_and_the_head_last() -> None:
    parts = placed_bytes(
        [
            ("model.embed_tokens.weight", 100),
            ("model.layers.0.self_attn.q_proj.weight", 10),
            ("model.layers.1.mlp.up_proj.weight", 20),
            ("model.norm.weight", 3),
            ("lm_head.weight", 70),
        ],
        2,
        1.0,
    )
    assert (parts.layers, parts.embedding, parts.head) == ((10, 20), 100, 73)


def test_a_tied_embedding_is_the_head_again() -> None:
    tensors = [("model.embed_tokens.weight", 100), ("model.layers.0.w", 10)]
    parts = placed_bytes(tensors, 1, 1.0)
    assert (parts.embedding, parts.head) == (100, 100)


def test_a_token_reads_only_its_experts_and_all_of_the_rest() -> None:
    share = expert_share({"num_experts": 8, "num_experts_per_tok": 2})
    parts = placed_bytes(
        [
            ("model.layers.0.self_attn.q_proj.weight", 100),
            ("model.layers.0.mlp.experts.3.up_proj.weight", 400),
            ("model.layers.0.mlp.switch_mlp.up_proj.weight", 400),
        ],
        1,
        share,
    )
    assert (parts.layers, parts.active) == ((900,), (300,))
    assert expert_share({}) == 1.0


def test_what_is_of_no_language_layer_counts_with_the_head() -> None:
    parts = placed_bytes(
        [
            ("language_model.model.layers.0.w", 10),
            ("vision_tower.encoder.layers.0.w", 7),
            ("model.layers.1.eh_proj.weight", 5),
        ],
        1,
        1.0,
    )
    assert (parts.layers, parts.head) == ((10,), 12)


def test_names_that_say_nothing_of_layers_claim_nothing() -> None:
    assert placed_bytes([("a", 10), ("b", 20)], 2, 1.0).layers == ()


@given(
    sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=20),
    embedding=st.integers(1, 10**9),
    rest=st.integers(0, 10**6),
)
def test_the_parts_of_an_untied_model_add_up_to_the_whole(
    sizes: list[int], embedding: int, rest: int
) -> None:
    tensors = [(f"model.layers.{i}.w", size) for i, size in enumerate(sizes)]
    tensors += [
        ("model.embed_tokens.weight", embedding),
        ("lm_head.weight", embedding),
    ]
    tensors += [("model.norm.weight", rest)]
    parts = placed_bytes(tensors, len(sizes), 1.0)
    assert sum(parts.layers) + parts.embedding + parts.head == sum(size for _, size in tensors)


def test_layers_remember_in_their_own_ways() -> None:
    assert layer_kinds({"sliding_window_pattern": 3}, 4) == [
        "windowed", "windowed", "growing", "windowed",
    ]  # fmt: skip
    assert layer_kinds({"full_attention_interval": 2}, 2) == ["recurrent", "growing"]
    named = {"layer_types": ["sliding_attention", "full_attention", "linear_attention"]}
    assert layer_kinds(named, 3) == ["windowed", "growing", "recurrent"]
    gemma = {**QWEN, "sliding_window_pattern": 2, "sliding_window": 10}
    assert layer_kv(gemma, 2, 2) == [(0, 10 * 256), (256, 0)]
    assert layer_kv({"kv_lora_rank": 32, "qk_rope_head_dim": 8}, 1, 2) == [(80, 0)]


@pytest.mark.parametrize(
    ("family", "config", "group", "expected"),
    [
        ("qwen3", QWEN, 0, {"heads": 8, "KV heads": 4, "attention inputs": 128, "MLP inputs": 192}),
        ("gemma3_text", QWEN, 0, {}),
        (
            "qwen3",
            QWEN,
            64,
            {"heads": 8, "KV heads": 4, "attention quantization groups": 2,
             "MLP quantization groups": 3},
        ),
        ("deepseek_v3", {**QWEN, "kv_lora_rank": 8}, 0,
         {"heads": 8, "attention inputs": 128, "MLP inputs": 192}),
        ("nemotron_h", {**QWEN, "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2,
                        "moe_shared_expert_intermediate_size": 64}, 0,
         {"heads": 8, "KV heads": 4, "attention inputs": 128, "MLP inputs": 192,
          "mixer groups": 2, "mixer inputs": 128, "shared expert inputs": 64}),
        ("qwen3_next", {**QWEN, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                        "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32}, 32,
         {"heads": 8, "KV heads": 4, "linear value heads": 4, "linear key heads": 2,
          "attention quantization groups": 4, "MLP quantization groups": 6,
          "mixer quantization groups": 2, "shared expert quantization groups": 1}),
    ],
)  # fmt: skip
def test_a_tensor_degree_has_to_divide_heads_and_inputs(
    family: str, config: dict[str, Any], group: int, expected: dict[str, int]
) -> None:
    assert tensor_sizes(family, config, group) == expected


def test_the_bundled_models_card_knows_its_parts() -> None:
    folder = bundled_models()["shoal-tiny"]
    (card,) = Weights(Shelf({"shoal-tiny": folder}, (), None, True)).look()
    config = json.loads((folder / "config.json").read_text())
    assert len(card.layer_bytes) == card.layers == config["num_hidden_layers"]
    assert sum(card.layer_bytes) + card.head_bytes == card.weights_bytes
    assert card.embedding_bytes == config["vocab_size"] * config["hidden_size"] * 4
    assert sum(card.layer_kv) == card.kv_bytes_per_token
    assert card.activation_bytes == config["hidden_size"] * 4
    assert card.tensor_sizes["KV heads"] == 4 and not card.unsplit_because
    assert card.fetched_in_parts


def test_notes_name_the_backends_that_can_run_a_model(tmp_path: Path) -> None:
    notes = notes_from({"compatible_backends": ["mlx-metal"], "backend_preference": ["mlx-metal"]})
    said = ("compatible_backends", "backend_preference")
    mlx = ("mlx-metal",)
    assert notes == Notes(compatible_backends=mlx, backend_preference=mlx, said=said)
    with pytest.raises(ValueError, match="compatible_backends"):
        notes_from({"compatible_backends": "mlx-metal"})


def test_notes_bound_an_answer_that_names_no_limit() -> None:
    assert notes_from({"default_max_tokens": 512}).default_max_tokens == 512
    for wrong in (0, -1, True, "512", 1.5):
        with pytest.raises(ValueError, match="default_max_tokens must be a whole number above 0"):
            notes_from({"default_max_tokens": wrong})


def test_a_family_that_no_pipeline_can_split_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "gemma3n"
    folder.mkdir()
    config = {**QWEN, "model_type": "gemma3n", "num_hidden_layers": 1, "vocab_size": 9}
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    (card,) = Weights(Shelf({"gemma3n": folder}, (), None, True)).look()
    assert "share KV" in card.unsplit_because
    assert not card.fetched_in_parts


def test_whether_layers_share_kv_may_depend_on_the_size() -> None:
    assert "share KV" in why_unsplit("gemma4", {"num_kv_shared_layers": 20})
    assert "share KV" in why_unsplit("gemma4_text", {})
    assert why_unsplit("gemma4", {"num_kv_shared_layers": 0}) == ""
    assert why_unsplit("llama", {}) == ""
