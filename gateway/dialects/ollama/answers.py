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


class OllamaError(TypedDict):
    """The body of a failure, or the last line of a stream that failed."""

    error: str


class OllamaDetails(TypedDict):
    """What every listing tells of a model; what is not known is empty."""

    parent_model: str
    format: Literal["safetensors"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """What both listings tell of a model."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTag(OllamaModel):
    """A model on a disk."""

    modified_at: str
    capabilities: list[str]


class OllamaTags(TypedDict):
    """The models on disks."""

    models: list[OllamaTag]


class OllamaLoaded(OllamaModel):
    """A loaded copy."""

    size_vram: int
    expires_at: str
    context_length: int


class OllamaProcesses(TypedDict):
    """The loaded copies."""

    models: list[OllamaLoaded]


class OllamaTurn(TypedDict):
    """A turn with which every chat of a derived model begins."""

    role: str
    content: str


class OllamaTensor(TypedDict):
    """A tensor of a model."""

    name: str
    type: str
    shape: list[int]


class OllamaShown(TypedDict):
    """A model in detail; `model_info` has what is known of it, by GGUF's names, `tensors` are there
    where all of it was asked for."""

    modelfile: str
    parameters: str
    template: str
    license: str
    details: OllamaDetails
    model_info: dict[str, str | int | float]
    capabilities: list[str]
    modified_at: str
    system: NotRequired[str]
    messages: NotRequired[list[OllamaTurn]]
    tensors: NotRequired[list[OllamaTensor]]


class OllamaStatus(TypedDict):
    """How far a model is that is made, or that it is here."""

    status: str


class OllamaPullStatus(OllamaStatus):
    """How far a pull is, in bytes."""

    total: NotRequired[int]
    completed: NotRequired[int]
    digest: NotRequired[str]


class OllamaVersion(TypedDict):
    """The version of the API that is spoken."""

    version: str
