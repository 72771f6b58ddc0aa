"""The OpenAI Agents SDK's calls: over responses, its default, and over chat completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from telling import COUNT, COUNTED, PARIS, PERSON, WEATHER, At, tell, told

MODELS: dict[str, Any] = {
    "responses": OpenAIResponsesModel,
    "chat": OpenAIChatCompletionsModel,
}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int


@function_tool
def get_weather(city: str) -> str:
    """Get the weather for a city"""
    return WEATHER


def agent_at(at: At, kind: str, **more: Any) -> Agent[Any]:
    """Return a greedy agent of one of the two APIs."""
    client = AsyncOpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=0, timeout=90)
    made = MODELS[kind](model=at.model, openai_client=client)
    fields = {"model_settings": ModelSettings(temperature=0, include_usage=True), **more}
    return Agent(name="Assistant", model=made, **fields)


async def answers(at: At, kind: str) -> None:
    """Hold a run to its text and counts."""
    result = await Runner.run(agent_at(at, kind, instructions="You are helpful."), COUNT)
    assert COUNTED in result.final_output, result
    assert result.context_wrapper.usage.output_tokens > 5, result.context_wrapper.usage


async def streams(at: At, kind: str) -> None:
    """Hold a streamed run to pieces of text."""
    result = Runner.run_streamed(agent_at(at, kind), COUNT)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert len(pieces) > 5, pieces
    assert "".join(pieces) == result.final_output, result
    assert COUNTED in result.final_output, result


async def loops(at: At, kind: str) -> None:
    """Hold a tool loop to an answer with the tool's result."""
    result = await Runner.run(agent_at(at, kind, tools=[get_weather]), PARIS)
    kinds = [item.type for item in result.new_items]
    assert "tool_call_item" in kinds and "tool_call_output_item" in kinds, kinds
    assert WEATHER in result.final_output, result


async def streams_a_loop(at: At, kind: str) -> None:
    """Hold a streamed tool loop to the same."""
    result = Runner.run_streamed(agent_at(at, kind, tools=[get_weather]), PARIS)
    names = [
        event.name
        async for event in result.stream_events()
        if event.type == "run_item_stream_event"
    ]
    assert {"tool_called", "tool_output", "message_output_created"} <= set(names), names
    assert WEATHER in result.final_output, result


async def hands_over(at: At, kind: str) -> None:
    """Hold a handoff that is required to reach the other agent."""
    other = agent_at(at, kind).clone(name="Counter")
    required = ModelSettings(temperature=0, tool_choice="required")
    first = agent_at(at, kind, handoffs=[other], model_settings=required)
    result = await Runner.run(first, COUNT)
    assert result.last_agent.name == "Counter", result
    assert result.final_output, result


async def structures(at: At, kind: str) -> None:
    """Hold a typed output to its type."""
    result = await Runner.run(agent_at(at, kind, output_type=Person), PERSON)
    assert isinstance(result.final_output, Person), result


async def remembers(at: At, kind: str) -> None:
    """Hold a second turn of a kept conversation to what the first said."""
    kept = SQLiteSession("one")
    await Runner.run(agent_at(at, kind), "My name is Anna.", session=kept)
    result = await Runner.run(agent_at(at, kind), "What is my name?", session=kept)
    assert "Anna" in result.final_output, result


async def thinks(at: At, kind: str) -> None:
    """Hold a thinking agent's tool loop to its answer, its thoughts sent back between."""
    from openai.types.shared import Reasoning

    settings = ModelSettings(temperature=0, reasoning=Reasoning(effort="medium"))
    agent = agent_at(at, kind, tools=[get_weather], model_settings=settings)
    result = await Runner.run(agent, PARIS)
    assert WEATHER in result.final_output, result
    if kind == "responses":
        assert "reasoning_item" in [item.type for item in result.new_items], result.new_items


CALLS: dict[str, Callable[..., Any]] = {
    "run": answers,
    "run_streamed": streams,
    "tool loop": loops,
    "streamed tool loop": streams_a_loop,
    "handoff": hands_over,
    "output_type": structures,
    "conversation": remembers,
    "thinking": thinks,
}


def _add(kind: str, name: str) -> None:
    @told(f"{kind}: {name}")
    def call(at: At) -> Any:
        return CALLS[name](at, kind)


for one in MODELS:
    for each in CALLS:
        _add(one, each)


@told("responses: previous_response_id")
async def goes_on(at: At) -> None:
    """Hold a second run to what the first response keeps."""
    first = await Runner.run(agent_at(at, "responses"), "My name is Anna.")
    again = await Runner.run(
        agent_at(at, "responses"), "What is my name?", previous_response_id=first.last_response_id
    )
    assert "Anna" in again.final_output, again


if __name__ == "__main__":
    set_tracing_disabled(True)
    tell("openai-agents", "openai-agents")
