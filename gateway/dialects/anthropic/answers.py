"""What messages and their counts answer, whole and in events, as types.

Pure. The OpenAPI document shows these; what is rendered is held to them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

StopWord = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]


class ThinkingTokens(TypedDict):
    """How many of an answer's tokens were thinking."""

    thinking_tokens: int


class AnthropicUsage(TypedDict):
    """What an answer took, in tokens; `input_tokens` are without those that were cached."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class SaidBlock(TypedDict):
    """What the assistant said."""

    type: Literal["text"]
    text: str


class ThoughtBlock(TypedDict):
    """What the assistant thought; the signature says nothing."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class UseBlock(TypedDict):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnsweredBlock = SaidBlock | ThoughtBlock | UseBlock


class AnthropicEnd(TypedDict):
    """Why an answer ended; null while it goes on."""

    stop_reason: StopWord | None
    stop_sequence: str | None


class AnthropicAnswer(AnthropicEnd):
    """A message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnsweredBlock]
    usage: AnthropicUsage


class MessageStart(TypedDict):
    """The first event: the message before anything was said."""

    type: Literal["message_start"]
    message: AnthropicAnswer


class BlockStart(TypedDict):
    """A block begins."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnsweredBlock


class SaidDelta(TypedDict):
    """A piece of text."""

    type: Literal["text_delta"]
    text: str


class ThoughtDelta(TypedDict):
    """A piece of thinking."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """The end of some thinking."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    """A piece of a call's input, as JSON text."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    """A piece of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: SaidDelta | ThoughtDelta | SignatureDelta | InputDelta


class BlockStop(TypedDict):
    """A block ends."""

    type: Literal["content_block_stop"]
    index: int


class MessageDelta(TypedDict):
    """Why the answer ended, and what it took."""

    type: Literal["message_delta"]
    delta: AnthropicEnd
    usage: AnthropicUsage


class MessageStop(TypedDict):
    """The last event."""

    type: Literal["message_stop"]


class PingEvent(TypedDict):
    """Nothing; the connection is alive."""

    type: Literal["ping"]


AnthropicEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | PingEvent
)


class CountAnswer(TypedDict):
    """How many tokens a prompt has."""

    input_tokens: int


class AnthropicErrorText(TypedDict):
    """An error; `details` where clients know by them that they have to ask in another way."""

    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicError(TypedDict):
    """The body of a failure."""

    type: Literal["error"]
    error: AnthropicErrorText
    request_id: NotRequired[str]


class AnthropicModel(TypedDict):
    """A model; its limits are left out where they are not known."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NotRequired[int]
    max_tokens: NotRequired[int]


class AnthropicModels(TypedDict):
    """A page of the models; the ids are null where it is empty."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
