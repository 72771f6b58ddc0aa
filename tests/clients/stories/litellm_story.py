"""LiteLLM's calls by three of its providers: OpenAI's chat, Ollama's, Anthropic's messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
from telling import BOTH, COUNT, COUNTED, PARIS, PERSON, WEATHER, At, tell, told

TOOL: dict[str, Any] = {
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
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROVIDERS = ("openai", "ollama_chat", "anthropic")


def fields(at: At, provider: str, messages: Any, **more: Any) -> dict[str, Any]:
    """Return the keywords of a completion, greedy."""
    base = at.url + "/v1" if provider == "openai" else at.url
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    plain = {"model": f"{provider}/{at.model}", "api_base": base, "api_key": "none"}
    return {
        **plain,
        "messages": messages,
        "temperature": 0,
        "num_retries": 0,
        "timeout": 90,
        **more,
    }


def ask(at: At, provider: str, messages: Any, **more: Any) -> Any:
    """Return LiteLLM's answer."""
    return litellm.completion(**fields(at, provider, messages, **more))


def whole(at: At, provider: str) -> None:
    """Hold a whole answer to its text, reason and counts."""
    answer = ask(at, provider, COUNT, max_tokens=200)
    [choice] = answer.choices
    assert COUNTED in choice.message.content, choice
    assert choice.finish_reason == "stop", choice
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 5, answer.usage


def streamed(at: At, provider: str) -> None:
    """Hold a stream to pieces of the same text, a reason and counts."""
    chunks = list(
        ask(
            at, provider, COUNT, max_tokens=200, stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [
        c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content
    ]
    assert len(pieces) > 5, pieces
    assert COUNTED in "".join(pieces), pieces
    built = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].finish_reason == "stop", built
    assert built.usage.completion_tokens > 5, built.usage


def asynchronous(at: At, provider: str) -> None:
    """Hold the asynchronous stream to its text."""

    async def read() -> str:
        stream = await litellm.acompletion(**fields(at, provider, COUNT, stream=True))
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    text = asyncio.run(read())
    assert COUNTED in text, text


def limited(at: At, provider: str) -> None:
    """Hold an answer that was cut to its reason."""
    answer = ask(at, provider, COUNT, max_tokens=4)
    assert answer.choices[0].finish_reason == "length", answer


def stopped(at: At, provider: str) -> None:
    """Hold a stop sequence to where it ends the text."""
    answer = ask(at, provider, COUNT, stop=["3"], max_tokens=200)
    text = answer.choices[0].message.content
    assert "2" in text and "3" not in text, text


def calls_a_tool(at: At, provider: str) -> None:
    """Hold a tool loop to its call and to an answer with the tool's result."""
    question = {"role": "user", "content": PARIS}
    answer = ask(at, provider, [question], tools=[TOOL])
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls", choice
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather" and call.id, call
    assert json.loads(call.function.arguments) == {"city": "Paris"}, call
    result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": WEATHER}
    said = ask(at, provider, [question, choice.message, result], tools=[TOOL])
    assert WEATHER in said.choices[0].message.content, said


def streams_calls(at: At, provider: str) -> None:
    """Hold calls of a stream to their arguments, put together by LiteLLM's own builder: two of
    them, but for Ollama's API, whose index of a call LiteLLM does not read."""
    question, wanted = BOTH, ["Paris", "London"]
    if provider == "ollama_chat":
        question, wanted = PARIS, ["Paris"]
    chunks = list(ask(at, provider, question, tools=[TOOL], stream=True))
    built = litellm.stream_chunk_builder(chunks).choices[0]
    cities = [json.loads(c.function.arguments)["city"] for c in built.message.tool_calls]
    assert cities == wanted, built
    assert len({c.id for c in built.message.tool_calls}) == len(wanted), built
    assert built.finish_reason == "tool_calls", built


def obeys_a_schema(at: At, provider: str) -> None:
    """Hold enforced JSON to its schema."""
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
    }
    answer = ask(at, provider, PERSON, response_format=wanted)
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}, answer


def tells_an_error(at: At, provider: str) -> None:
    """Hold an unknown model to the exception that LiteLLM has for it."""
    try:
        litellm.completion(**{**fields(at, provider, "Hi"), "model": f"{provider}/not-here"})
    except litellm.NotFoundError as error:
        assert "not-here" in str(error), error
        return
    raise AssertionError("an unknown model answered")


def too_long(at: At, provider: str) -> None:
    """Hold a prompt that does not fit to the exception that LiteLLM has for it; for Ollama's API
    it has none, and tells a bad request."""
    known = provider != "ollama_chat"
    try:
        ask(at, provider, "fish " * 20_000)
    except litellm.ContextWindowExceededError:
        return
    except litellm.BadRequestError as error:
        assert not known and "prompt is too long" in str(error), error
        return
    raise AssertionError("a prompt of 20,000 words was taken")


CALLS = {
    "whole": whole,
    "stream": streamed,
    "async stream": asynchronous,
    "limit": limited,
    "stop": stopped,
    "tool loop": calls_a_tool,
    "streamed calls": streams_calls,
    "schema": obeys_a_schema,
    "unknown model": tells_an_error,
    "too long": too_long,
}


def _add(provider: str, name: str) -> None:
    @told(f"{provider}: {name}")
    def call(at: At) -> None:
        CALLS[name](at, provider)


for one in PROVIDERS:
    for each in CALLS:
        _add(one, each)


@told("openai: text completion")
def completes(at: At) -> None:
    """Hold a text completion to its text."""
    answer = litellm.text_completion(
        model=f"text-completion-openai/{at.model}", prompt="1, 2, 3,", max_tokens=8, temperature=0,
        api_base=f"{at.url}/v1", api_key="none",
    )  # fmt: skip
    assert answer.choices[0].text, answer


@told("openai: responses")
def responds(at: At) -> None:
    """Hold a response to its text, whole and streamed."""
    asked: dict[str, Any] = {
        "model": f"openai/{at.model}", "input": COUNT, "temperature": 0,
        "api_base": f"{at.url}/v1", "api_key": "none",
    }  # fmt: skip
    answer = litellm.responses(**asked)
    assert COUNTED in answer.output_text, answer
    kinds = [str(event.type) for event in litellm.responses(**asked, stream=True)]
    assert any("completed" in kind.lower() for kind in kinds), kinds


@told("openai: text to anthropic's messages")
def adapts(at: At) -> None:
    """Hold LiteLLM's own Messages interface to its text, over Anthropic's API."""
    answer: Any = asyncio.run(
        litellm.anthropic.messages.acreate(
            model=f"anthropic/{at.model}",
            max_tokens=200,
            api_base=at.url,
            api_key="none",
            messages=[{"role": "user", "content": COUNT}],
        )
    )
    text = "".join(block.get("text", "") for block in answer["content"])
    assert COUNTED in text, answer


if __name__ == "__main__":
    tell("litellm", "litellm")
