"""Ollama's embeddings, new and old: what bodies ask for, what is refused, what answers say."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from bus.wire.messages.requests import InputsPrompt, Usage
from bus.wire.messages.tokens import ChoiceEnd, Finished, Vectors
from gateway.dialects.ollama.embeddings import OllamaEmbed, OllamaEmbeddings

EMBED, OLDER = OllamaEmbed(), OllamaEmbeddings()
MODEL = {"model": "minilm:latest"}


def _prompt(desk: Any, dialect: Any, **fields: Any) -> InputsPrompt:
    (request,) = desk.parse(dialect, {**MODEL, **fields}).requests
    assert request.model == "minilm"
    assert isinstance(request.prompt, InputsPrompt)
    return request.prompt


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"input": "hi"}, InputsPrompt(inputs=("hi",), cut=True)),
        ({"input": ["hi", ""]}, InputsPrompt(inputs=("hi", ""), cut=True)),
        ({"input": "hi", "truncate": False}, InputsPrompt(inputs=("hi",))),
        ({"input": "hi", "dimensions": 64}, InputsPrompt(inputs=("hi",), dimensions=64, cut=True)),
        (
            {"input": "hi", "truncate": True, "dimensions": 0, "options": {"num_ctx": 99}},
            InputsPrompt(inputs=("hi",), cut=True),
        ),
    ],
)
def test_texts_are_cut_unless_it_is_said_not_to(
    desk: Any, fields: dict[str, Any], prompt: InputsPrompt
) -> None:
    assert _prompt(desk, EMBED, **fields) == prompt


def test_the_older_path_embeds_one_prompt(desk: Any) -> None:
    assert _prompt(desk, OLDER, prompt="hi") == InputsPrompt(inputs=("hi",), cut=True)


@pytest.mark.parametrize("dialect", [EMBED, OLDER])
def test_without_a_text_the_model_is_loaded_or_unloaded(desk: Any, dialect: Any) -> None:
    nothing: dict[str, Any] = {"prompt": ""} if dialect is OLDER else {"input": []}
    for fields, intent in (({}, "load"), ({"keep_alive": 0}, "unload"), (nothing, "load")):
        parsed = desk.parse(dialect, {**MODEL, **fields})
        assert (parsed.intent, parsed.requests) == (intent, ())
    assert desk.parse(dialect, {**MODEL, "keep_alive": "5m"}).extras.keep_alive_s == 300.0
    empty = json.loads(dialect.render_whole(desk.parse(dialect, MODEL), (), load_s=0.5))
    assert empty == (
        {"embedding": []}
        if dialect is OLDER
        else {
            "model": "minilm:latest",
            "embeddings": [],
            "total_duration": 500_000_000,
            "load_duration": 500_000_000,
            "prompt_eval_count": 0,
        }
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": 3}, "input"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [[1, 2]]}, "input[0]"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
        ({"input": "a", "truncate": "no"}, "truncate"),
        ({"input": "a", "keep_alive": "soon"}, "keep_alive"),
        ({"input": "a", "options": {"temperatur": 1}}, "options.temperatur"),
    ],
)
def test_a_body_that_cannot_be_honoured_is_refused_by_its_field(
    desk: Any, fields: dict[str, Any], field: str
) -> None:
    assert desk.refusal(EMBED, {**MODEL, **fields}).field == field


def test_answers_have_all_vectors_or_the_one(desk: Any) -> None:
    parsed = desk.parse(EMBED, {**MODEL, "input": ["a", "b"]})
    ours = parsed.requests[0].request_id
    vectors = tuple(struct.pack("<2f", number, 0.5) for number in range(2))
    ends = [
        Vectors(ours, 0, 0, 0, vectors, (1,)),
        ChoiceEnd(ours, 0, 0, "stop", None),
        Finished(ours, 0, Usage(prompt_tokens=7, queue_s=0.25, prefill_s=0.5)),
    ]
    collected = desk.collect(parsed, ends)
    assert collected[0].cut == [1]
    assert json.loads(EMBED.render_whole(parsed, collected, load_s=1.0)) == {
        "model": "minilm:latest",
        "embeddings": [[0.0, 0.5], [1.0, 0.5]],
        "total_duration": 1_750_000_000,
        "load_duration": 1_000_000_000,
        "prompt_eval_count": 7,
    }
    assert json.loads(OLDER.render_whole(parsed, collected)) == {"embedding": [0.0, 0.5]}
