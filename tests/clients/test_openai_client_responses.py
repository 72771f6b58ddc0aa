"""The official OpenAI client and responses against a running node: told, streamed, parsed, kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather for a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
COUNT = "List the integers from 1 to 5"
PARIS = "What is the weather in Paris?"
Make = Callable[..., Any]


class Person(BaseModel):
    """What is asked for by a schema."""

    name: str
    age: int


@pytest.fixture(scope="module")
def make(client: OpenAI, model: str) -> Make:
    """A response, greedy and without thinking unless told otherwise."""

    def made(asked: Any, **more: Any) -> Any:
        fields: dict[str, Any] = {
            "temperature": 0,
            "reasoning": {"effort": "none"},
            "max_output_tokens": 300,
            **more,
        }
        return client.responses.create(model=model, input=asked, **fields)

    return made


def test_a_response_has_text_and_usage(make: Make) -> None:
    response = make(COUNT, instructions="Be brief.", metadata={"a": "b"})
    assert response.status == "completed" and response.error is None
    assert "1, 2, 3" in response.output_text
    assert response.usage.output_tokens > 0 and response.usage.input_tokens > 0
    assert response.metadata == {"a": "b"} and response.instructions == "Be brief."


def test_a_count_is_what_the_response_then_reads(client: OpenAI, make: Make, model: str) -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [WEATHER],
        "reasoning": {"effort": "none"},
    }

    def counted(text: str, **more: Any) -> int:
        return client.responses.input_tokens.count(
            model=model, input=text, **asked, **more
        ).input_tokens

    first = make(COUNT, **asked, max_output_tokens=8)
    assert counted(COUNT) == first.usage.input_tokens
    second = make("And on?", **asked, max_output_tokens=8, previous_response_id=first.id)
    assert counted("And on?", previous_response_id=first.id) == second.usage.input_tokens
    assert second.usage.input_tokens > first.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="resp_nothing"):
        counted("x", previous_response_id="resp_nothing")


def test_a_stream_is_put_together_by_the_clients_own_helper(
    client: OpenAI, make: Make, model: str
) -> None:
    kinds: list[str] = []
    deltas: list[str] = []
    fields: dict[str, Any] = {"temperature": 0, "reasoning": {"effort": "none"}}
    with client.responses.stream(model=model, input=COUNT, **fields) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "".join(deltas) == final.output_text == make(COUNT).output_text
    plain = list(make(COUNT, stream=True))
    assert [one.sequence_number for one in plain] == list(range(len(plain)))


@pytest.mark.proof
def test_a_thinking_model_tells_its_thinking_as_an_item_before_its_text(make: Make) -> None:
    response = make(COUNT, reasoning={"effort": "high"}, max_output_tokens=800)
    kinds = [one.type for one in response.output]
    assert kinds == sorted(kinds, key=["reasoning", "message"].index)
    assert "message" in kinds and response.output_text
    if kinds[0] == "reasoning":
        assert response.output[0].content[0].text
        assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_a_schema_is_obeyed_and_parsed(client: OpenAI, model: str) -> None:
    parsed = client.responses.parse(
        model=model,
        input="Invent a person.",
        text_format=Person,
        temperature=0,
        reasoning={"effort": "none"},
        max_output_tokens=300,
    )
    assert isinstance(parsed.output_parsed, Person)


@pytest.mark.proof
def test_a_limit_makes_the_response_incomplete(make: Make) -> None:
    response = make("List the integers from 1 to 30", max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"
    assert response.usage.output_tokens == 4


@pytest.mark.proof
def test_log_probabilities_come_when_they_are_included(make: Make) -> None:
    response = make(COUNT, top_logprobs=2, include=["message.output_text.logprobs"])
    told = response.output[0].content[0].logprobs
    assert told and all(len(one.top_logprobs) == 2 for one in told)


@pytest.mark.proof
def test_a_tools_result_makes_the_round_trip_by_items(make: Make) -> None:
    first = make(PARIS, tools=[WEATHER])
    [call] = first.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}
    then = make([{"role": "user", "content": PARIS}, *first.output, result], tools=[WEATHER])
    assert "17 degrees" in then.output_text


def test_a_tools_result_makes_the_round_trip_by_the_earlier_responses_id(make: Make) -> None:
    first = make(PARIS, tools=[WEATHER])
    result = {
        "type": "function_call_output",
        "call_id": first.output[0].call_id,
        "output": [{"type": "input_text", "text": "17 degrees and sunny"}],
    }
    then = make([result], tools=[WEATHER], previous_response_id=first.id)
    assert "17 degrees and sunny" in then.output_text
    assert then.previous_response_id == first.id


@pytest.mark.proof
def test_a_call_that_the_limit_cut_off_is_an_incomplete_call_and_never_markup(make: Make) -> None:
    seen: set[str] = set()
    for limit in range(1, 24):
        response = make(PARIS, tools=[WEATHER], max_output_tokens=limit)
        if response.status == "completed":
            break
        assert "<" not in response.output_text and "{" not in response.output_text
        for call in response.output:
            assert (call.type, call.name) == ("function_call", "get_weather")
            seen.add(call.status)
    assert "incomplete" in seen


def test_calls_are_streamed_with_the_ids_that_the_response_ends_with(make: Make) -> None:
    question = "What is the weather in Paris and London?"
    events = list(make(question, tools=[WEATHER], stream=True))
    done = [one.item for one in events if one.type == "response.output_item.done"]
    calls = [one for one in events[-1].response.output if one.type == "function_call"]
    assert [json.loads(one.arguments)["city"] for one in calls] == ["Paris", "London"]
    assert [(one.id, one.call_id) for one in done] == [(one.id, one.call_id) for one in calls]


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param("required", marks=pytest.mark.proof),
        {"type": "function", "name": "get_weather"},
    ],
    ids=["required", "named"],
)
def test_a_tool_that_must_be_called_is(make: Make, choice: Any) -> None:
    tools = [{"type": "web_search"}, WEATHER]
    response = make("Who are you?", tools=tools, tool_choice=choice)
    assert response.output[-1].name == "get_weather"


def test_a_response_is_kept_told_listed_and_removed(client: OpenAI, make: Make) -> None:
    response = make(COUNT)
    told = client.responses.retrieve(response.id)
    assert told.output_text == response.output_text
    [item] = list(client.responses.input_items.list(response.id))
    assert item.to_dict()["content"] == [{"type": "input_text", "text": COUNT}]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(response.id)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        make("and then?", previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"


@pytest.mark.proof
def test_what_is_not_to_be_kept_is_not_found(client: OpenAI, make: Make) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(make(COUNT, store=False).id)


@pytest.mark.proof
def test_what_cannot_be_honoured_names_its_field(make: Make) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        make(COUNT, background=True, store=False)
    assert caught.value.param == "background"


def test_a_response_in_the_background_is_polled_until_it_is_there(
    client: OpenAI, make: Make
) -> None:
    response = make(COUNT, background=True)
    assert response.status == "queued" and response.background is True
    give_up_at = time.monotonic() + 60
    while response.status in {"queued", "in_progress"}:
        assert time.monotonic() < give_up_at
        response = client.responses.retrieve(response.id)
    assert response.status == "completed" and response.output_text == make(COUNT).output_text
    then = make("Say that again.", previous_response_id=response.id)
    assert then.previous_response_id == response.id


def test_a_stream_in_the_background_is_gone_on_with_where_it_was_left(
    client: OpenAI, make: Make
) -> None:
    whole = make(COUNT).output_text
    first: list[Any] = []
    with make(COUNT, background=True, stream=True) as events:
        for event in events:
            first.append(event)
            if event.sequence_number >= 5:
                break
    name, at = first[0].response.id, first[-1].sequence_number
    rest = list(client.responses.retrieve(name, stream=True, starting_after=at))
    numbers = [event.sequence_number for event in [*first, *rest]]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed" and rest[-1].response.output_text == whole
    deltas = [one.delta for one in [*first, *rest] if one.type == "response.output_text.delta"]
    assert "".join(deltas) == whole


def test_a_response_in_the_background_is_cancelled(client: OpenAI, make: Make) -> None:
    response = make("Tell me a story", background=True, max_output_tokens=2000)
    stopped = client.responses.cancel(response.id)
    assert stopped.status in {"cancelled", "completed"}
    assert client.responses.retrieve(response.id).status == stopped.status
