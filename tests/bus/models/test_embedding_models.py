from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.embedding_models import (
    DenseStep,
    EmbeddingModel,
    NormaliseStep,
    embedding_model,
    files_read,
)

BERT = {"model_type": "bert", "hidden_size": 32, "max_position_embeddings": 512}
QWEN = {"model_type": "qwen3", "hidden_size": 32, "max_position_embeddings": 32768}
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALISE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}
FILES: dict[str, Any] = {
    "modules.json": [TRANSFORMER, POOLING, NORMALISE],
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True},
}


def read(config: dict[str, Any], **more: Any) -> EmbeddingModel | None:
    files = FILES | {name.replace("__", "."): value for name, value in more.items()}
    return embedding_model(config, files.get)


def known(config: dict[str, Any], **more: Any) -> EmbeddingModel:
    found = read(config, **more)
    assert found is not None
    return found


def test_a_folder_with_modules_embeds_and_a_language_model_without_them_does_not() -> None:
    found = known(QWEN)
    assert (found.architecture, found.pooling) == ("decoder", ("lasttoken",))
    assert found.normalises and found.width == found.dimensions == 32
    assert read(QWEN, modules__json=None) is None


def test_a_bert_without_modules_is_pooled_by_the_mean() -> None:
    found = known(BERT, modules__json=None)
    assert (found.architecture, found.pooling, found.steps) == ("bert", ("mean",), ())


def test_modules_are_known_by_their_last_name_from_any_version_of_their_package() -> None:
    moved = "sentence_transformers.base.modules.transformer.Transformer"
    assert known(BERT, modules__json=[{**TRANSFORMER, "type": moved}, POOLING]).steps == ()


@pytest.mark.parametrize(
    ("config", "said", "limit", "tokens"),
    [
        (BERT, None, None, 512),
        (BERT, 128, None, 128),
        (BERT, 1e30, None, 512),
        (BERT, 128, 256, 256),
        (BERT, 128, 9999, 512),
        (BERT | {"model_type": "roberta", "max_position_embeddings": 514}, 512, None, 512),
        (BERT | {"model_type": "roberta", "max_position_embeddings": 514}, None, None, 512),
        (QWEN, 131072, None, 32768),
    ],
)
def test_an_input_is_as_long_as_files_say_and_positions_reach(
    config: dict[str, Any], said: float | None, limit: int | None, tokens: int
) -> None:
    files = {
        "tokenizer_config__json": {"model_max_length": said},
        "sentence_bert_config__json": None if limit is None else {"max_seq_length": limit},
    }
    assert known(config, **files).max_tokens == tokens


def test_dimensions_may_be_asked_for_where_files_say_which() -> None:
    listed = known(BERT | {"matryoshka_dimensions": [8, 16]})
    assert [count for count in range(40) if listed.allows(count)] == [8, 16, 32]
    cut = known(BERT, config_sentence_transformers__json={"truncate_dim": 16})
    assert cut.dimensions == 16
    assert [count for count in range(40) if cut.allows(count)] == [16, 32]
    free = known(BERT | {"is_matryoshka": True})
    assert [count for count in range(40) if free.allows(count)] == list(range(1, 33))
    assert [count for count in range(40) if known(BERT).allows(count)] == [32]


def test_a_dense_layer_changes_the_width_and_comes_in_its_order() -> None:
    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    said = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.Tanh"}
    files = FILES | {
        "modules.json": [TRANSFORMER, POOLING, dense, NORMALISE],
        "2_Dense/config.json": said,
    }
    found = embedding_model(BERT, files.get)
    assert found is not None and found.width == 8
    assert found.steps == (DenseStep("2_Dense", 32, 8, True, "tanh"), NormaliseStep())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["hidden_size", "max_position_embeddings", "model_type", "auto_map", "architectures",
     "pad_token_id", "matryoshka_dimensions", "is_matryoshka", "type", "path", "pooling_mode",
     "word_embedding_dimension", "in_features", "default_prompt_name", "prompts", "truncate_dim",
     "max_seq_length", "model_max_length", "include_prompt"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["modules.json", "1_Pooling/config.json", "config_sentence_transformers.json",
     "tokenizer_config.json", "sentence_bert_config.json"]
)  # fmt: skip


@given(
    st.dictionaries(FIELDS, JSON, max_size=3),
    st.dictionaries(NAMES, JSON | st.dictionaries(FIELDS, JSON, max_size=3), max_size=3),
    st.sampled_from([BERT, QWEN, BERT | {"model_type": "roberta"}]),
)
def test_any_json_in_any_file_is_a_model_or_a_reason(
    config: dict[str, Any], files: dict[str, Any], known_good: dict[str, Any]
) -> None:
    try:
        found = embedding_model(known_good | config, (FILES | files).get)
    except ValueError as error:
        assert str(error)
        return
    if found is not None:
        assert found.max_tokens >= 3 and 1 <= found.dimensions <= found.width


def test_files_that_say_how_it_embeds_are_told_from_others() -> None:
    names = ["modules.json", "1_Pooling", "model.safetensors", "README.md", "tokenizer_config.json"]
    assert files_read(dict.fromkeys(names)) == (
        "modules.json",
        "1_Pooling",
        "tokenizer_config.json",
    )
