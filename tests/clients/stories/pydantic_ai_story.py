"""Pydantic AI's calls: over OpenAI's chat and responses, and over Anthropic's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from telling import COUNT, COUNTED, PARIS, PERSON, WEATHER, At, tell, told


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int


def openai_chat(at: At) -> Any:
    """Return a model over OpenAI's chat completions."""
    provider = OpenAIProvider(base_url=f"{at.url}/v1", api_key="none")
    return OpenAIChatModel(at.model, provider=provider)


def openai_responses(at: At) -> Any:
    """Return a model over OpenAI's responses."""
    provider = OpenAIProvider(base_url=f"{at.url}/v1", api_key="none")
    return OpenAIResponsesModel(at.model, provider=provider)


def anthropic_messages(at: At) -> Any:
    """Return a model over Anthropic's messages, of which the library is told that it obeys
    schemas: it knows that of Anthropic's own models alone."""
    provider = AnthropicProvider(base_url=at.url, api_key="none")
    profile: Any = {"supports_json_schema_output": True}
    return AnthropicModel(at.model, provider=provider, profile=profile)


Maker = Callable[[At], Any]
MAKERS: dict[str, Maker] = {
    "openai chat": openai_chat,
    "openai responses": openai_responses,
    "anthropic": anthropic_messages,
}


def agent_at(at: At, make: Maker, **more: Any) -> Agent[None, Any]:
    """Return a greedy agent."""
    return Agent(make(at), model_settings={"temperature": 0, "max_tokens": 300}, **more)


def runs(at: At, make: Maker) -> None:
    """Hold a run to its text and counts."""
    result = agent_at(at, make, instructions="You are helpful.").run_sync(COUNT)
    assert COUNTED in result.output, result
    usage = result.usage() if callable(result.usage) else result.usage
    assert usage.output_tokens > 5 and usage.input_tokens > 5, usage


async def streams(at: At, make: Maker) -> None:
    """Hold a streamed run to pieces of the text."""
    async with agent_at(at, make).run_stream(COUNT) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 5, pieces
    assert COUNTED in "".join(pieces), pieces


def weather_agent(at: At, make: Maker) -> tuple[Agent[None, Any], list[str]]:
    """Return an agent with a tool, and the cities that the tool was asked for."""
    agent, asked = agent_at(at, make), list[str]()

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather for a city"""
        asked.append(city)
        return WEATHER

    return agent, asked


def loops(at: At, make: Maker) -> None:
    """Hold a tool loop to its call and to an answer with the result."""
    agent, asked = weather_agent(at, make)
    result = agent.run_sync(PARIS)
    assert asked == ["Paris"], asked
    assert WEATHER in result.output, result


async def streams_a_loop(at: At, make: Maker) -> None:
    """Hold a streamed tool loop to the same."""
    agent, asked = weather_agent(at, make)
    async with agent.run_stream(PARIS) as result:
        text = await result.get_output()
    assert asked == ["Paris"], asked
    assert WEATHER in text, text


def structures_by_tool(at: At, make: Maker) -> None:
    """Hold a typed output to its type, by a tool that the model has to call."""
    result = agent_at(at, make, output_type=ToolOutput(Person)).run_sync(PERSON)
    assert isinstance(result.output, Person), result


def structures_by_schema(at: At, make: Maker) -> None:
    """Hold a typed output to its type, by the API's own schemas."""
    result = agent_at(at, make, output_type=NativeOutput(Person)).run_sync(PERSON)
    assert isinstance(result.output, Person), result


def structures_by_prompt(at: At, make: Maker) -> None:
    """Hold a typed output to its type, by words and JSON mode where the API has it."""
    wanted = PromptedOutput(Person, template=False)
    result = agent_at(at, make, output_type=wanted).run_sync(PERSON)
    assert isinstance(result.output, Person), result


def remembers(at: At, make: Maker) -> None:
    """Hold a second turn to what the first said."""
    agent = agent_at(at, make)
    first = agent.run_sync("My name is Anna.")
    again = agent.run_sync("What is my name?", message_history=first.all_messages())
    assert "Anna" in again.output, again


CALLS: dict[str, Callable[..., Any]] = {
    "run": runs,
    "run_stream": streams,
    "tool loop": loops,
    "streamed tool loop": streams_a_loop,
    "output by tool": structures_by_tool,
    "output by schema": structures_by_schema,
    "output by prompt": structures_by_prompt,
    "conversation": remembers,
}


def _add(maker: str, name: str) -> None:
    @told(f"{maker}: {name}")
    def call(at: At) -> Any:
        return CALLS[name](at, MAKERS[maker])


for one in MAKERS:
    for each in CALLS:
        _add(one, each)


if __name__ == "__main__":
    tell("pydantic-ai", "pydantic-ai-slim")
