"""What chat completions and completions answer, whole and in chunks, as types.

Pure. The OpenAPI document shows these; what is rendered is held to them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

FinishWord = Literal["stop", "length", "tool_calls", "function_call"]
Tier = Literal["default", "flex", "priority"]


class CachedTokens(TypedDict):
    """How many of a prompt's tokens the prefix cache gave."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """How many of an answer's tokens were thinking."""

    reasoning_tokens: int


class TokenUsage(TypedDict):
    """What an answer took, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class AnswerTiming(TypedDict):
    """What an answer took, in seconds; beyond OpenAI's."""

    seconds: float
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_sec: float
    decode_tokens_per_sec: float


class LikelyToken(TypedDict):
    """A token, and the logarithm of its probability; `bytes` is null in a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ScoredToken(LikelyToken):
    """A token of the answer, with the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChatScores(TypedDict):
    """The log-probabilities of some text."""

    content: list[ScoredToken]
    refusal: None


class AnsweredFunction(TypedDict):
    """A function that is called; `arguments` is JSON text."""

    name: str
    arguments: str


class AnsweredCall(TypedDict):
    """A call."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredCustom(TypedDict):
    """A tool that takes text, as it is called."""

    name: str
    input: str


class AnsweredCustomCall(TypedDict):
    """A call of a tool that takes text."""

    id: str
    type: Literal["custom"]
    custom: AnsweredCustom


class AnsweredMessage(TypedDict):
    """The assistant's turn; `content` is null where there are calls alone. `function_call` is one
    in the older form, where the body has functions."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnsweredCall | AnsweredCustomCall]]
    function_call: NotRequired[AnsweredFunction]


class ChatChoice(TypedDict):
    """One answer; `stop_reason` where it was cancelled."""

    index: int
    message: AnsweredMessage
    logprobs: ChatScores | None
    finish_reason: FinishWord
    stop_reason: NotRequired[Literal["cancelled", "memory_pressure"]]


class ChatAnswer(TypedDict):
    """A chat completion, whole."""

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
    """Bytes, by the name that exo's benchmarks read."""

    inBytes: int


class GenerationStats(TypedDict):
    """How fast an answer was: tokens of the prompt that were computed, over the seconds of prefill;
    tokens after the first, over those of decoding. `ttft_s` is from the request's arrival to its
    first token, null where none came; `peak_memory_usage` the most that the runners' arrays took
    since the model was loaded, as they last told, null where that is not known."""

    prompt_tps: float
    generation_tps: float
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    ttft_s: float | None
    peak_memory_usage: MemoryTaken | None


class BenchAnswer(ChatAnswer):
    """A chat completion, and how fast it was, where a model of the cluster made it."""

    generation_stats: NotRequired[GenerationStats]


class FunctionDelta(TypedDict):
    """A piece of a call: its name in the first alone."""

    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """A piece of a call: its id in the first alone."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class CustomDelta(TypedDict):
    """A piece of the text that a tool is called with: its name in the first alone."""

    name: NotRequired[str]
    input: str


class CustomCallDelta(TypedDict):
    """A piece of a call of a tool that takes text: its id in the first alone."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["custom"]]
    custom: CustomDelta


class ChatDelta(TypedDict):
    """What a chunk adds to the assistant's turn."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta | CustomCallDelta]]
    function_call: NotRequired[FunctionDelta]


class ChatChunkChoice(TypedDict):
    """What a chunk adds to one answer; its end comes in a chunk of its own."""

    index: int
    delta: ChatDelta
    logprobs: NotRequired[ChatScores]
    finish_reason: FinishWord | None
    stop_reason: NotRequired[Literal["cancelled", "memory_pressure"]]


class ChatChunk(TypedDict):
    """A piece of a chat completion; the last has the timing. Where the usage was asked for, it is
    in the last, too, and that has no choices."""

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
    """The log-probabilities of some text, in the older shape; null for a prompt's first token."""

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
    """What a completion and each piece of it have."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Tier]
    choices: list[CompletionChoice]


class CompletionChunk(CompletionHead):
    """A piece of a completion; the last has the timing. Where the usage was asked for, it is in the
    last, too, and that has no choices."""

    usage: NotRequired[TokenUsage]
    timing: NotRequired[AnswerTiming]


class CompletionAnswer(CompletionHead):
    """A completion, whole."""

    usage: TokenUsage
    timing: AnswerTiming


class EmbeddingUsage(TypedDict):
    """What the inputs came to, in tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The vector of one input, as numbers or as base64 of 32-bit floats."""

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
    """An error; the numbers that explain a refusal stand beside these four."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """The body of a failure."""

    error: ErrorText


class OpenAIModel(TypedDict):
    """A model; what stands behind `owned_by` is beyond OpenAI's."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    context_length: int
    capabilities: list[str]
    loaded: bool


class OpenAIModels(TypedDict):
    """The models that are here."""

    object: Literal["list"]
    data: list[OpenAIModel]


class OpenAIList(TypedDict):
    """A page of a list; the ids are null where it is empty."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemList(OpenAIList):
    """A page of items or messages, each with the fields of its kind."""

    data: list[dict[str, Any]]


class StoredChat(ChatAnswer):
    """A chat completion that is kept, with its labels."""

    metadata: dict[str, str]


class StoredChats(OpenAIList):
    """A page of chat completions that are kept."""

    data: list[StoredChat]


class RemovedChat(TypedDict):
    """A chat completion is kept no longer."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]
