"""Ollama's listings of models."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from ollama import ListResponse, ProcessResponse, ShowResponse

from bus.wire.errors import BadRequest
from gateway.dialects.dialect import Limits, LoadedCopy, ModelListing, Says
from gateway.dialects.ollama.api import (
    OLLAMA,
    parameter_size,
    parse_show,
    render_ps,
    render_show,
    render_tags,
)

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
    template="{{ x }}",
    facts={"qwen3.block_count": 8},
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
    }
    assert shown.template == "{{ x }}"


@pytest.mark.parametrize("field", ["model", "name"])
def test_show_asks_by_either_word(field: str) -> None:
    assert parse_show(json.dumps({field: "a:latest"}).encode(), Limits()) == ("a", ())


@pytest.mark.parametrize("body", [b"{}", b'{"model": ""}', b'{"model": "../x"}', b"", b"[]"])
def test_show_without_a_model_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_show(body, Limits())


def test_the_version_has_three_numbers() -> None:
    [said] = [one for one in OLLAMA.endpoints if isinstance(one, Says)]
    version = json.loads(said.answer)["version"]
    assert [part.isdigit() for part in version.split(".")] == [True] * 3


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1500, "1.5K"), (4_200_000, "4.2M"), (30_000_000_000, "30.0B")],
)
def test_parameter_counts_are_written_short(count: int, text: str) -> None:
    assert parameter_size(count) == text
