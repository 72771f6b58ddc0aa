"""LlamaIndex's calls: OpenAILike, Ollama and Anthropic; completions, chat, tools, types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage, LLMMetadata
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from telling import BOTH, COUNT, COUNTED, PARIS, PERSON, WEATHER, At, tell, told


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int


def get_weather(city: str) -> str:
    """Get the weather for a city"""
    return WEATHER


def openai_like(at: At) -> Any:
    """Return LlamaIndex's client of servers that are like OpenAI's."""
    return OpenAILike(
        model=at.model, api_base=f"{at.url}/v1", api_key="none", temperature=0, max_tokens=300,
        is_chat_model=True, is_function_calling_model=True, max_retries=0,
    )  # fmt: skip


def ollama(at: At) -> Any:
    """Return LlamaIndex's client of Ollama."""
    return Ollama(model=at.model, base_url=at.url, temperature=0, request_timeout=90)


class AnyAnthropic(Anthropic):
    """LlamaIndex's client of Anthropic, which knows Anthropic's own models alone."""

    @property
    def metadata(self) -> LLMMetadata:
        """What the library wants to know of a model before it asks."""
        return LLMMetadata(
            context_window=4096, num_output=300, is_chat_model=True,
            is_function_calling_model=True, model_name=self.model,
        )  # fmt: skip


def anthropic(at: At) -> Any:
    """Return LlamaIndex's client of Anthropic."""
    return AnyAnthropic(
        model=at.model, base_url=at.url, api_key="none", max_tokens=300, max_retries=0
    )


Maker = Callable[[At], Any]
MAKERS: dict[str, Maker] = {"openai-like": openai_like, "ollama": ollama, "anthropic": anthropic}


def completes(at: At, make: Maker) -> None:
    """Hold a completion to its text."""
    text = make(at).complete(COUNT).text
    assert COUNTED in text, text


def chats(at: At, make: Maker) -> None:
    """Hold a chat to its text."""
    messages = [ChatMessage(role="system", content="You are helpful."), ChatMessage(COUNT)]
    answer = make(at).chat(messages)
    assert COUNTED in (answer.message.content or ""), answer


def streams(at: At, make: Maker) -> None:
    """Hold a streamed chat to pieces of its text."""
    chunks = list(make(at).stream_chat([ChatMessage(COUNT)]))
    pieces = [chunk.delta for chunk in chunks if chunk.delta]
    assert len(pieces) > 5 and COUNTED in "".join(pieces), pieces


async def streams_asynchronously(at: At, make: Maker) -> None:
    """Hold the asynchronous stream to its text."""
    stream = await make(at).astream_chat([ChatMessage(COUNT)])
    text = "".join([chunk.delta or "" async for chunk in stream])
    assert COUNTED in text, text


def loops_with_a_tool(at: At, make: Maker) -> None:
    """Hold a tool to its call, and the answer to the tool's result."""
    llm, tool = make(at), FunctionTool.from_defaults(get_weather)
    question = ChatMessage(PARIS)
    answer = llm.chat_with_tools([tool], chat_history=[question])
    [call] = llm.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"}), call
    result = ChatMessage(
        role="tool", content=WEATHER, additional_kwargs={"tool_call_id": call.tool_id}
    )
    said = llm.chat_with_tools([tool], chat_history=[question, answer.message, result])
    assert WEATHER in (said.message.content or ""), said


def calls_twice(at: At, make: Maker) -> None:
    """Hold two calls of a streamed answer to their arguments."""
    llm, tool = make(at), FunctionTool.from_defaults(get_weather)
    last = list(llm.stream_chat_with_tools([tool], user_msg=BOTH, allow_parallel_tool_calls=True))[
        -1
    ]
    calls = llm.get_tool_calls_from_response(last)
    assert [call.tool_kwargs for call in calls] == [{"city": "Paris"}, {"city": "London"}], calls


def structures(at: At, make: Maker) -> None:
    """Hold a structured answer to its type."""
    made = make(at).structured_predict(Person, PromptTemplate("{question}"), question=PERSON)
    assert isinstance(made, Person), made


async def runs_an_agent(at: At, make: Maker) -> None:
    """Hold an agent's loop to an answer with the tool's result."""
    agent = FunctionAgent(tools=[get_weather], llm=make(at))
    text = str(await agent.run(user_msg=PARIS))
    assert WEATHER in text, text


CALLS: dict[str, Callable[..., Any]] = {
    "complete": completes,
    "chat": chats,
    "stream_chat": streams,
    "astream_chat": streams_asynchronously,
    "tool loop": loops_with_a_tool,
    "streamed calls": calls_twice,
    "structured": structures,
    "agent": runs_an_agent,
}


def _add(maker: str, name: str) -> None:
    @told(f"{maker}: {name}")
    def call(at: At) -> Any:
        return CALLS[name](at, MAKERS[maker])


UNFORCED = {("anthropic", "structured")}
"""Left out: LlamaIndex asks Anthropic's API for a tool without saying that it must be called."""

for one in MAKERS:
    for each in CALLS:
        if (one, each) not in UNFORCED:
            _add(one, each)


if __name__ == "__main__":
    tell("llama-index", "llama-index-core")
