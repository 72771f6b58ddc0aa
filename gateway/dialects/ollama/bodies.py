"""Types of the bodies that Ollama's clients send.

Pure. This module has only types. Options that change the text have an effect. Options about a
llama.cpp process, and options that Ollama's own engine ignores, are accepted without effect, each
with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, Tag

from gateway.dialects.body import Closed, FieldTable, by_type, honoured, no_effect, only

HARMLESS_OPTIONS = {
    "num_gpu": "placement decides where layers live",
    "main_gpu": "placement decides where layers live",
    "num_thread": "the runner chooses its threads",
    "num_batch": "the scheduler sizes prefill chunks",
    "numa": "a setting of llama.cpp",
    "low_vram": "placement decides where layers live",
    "f16_kv": "the model's card sets the type of the KV cache",
    "use_mmap": "a setting of llama.cpp",
    "use_mlock": "a setting of llama.cpp",
    "num_keep": "a full context is never shifted; the answer ends",
    "num_ctx": "placement sets the context, not a request",
    "logits_all": "a setting of llama.cpp",
    "mirostat": "Ollama's own engine has no such sampler",
    "mirostat_tau": "Ollama's own engine has no such sampler",
    "mirostat_eta": "Ollama's own engine has no such sampler",
    "tfs_z": "Ollama's own engine has no such sampler",
    "typical_p": "Ollama's own engine has no such sampler",
    "penalize_newline": "penalties apply to all tokens",
}
"""Options without effect on the answer, each with the reason."""

NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "vocab_only": (False,),
    "embedding_only": (False,),
}
"""Options that are accepted only with these values, which request nothing."""

NO_GO_TEMPLATES = (
    "shoal runs no Go templates; leave the template out, and the model's own chat template is used"
)
OPTIONS_TABLE = FieldTable(harmless=HARMLESS_OPTIONS, neutral=NEUTRAL_OPTIONS)
CHAT_TABLE = FieldTable(
    empty_asks_nothing=True,
    refused={
        "prompt": "this field belongs to /api/generate; send 'messages'",
        "template": NO_GO_TEMPLATES,
        "system": "send a message with role 'system'",
        "_debug_render_only": "use /apply-template to see a prompt",
    },
)
GENERATE_TABLE = FieldTable(
    empty_asks_nothing=True,
    refused={
        "messages": "this field belongs to /api/chat",
        "tools": "this field belongs to /api/chat",
        "template": NO_GO_TEMPLATES,
        "width": "answers are text",
        "height": "answers are text",
        "steps": "answers are text",
        "_debug_render_only": "use /apply-template to see a prompt",
    },
)

SHOW_TABLE = FieldTable(
    empty_asks_nothing=True,
    refused={
        "system": "omit it; the model's own is shown",
        "template": "omit it; the model's own is shown",
        "options": "omit it; the model's own is shown",
    },
)
PULL_TABLE = FieldTable(
    empty_asks_nothing=True,
    harmless={"insecure": "concerns Ollama's registry, which shoal does not use"},
    refused={
        "username": "shoal does not use Ollama's registry; omit it",
        "password": "shoal does not use Ollama's registry; omit it",
    },
)


def _whole(value: object) -> object:
    """Return the integer part of a float. An int is returned unchanged, because as a float it would
    lose digits beyond 2**53."""
    return int(value) if isinstance(value, float) and math.isfinite(value) else value


def _role(value: object) -> object:
    """Return a role in lower case, as Ollama reads it; `developer` is the newer name of
    `system`."""
    role = value.lower() if isinstance(value, str) else value
    return "system" if role == "developer" else role


class OllamaOptionsBody(Closed):
    """Sampling options. As in Ollama, integer options keep a number's integer part, and a value out
    of range becomes the nearest valid one (`fields`)."""

    table: ClassVar[FieldTable] = OPTIONS_TABLE
    num_predict: float | None = None
    temperature: float | None = None
    top_k: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), BeforeValidator(_whole)] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: list[str] | None = None


class OllamaCalledFunctionBody(Closed):
    """A function that the model called; its arguments are an object."""

    name: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    index: int | None = no_effect("calls keep the order of the list")


class OllamaToolCallBody(Closed):
    """A tool call by the assistant. Older clients send no id."""

    function: OllamaCalledFunctionBody
    id: str | None = None
    type: Literal["function"] | None = None


Images = list[str]


class OllamaMessageBody(Closed):
    """One turn of any role; clients also send shoal's own answers back. Images are base64.

    `thinking` and `tool_calls` belong to the assistant. In a tool's turn, the tool's names and the
    id identify its call; older clients send no id. Other roles ignore them.
    """

    role: Annotated[Literal["system", "user", "assistant", "tool"], BeforeValidator(_role)]
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: list[OllamaToolCallBody] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class OllamaFunctionBody(Closed):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaToolBody(Closed):
    """A tool. Its `type` is ignored: every tool is a function."""

    type: str | None = no_effect("every tool is a function")
    function: OllamaFunctionBody


FormatBody = Annotated[
    Annotated[Literal["", "json"], Tag("~word")] | Annotated[dict[str, Any], Tag("~schema")],
    by_type("'json' or a JSON schema", {str: "~word", dict: "~schema"}),
]


ThinkBody = Annotated[
    Annotated[bool, Tag("~switch")]
    | Annotated[Literal["low", "medium", "high", "max"], Tag("~level")],
    by_type("true, false, 'low', 'medium', 'high' or 'max'", {bool: "~switch", str: "~level"}),
]


DurationBody = Annotated[
    Annotated[str, Tag("~text")] | Annotated[float, Tag("~seconds")],
    by_type(
        "a number of seconds or a duration such as '5m'",
        {str: "~text", int: "~seconds", float: "~seconds"},
    ),
]


class ModelBody(Closed):
    """Fields of all bodies that let a model compute."""

    apart: ClassVar[Mapping[str, type[BaseModel]]] = {"options": OllamaOptionsBody}
    model: str
    options: dict[str, Any] | None = Field(
        # validated separately, once the harmless ones are removed; documented here
        default=None,
        json_schema_extra={"properties": OllamaOptionsBody.model_json_schema()["properties"]},
    )
    keep_alive: DurationBody | None = None


class SharedBody(ModelBody):
    """Fields of both chat and generate. Answers are streamed by default."""

    stream: bool | None = None
    format: FormatBody | None = None
    think: ThinkBody | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncate: bool | None = honoured(
        "true: drop the oldest turns of a conversation that does not fit; false: refuse it"
    )
    shift: bool | None = only(False, why="an answer ends when its context is full")


class OllamaChatBody(SharedBody):
    """The body of `POST /api/chat`. A body without messages loads or unloads the model."""

    table: ClassVar[FieldTable] = CHAT_TABLE
    messages: Annotated[list[OllamaMessageBody], Field(fail_fast=True)] | None = None
    tools: Annotated[list[OllamaToolBody], Field(fail_fast=True)] | None = None


TokenBody = Annotated[int, Field(ge=0, lt=2**31)]


class OllamaGenerateBody(SharedBody):
    """The body of `POST /api/generate`. A body without a prompt loads or unloads the model."""

    table: ClassVar[FieldTable] = GENERATE_TABLE
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Images | None = None
    context: Annotated[list[TokenBody], Field(fail_fast=True)] | None = honoured(
        "token ids of an earlier prompt and answer, put before this prompt"
    )


class NamedModelBody(Closed):
    """The body's model; `name` is the deprecated name of `model`."""

    model: str | None = None
    name: str | None = None


class OllamaShowBody(NamedModelBody):
    """The body of `POST /api/show`."""

    table: ClassVar[FieldTable] = SHOW_TABLE
    verbose: bool | None = None


class OllamaDeleteBody(NamedModelBody):
    """The body of `DELETE /api/delete`."""


class OllamaPullBody(NamedModelBody):
    """The body of `POST /api/pull`."""

    table: ClassVar[FieldTable] = PULL_TABLE
    stream: bool | None = None
