"""From a directory to an engine, or to a reason."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import pytest

from runner.mlx.engine import UnloadableModel
from runner.mlx.model.load import context_of, end_tokens


def test_progress_counts_bytes_and_ends_ready(load, model_folder):
    seen = []
    engine = load(model_folder("llama"), progress=seen.append)
    assert [one.phase for one in seen][:2] == ["reading", "weights"]
    assert seen[-1].phase == "ready"
    done = [one.done_bytes for one in seen if one.phase == "weights"]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total_bytes == engine.facts.weights_bytes


@pytest.mark.parametrize(
    ("name", "per_token", "fixed", "trims"),
    [
        ("qwen3", 4 * 2 * 2 * 16 * 4, 0, True),
        ("gemma3_text", 2 * 2 * 2 * 16 * 4, 2 * 32 * 2 * 2 * 16 * 4, False),
    ],
)
def test_kv_is_measured_on_the_model(engine, name, per_token, fixed, trims):
    facts = engine(name).facts
    assert (facts.kv_bytes_per_token, facts.kv_bytes_fixed) == (per_token, fixed)
    assert facts.trims is trims
    assert facts.batches_ragged
    assert facts.vocabulary == 260
    assert facts.context_tokens == 2048
    assert facts.eos_token_ids == {2}


@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen3_moe", "gemma3_text", "qwen3_next"])
def test_only_wanted_positions_are_projected(engine, name):
    assert engine(name).facts.extra["narrow_head"] is True


def test_a_head_that_cannot_be_narrowed_is_known_as_such(engine):
    """Talkie's is a plain matrix; beside a longer row the shorter one's last position counts."""
    assert engine("talkie").facts.extra["narrow_head"] is False


def test_sixteen_bit_weights_are_cast_where_there_is_no_metal(load, model_folder, tmp_path):
    folder = tmp_path / "half"
    shutil.copytree(model_folder("qwen3"), folder)
    weights = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(
        str(folder / "model.safetensors"), {k: v.astype(mx.bfloat16) for k, v in weights.items()}
    )
    size = sum(value.nbytes for value in weights.values())
    auto = load(folder)
    half = load(folder, dtype="bfloat16")
    assert half.facts.weights_bytes == size // 2
    assert half.facts.batches_ragged
    if not mx.metal.is_available():
        assert auto.facts.weights_bytes == size


def test_what_cannot_be_loaded_says_why(load, model_folder, tmp_path):
    with pytest.raises(UnloadableModel, match="nothing"):
        load(tmp_path / "nothing")
    folder = tmp_path / "strange"
    shutil.copytree(model_folder("qwen3"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "no_such"}))
    with pytest.raises(UnloadableModel, match="no_such"):
        load(folder)
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    with pytest.raises(UnloadableModel, match="custom module"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnloadableModel, match="safetensors"):
        load(folder)


def test_the_context_may_be_lowered_and_never_raised():
    config = {"max_position_embeddings": 1000}
    assert context_of(config, None) == 1000
    assert context_of(config, 300) == 300
    assert context_of(config, 5000) == 1000
    assert context_of({"text_config": {"n_ctx": 77}}, None) == 77
    assert context_of({}, 500) == 500


def test_end_tokens_come_one_or_many():
    assert end_tokens({"eos_token_id": 4}) == {4}
    assert end_tokens({"eos_token_id": [4, 5]}) == {4, 5}
    assert end_tokens({"text_config": {"eos_token_id": 6}}) == {6}
    assert end_tokens({}) == set()
