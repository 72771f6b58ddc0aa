"""What Ollama's chat and generate answer, whole or a line of a stream, as types.

Pure. The OpenAPI document shows these; what is rendered is held to them. Durations are in
nanoseconds, and stand in the last line and in whole answers alone.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class OllamaLikelyToken(TypedDict):
    """A token, and the logarithm of its probability; a part of a character has no `bytes`."""

    token: str
    logprob: float
    bytes: NotRequired[list[int]]


class OllamaScoredToken(OllamaLikelyToken):
    """A token of the answer, with the likeliest in its place."""

    top_logprobs: NotRequired[list[OllamaLikelyToken]]


class OllamaAnsweredFunction(TypedDict):
    """A function that is called, with its arguments as an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaAnsweredCall(TypedDict):
    """A call."""

    id: str
    function: OllamaAnsweredFunction


class OllamaAnsweredMessage(TypedDict):
    """The assistant's turn, or a piece of it."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaAnsweredCall]]


class OllamaLine(TypedDict):
    """What every line has, and what the last adds."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[
        Literal["stop", "length", "cancelled", "memory_pressure", "load", "unload"]
    ]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    logprobs: NotRequired[list[OllamaScoredToken]]


class OllamaChatAnswer(OllamaLine):
    """A turn of a chat, or a line of its stream."""

    message: OllamaAnsweredMessage


class OllamaGenerateAnswer(OllamaLine):
    """A completion, or a line of its stream."""

    response: str
    thinking: NotRequired[str]
    context: NotRequired[list[int]]


class OllamaEmbedAnswer(TypedDict):
    """Vectors, in the order of their texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(TypedDict):
    """The vector of one text; an empty one where there was none."""

    embedding: list[float]
