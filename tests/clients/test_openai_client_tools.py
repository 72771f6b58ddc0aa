"""The official OpenAI client and tools against a running node: forced, free, several, answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}
TIMER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Start a timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer", "description": "How many minutes"}},
            "required": ["minutes"],
        },
    },
}
COUNT = "List the integers from 1 to 30"
Ask = Callable[..., Any]


def test_a_forced_tool_is_called_with_arguments_that_obey_its_schema(ask: Ask) -> None:
    choice: Any = {"type": "function", "function": {"name": "set_timer"}}
    answer = ask(COUNT, tools=[WEATHER, TIMER], tool_choice=choice, max_tokens=200)
    [call] = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "set_timer")
    assert call.id
    assert isinstance(json.loads(call.function.arguments)["minutes"], int)


@pytest.mark.proof
def test_required_calls_one_of_the_tools(ask: Ask) -> None:
    answer = ask("Who are you?", tools=[WEATHER, TIMER], tool_choice="required", max_tokens=200)
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert {one.function.name for one in calls} <= {"get_weather", "set_timer"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_auto_calls_the_tool_that_fits(ask: Ask) -> None:
    answer = ask("What is the weather in Paris?", tools=[WEATHER], tool_choice="auto")
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}


@pytest.mark.proof
def test_auto_answers_in_words_when_no_tool_fits(ask: Ask) -> None:
    answer = ask(COUNT, tools=[WEATHER], tool_choice="auto")
    assert answer.choices[0].message.tool_calls is None
    assert "1, 2, 3" in answer.choices[0].message.content


@pytest.mark.proof
def test_none_never_calls(ask: Ask) -> None:
    answer = ask("What is the weather in Paris?", tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason in ("stop", "length")


@pytest.mark.proof
def test_two_cities_are_two_calls_unless_parallel_calls_are_off(ask: Ask) -> None:
    question = "What is the weather in Paris and London?"
    together = ask(question, tools=[WEATHER]).choices[0].message.tool_calls
    assert [json.loads(one.function.arguments)["city"] for one in together] == ["Paris", "London"]
    assert len({one.id for one in together}) == 2
    alone = ask(question, tools=[WEATHER], parallel_tool_calls=False)
    assert len(alone.choices[0].message.tool_calls) == 1


def test_a_streamed_call_is_put_together_by_the_clients_own_helper(
    client: OpenAI, ask: Ask, model: str
) -> None:
    question = "What is the weather in Paris and London?"
    whole = ask(question, tools=[WEATHER]).choices[0].message.tool_calls
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    strict["function"]["parameters"]["additionalProperties"] = False
    messages: Any = [{"role": "user", "content": question}]
    with client.chat.completions.stream(
        model=model, messages=messages, tools=[strict], temperature=0, reasoning_effort="none"
    ) as stream:
        for _ in stream:
            pass
        folded = stream.get_final_completion().choices[0].message.tool_calls
    assert folded is not None
    assert [one.function.name for one in folded] == [one.function.name for one in whole]
    assert [json.loads(one.function.arguments) for one in folded] == [
        json.loads(one.function.arguments) for one in whole
    ]
    assert len({one.id for one in folded}) == len(folded)


def test_a_tools_result_makes_the_round_trip(client: OpenAI, ask: Ask, model: str) -> None:
    question = "What is the weather in Paris?"
    message = ask(question, tools=[WEATHER]).choices[0].message
    messages: Any = [
        {"role": "user", "content": question},
        message,
        {
            "role": "tool",
            "tool_call_id": message.tool_calls[0].id,
            "content": "17 degrees and sunny",
        },
    ]
    fields: dict[str, Any] = {"tools": [WEATHER], "temperature": 0, "reasoning_effort": "none"}
    answer = client.chat.completions.create(model=model, messages=messages, **fields)
    assert answer.choices[0].finish_reason == "stop"
    assert "17 degrees and sunny" in answer.choices[0].message.content
