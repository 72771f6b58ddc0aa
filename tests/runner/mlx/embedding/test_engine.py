from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save_file

from runner.engine import LoadProgress
from runner.mlx.embedding import EmbeddingEngine, UnfitDimensions, UnfitPrompt
from runner.mlx.embedding import decoder as decoders
from runner.mlx.embedding import encoder as encoders
from tests.harness.embed_texts import as_array
from tests.harness.embedding_folders import write_decoder, write_encoder

PROMPTS = st.lists(st.lists(st.integers(0, 258), min_size=1, max_size=40), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("embedding")
    pooling = ("max_tokens", "mean_tokens")
    return {
        "encoder": write_encoder(made / "encoder", pooling),
        "decoder": write_decoder(made / "decoder"),
    }


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> dict[str, EmbeddingEngine]:
    return {name: EmbeddingEngine.load(folder, batch_tokens=96) for name, folder in folders.items()}


def settle(folder: Path, name: str, **more: Any) -> None:
    path = folder / name
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(said | more))


@pytest.mark.parametrize("name", ["encoder", "decoder"])
@given(prompts=PROMPTS, data=st.data())
@settings(max_examples=12)
def test_a_vector_depends_on_its_prompt_alone(
    engines: dict[str, EmbeddingEngine],
    name: str,
    prompts: list[list[int]],
    data: st.DataObject,
) -> None:
    """In the asked order, however it was batched."""
    engine = engines[name]
    order = data.draw(st.permutations(range(len(prompts))))
    together = as_array(engine.embed([prompts[at] for at in order]))
    alone = as_array([engine.embed([prompts[at]])[0] for at in order])
    assert np.abs(together - alone).max() < 1e-5


def test_a_decoder_gives_what_a_plain_forward_gives_of_the_last_token(
    folders: dict[str, Path], engines: dict[str, EmbeddingEngine]
) -> None:
    """mlx-lm's own load of the same weights, named as its own are, a prompt at a time."""
    plain = folders["decoder"].parent / "plain"
    plain.mkdir()
    weights = load_file(folders["decoder"] / "model.safetensors")
    save_file({f"model.{k}": v for k, v in weights.items()}, plain / "model.safetensors")
    (plain / "config.json").write_text((folders["decoder"] / "config.json").read_text())
    model, _ = load_model(plain)
    prompts = [[5, 6, 7, 2], [9, 2], list(range(3, 40))]
    for prompt, ours in zip(prompts, as_array(engines["decoder"].embed(prompts)), strict=True):
        hidden = np.array(model.model(mx.array([prompt]))[0, -1])
        assert np.abs(ours - hidden / np.linalg.norm(hidden)).max() < 1e-5


def test_long_rows_of_a_decoder_are_computed_by_chunks_to_the_same_end(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddingEngine.load(folders["decoder"])
    prompts = [[3 + at % 256 for at in range(count)] for count in (37, 29, 3)]
    whole = as_array(engine.embed(prompts))
    monkeypatch.setattr(decoders, "CHUNK_TOKENS", 8)
    assert np.abs(as_array(engine.embed(prompts)) - whole).max() < 1e-5


def test_long_rows_of_an_encoder_see_all_tokens_though_attention_goes_by_blocks(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddingEngine.load(folders["encoder"])
    prompts = [[3 + at for at in range(count)] for count in (37, 5)]
    whole = as_array(engine.embed(prompts))
    monkeypatch.setattr(encoders, "QUERIES_AT_ONCE", 8)
    assert np.abs(as_array(engine.embed(prompts)) - whole).max() < 1e-5


def test_facts_are_those_of_the_files(engines: dict[str, EmbeddingEngine]) -> None:
    facts = engines["encoder"].facts
    assert (facts.dimensions, facts.width, facts.max_tokens) == (64, 64, 40)
    assert (facts.vocabulary, facts.family, facts.allows_dimensions) == (259, "bert", False)
    held = load_file_bytes(engines["encoder"])
    assert facts.weights_bytes == held


def load_file_bytes(engine: EmbeddingEngine) -> int:
    """What the encoder's own tensors take: two layers, embeddings and norms, no pooler."""
    hidden, inner = 32, 48
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return 4 * (hidden * (engine.facts.vocabulary + 64 + 2) + 2 * hidden + 2 * layer)


def test_dimensions_are_cut_only_where_the_model_says_so_and_normalised_after(
    tmp_path: Path, engines: dict[str, EmbeddingEngine]
) -> None:
    folder = write_encoder(tmp_path / "model")
    settle(folder, "config.json", matryoshka_dimensions=[8, 16])
    engine = EmbeddingEngine.load(folder)
    (whole,) = as_array(engine.embed([[0, 5, 6, 2]]))
    (cut,) = as_array(engine.embed([[0, 5, 6, 2]], 8))
    assert cut.shape == (8,) and engine.facts.allows_dimensions
    assert np.abs(cut - whole[:8] / np.linalg.norm(whole[:8])).max() < 1e-6
    assert engine.embed([[0, 5, 6, 2]], 32) == engine.embed([[0, 5, 6, 2]])
    with pytest.raises(UnfitDimensions, match=r"9; .* has 8 or 16 or 32 numbers"):
        engine.embed([[0, 5, 6, 2]], 9)
    with pytest.raises(UnfitDimensions, match=r"unsupported dimensions: 8; .* cannot be shortened"):
        engines["encoder"].embed([[0, 5, 6, 2]], 8)


def test_a_prompt_that_cannot_be_computed_is_refused_before_any_is(
    engines: dict[str, EmbeddingEngine],
) -> None:
    for prompt in ([], [3] * 41, [259], [-1, 4]):
        with pytest.raises(UnfitPrompt, match="prompt 1 has"):
            engines["encoder"].embed([[3], prompt])
    assert engines["encoder"].embed([]) == []


def test_a_load_is_told_in_bytes(folders: dict[str, Path]) -> None:
    told: list[LoadProgress] = []
    engine = EmbeddingEngine.load(folders["encoder"], progress=told.append)
    total = engine.facts.weights_bytes
    assert told[0] == LoadProgress("reading", 0, 0)
    assert told[-1] == LoadProgress("ready", total, total)
