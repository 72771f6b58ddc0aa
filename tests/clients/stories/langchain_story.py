"""LangChain's calls, by its packages for OpenAI, Ollama and Anthropic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field
from telling import BOTH, COUNT, COUNTED, PARIS, PERSON, WEATHER, At, tell, told


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int


@tool
def get_weather(city: str) -> str:
    """Get the weather for a city"""
    return WEATHER


def openai_chat(at: At, **more: Any) -> Any:
    """Return a chat model over OpenAI's chat completions."""
    return ChatOpenAI(
        base_url=f"{at.url}/v1", api_key="none", model=at.model, temperature=0, max_retries=0,
        stream_usage=True, **more,
    )  # fmt: skip


def openai_responses(at: At, **more: Any) -> Any:
    """Return a chat model over OpenAI's responses."""
    return openai_chat(at, use_responses_api=True, **more)


def ollama_chat(at: At, **more: Any) -> Any:
    """Return a chat model over Ollama's chat."""
    return ChatOllama(base_url=at.url, model=at.model, temperature=0, **more)


def anthropic_chat(at: At, **more: Any) -> Any:
    """Return a chat model over Anthropic's messages; its client sends no temperature."""
    limit = more.pop("max_tokens", 300)
    return ChatAnthropic(
        base_url=at.url, api_key="none", model_name=at.model, max_tokens_to_sample=limit,
        timeout=90, stop=None, max_retries=0, **more,
    )  # fmt: skip


Maker = Callable[..., Any]
MAKERS: dict[str, Maker] = {
    "openai": openai_chat,
    "openai responses": openai_responses,
    "ollama": ollama_chat,
    "anthropic": anthropic_chat,
}


def text_of(message: Any) -> str:
    """Return a message's text, whatever blocks stand around it."""
    text = message.text
    return text() if callable(text) and not isinstance(text, str) else str(text)


def invokes(at: At, make: Maker) -> None:
    """Hold a whole answer to its text and counts."""
    answer = make(at).invoke([SystemMessage("You are helpful."), HumanMessage(COUNT)])
    assert COUNTED in text_of(answer), answer
    assert answer.usage_metadata["output_tokens"] > 5, answer


def streams(at: At, make: Maker) -> None:
    """Hold a stream to pieces of the same text, with counts on the sum of its chunks."""
    chunks = list(make(at).stream(COUNT))
    assert len([chunk for chunk in chunks if text_of(chunk)]) > 5, chunks
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert COUNTED in text_of(total), total
    assert total.usage_metadata["output_tokens"] > 5, total


async def streams_asynchronously(at: At, make: Maker) -> None:
    """Hold the asynchronous stream to its text."""
    text = "".join([text_of(chunk) async for chunk in make(at).astream(COUNT)])
    assert COUNTED in text, text


def batches(at: At, make: Maker) -> None:
    """Hold questions asked at once to an answer each."""
    answers = make(at).batch([COUNT, COUNT, COUNT])
    assert all(COUNTED in text_of(answer) for answer in answers), answers


