"""With `runner.constrain_tools` a call keeps to its tool's schema though the tool is not strict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.nodes import Node, running_node


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


@pytest.mark.parametrize("constrains", [pytest.param(False, marks=pytest.mark.proof), True])
def test_calls_keep_to_schemas_where_the_operator_says_so(constrains: bool) -> None:
    with running_node(SHOAL_RUNNER__CONSTRAIN_TOOLS=str(constrains).lower()) as node:
        assert cities_asked_for(node, weather("Oslo", "Rome", strict=True))[0] in ("Oslo", "Rome")
        found = cities_asked_for(node, weather("Oslo", "Rome"))
        assert (found[0] in ("Oslo", "Rome")) is constrains, found
        loose = {"type": "function", "function": {"name": "f", "parameters": {"type": "banana"}}}
        answer = node.chat("Hello!", tools=[loose], max_tokens=8)
        assert answer.status_code == 200, answer.text
