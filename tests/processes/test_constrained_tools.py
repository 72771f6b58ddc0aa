"""With `runner.constrain_tools` a call keeps to its tool's schema though the tool is not strict."""

from __future__ import annotations

import json
from typing import Any

from tests.harness.nodes import Node


def weather(*cities: str, **more: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": list(cities)}},
        "required": ["city"],
    }
    return {
        "type": "function",
        "function": {"name": "get_weather", "parameters": parameters, **more},
    }


def cities_asked_for(node: Node, tool: dict[str, Any]) -> list[str]:
    question = "What is the weather in Paris?"
    answer = node.chat(question, tools=[tool], temperature=0, reasoning_effort="none")
    assert answer.status_code == 200, answer.text
    calls = answer.json()["choices"][0]["message"]["tool_calls"]
    return [json.loads(call["function"]["arguments"])["city"] for call in calls]


def keeps_to_schemas(node: Node, *, though_not_strict: bool) -> None:
    assert cities_asked_for(node, weather("Oslo", "Rome", strict=True))[0] in ("Oslo", "Rome")
    found = cities_asked_for(node, weather("Oslo", "Rome"))
    assert (found[0] in ("Oslo", "Rome")) is though_not_strict, found
    loose = {"type": "function", "function": {"name": "f", "parameters": {"type": "banana"}}}
    answer = node.chat("Hello!", tools=[loose], max_tokens=8)
    assert answer.status_code == 200, answer.text


def test_calls_keep_to_schemas_where_the_operator_says_so(shared_keyed: Node) -> None:
    keeps_to_schemas(shared_keyed, though_not_strict=True)


def test_by_default_only_calls_of_strict_tools_keep_to_their_schemas(node: Node) -> None:
    keeps_to_schemas(node, though_not_strict=False)
