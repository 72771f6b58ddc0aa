"""The pages that operators read name what the tables have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from bus.wire.shares import PRIORITIES
from gateway.dialects import faults, to_come
from gateway.dialects.anthropic import bodies as anthropic_bodies
from gateway.dialects.ollama import bodies as ollama_bodies
from gateway.dialects.openai import bodies as openai_bodies
from gateway.dialects.openai.responses import bodies as responses_bodies
from gateway.dialects.openai.responses import items as responses_items
from gateway.dialects.prompts import bodies as prompts_bodies
from gateway.requests.pull_faults import PULL_FAULTS

FOLDER = Path(__file__).parents[3] / "docs/operations"
PAGE = (FOLDER / "http-api.md").read_text()
SECTIONS = (FOLDER / "fields.md").read_text().split("\n## ")


def _named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z0-9_]+)`", text))


def _section(title: str) -> set[str]:
    (found,) = [one for one in SECTIONS if one.startswith(title)]
    return _named(found)


def _fields(*bodies: type[BaseModel]) -> set[str]:
    return {name for body in bodies for name in body.model_fields}


@pytest.mark.parametrize(
    ("title", "names"),
    [
        (
            "OpenAI: chat",
            _fields(openai_bodies.ChatCompletionsBody, openai_bodies.CompletionsBody),
        ),
        (
            "OpenAI: responses",
            _fields(
                responses_bodies.ResponsesBody,
                responses_bodies.ResponsesTextBody,
                responses_bodies.ResponsesEffortBody,
                responses_bodies.ResponsesStreamOptionsBody,
            )
            | set(responses_items.ITEM_TYPES) - {"message"}
            | {"input_image", "input_file", "input_audio"},
        ),
        (
            "Ollama: chat",
            _fields(
                ollama_bodies.OllamaChatBody,
                ollama_bodies.OllamaGenerateBody,
                ollama_bodies.OllamaOptionsBody,
            )
            | {*ollama_bodies.NEUTRAL_OPTIONS},
        ),
        (
            "Anthropic",
            _fields(
                anthropic_bodies.AnthropicMessagesBody,
                anthropic_bodies.AnthropicCountBody,
                anthropic_bodies.AnthropicOutputBody,
            )
            | _fields(anthropic_bodies.AnthropicThinkingBody) - {"type"}
            | {"name", "description", "input_schema", "strict", "tool_use_id", "is_error"},
        ),
        (
            "Prompts",
            _fields(
                prompts_bodies.TokenizeBody,
                prompts_bodies.DetokenizeBody,
                prompts_bodies.ApplyTemplateBody,
            ),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_dialects_table_has_every_field(title: str, names: set[str]) -> None:
    assert names - _section(title) == set()


def test_every_error_code_is_on_the_page() -> None:
    tables = (faults.REFUSALS, faults.FAILURES, PULL_FAULTS)
    codes = {row.code for table in tables for row in table.values()}
    assert codes - _named(PAGE) == set()


def test_every_path_that_is_not_answered_is_on_the_page() -> None:
    paths = {*to_come.TO_COME, *to_come.NOT_OFFERED}
    assert {path for path in paths if f"`{path}`" not in PAGE} == set()


def test_priorities_are_on_the_page_with_their_numbers() -> None:
    assert all(f"`{word}` {number}" in PAGE for word, number in PRIORITIES.items())
