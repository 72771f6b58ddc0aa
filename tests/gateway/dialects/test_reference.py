"""The page that operators read says what the tables say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from bus.wire.shares import PRIORITIES
from gateway.dialects import faults
from gateway.dialects.anthropic import bodies as anthropic_bodies
from gateway.dialects.ollama import bodies as ollama_bodies
from gateway.dialects.openai import bodies as openai_bodies
from gateway.dialects.openai.responses import bodies as responses_bodies
from gateway.dialects.openai.responses import items as responses_items
from gateway.dialects.prompts import bodies as prompts_bodies

PAGE = (Path(__file__).parents[3] / "docs/operations/http-api.md").read_text()
BEFORE_OLLAMA, REST = PAGE.split("## Ollama", maxsplit=1)
OPENAI, RESPONSES = BEFORE_OLLAMA.split("## OpenAI: `/v1/responses`", maxsplit=1)
OLLAMA, REST = REST.split("## Anthropic", maxsplit=1)
ANTHROPIC, PROMPTS = REST.split("## Prompts", maxsplit=1)


def _named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z0-9_]+)`", text))


@pytest.mark.parametrize("body", [openai_bodies.ChatCompletionsBody, openai_bodies.CompletionsBody])
def test_every_openai_field_is_on_the_page(body: type[BaseModel]) -> None:
    assert set(body.model_fields) - _named(OPENAI) == set()


@pytest.mark.parametrize(
    "names",
    [
        set(responses_bodies.ResponsesBody.model_fields),
        set(responses_bodies.ResponsesTextBody.model_fields),
        set(responses_bodies.ResponsesEffortBody.model_fields),
        set(responses_bodies.ResponsesStreamOptionsBody.model_fields),
        set(responses_items.ITEM_TYPES) - {"message"},
        {"input_image", "input_file", "input_audio"},
    ],
)
def test_everything_of_responses_is_on_the_page(names: set[str]) -> None:
    assert names - _named(RESPONSES) == set()


@pytest.mark.parametrize(
    "names",
    [
        set(ollama_bodies.OllamaChatBody.model_fields),
        set(ollama_bodies.OllamaGenerateBody.model_fields),
        set(ollama_bodies.OllamaOptionsBody.model_fields),
        set(ollama_bodies.NEUTRAL_OPTIONS),
    ],
)
def test_everything_of_ollamas_is_on_the_page(names: set[str]) -> None:
    assert names - _named(OLLAMA) == set()


@pytest.mark.parametrize(
    "names",
    [
        set(anthropic_bodies.AnthropicMessagesBody.model_fields),
        {"name", "description", "input_schema", "strict"},
        set(anthropic_bodies.AnthropicThinkingBody.model_fields) - {"type"},
        set(anthropic_bodies.AnthropicOutputBody.model_fields),
        set(anthropic_bodies.AnthropicCountBody.model_fields),
        {"tool_use_id", "is_error"},
    ],
)
def test_everything_of_anthropics_is_on_the_page(names: set[str]) -> None:
    assert names - _named(ANTHROPIC) == set()


@pytest.mark.parametrize(
    "names",
    [
        set(prompts_bodies.TokenizeBody.model_fields),
        set(prompts_bodies.DetokenizeBody.model_fields),
        set(prompts_bodies.ApplyTemplateBody.model_fields),
    ],
)
def test_everything_about_prompts_is_on_the_page(names: set[str]) -> None:
    assert names - _named(PROMPTS) == set()


def test_every_error_code_is_on_the_page() -> None:
    codes = {row.code for row in (*faults.REFUSALS.values(), *faults.FAILURES.values())}
    assert codes - _named(PAGE) == set()


def test_priorities_are_on_the_page_with_their_numbers() -> None:
    assert all(f"`{word}` {number}" in PAGE for word, number in PRIORITIES.items())
