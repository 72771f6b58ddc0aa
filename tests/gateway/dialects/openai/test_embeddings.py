"""OpenAI's embeddings: what a body asks for, what is refused, and how vectors are written."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from bus.wire.messages.requests import InputsPrompt, Usage
from bus.wire.messages.tokens import ChoiceEnd, Finished, Vectors
from gateway.dialects.openai.embeddings import REFUSED, OpenAIEmbeddings

EMBED = OpenAIEmbeddings()
MODEL = {"model": "minilm"}


def _prompt(desk: Any, **fields: Any) -> InputsPrompt:
    (request,) = desk.parse(EMBED, {**MODEL, **fields}).requests
    assert isinstance(request.prompt, InputsPrompt)
    return request.prompt


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("hi", ("hi",)),
        (["hi", "there"], ("hi", "there")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["x"] * 2048, ("x",) * 2048),
    ],
)
def test_every_shape_of_input_is_read(desk: Any, given: Any, inputs: tuple[Any, ...]) -> None:
    assert _prompt(desk, input=given) == InputsPrompt(inputs=inputs)


def test_dimensions_and_cutting_are_passed_on_and_a_user_names_the_client(desk: Any) -> None:
    prompt = _prompt(desk, input="hi", dimensions=64, truncate_prompt_tokens=-1)
    assert (prompt.dimensions, prompt.cut) == (64, True)
    parsed = desk.parse(EMBED, {**MODEL, "input": "hi", "user": "me", "x_priority": "batch"})
    assert (parsed.requests[0].client_id, parsed.requests[0].priority) == ("me", 50)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "64"}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 64}, "truncate_prompt_tokens"),
        ({"input": "a", "model": "no model"}, "model"),
        *(({"input": "a", name: "yes"}, name) for name in REFUSED),
    ],
)
def test_a_body_that_cannot_be_honoured_is_refused_by_its_field(
    desk: Any, fields: dict[str, Any], field: str
) -> None:
    assert desk.refusal(EMBED, {**MODEL, **fields}).field == field


def _answer(desk: Any, **fields: Any) -> dict[str, Any]:
    parsed = desk.parse(EMBED, {**MODEL, "input": ["a", "b", "c"], **fields})
    ours = parsed.requests[0].request_id
    vectors = [struct.pack("<2f", number, 0.1) for number in range(3)]
    collected = desk.collect(
        parsed,
        [
            Vectors(ours, 0, 0, 0, tuple(vectors[:2])),
            Vectors(ours, 0, 0, 2, tuple(vectors[2:])),
            ChoiceEnd(ours, 0, 0, "stop", None),
            Finished(ours, 0, Usage(prompt_tokens=12)),
        ],
    )
    return json.loads(EMBED.render_whole(parsed, collected))


def test_vectors_are_numbers_that_are_equal_to_the_32_bit_ones(desk: Any) -> None:
    answer = _answer(desk)
    tenth = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": [float(index), tenth]}
            for index in range(3)
        ],
        "model": "minilm",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }


def test_base64_is_of_the_same_numbers(desk: Any) -> None:
    encoded = _answer(desk, encoding_format="base64")["data"]
    numbers = _answer(desk, encoding_format="float")["data"]
    for one, other in zip(encoded, numbers, strict=True):
        decoded = struct.unpack("<2f", base64.b64decode(one["embedding"]))
        assert list(decoded) == other["embedding"]
