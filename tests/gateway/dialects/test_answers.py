"""What is rendered has the types that the OpenAPI document shows, and no key beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from bus.wire.messages.tokens import Entry, PromptAnswer, TokenDelta, TokenLogprob
from gateway.dialects.api_table import Generates, ReadsPrompt
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Dialect
from gateway.dialects.registry import APIS
from tests.gateway.dialects.field_bodies import BODIES
from tests.gateway.dialects.golden_streams import (
    CASES,
    DIALECTS,
    WITHOUT_CALLS,
    WITHOUT_THINKING,
    streams,
)
from tests.harness.sse_frames import FrameReader

ENDPOINTS = {
    endpoint.dialect.name: endpoint
    for api in APIS
    for endpoint in api.endpoints
    if isinstance(endpoint, Generates | ReadsPrompt)
}
ENVELOPES = {endpoint: api.envelope for api in APIS for endpoint in api.endpoints}
ANSWERS = {name: TypeAdapter(endpoint.answer) for name, endpoint in ENDPOINTS.items()}
EVENTS = {
    name: TypeAdapter(endpoint.event)
    for name, endpoint in ENDPOINTS.items()
    if isinstance(endpoint, Generates)
}
SCORES = (
    TokenLogprob(7, "a", -0.25, ((7, "a", -0.25), (8, "\ufffd", -1.5))),
    TokenLogprob(8, "\ufffd", -1.5, ((7, "a", -0.25),)),
    TokenLogprob(9, "", -2.0, ()),
)
SCORED: dict[str, dict[str, Any]] = {
    "openai_chat": {"logprobs": True, "top_logprobs": 2, "n": 2},
    "openai_completions": {"logprobs": 2, "n": 2},
    "openai_responses": {"top_logprobs": 2, "metadata": {"a": "b"}, "instructions": "i"},
    "ollama_chat": {"logprobs": True, "top_logprobs": 2},
    "ollama_generate": {"logprobs": True, "top_logprobs": 2},
}
"""Fields with which a dialect tells log-probabilities, and more of what it can tell."""


def told(name: str, stream: bytes) -> list[dict[str, Any]]:
    """The objects of a stream, without what ends it."""
    if name.startswith("ollama"):
        return [json.loads(line) for line in stream.decode().split("\n") if line]
    frames = FrameReader().feed(stream)
    return [json.loads(frame.data) for frame in frames if frame.data != "[DONE]"]


def check(kind: TypeAdapter[Any], value: Any) -> None:
    kind.validate_json(json.dumps(value), strict=True, extra="forbid")


def check_stream(name: str, stream: bytes, *, fails: bool = False) -> None:
    events = told(name, stream)
    assert events
    envelope = ENVELOPES[ENDPOINTS[name]].shape.__required_keys__
    for number, event in enumerate(events):
        if fails and number == len(events) - 1 and name != "openai_responses":
            assert set(envelope) <= set(event)
        else:
            check(EVENTS[name], event)


@pytest.mark.parametrize(
    ("name", "stream"), list(streams()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_every_kept_stream_has_the_type_of_its_events(name: str, stream: bytes) -> None:
    dialect, _, case = name.partition("/")
    check_stream(dialect, stream, fails=case == "error.txt")


@pytest.mark.parametrize(("dialect", "body"), DIALECTS, ids=lambda one: getattr(one, "name", ""))
def test_log_probabilities_have_their_types(
    desk: Any, dialect: Dialect, body: dict[str, Any]
) -> None:
    parsed = desk.parse(dialect, {**body, **SCORED.get(dialect.name, {})})
    ours = parsed.requests[0].request_id
    scored: list[Entry] = [
        TokenDelta(ours, 0, choice, "text", one.text, 1, (one,) if dialect.name in SCORED else ())
        for choice in range(parsed.choices)
        for one in SCORES
    ]
    entries = [*scored, *desk.end(parsed)]
    check_stream(dialect.name, desk.play(dialect, parsed, entries))
    check(ANSWERS[dialect.name], desk.whole(dialect, parsed, entries))


@pytest.mark.parametrize("case", [case for case in CASES if case != "error"])
@pytest.mark.parametrize(("dialect", "body"), DIALECTS, ids=lambda one: getattr(one, "name", ""))
def test_whole_answers_have_their_types(
    desk: Any, dialect: Dialect, body: dict[str, Any], case: str
) -> None:
    parsed = desk.parse(dialect, body)
    check(ANSWERS[dialect.name], desk.whole(dialect, parsed, CASES[case](parsed)))


@pytest.mark.parametrize(("dialect", "body"), DIALECTS, ids=lambda one: getattr(one, "name", ""))
def test_any_answer_has_its_type(
    desk: Any,
    answers: Callable[..., st.SearchStrategy[list[Entry]]],
    dialect: Dialect,
    body: dict[str, Any],
) -> None:
    parsed = desk.parse(dialect, body)
    strategy = answers(
        parsed.requests[0],
        reasoning=dialect.name not in WITHOUT_THINKING,
        tools=dialect.name not in WITHOUT_CALLS,
    )

    @settings(max_examples=40)
    @given(strategy)
    def holds(entries: list[Entry]) -> None:
        check(ANSWERS[dialect.name], desk.whole(dialect, parsed, entries))
        check_stream(dialect.name, desk.play(dialect, parsed, entries))

    holds()


def test_answers_about_prompts_have_their_types(desk: Any) -> None:
    told = [name for name, one in ENDPOINTS.items() if isinstance(one, ReadsPrompt)]
    assert told
    for name in told:
        endpoint = ENDPOINTS[name]
        parsed = desk.parse(endpoint.dialect, BODIES[endpoint.body][0])
        found = PromptAnswer((1, 2), "text", 4096)
        collected = Collected(parsed.requests[0].request_id, [], desk.usage, prompt=found)
        whole = endpoint.dialect.render_whole(parsed, [collected])
        check(ANSWERS[name], json.loads(whole))


def test_a_key_that_no_type_has_would_be_noticed(desk: Any) -> None:
    dialect, body = DIALECTS[0]
    parsed = desk.parse(dialect, body)
    whole = desk.whole(dialect, parsed, CASES["text"](parsed))
    with pytest.raises(ValidationError):
        check(ANSWERS[dialect.name], {**whole, "colour": 1})
    with pytest.raises(ValidationError):
        check(ANSWERS[dialect.name], {key: whole[key] for key in whole if key != "usage"})
