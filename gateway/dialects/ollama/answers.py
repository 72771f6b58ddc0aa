"""Types of the answers to Ollama's API, whole or as lines of a stream.

Pure. The OpenAPI document shows them; tests check rendered answers against them. Durations are in
nanoseconds; only the last line and whole answers have them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class OllamaLikelyToken(TypedDict):
    """A token and its log-probability. `bytes` is missing if the token is only part of a
    character."""

    token: str
    logprob: float
    bytes: NotRequired[list[int]]


class OllamaScoredToken(OllamaLikelyToken):
    """A token of the answer, with its likeliest alternatives."""

    top_logprobs: NotRequired[list[OllamaLikelyToken]]


class OllamaAnsweredFunction(TypedDict):
    """A function that the model called; its arguments are an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaAnsweredCall(TypedDict):
    """A tool call."""

    id: str
    function: OllamaAnsweredFunction


class OllamaAnsweredMessage(TypedDict):
    """The assistant's turn, or a piece of it."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaAnsweredCall]]


class OllamaLine(TypedDict):
    """The fields of every line of a stream, and the additional fields of its last line."""

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
    """The vector of one text; an empty vector without a text."""

    embedding: list[float]


class OllamaError(TypedDict):
    """The body of a failure, or the last line of a stream that failed."""

    error: str


class OllamaDetails(TypedDict):
    """The details of a model in every listing. A detail that is unknown is empty."""

    parent_model: str
    format: Literal["safetensors", "gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """The fields of a model in both listings."""

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
    """An instance of a model."""

    size_vram: int
    expires_at: str
    context_length: int


class OllamaProcesses(TypedDict):
    """The instances of all models."""

    models: list[OllamaLoaded]


class OllamaTurn(TypedDict):
    """A turn of a derived model, with which every chat begins."""

    role: str
    content: str


class OllamaTensor(TypedDict):
    """A tensor of a model."""

    name: str
    type: str
    shape: list[int]


class OllamaShown(TypedDict):
    """A model in detail. `model_info` has the model's known properties, under GGUF's names.
    `tensors` are present only if the client requests them."""

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
    """The progress of a model that is being made, or its success."""

    status: str


class OllamaPullStatus(OllamaStatus):
    """The progress of a pull, in bytes."""

    total: NotRequired[int]
    completed: NotRequired[int]
    digest: NotRequired[str]


class OllamaVersion(TypedDict):
    """The supported version of Ollama's API."""

    version: str
