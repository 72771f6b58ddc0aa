"""The official Anthropic client against a running node: its calls, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

COUNT = "List the integers from 1 to 30"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather for a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
THINK = {"type": "enabled", "budget_tokens": 1024}
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def client(node_url: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=node_url, api_key="none", max_retries=0, timeout=90) as made:
        yield made


@pytest.fixture(scope="module")
def fields(model: str) -> Ask:
    """The fields of one question, greedy; the client itself knows no temperature."""

    def made(question: str, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}]
        greedy = {"temperature": 0}
        plain = {"model": model, "max_tokens": 300, "messages": messages, "extra_body": greedy}
        return {**plain, **more}

    return made


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def counted(client: Anthropic, asked: dict[str, Any]) -> int:
    read = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
    return client.messages.count_tokens(
        **{name: asked[name] for name in read if name in asked}
    ).input_tokens


# --- messages -----------------------------------------------------------------------------


def test_a_whole_answer_has_its_text_reason_usage_and_request_id(
    client: Anthropic, fields: Ask, model: str
) -> None:
    answer = client.messages.create(**fields(COUNT))
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", model, "end_turn")
    assert "1, 2, 3" in text_of(answer)
    assert answer.usage.output_tokens > 0 and answer.usage.input_tokens >= 0
    assert answer._request_id == answer.id


def test_the_streaming_helper_puts_the_same_message_together(
    client: Anthropic, fields: Ask
) -> None:
    whole = client.messages.create(**fields(COUNT))
    with client.messages.stream(**fields(COUNT)) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) > 5, "the text came in one piece: that is no stream"
    assert "".join(pieces) == text_of(message) == text_of(whole)
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.proof
def test_a_stream_says_at_its_start_how_long_the_prompt_is(client: Anthropic, fields: Ask) -> None:
    asked = fields(COUNT)
    with client.messages.stream(**asked) as stream:
        start = next(iter(stream))
        message = stream.get_final_message()
    assert start.type == "message_start"
    assert start.message.usage.input_tokens == counted(client, asked)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted(client, asked)


def test_limits_and_stop_sequences_say_why_they_ended(client: Anthropic, fields: Ask) -> None:
    short = client.messages.create(**fields(COUNT, max_tokens=4))
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 4)
    stopped = client.messages.create(**fields(COUNT, stop_sequences=["7"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "7")
    with client.messages.stream(**fields(COUNT, stop_sequences=["7"])) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "7")
    assert text_of(streamed) == text_of(stopped) and "7" not in text_of(stopped)


@pytest.mark.proof
def test_enforced_json_is_json(client: Anthropic, fields: Ask) -> None:
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**fields("Describe a person as JSON", output_config=wanted))
    assert set(json.loads(text_of(answer))) == {"name", "age"}


# --- tools and thinking -------------------------------------------------------------------


def test_a_tool_is_called_and_its_answer_is_read(client: Anthropic, fields: Ask) -> None:
    chosen = {"type": "tool", "name": "get_weather"}
    asked = fields("What is the weather in Paris?", tools=[WEATHER], tool_choice=chosen)
    whole = client.messages.create(**asked)
    (call,) = [block for block in whole.content if block.type == "tool_use"]
    assert (whole.stop_reason, call.name) == ("tool_use", "get_weather")
    assert set(call.input) == {"city"}
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    (again,) = [block for block in streamed.content if block.type == "tool_use"]
    assert (again.name, again.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees, sunny"}
    beside = {"type": "text", "text": "Say it in one sentence."}
    turns: list[Any] = [
        *asked["messages"],
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [result, beside]},
    ]
    more = {**asked, "messages": turns, "tool_choice": {"type": "none"}}
    answer = client.messages.create(**more)
    assert text_of(answer) and answer.stop_reason in ("end_turn", "max_tokens")


def test_thinking_is_signed_and_comes_back(client: Anthropic, fields: Ask) -> None:
    asked = fields("What is 17 + 25?", thinking=THINK, max_tokens=2000)
    whole = client.messages.create(**asked)
    first = whole.content[0]
    assert first.type == "thinking" and first.thinking and first.signature
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].type == "thinking"
    assert streamed.content[0].thinking == first.thinking
    assert streamed.content[0].signature == first.signature
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    turns: list[Any] = [
        *asked["messages"],
        {"role": "assistant", "content": [redacted, *whole.content]},
        {"role": "user", "content": "And 2 more?"},
    ]
    more = {**asked, "messages": turns}
    answer = client.messages.create(**more)
    assert answer.usage.output_tokens > 0


# --- counting -----------------------------------------------------------------------------

COUNTED: list[dict[str, Any]] = [
    {},
    {"system": "Be brief."},
    {"system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]},
    {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": {"type": "any"}},
    {"tools": [WEATHER], "tool_choice": {"type": "none"}},
    {"thinking": THINK, "max_tokens": 1100},
]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(more, marks=() if more in (COUNTED[4], COUNTED[6]) else pytest.mark.proof)
        for more in COUNTED
    ],
)
def test_a_count_is_the_prompt_of_the_same_message(
    client: Anthropic, fields: Ask, more: dict[str, Any]
) -> None:
    question = "Naïve Grüße, 日本 🐟: what is the weather in Paris?"
    asked = fields(question, **{"max_tokens": 1, **more})
    for _ in range(2):  # the second time most of the prompt is cached
        usage = client.messages.create(**asked).usage
        assert counted(client, asked) == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.proof
def test_tools_and_a_system_prompt_make_a_count_larger(client: Anthropic, fields: Ask) -> None:
    plain = counted(client, fields("Hello"))
    assert 0 < plain < counted(client, fields("Hello", system="Be brief."))
    assert plain + 20 < counted(client, fields("Hello", tools=[WEATHER]))


def test_a_prompt_beyond_the_context_is_counted_and_refused_with_the_same_number(
    client: Anthropic, fields: Ask
) -> None:
    asked = fields("word " * 9000)
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**asked)
    assert f"prompt is too long: {counted(client, asked)} tokens > " in str(refused.value)


# --- models and failures ------------------------------------------------------------------


def test_models_are_listed_and_shown(client: Anthropic, model: str) -> None:
    listed = {one.id: one for one in client.models.list(limit=1)}
    shown = client.models.retrieve(model)
    assert listed[model] == shown
    assert (shown.type, shown.display_name) == ("model", model)
    assert shown.created_at.tzinfo is not None and (shown.max_input_tokens or 0) > 0


def test_failures_name_the_field_and_their_request(client: Anthropic, fields: Ask) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(**fields("x", extra_body={"temperature": 3}))
    assert "temperature" in bad.value.message
    body: Any = bad.value.body
    assert body["request_id"] == bad.value.request_id and bad.value.request_id
    for ask in (client.messages.create, client.messages.stream):
        with pytest.raises(anthropic.NotFoundError) as missing:
            answer = ask(**{**fields("x"), "model": "no-such-model"})
            with answer:
                pass
        assert missing.value.type == "not_found_error" and missing.value.request_id
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("no-such-model")
    assert missing.value.type == "not_found_error" and missing.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="no-such-model", messages=fields("x")["messages"])


@pytest.mark.proof
def test_betas_have_no_effect(client: Anthropic, fields: Ask) -> None:
    plain = client.messages.create(**fields(COUNT, max_tokens=8))
    asked = fields(COUNT, max_tokens=8, betas=["made-up-2025-01-01", "context-1m-2025-08-07"])
    assert text_of(client.beta.messages.create(**asked)) == text_of(plain)
    read = {name: asked[name] for name in ("model", "messages", "betas")}
    assert client.beta.messages.count_tokens(**read).input_tokens == counted(client, asked)


@pytest.mark.proof
def test_a_base_url_that_ends_with_v1_is_answered_too(
    client: Anthropic, fields: Ask, node_url: str, model: str
) -> None:
    asked = fields(COUNT, max_tokens=8)
    with Anthropic(base_url=f"{node_url}/v1", api_key="none", max_retries=0) as below:
        assert text_of(below.messages.create(**asked)) == text_of(client.messages.create(**asked))
        assert counted(below, asked) == counted(client, asked)
        assert below.models.retrieve(model) == client.models.retrieve(model)


def test_other_clients_get_the_models_in_their_own_shape(node_url: str, model: str) -> None:
    told = httpx.get(f"{node_url}/v1/models").json()
    assert told["object"] == "list" and model in [one["id"] for one in told["data"]]
    own = httpx.get(f"{node_url}/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert own["has_more"] is False and own["data"][0]["type"] == "model"
