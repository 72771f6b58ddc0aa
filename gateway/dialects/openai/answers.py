"""Types of the answers to chat completions and completions, whole and in chunks. Pure. The OpenAPI
document shows them; tests check rendered answers against them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from bus.wire.messages.requests import Drafter

FinishWord = Literal["stop", "length", "tool_calls", "function_call"]
Tier = Literal["default", "flex", "priority"]


class CachedTokens(TypedDict):
    """How many of a prompt's tokens came from the prefix cache."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """How many of an answer's tokens were thinking. The other two fields are present if a part of
    the request's `prediction` was tried. They count its tokens that the model accepted and
    rejected."""

    reasoning_tokens: int
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class TokenUsage(TypedDict):
    """Tokens of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class ProposalTiming(TypedDict):
    """The cost of drafts by a drafter with a network: its passes, and the most bytes of accelerator
    memory that one proposal took."""

    passes: NotRequired[int]
    peak_bytes: NotRequired[int]


class DrafterTiming(ProposalTiming):
    """How many drafts of a drafter were verified, their tokens, and the accepted ones."""

    drafts: int
    drafted_tokens: int
    accepted_tokens: int


class AnswerTiming(TypedDict):
    """The times of an answer in seconds, and its speed in tokens per second; not in OpenAI's API.
    The counts of draft tokens, in all and by drafter, are present if drafts were verified
    (speculative decoding). `resumes` and `paused_seconds` (the time without a token) are present if
    the answer continued after its runner was lost."""

    seconds: float
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_sec: float
    decode_tokens_per_sec: float
    drafted_tokens: NotRequired[int]
    accepted_draft_tokens: NotRequired[int]
    drafters: NotRequired[dict[Drafter, DrafterTiming]]
    resumes: NotRequired[int]
    paused_seconds: NotRequired[float]


class LikelyToken(TypedDict):
    """A token and its log-probability. `bytes` is null if the token is only part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ScoredToken(LikelyToken):
    """A token of the answer, with its likeliest alternatives."""

    top_logprobs: list[LikelyToken]


class ChatScores(TypedDict):
    """Log-probabilities of a text."""

    content: list[ScoredToken]
    refusal: None


class AnsweredFunction(TypedDict):
    """A function that the model called; `arguments` is JSON text."""

    name: str
    arguments: str


class AnsweredCall(TypedDict):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredCustom(TypedDict):
    """A custom tool that the model called, and its text input."""

    name: str
    input: str


class AnsweredCustomCall(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: AnsweredCustom


class AnsweredMessage(TypedDict):
    """The assistant's turn. `content` is null if the turn has only calls. `function_call` is the
    deprecated form of a call, used if the body has `functions`."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnsweredCall | AnsweredCustomCall]]
    function_call: NotRequired[AnsweredFunction]


class ChatChoice(TypedDict):
    """One answer. `stop_reason` is set if the answer was cancelled or ended for lack of memory."""

    index: int
    message: AnsweredMessage
    logprobs: ChatScores | None
    finish_reason: FinishWord
    stop_reason: NotRequired[Literal["cancelled", "memory_pressure"]]


class ChatAnswer(TypedDict):
    """A complete chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Tier]
    choices: list[ChatChoice]
    usage: TokenUsage
    timing: AnswerTiming


class MemoryTaken(TypedDict):
    """A number of bytes, in a field with the name that exo's benchmarks read."""

    inBytes: int


class GenerationStats(TypedDict):
    """The speed of an answer.

    `prompt_tps` is computed prompt tokens per second of prefill. `generation_tps` is tokens after
    the first per second of decoding. `ttft_s` is from the request's arrival to its first token;
    null without tokens. `peak_memory_usage` is the runners' peak array memory since the model was
    loaded, as last reported; null if unknown.
    """

    prompt_tps: float
    generation_tps: float
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    ttft_s: float | None
    peak_memory_usage: MemoryTaken | None


class BenchAnswer(ChatAnswer):
    """A chat completion, and its speed if a model of the cluster made it."""

    generation_stats: NotRequired[GenerationStats]


class FunctionDelta(TypedDict):
    """A piece of a call; only the first has the name."""

    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """A piece of a call; only the first has the id."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class CustomDelta(TypedDict):
    """A piece of a custom tool's input; only the first has the name."""

    name: NotRequired[str]
    input: str


class CustomCallDelta(TypedDict):
    """A piece of a custom tool's call; only the first has the id."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["custom"]]
    custom: CustomDelta


class ChatDelta(TypedDict):
    """A chunk's additions to the assistant's turn."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta | CustomCallDelta]]
    function_call: NotRequired[FunctionDelta]


class ChatChunkChoice(TypedDict):
    """A chunk's additions to one answer. The finish reason comes in a chunk of its own."""

    index: int
    delta: ChatDelta
    logprobs: NotRequired[ChatScores]
    finish_reason: FinishWord | None
    stop_reason: NotRequired[Literal["cancelled", "memory_pressure"]]


class ChatChunk(TypedDict):
    """A piece of a chat completion. The last chunk has the timing. If the body asked for usage, the
    last chunk has the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Tier]
    choices: list[ChatChunkChoice]
    usage: NotRequired[TokenUsage]
    timing: NotRequired[AnswerTiming]


class CompletionScores(TypedDict):
    """Log-probabilities of a text, in the older shape; null for a prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One continuation, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionScores | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: NotRequired[Literal["cancelled", "memory_pressure"]]


class CompletionHead(TypedDict):
    """Fields that a whole completion and each piece of a streamed one have."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Tier]
    choices: list[CompletionChoice]


class CompletionChunk(CompletionHead):
    """A piece of a completion. The last chunk has the timing. If the body asked for usage, the last
    chunk has the usage and no choices."""

    usage: NotRequired[TokenUsage]
    timing: NotRequired[AnswerTiming]


class CompletionAnswer(CompletionHead):
    """A complete text completion."""

    usage: TokenUsage
    timing: AnswerTiming


class EmbeddingUsage(TypedDict):
    """Tokens of the inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The vector of one input, as numbers or as 32-bit floats in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(TypedDict):
    """Vectors, in the order of their inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@with_config(ConfigDict(extra="allow"))
class ErrorText(TypedDict):
    """An error. The numbers that explain a refusal are further members."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """The body of a failure."""

    error: ErrorText


class OpenAIModel(TypedDict):
    """A model. The fields after `owned_by` are not in OpenAI's API."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    context_length: int
    capabilities: list[str]
    loaded: bool


class OpenAIModels(TypedDict):
    """The models of the cluster."""

    object: Literal["list"]
    data: list[OpenAIModel]


class OpenAIList(TypedDict):
    """A page of a list. The first and last ids are null if the page is empty."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemList(OpenAIList):
    """A page of items or messages, each with the fields of its kind."""

    data: list[dict[str, Any]]


class StoredChat(ChatAnswer):
    """A stored chat completion, with its labels."""

    metadata: dict[str, str]


class StoredChats(OpenAIList):
    """A page of stored chat completions."""

    data: list[StoredChat]


class RemovedChat(TypedDict):
    """A chat completion that was deleted."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]