def loops_with_a_tool(at: At, make: Maker) -> None:
    """Hold a bound tool to its call, and the answer to the tool's result."""
    bound = make(at).bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(PARIS)]
    answer = bound.invoke(messages)
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}), answer
    messages += [answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert WEATHER in text_of(bound.invoke(messages)), messages


def streams_calls(at: At, make: Maker) -> None:
    """Hold two streamed calls to their arguments, put together by LangChain's own sum."""
    chunks = list(make(at).bind_tools([get_weather]).stream(BOTH))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert [call["args"] for call in total.tool_calls] == [{"city": "Paris"}, {"city": "London"}], (
        total
    )
    assert len({call["id"] for call in total.tool_calls}) == 2, total


def forces_a_tool(at: At, make: Maker) -> None:
    """Hold a forced tool to being called."""
    answer = make(at).bind_tools([get_weather], tool_choice="get_weather").invoke("Who are you?")
    assert [call["name"] for call in answer.tool_calls] == ["get_weather"], answer


def structures(at: At, make: Maker) -> None:
    """Hold structured output to its type, by the package's own default."""
    made = make(at).with_structured_output(Person).invoke(PERSON)
    assert isinstance(made, Person), made


def structures_by_tool(at: At, make: Maker) -> None:
    """Hold structured output to its type, by a tool that the model has to call."""
    made = make(at).with_structured_output(Person, method="function_calling").invoke(PERSON)
    assert isinstance(made, Person), made


def structures_by_schema(at: At, make: Maker) -> None:
    """Hold structured output to its type, by the API's own schemas."""
    made = make(at).with_structured_output(Person, method="json_schema").invoke(PERSON)
    assert isinstance(made, Person), made


def limits(at: At, make: Maker) -> None:
    """Hold an answer that was cut to a reason that says so."""
    key = "num_predict" if make is ollama_chat else "max_tokens"
    answer = make(at, **{key: 4}).invoke(COUNT)
    said = answer.response_metadata
    found = [said.get(name) for name in ("finish_reason", "done_reason", "stop_reason", "status")]
    assert {"length", "max_tokens", "incomplete"} & set(map(str, found)), said


def runs_an_agent(at: At, make: Maker) -> None:
    """Hold an agent of LangChain's to a loop that ends with the tool's result."""
    agent = create_agent(make(at), [get_weather])
    messages = agent.invoke({"messages": [{"role": "user", "content": PARIS}]})["messages"]
    assert any(isinstance(message, ToolMessage) for message in messages), messages
    assert WEATHER in text_of(messages[-1]), messages


CALLS: dict[str, Callable[..., Any]] = {
    "invoke": invokes,
    "stream": streams,
    "astream": streams_asynchronously,
    "batch": batches,
    "bind_tools": loops_with_a_tool,
    "streamed calls": streams_calls,
    "tool_choice": forces_a_tool,
    "with_structured_output": structures,
    "with_structured_output by tool": structures_by_tool,
    "with_structured_output by schema": structures_by_schema,
    "limit": limits,
    "agent": runs_an_agent,
}


def _add(maker: str, name: str) -> None:
    @told(f"{maker}: {name}")
    def call(at: At) -> Any:
        return CALLS[name](at, MAKERS[maker])


UNFORCED = {("ollama", "tool_choice"), ("ollama", "with_structured_output by tool")}
"""Left out: Ollama's API has no way to say that a tool must be called."""

for one in MAKERS:
    for each in CALLS:
        if (one, each) not in UNFORCED:
            _add(one, each)


@told("openai: completion")
def completes(at: At) -> None:
    """Hold a text completion to its text, whole and streamed."""
    llm = OpenAI(
        base_url=f"{at.url}/v1", api_key="none", model=at.model, temperature=0, max_tokens=8
    )
    text = llm.invoke("1, 2, 3,")
    assert text and "".join(llm.stream("1, 2, 3,")) == text, text


@told("ollama: completion")
def generates(at: At) -> None:
    """Hold Ollama's generate to its text, whole and streamed."""
    llm = OllamaLLM(base_url=at.url, model=at.model, temperature=0)
    assert COUNTED in llm.invoke(COUNT)
    assert COUNTED in "".join(llm.stream(COUNT))


@told("ollama: thinking")
def thinks(at: At) -> None:
    """Hold thinking to its place beside the text."""
    answer = ollama_chat(at, reasoning=True).invoke(COUNT)
    assert answer.additional_kwargs["reasoning_content"], answer
    assert "<think>" not in text_of(answer), answer


@told("anthropic: thinking")
def thinks_in_blocks(at: At) -> None:
    """Hold thinking to a block of its own, and a second turn to taking it back."""
    chat = anthropic_chat(at, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    first = chat.invoke(COUNT)
    kinds = [block["type"] for block in first.content]
    assert kinds == ["thinking", "text"], first
    assert text_of(chat.invoke([HumanMessage(COUNT), first, HumanMessage(COUNT)]))


@told("openai responses: previous_response_id")
def goes_on(at: At) -> None:
    """Hold a second question to what the first response keeps."""
    chat = openai_responses(at)
    first = chat.invoke("My name is Anna.")
    again = chat.invoke("What is my name?", previous_response_id=first.response_metadata["id"])
    assert "Anna" in text_of(again), again


if __name__ == "__main__":
    tell("langchain", "langchain")
