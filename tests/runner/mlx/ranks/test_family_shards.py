"""Our own tensor shards say what the whole model says, and name what does not divide."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from runner.mlx.model.load import bring_in
from runner.mlx.ranks.family_shards import OWN_SHARDS
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.shard import shard, tensor_shares
from tests.harness.families import MODELS, ODD, QUANTISED, write_model
from tests.harness.family_facts import YES, tensor_facts

QWEN, NEMOTRON = MODELS["qwen3_next"], ODD["nemotron_h"]
MIXTURE: dict[str, Any] = {
    "hybrid_override_pattern": ["M", "E", "*", "E", "-"],
    "num_hidden_layers": 5,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
BIASES = {"use_bias": True, "mamba_proj_bias": True, "attention_bias": True}
PACKED = {"quantization": {"group_size": 32, "bits": 4}}
WIDE = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "attention_bias": True,
}
AS_WHOLE: dict[str, dict[str, Any]] = {
    "some of its MLPs no mixtures": QWEN | {"mlp_only_layers": [0, 1]},
    "several key heads a rank, 4 bits": QWEN | WIDE | PACKED,
    "experts": NEMOTRON | MIXTURE,
    "experts, 4 bits": NEMOTRON | MIXTURE | PACKED,
    "experts behind a latent projection, biases": NEMOTRON
    | MIXTURE
    | BIASES
    | {"moe_latent_size": 32},
    "mlx-lm's own, 4 bits": QUANTISED["llama, 4 bits"],
}
GATE = ("several key heads a rank, 4 bits", "experts behind a latent projection, biases")
"""Each family once; all of them with SHOAL_PROVE."""
MLP_BIASES = NEMOTRON | MIXTURE | {"moe_latent_size": 32, "mlp_bias": True}
REFUSED = [
    (QWEN | {"linear_num_key_heads": 1}, "linear_num_key_heads = 1"),
    (QWEN | {"num_key_value_heads": 1}, "num_key_value_heads = 1"),
    (QWEN | {"moe_intermediate_size": 33}, "outputs of gate_proj = 33"),
    (NEMOTRON | {"n_groups": 1}, "n_groups = 1"),
    (NEMOTRON | {"num_attention_heads": 3, "num_key_value_heads": 1}, "num_attention_heads = 3"),
    (NEMOTRON | MIXTURE | PACKED | {"moe_intermediate_size": 32}, "quantization groups of fc2 = 1"),
]


class Member:
    """What sharding asks of a group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@pytest.mark.slow
def test_two_ranks_say_what_one_says_with_and_without_an_adapter() -> None:
    names = AS_WHOLE if os.environ.get("SHOAL_PROVE") else GATE
    found = tensor_facts({name: AS_WHOLE[name] for name in names} | {"MLP biases": MLP_BIASES})
    biased = found.pop("MLP biases")
    assert found == {name: {"tensor": YES, "tensor_adapters": YES} for name in names}
    assert biased["tensor"] == YES
    assert "fc2_latent_proj; run the model" in biased["tensor_adapters"]


@pytest.mark.parametrize(("settings", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_does_not_divide_is_named(tmp_path: Path, settings: Any, why: str) -> None:
    model, config = load_model(write_model(tmp_path / "model", settings), lazy=True)
    with pytest.raises(Unsplittable, match=f"^{why} is not divisible by 2 ranks$"):
        shard(model, config, Member(0, 2))


@pytest.mark.parametrize("settings", [QWEN, NEMOTRON | MIXTURE], ids=sorted(OWN_SHARDS)[::-1])
def test_every_value_is_on_one_rank_or_on_all(tmp_path: Path, settings: Any) -> None:
    """Values that a random model has many of alike are told apart here."""
    folder = write_model(tmp_path / "model", settings)
    ranks: list[dict[str, mx.array]] = []
    whole: dict[str, mx.array] = {}
    for rank in (0, 1):
        model, config = load_model(folder)
        own = dict(tree_flatten(model.parameters()))
        whole = {name: mx.arange(one.size).reshape(one.shape) for name, one in own.items()}
        model.load_weights(list(whole.items()))
        shard(model, config, Member(rank, 2))
        ranks.append(dict(tree_flatten(model.parameters())))
    cut = 0
    for name, one in whole.items():
        first, second = (np.array(rank[name]).ravel() for rank in ranks)
        if first.size == one.size:
            assert np.array_equal(first, second), name
            assert any(word in name for word in ("norm", "embed", "gate", "lm_head")), name
            continue
        cut += 1
        assert sorted([*first, *second]) == list(range(one.size)), name
    assert cut > 10


def test_a_rank_is_told_its_outputs_in_whatever_segments_they_are_cut(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", NEMOTRON)
    found = [
        tensor_shares(*load_model(folder, lazy=True), Member(rank, 2))[
            "backbone.layers.0.mixer.in_proj"
        ]
        for rank in (0, 1)
    ]
    ends = [0, 128, 256, 288, 320, 324]  # gate, x, B, C, dt
    for rank, share in enumerate(found):
        wanted: list[int] = []
        for first, last in pairwise(ends):
            half = (last - first) // 2
            wanted += range(first + rank * half, first + (rank + 1) * half)
        assert share.outputs is not None and share.outputs.tolist() == wanted
        assert share.inputs is None and (share.width_in, share.width_out) == (64, 324)


@pytest.mark.parametrize("settings", [QWEN | WIDE, NEMOTRON | MIXTURE], ids=["qwen", "nemotron"])
def test_a_rank_reads_one_tensor_beside_its_part_at_most(tmp_path: Path, settings: Any) -> None:
    bigger = {"hidden_size": 256, "intermediate_size": 1024, "moe_intermediate_size": 512}
    model, config = load_model(write_model(tmp_path / "model", settings | bigger), lazy=True)
    sizes = [one.nbytes for _, one in tree_flatten(model.parameters())]
    shard(model, config, Member(1, 2))
    own = [one for _, one in tree_flatten(model.parameters())]
    kept = mx.set_cache_limit(0)
    try:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        part = bring_in(own, lambda _: None)
        assert mx.get_peak_memory() - before <= part + 1.1 * max(sizes)
    finally:
        mx.set_cache_limit(kept)
    assert part < 0.6 * sum(sizes)
