"""What OpenAI's clients send as messages: the closed types of content and of turns.

Pure. Shapes only. Clients send our own answers back with all else that they know of them; what
means nothing in a prompt is typed `Unused`, for the reason beside it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from gateway.dialects.body import Closed, Unused, by_field, by_shape

# --- content ------------------------------------------------------------------------------


class TextPartBody(Closed):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Unused = None  # another provider's caching; ours needs no marks


class RefusalPartBody(Closed):
    """An assistant's earlier refusal, read as its text."""

    type: Literal["refusal"]
    refusal: str


class ImageUrlBody(Closed):
    """Where an image is; `data:` URLs included."""

    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high"] | None = None


class ImagePartBody(Closed):
    """An image, for models that see."""

    type: Literal["image_url"]
    image_url: ImageUrlBody
    cache_control: Unused = None


def _content_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "~text"
    return "~parts" if isinstance(value, list) else None


_CONTENT = by_shape("a string or a list of parts", _content_tag)

UserPart = Annotated[
    Annotated[TextPartBody, Tag("~text")] | Annotated[ImagePartBody, Tag("~image_url")],
    by_field("type", "text", "image_url"),
]
AssistantPart = Annotated[
    Annotated[TextPartBody, Tag("~text")] | Annotated[RefusalPartBody, Tag("~refusal")],
    by_field("type", "text", "refusal"),
]
PlainContent = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[TextPartBody], Field(min_length=1)], Tag("~parts")],
    _CONTENT,
]
UserContent = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[UserPart], Field(min_length=1)], Tag("~parts")],
    _CONTENT,
]
AssistantContent = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[AssistantPart], Field(min_length=1)], Tag("~parts")],
    _CONTENT,
]

# --- messages -----------------------------------------------------------------------------


class SystemMessageBody(Closed):
    """What the model is told about its task; `developer` is the newer name."""

    role: Literal["system", "developer"]
    content: PlainContent
    name: str | None = None
    cache_control: Unused = None


class UserMessageBody(Closed):
    """What the user says."""

    role: Literal["user"]
    content: UserContent
    name: str | None = None
    cache_control: Unused = None


class CalledFunctionBody(Closed):
    """`arguments` is JSON text, as it was received."""

    name: str = Field(min_length=1)
    arguments: str


class ToolCallBody(Closed):
    """A call that the assistant made."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunctionBody
    index: Unused = None  # left over from a stream that the client put together


class AssistantMessageBody(Closed):
    """What the assistant said, as clients send our own answers back."""

    role: Literal["assistant"]
    content: AssistantContent | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Unused = None  # citations of an answer already given
    provider_specific_fields: Unused = None  # a proxy's notes to itself
    cache_control: Unused = None
    audio: None = None
    function_call: None = None


class ToolMessageBody(Closed):
    """What a tool answered."""

    role: Literal["tool"]
    content: PlainContent
    tool_call_id: str = Field(min_length=1)
    name: str | None = None
    cache_control: Unused = None


MessageBody = Annotated[
    Annotated[SystemMessageBody, Tag("~system")]
    | Annotated[SystemMessageBody, Tag("~developer")]
    | Annotated[UserMessageBody, Tag("~user")]
    | Annotated[AssistantMessageBody, Tag("~assistant")]
    | Annotated[ToolMessageBody, Tag("~tool")],
    by_field("role", "system", "developer", "user", "assistant", "tool"),
]
