"""Types of the prompts that OpenAI's clients send: chat messages with their content, and raw
prompts. Each type lists the fields that it accepts.

Pure. This module has only types. Clients send earlier answers of shoal back as messages, with
fields that only answers need. Such a field has the type `Unused`, with the reason why it has no
effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field, Tag

from gateway.dialects.body import (
    Closed,
    Unused,
    by_field,
    by_shape,
    by_type,
    honoured,
    no_effect,
    only,
)

# --- content ------------------------------------------------------------------------------


class TextPartBody(Closed):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Unused = no_effect("prefixes are cached automatically")


class RefusalPartBody(Closed):
    """An earlier refusal of the assistant, read as its text."""

    type: Literal["refusal"]
    refusal: str


class ImageUrlBody(Closed):
    """An image's URL; may be a `data:` URL."""

    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high"] | None = None


class ImagePartBody(Closed):
    """An image, for vision models."""

    type: Literal["image_url"]
    image_url: ImageUrlBody
    cache_control: Unused = no_effect("prefixes are cached automatically")


UserPart = Annotated[
    Annotated[TextPartBody, Tag("~text")] | Annotated[ImagePartBody, Tag("~image_url")],
    by_field("type", "text", "image_url"),
]
AssistantPart = Annotated[
    Annotated[TextPartBody, Tag("~text")] | Annotated[RefusalPartBody, Tag("~refusal")],
    by_field("type", "text", "refusal"),
]
Part = TypeVar("Part")
Content = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[Part], Field(min_length=1)], Tag("~parts")],
    by_type("a string or a list of parts", {str: "~text", list: "~parts"}),
]

# --- messages -----------------------------------------------------------------------------


class SystemMessageBody(Closed):
    """Instructions to the model; `developer` is the newer name."""

    role: Literal["system", "developer"]
    content: Content[TextPartBody]
    name: str | None = None
    cache_control: Unused = no_effect("prefixes are cached automatically")


class UserMessageBody(Closed):
    """A turn of the user."""

    role: Literal["user"]
    content: Content[UserPart]
    name: str | None = None
    cache_control: Unused = no_effect("prefixes are cached automatically")


class CalledFunctionBody(Closed):
    """A function that the model called. `arguments` is JSON text, as received."""

    name: str = Field(min_length=1)
    arguments: str


class ToolCallBody(Closed):
    """A tool call by the assistant."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunctionBody
    index: Unused = no_effect("left over from a stream that the client assembled")


class CalledToolBody(Closed):
    """A custom tool that the model called, and its text input."""

    name: str = Field(min_length=1)
    input: str


class CustomCallBody(Closed):
    """A call of a custom tool. It is treated as a function call whose only argument is the tool's
    text input."""

    id: str = Field(min_length=1)
    type: Literal["custom"]
    custom: CalledToolBody
    index: Unused = no_effect("left over from a stream that the client assembled")


def _call_tag(value: Any) -> str | None:
    if isinstance(value, Mapping):
        custom = cast(Mapping[str, Any], value).get("type") == "custom"
        return "~custom" if custom else "~function"
    return "~custom" if isinstance(value, CustomCallBody) else "~function"


CallBody = Annotated[
    Annotated[ToolCallBody, Tag("~function")] | Annotated[CustomCallBody, Tag("~custom")],
    by_shape("an object", _call_tag),
]


class AssistantMessageBody(Closed):
    """A turn of the assistant: an earlier answer that the client sends back."""

    role: Literal["assistant"]
    content: Content[AssistantPart] | None = None
    name: str | None = None
    tool_calls: list[CallBody] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Unused = no_effect("citations in an earlier answer")
    provider_specific_fields: Unused = no_effect("a proxy's notes to itself")
    cache_control: Unused = no_effect("prefixes are cached automatically")
    audio: None = only(why="answers are text")
    function_call: CalledFunctionBody | None = honoured("OpenAI's deprecated form of tool_calls")


class ToolMessageBody(Closed):
    """A tool's result."""

    role: Literal["tool"]
    content: Content[TextPartBody]
    tool_call_id: str = Field(min_length=1)
    name: str | None = None
    cache_control: Unused = no_effect("prefixes are cached automatically")


class FunctionMessageBody(Closed):
    """A function's result in OpenAI's deprecated form, for the last call before this message."""

    role: Literal["function"]
    name: str = Field(min_length=1)
    content: str | None


MessageBody = Annotated[
    Annotated[SystemMessageBody, Tag("~system")]
    | Annotated[SystemMessageBody, Tag("~developer")]
    | Annotated[UserMessageBody, Tag("~user")]
    | Annotated[AssistantMessageBody, Tag("~assistant")]
    | Annotated[ToolMessageBody, Tag("~tool")]
    | Annotated[FunctionMessageBody, Tag("~function")],
    by_field("role", "system", "developer", "user", "assistant", "tool", "function"),
]


# --- raw prompts --------------------------------------------------------------------------

VocabularyIndex = Annotated[int, Field(ge=0, lt=2**31)]


def _prompt_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "~text"
    if not isinstance(value, list):
        return None
    items = cast(list[Any], value)
    if items and isinstance(items[0], str):
        return "~texts"
    return "~token_lists" if items and isinstance(items[0], list) else "~tokens"


Tokens = Annotated[list[VocabularyIndex], Field(min_length=1, fail_fast=True)]
PromptBody = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[str], Field(fail_fast=True)], Tag("~texts")]
    | Annotated[Tokens, Tag("~tokens")]
    | Annotated[Annotated[list[Tokens], Field(fail_fast=True)], Tag("~token_lists")],
    by_shape("a string, a list of strings, a list of token ids or a list of those", _prompt_tag),
]
