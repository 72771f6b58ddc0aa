"""Types of Anthropic's answers to messages and token counts: whole answers, and events of a stream.

Pure. The OpenAPI document shows them; tests check rendered answers against them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

StopWord = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]


class ThinkingTokens(TypedDict):
    """How many of an answer's tokens were thinking."""

    thinking_tokens: int


class AnthropicUsage(TypedDict):
    """Tokens of an answer. `input_tokens` excludes the prompt tokens that came from the prefix
    cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class SaidBlock(TypedDict):
    """Text of the assistant."""

    type: Literal["text"]
    text: str


class ThoughtBlock(TypedDict):
    """Thinking of the assistant. The signature carries no information."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class UseBlock(TypedDict):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnsweredBlock = SaidBlock | ThoughtBlock | UseBlock


class AnthropicEnd(TypedDict):
    """Why an answer ended; null until it has ended."""

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
    """The first event. It has the message, still without content."""

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
    """The signature of a thinking block, sent at the block's end."""

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
    """Why the answer ended, and its usage."""

    type: Literal["message_delta"]
    delta: AnthropicEnd
    usage: AnthropicUsage


class MessageStop(TypedDict):
    """The last event."""

    type: Literal["message_stop"]


class PingEvent(TypedDict):
    """Keeps the connection alive."""

    type: Literal["ping"]


AnthropicEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | PingEvent
)


class CountAnswer(TypedDict):
    """The number of tokens of a prompt."""

    input_tokens: int


class AnthropicErrorText(TypedDict):
    """An error. `details` is set if clients use the details to decide how to retry."""

    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicError(TypedDict):
    """The body of a failure."""

    type: Literal["error"]
    error: AnthropicErrorText
    request_id: NotRequired[str]


class AnthropicModel(TypedDict):
    """A model; unknown limits are omitted."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NotRequired[int]
    max_tokens: NotRequired[int]


class AnthropicModels(TypedDict):
    """A page of the models. The first and last ids are null if the page is empty."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
