"""Scores of small cross-encoders, against a naive computation of the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bus.wire.errors import BadRequest, ContextOverflow
from runner.mlx.embedding import EmbeddingEngine
from runner.mlx.model.load import UnloadableModel
from runner.text import PairInputs, RankedPair, TokenizerError, open_embedding_folder
from tests.harness.rerankers import BERT, ROBERTA, naive_logit, write_reranker

QUERY = "where is the cat?"
DOCUMENTS = (
    "the cat sings",
    "a river of birds",
    "dog",
    "x y z 1 2 3",
    "the house is in the river.",
)


def scored(engine: EmbeddingEngine, pairs: list[RankedPair]) -> list[float]:
    return [float(np.frombuffer(score, "<f4")[0]) for score in engine.rank(pairs)]


@pytest.mark.parametrize("config", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_scores_are_those_of_a_naive_computation(tmp_path: Path, config: dict[str, object]) -> None:
    folder = write_reranker(tmp_path / "model", **config)
    engine = EmbeddingEngine.load(folder, batch_tokens=48)
    reader = PairInputs.load(folder, 64).of_query(QUERY)
    scores = scored(engine, [reader.prepare(document, False) for document in DOCUMENTS])
    naive = [naive_logit(folder, QUERY, document) for document in DOCUMENTS]
    assert np.abs(np.array(scores) - naive).max() < 1e-4
    assert np.ptp(naive) > 1, "the documents differ"
    assert engine.facts.ranks and engine.facts.max_tokens == 64


def test_the_second_token_type_counts(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "model")
    engine = EmbeddingEngine.load(folder)
    pair = PairInputs.load(folder, 64).of_query(QUERY).prepare(DOCUMENTS[0], False)
    flat = RankedPair(pair.tokens, len(pair.tokens), pair.query, pair.document)
    assert abs(scored(engine, [pair])[0] - scored(engine, [flat])[0]) > 1e-2


def test_a_long_document_is_refused_or_its_end_cut_off(tmp_path: Path) -> None:
    reader = PairInputs.load(write_reranker(tmp_path / "model"), 64).of_query(QUERY)
    long = "the cat sings " * 40
    with pytest.raises(ContextOverflow) as caught:
        reader.prepare(long, False)
    assert (caught.value.prompt_tokens, caught.value.limit_tokens) == (128, 64)
    cut = reader.prepare(long, True)
    assert len(cut.tokens) == 64 and cut.cut_off and long.startswith(cut.document)
    assert not reader.prepare("the cat", True).cut_off


def test_a_query_that_leaves_no_room_and_broken_texts_are_refused(tmp_path: Path) -> None:
    pairs = PairInputs.load(write_reranker(tmp_path / "model"), 64)
    with pytest.raises(ContextOverflow):
        pairs.of_query("cat " * 61)
    for broken in ("\ud800", [5, 6]):
        with pytest.raises(BadRequest):
            pairs.of_query("cat").prepare(broken, False)


def test_a_folder_that_is_no_reranker_is_refused(tmp_path: Path) -> None:
    two = write_reranker(tmp_path / "two", id2label={"0": "NO", "1": "YES"})
    with pytest.raises(TokenizerError, match="a reranker has one label"):
        open_embedding_folder(two)
    headless = write_reranker(tmp_path / "headless")
    weights = load_file(headless / "model.safetensors")
    kept = {name: array for name, array in weights.items() if not name.startswith("classifier")}
    save_file(kept, headless / "model.safetensors")
    with pytest.raises(UnloadableModel, match="classifier"):
        EmbeddingEngine.load(headless)
    unpaired = write_reranker(tmp_path / "unpaired")
    tokenizer = json.loads((unpaired / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (unpaired / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TokenizerError, match="query and document"):
        PairInputs.load(unpaired, 64)
