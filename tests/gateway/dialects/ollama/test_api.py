"""Ollama's listings of models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from ollama import ListResponse, ProcessResponse, ShowResponse

from bus.wire.errors import BadRequest
from gateway.dialects.api_table import AskedModel, Says
from gateway.dialects.dialect import Limits, LoadedCopy, ModelListing
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.ollama.api import (
    OLLAMA,
    parameter_size,
    parse_delete,
    parse_pull,
    parse_show,
    render_ps,
    render_show,
    render_tags,
)
from gateway.dialects.ollama.model_info import figures_of

AT = 1_763_640_000.0
TINY = ModelListing(
    id="shoal-tiny",
    size_bytes=8_000_000,
    modified_at_s=AT,
    digest="sha256:abc",
    family="qwen3",
    parameters=4_200_000,
    quantization="F16",
    context_tokens=4096,
    capabilities=("completion", "tools", "thinking"),
    layers=8,
    vocabulary=2048,
    max_tokens=512,
    template="{{ x }}",
    license="MIT",
    config={"hidden_size": 192, "num_attention_heads": 8, "eos_token_id": [2041, 2039]},
    loaded=(
        LoadedCopy(9_000_000, 8_500_000, 4096, expires_at_s=AT + 300),
        LoadedCopy(9_000_000, 0, 2048),
    ),
)


def test_tags_are_what_the_official_client_reads() -> None:
    [model] = ListResponse.model_validate_json(render_tags([TINY], AT)).models
    assert model.model == "shoal-tiny"
    assert model.modified_at == datetime.fromtimestamp(AT, tz=UTC)
    assert model.size == 8_000_000
    assert model.details is not None
    assert (model.details.family, model.details.parameter_size) == ("qwen3", "4.2M")
    assert model.details.quantization_level == "F16"


def test_tags_have_models_even_when_there_are_none() -> None:
    assert json.loads(render_tags([], AT)) == {"models": []}
    assert json.loads(render_ps([], AT)) == {"models": []}


def test_ps_has_a_line_per_loaded_copy_with_a_date_for_each() -> None:
    first, second = ProcessResponse.model_validate_json(render_ps([TINY], AT)).models
    assert first.expires_at == datetime.fromtimestamp(AT + 300, tz=UTC)
    assert (first.size_vram, first.context_length) == (8_500_000, 4096)
    assert second.expires_at is not None
    assert second.expires_at.timestamp() > AT + 50 * 365 * 86_400


def test_show_tells_capabilities_and_model_info() -> None:
    shown = ShowResponse.model_validate_json(render_show(TINY))
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo == {
        "general.architecture": "qwen3",
        "general.parameter_count": 4_200_000,
        "qwen3.context_length": 4096,
        "qwen3.block_count": 8,
        "qwen3.vocab_size": 2048,
        "qwen3.embedding_length": 192,
        "qwen3.attention.head_count": 8,
        "tokenizer.ggml.eos_token_id": 2041,
    }
    assert (shown.template, shown.license) == ("{{ x }}", "MIT")
    assert shown.parameters == "num_predict 512"
    assert shown.modelfile == "FROM shoal-tiny\nPARAMETER num_predict 512\n"
    assert "tensors" not in json.loads(render_show(TINY))


def test_show_of_a_model_on_another_node_says_what_its_card_says_and_no_more() -> None:
    far = ModelListing(id="m", size_bytes=1, modified_at_s=AT, family="llama", layers=2)
    shown = json.loads(render_show(far))
    assert shown["model_info"] == {"general.architecture": "llama", "llama.block_count": 2}
    assert (shown["parameters"], shown["modelfile"]) == ("", "FROM m\n")


def test_a_verbose_show_lists_the_tensors() -> None:
    shown = json.loads(render_show(replace(TINY, tensors=(("a", "F16", (2, 3)),))))
    assert shown["tensors"] == [{"name": "a", "type": "F16", "shape": [2, 3]}]


def test_figures_are_those_of_the_language_part_and_numbers_alone() -> None:
    config = {
        "hidden_size": 1,
        "eos_token_id": 7,
        "bos_token_id": [],
        "text_config": {
            "hidden_size": 64,
            "num_attention_heads": True,
            "n_head": 4,
            "intermediate_size": 10**30,
            "rms_norm_eps": float("nan"),
            "rope_theta": 1e6,
            "head_dim": 16,
            "v_head_dim": 32,
        },
    }
    assert figures_of("x", config) == {
        "x.embedding_length": 64,
        "x.attention.head_count": 4,
        "x.attention.key_length": 16,
        "x.attention.value_length": 32,
        "x.rope.freq_base": 1e6,
        "tokenizer.ggml.eos_token_id": 7,
    }


@pytest.mark.parametrize("field", ["model", "name"])
def test_show_asks_by_either_word(field: str) -> None:
    for parse in (parse_show, parse_delete):
        assert parse(json.dumps({field: "a:latest"}).encode(), Limits()) == AskedModel("a")
    asked = parse_pull(json.dumps({field: "llama3.2:1b"}).encode(), Limits())
    assert asked == AskedModel("llama3.2:1b", stream=True)


# what Ollama's own program sends, which writes what it was not given as empty
GO_SHOW = b'{"model":"a","system":"","template":"","verbose":false,"options":null,"name":""}'
GO_DELETE = b'{"model":"a","name":""}'
GO_PULL = b'{"model":"a","insecure":true,"username":"","password":"","name":""}'


def test_bodies_of_ollamas_own_program_are_understood() -> None:
    assert parse_show(GO_SHOW, Limits()) == AskedModel("a")
    assert parse_show(GO_SHOW.replace(b"false", b"true"), Limits()) == AskedModel("a", verbose=True)
    assert parse_delete(GO_DELETE, Limits()) == AskedModel("a")
    assert parse_pull(GO_PULL, Limits()) == AskedModel("a", stream=True)
    whole = parse_pull(b'{"name":"a","stream":false}', Limits())
    assert whole == AskedModel("a", stream=False)


@pytest.mark.parametrize(
    ("parse", "body", "field"),
    [
        (parse_show, b'{"model":"a","system":"x"}', "system"),
        (parse_show, b'{"model":"a","template":"x"}', "template"),
        (parse_show, b'{"model":"a","options":{"seed":1}}', "options"),
        (parse_show, b'{"model":"a","verbos":true}', "verbos"),
        (parse_pull, b'{"model":"a","username":"x"}', "username"),
        (parse_pull, b'{"model":"a","password":"x"}', "password"),
        (parse_pull, b'{"model":""}', "model"),
        (parse_delete, b"{}", "model"),
    ],
)
def test_what_a_body_about_a_model_cannot_ask_is_refused_by_name(
    parse: Callable[[bytes, Limits], AskedModel], body: bytes, field: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(body, Limits())
    assert caught.value.field == field


def test_a_tag_is_a_part_of_a_name_and_a_registrys_name_is_an_unknown_model() -> None:
    for parse in (parse_show, parse_delete):
        assert parse(b'{"model": "mine:1b"}', Limits()).name == "mine:1b"
        assert parse(b'{"model": "hf.co/some/model:Q4"}', Limits()).name == "some/model:Q4"
        with pytest.raises(HttpFaultRaised) as caught:
            parse(b'{"model": "ghcr.io/some/model:1"}', Limits())
        assert (caught.value.fault.status, caught.value.fault.field) == (404, "model")
        with pytest.raises(HttpFaultRaised, match=r"model 'ghcr\.io/some/model' not found"):
            parse(b'{"model": "ghcr.io/some/model"}', Limits())


@pytest.mark.parametrize("before", ["", "library/", "registry.ollama.ai/library/"])
@pytest.mark.parametrize("behind", ["", ":latest"])
def test_a_name_means_the_same_with_what_ollama_adds_to_it(before: str, behind: str) -> None:
    body = json.dumps({"model": f"{before}shoal-tiny{behind}"}).encode()
    assert parse_show(body, Limits()).name == "shoal-tiny"


@pytest.mark.parametrize("body", [b"{}", b'{"model": ""}', b'{"model": "../x"}', b"", b"[]"])
def test_show_without_a_model_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_show(body, Limits())


def test_the_version_has_three_numbers() -> None:
    [said] = [one for one in OLLAMA.endpoints if isinstance(one, Says)]
    version = json.loads(said.answer)["version"]
    assert [part.isdigit() for part in version.split(".")] == [True] * 3
    assert tuple(map(int, version.split("."))) >= (0, 13, 4), "what codex --oss wants"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1500, "1.5K"), (4_200_000, "4.2M"), (30_000_000_000, "30.0B")],
)
def test_parameter_counts_are_written_short(count: int, text: str) -> None:
    assert parameter_size(count) == text
