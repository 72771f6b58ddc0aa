from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import BadRequest, ContextOverflow
from runner.text import EmbeddingInputs, TokenizerError, open_embedding_folder
from tests.harness.embedding_folders import write_decoder, write_encoder

BEGIN, END = 0, 2
PROMPTS = "config_sentence_transformers.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("inputs") / "encoder")


@pytest.fixture(scope="module")
def inputs(folder: Path) -> EmbeddingInputs:
    return EmbeddingInputs.load(folder)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingInputs:
    return EmbeddingInputs.load(write_decoder(tmp_path_factory.mktemp("inputs") / "decoder"))


def settle(folder: Path, name: str, **more: Any) -> Path:
    path = folder / name
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(said | more))
    return folder


def test_a_text_has_the_models_special_tokens_around_it(
    inputs: EmbeddingInputs, decoder: EmbeddingInputs
) -> None:
    """And is neither cut at 5 tokens nor filled up to 9, as tokenizer.json has it."""
    found = inputs.prepare("abcdefg", cut=False)
    assert (found.tokens[0], found.tokens[-1], len(found.tokens)) == (BEGIN, END, 9)
    assert inputs.prepare("ab", cut=False).tokens == (BEGIN, *found.tokens[1:3], END)
    assert decoder.prepare("ab", cut=False).tokens == (*found.tokens[1:3], END)
    assert inputs.prepare("", cut=False).tokens == (BEGIN, END)


def test_token_ids_get_the_special_ones_that_they_do_not_bring(
    inputs: EmbeddingInputs, decoder: EmbeddingInputs
) -> None:
    for given_ids in ([7, 8], [BEGIN, 7, 8], [7, 8, END], [BEGIN, 7, 8, END]):
        assert inputs.prepare(given_ids, cut=False).tokens == (BEGIN, 7, 8, END)
    assert decoder.prepare([7, END], cut=False).tokens == (7, END)
    assert inputs.prepare([BEGIN, BEGIN], cut=False).tokens == (BEGIN, BEGIN, END)


@given(st.text(max_size=60) | st.text(min_size=36, max_size=60), st.booleans())
def test_what_is_too_long_is_cut_or_refused_with_both_counts(
    inputs: EmbeddingInputs, text: str, cut: bool
) -> None:
    whole = len(text.encode()) + 2
    if whole > 40 and not cut:
        with pytest.raises(ContextOverflow) as caught:
            inputs.prepare(text, cut=cut)
        assert (caught.value.prompt_tokens, caught.value.limit_tokens) == (whole, 40)
        return
    found = inputs.prepare(text, cut=cut)
    assert len(found.tokens) == min(whole, 40) and found.cut_off == (whole > 40)
    assert found.tokens[0] == BEGIN and found.tokens[-1] == END


@given(st.lists(st.integers(3, 258), max_size=60))
def test_token_ids_are_cut_as_a_text_is(inputs: EmbeddingInputs, tokens: list[int]) -> None:
    found = inputs.prepare(tokens, cut=True)
    assert found.tokens == (BEGIN, *tokens[:38], END)
    assert found.cut_off == (len(tokens) > 38)


@pytest.mark.parametrize("tokens", [[259], [-1], [True], [2**70], [5.0]])
def test_ids_that_stand_for_no_token_are_refused(
    inputs: EmbeddingInputs, tokens: list[Any]
) -> None:
    with pytest.raises(BadRequest, match="ids are 0 to 258"):
        inputs.prepare(tokens, cut=True)


def test_half_a_surrogate_pair_is_refused(inputs: EmbeddingInputs) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        inputs.prepare("a\ud800", cut=True)


def test_an_input_without_a_token_is_refused(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "model")
    said = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(said | {"post_processor": None}))
    with pytest.raises(BadRequest, match="at least one token"):
        EmbeddingInputs.load(folder).prepare("", cut=True)


def test_the_default_prompt_comes_before_a_text_and_not_before_tokens(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "model")
    settle(folder, PROMPTS, prompts={"query": "q: ", "doc": ""}, default_prompt_name="query")
    prompted = EmbeddingInputs.load(folder)
    settle(folder, PROMPTS, default_prompt_name=None)
    plain = EmbeddingInputs.load(folder)
    assert prompted.prepare("ab", cut=False) == plain.prepare("q: ab", cut=False)
    assert prompted.prepare([7], cut=False) == plain.prepare([7], cut=False)


def test_a_model_of_lower_case_is_given_lower_case(tmp_path: Path) -> None:
    folder = settle(write_encoder(tmp_path / "m"), "sentence_bert_config.json", do_lower_case=True)
    lower = EmbeddingInputs.load(folder)
    assert lower.prepare("AbC", cut=False) == lower.prepare("abc", cut=False)


def broken(folder: Path, name: str, text: str | None) -> Path:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{", "tokenizer.json is invalid: "),
        ("tokenizer.json", "[]", "tokenizer.json is invalid: "),
        ("config.json", None, "config.json is missing"),
        ("config.json", "{" * 100_000, "config.json is invalid"),
        ("modules.json", "{", "modules.json is invalid"),
        ("tokenizer_config.json", '{"model_max_length": 2}', "under 3 tokens"),
        (PROMPTS, '{"default_prompt_name": "x", "prompts": {}}', "no usable prompt 'x'"),
        (PROMPTS, '{"truncate_dim": 0}', "truncate_dim is 0"),
        (PROMPTS, '{"matryoshka_dimensions": [64]}', "matryoshka_dimensions has 64"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', "max_seq_length is x"),
    ],
)
def test_a_directory_that_cannot_be_read_says_why(
    tmp_path: Path, name: str, text: str | None, why: str
) -> None:
    folder = broken(write_encoder(tmp_path / "the-model"), name, text)
    with pytest.raises(TokenizerError, match=f"the-model: .*{why}"):
        EmbeddingInputs.load(folder)


def test_a_model_of_text_is_none_of_embeddings(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "the-model")
    (folder / "modules.json").unlink()
    with pytest.raises(TokenizerError, match="is not an embedding model"):
        open_embedding_folder(folder)
