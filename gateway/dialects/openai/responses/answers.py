"""Types of the answers of the responses API: whole responses, and events of a stream.

Pure. The OpenAPI document shows them; tests check rendered answers against them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from gateway.dialects.openai.answers import CachedTokens, ReasoningTokens, Tier

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponseCachedTokens(CachedTokens):
    """How many of a prompt's tokens came from the prefix cache. Caching is automatic, so
    `cache_write_tokens` is 0."""

    cache_write_tokens: int


class ResponseUsage(TypedDict):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: ResponseCachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseLikelyToken(TypedDict):
    """A token and its log-probability. `bytes` is empty if it is only part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ResponseScoredToken(ResponseLikelyToken):
    """A token of the answer, with its likeliest alternatives."""

    top_logprobs: list[ResponseLikelyToken]


class AnsweredText(TypedDict):
    """Text of the assistant."""

    type: Literal["output_text"]
    annotations: list[Any]
    logprobs: list[ResponseScoredToken]
    text: str


class AnsweredThought(TypedDict):
    """Thinking of the assistant."""

    type: Literal["reasoning_text"]
    text: str


class AnsweredSummary(TypedDict):
    """The assistant's thinking, as its own summary."""

    type: Literal["summary_text"]
    text: str


class AnsweredMessageItem(TypedDict):
    """Text of the assistant, as an item."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[AnsweredText]


class AnsweredReasoningItem(TypedDict):
    """Thinking of the assistant, as an item. If the client asks for them, the item has a summary
    and the encoded thinking that clients send back."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[AnsweredSummary]
    content: list[AnsweredThought]
    encrypted_content: NotRequired[str]


class AnsweredCallItem(TypedDict):
    """A tool call, as an item; `arguments` is JSON text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class AnsweredCustomItem(TypedDict):
    """A call of a custom tool, as an item."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str


AnsweredItem = AnsweredMessageItem | AnsweredReasoningItem | AnsweredCallItem | AnsweredCustomItem


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class ResponseConversation(TypedDict):
    """The conversation that a response belongs to."""

    id: str


class ResponseAnswer(TypedDict):
    """A response. It always has all its keys."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[AnsweredItem]
    error: ResponseError | None
    usage: ResponseUsage | None
    previous_response_id: str | None
    conversation: ResponseConversation | None
    instructions: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    max_tool_calls: int | None
    truncation: Literal["auto", "disabled"]
    background: bool
    store: bool
    service_tier: Tier
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class NumberedEvent(TypedDict):
    """Every event has this field: its number, counted from 0 without gaps."""

    sequence_number: int


class ResponseTold(NumberedEvent):
    """An event with the response: the first two events have its current state, the last one has it
    complete."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseAnswer


class ItemTold(NumberedEvent):
    """An event with an item: the item begins, or is complete."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: AnsweredItem


class PlacedEvent(NumberedEvent):
    """The fields of every event about an item: the item's id and its index."""

    item_id: str
    output_index: int


class PartTold(PlacedEvent):
    """An event with a part of an item's content: the part begins, or is complete."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: AnsweredText | AnsweredThought


class TextDeltaTold(PlacedEvent):
    """A piece of text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[ResponseScoredToken]


class TextDoneTold(PlacedEvent):
    """A complete text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[ResponseScoredToken]


class ThoughtDeltaTold(PlacedEvent):
    """A piece of thinking."""

    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ThoughtDoneTold(PlacedEvent):
    """The complete thinking."""

    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class SummaryPartTold(PlacedEvent):
    """The summary of thinking begins, or is complete."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: int
    part: AnsweredSummary


class SummaryDeltaTold(PlacedEvent):
    """A piece of a summary."""

    type: Literal["response.reasoning_summary_text.delta"]
    summary_index: int
    delta: str


class SummaryDoneTold(PlacedEvent):
    """A complete summary."""

    type: Literal["response.reasoning_summary_text.done"]
    summary_index: int
    text: str


class ArgumentsDeltaTold(PlacedEvent):
    """A piece of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneTold(PlacedEvent):
    """A call's complete arguments."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class InputDeltaTold(PlacedEvent):
    """A piece of a custom tool's input."""

    type: Literal["response.custom_tool_call_input.delta"]
    delta: str


class InputDoneTold(PlacedEvent):
    """A custom tool's complete input."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorTold(NumberedEvent):
    """A failure. The last event of the stream follows it, and has the failed response."""

    type: Literal["error"]
    code: str
    message: str
    param: str | None
    error: dict[str, Any]


ResponseEvent = (
    ResponseTold
    | ItemTold
    | PartTold
    | TextDeltaTold
    | TextDoneTold
    | ThoughtDeltaTold
    | ThoughtDoneTold
    | SummaryPartTold
    | SummaryDeltaTold
    | SummaryDoneTold
    | ArgumentsDeltaTold
    | ArgumentsDoneTold
    | InputDeltaTold
    | InputDoneTold
    | ErrorTold
)


class InputTokensAnswer(TypedDict):
    """The number of tokens of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class RemovedResponse(TypedDict):
    """A response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ConversationTold(TypedDict):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class RemovedConversation(TypedDict):
    """A conversation that was deleted."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
