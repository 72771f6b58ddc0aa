"""Instructor's calls: OpenAI's and Anthropic's clients, patched to return types, in each mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anthropic
import instructor
import openai
from instructor import Mode
from pydantic import BaseModel, Field, create_model
from telling import BOTH, PERSON, At, tell, told


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int


WEATHER_OF: Any = create_model("get_weather", __doc__="Get the weather for a city", city=(str, ...))
"""A type with a name that the bundled model knows as a tool's."""


def by_openai(at: At, mode: Any) -> Any:
    """Return Instructor over OpenAI's client."""
    client = openai.OpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=0, timeout=90)
    return instructor.from_openai(client, mode=mode)


def by_anthropic(at: At, mode: Any) -> Any:
    """Return Instructor over Anthropic's client."""
    client = anthropic.Anthropic(base_url=at.url, api_key="none", max_retries=0, timeout=90)
    return instructor.from_anthropic(client, mode=mode)


Maker = Callable[[At, Any], Any]
MODES: list[tuple[str, Maker, Any]] = [
    ("openai", by_openai, Mode.TOOLS),
    ("openai", by_openai, Mode.TOOLS_STRICT),
    ("openai", by_openai, Mode.JSON),
    ("openai", by_openai, Mode.JSON_SCHEMA),
    ("openai", by_openai, Mode.RESPONSES_TOOLS),
    ("anthropic", by_anthropic, Mode.ANTHROPIC_TOOLS),
]


def asked(at: At, make: Maker, **more: Any) -> dict[str, Any]:
    """Return the keywords of one question; Anthropic's client knows no temperature."""
    messages = [{"role": "user", "content": PERSON}]
    greedy = {} if make is by_anthropic else {"temperature": 0}
    return {
        "model": at.model,
        "max_tokens": 300,
        "max_retries": 1,
        "messages": messages,
        **greedy,
        **more,
    }


def creates(at: At, make: Maker, mode: Any) -> None:
    """Hold an answer to its type."""
    client = make(at, mode).chat.completions if make is by_openai else make(at, mode).messages
    limit = {"max_output_tokens": 300} if mode is Mode.RESPONSES_TOOLS else {}
    words = asked(at, make, response_model=Person, **limit)
    if limit:
        del words["max_tokens"]
    assert isinstance(client.create(**words), Person)


def calls_twice(at: At, make: Maker, mode: Any) -> None:
    """Hold parallel tools to an object for each call."""
    client = make(at, mode).chat.completions if make is by_openai else make(at, mode).messages
    words = asked(at, make, response_model=Iterable[WEATHER_OF])
    words["messages"] = [{"role": "user", "content": BOTH}]
    assert [made.city for made in client.create(**words)] == ["Paris", "London"]


def streams_parts(at: At, make: Maker, mode: Any) -> None:
    """Hold a stream of unfinished objects to a whole one at its end; arguments of a tool may come
    at once."""
    client = make(at, mode).chat.completions if make is by_openai else make(at, mode).messages
    parts = list(client.create_partial(**asked(at, make, response_model=Person)))
    assert len(parts) > (2 if mode is Mode.JSON_SCHEMA else 0), parts
    assert isinstance(parts[-1].age, int) and parts[-1].name, parts


def _add(name: str, call: Callable[..., None], make: Maker, mode: Any) -> None:
    @told(name)
    def made(at: At) -> None:
        call(at, make, mode)


for who, maker, one in MODES:
    _add(f"{who}: {one.name.lower()}", creates, maker, one)
for who, maker, one in MODES:
    if one in (Mode.TOOLS, Mode.JSON_SCHEMA, Mode.ANTHROPIC_TOOLS):
        _add(f"{who}: {one.name.lower()}, partial", streams_parts, maker, one)


_add("openai: parallel_tools", calls_twice, by_openai, Mode.PARALLEL_TOOLS)
_add("anthropic: parallel_tools", calls_twice, by_anthropic, Mode.ANTHROPIC_PARALLEL_TOOLS)


@told("openai: counts beside the object")
def tells_the_completion(at: At) -> None:
    """Hold the answer beside the object to its counts."""
    client = by_openai(at, Mode.TOOLS).chat.completions
    words = asked(at, by_openai, response_model=Person)
    person, completion = client.create_with_completion(**words)
    assert isinstance(person, Person) and completion.usage.completion_tokens > 0, completion


if __name__ == "__main__":
    tell("instructor", "instructor")
