"""Types of the bodies that Anthropic's clients send to create a message or to count its tokens.

Pure. This module has only types and ranges, which also appear in the OpenAPI document. The parser
decides what a combination of fields means. The types of messages are in `blocks`. A field of the
type `Unused` is accepted in a body but has no effect; the field's description says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, Tag

from gateway.dialects.anthropic.blocks import AnthropicMessageBody, AnthropicTextBlockBody, Content
from gateway.dialects.anthropic.client_tools import is_client_tool
from gateway.dialects.body import (
    Closed,
    FieldTable,
    Unused,
    by_field,
    by_shape,
    honoured,
    no_effect,
)
from gateway.dialects.shared_fields import tool_tag

HARMLESS = {
    "service_tier": "use x_priority to order requests",
    "context_management": "shoal never edits conversations",
    "container": "tools run at the client, not on the server",
    "mcp_servers": "shoal calls no MCP servers; tools run at the client",
    "betas": "features are selected by the body's fields",
    "cache_control": "prefixes are cached automatically",
    "inference_geo": "concerns the provider's data centres",
    "speed": "a model has one speed",
    "diagnostics": "only Anthropic's own servers use it",
    "billing_policy": "nothing is billed",
    "user_profile_id": "concerns the provider's accounts",
    "workspace_id": "concerns the provider's accounts",
}
"""Fields that do not change the text, each with the reason."""

HARMLESS_COUNT = {
    **HARMLESS,
    "max_tokens": "a count generates no answer",
    "stop_sequences": "a count generates no answer",
    "stream": "a count generates no answer",
    "temperature": "a count generates no answer",
    "top_p": "a count generates no answer",
    "top_k": "a count generates no answer",
}
"""Fields that do not change a token count, each with the reason. Clients ask for a count with the
body of the message that they are about to create, so a count accepts all of that body's fields."""

REFUSED = {
    "prompt": "send 'messages'",
    "max_tokens_to_sample": "send 'max_tokens' instead",
    "stop": "send 'stop_sequences' instead",
    "response_format": "send 'output_config' with a 'format' instead",
    "thread": "threads are not stored; send the whole conversation, without 'thread'",
    "compaction": "conversations are not summarised; send all of it",
}

# --- tools --------------------------------------------------------------------------------

NAME = r"^[A-Za-z0-9_.:-]{1,128}$"


class AnthropicOfferedBody(Closed):
    """Fields of every tool that the client runs."""

    name: str = Field(pattern=NAME)
    strict: bool | None = None
    cache_control: Unused = no_effect("prefixes are cached automatically")
    input_examples: Unused = no_effect("chat templates cannot show them to the model")
    defer_loading: bool | None = honoured(
        "the model sees the tool from the start, but listed after the other tools"
    )
    allowed_callers: Unused = no_effect("in shoal, only the model calls tools")
    eager_input_streaming: Unused = no_effect("arguments are always sent while they are generated")


class AnthropicToolBody(AnthropicOfferedBody):
    """A tool that the client defines and runs."""

    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any]


class AnthropicClientToolBody(AnthropicOfferedBody):
    """A tool that Anthropic defines and the client runs: `bash_*`, `text_editor_*`, `memory_*`."""

    named: ClassVar[str] = "type `bash_*`, `text_editor_*`, `memory_*`"
    type: str = honoured("which tool, and its version; the model gets its schema")
    max_characters: Unused = no_effect("the client decides how much of a file it shows")


class AnthropicServerToolBody(Closed):
    """A tool that the provider would run. It is not offered to the model and is reported as
    ignored; all other tools are offered."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the tool is skipped"
    type: str


def _tool_tag(value: object) -> str | None:
    tag = tool_tag("custom")(value)
    if tag == "~foreign" and is_client_tool(cast(Mapping[str, str], value)["type"]):
        return "~client"
    return tag


ToolBody = Annotated[
    Annotated[AnthropicToolBody, Tag("~own")]
    | Annotated[AnthropicClientToolBody, Tag("~client")]
    | Annotated[AnthropicServerToolBody, Tag("~foreign")],
    by_shape("an object", _tool_tag),
]


class AnthropicChoiceBody(Closed):
    """Whether a tool may, or must, be called."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class AnthropicNoChoiceBody(Closed):
    """No tool may be called."""

    type: Literal["none"]
    disable_parallel_tool_use: Unused = no_effect("with 'none' no tool is called")


class AnthropicNamedChoiceBody(Closed):
    """The named tool must be called, and no other."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


ToolChoiceBody = Annotated[
    Annotated[AnthropicChoiceBody, Tag("~auto")]
    | Annotated[AnthropicChoiceBody, Tag("~any")]
    | Annotated[AnthropicNoChoiceBody, Tag("~none")]
    | Annotated[AnthropicNamedChoiceBody, Tag("~tool")],
    by_field("type", "auto", "any", "tool", "none"),
]

# --- the body -----------------------------------------------------------------------------


LEAST_BUDGET = 1024


class AnthropicThinkingBody(Closed):
    """Whether the model should think. With `adaptive`, the model card decides."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=LEAST_BUDGET)] | None = honoured(
        "maximum number of thinking tokens; must be below max_tokens"
    )
    display: Unused = no_effect("thinking is returned in full, never summarized")


class AnthropicFormatBody(Closed):
    """The answer is JSON that obeys a schema. The schema is enforced while the model writes."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class AnthropicOutputBody(Closed):
    """The form of the answer."""

    format: AnthropicFormatBody | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = honoured(
        "how much to think, at the nearest level of the model's template"
    )
    task_budget: Unused = no_effect("the model decides how many tokens a task takes")


class AnthropicMetadataBody(Closed):
    """The client's own id of its user. Other labels are for the provider's own storage."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "labels for the provider's own storage"
    user_id: str | None = honoured("identifies the client if x_client_id is missing")


class AnthropicPromptBody(Closed):
    """All fields of a body that determine the prompt."""

    model: str
    messages: Annotated[list[AnthropicMessageBody], Field(min_length=1, fail_fast=True)]
    system: Content[AnthropicTextBlockBody] | None = None
    tools: Annotated[list[ToolBody], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: AnthropicThinkingBody | None = None
    output_config: AnthropicOutputBody | None = None
    output_format: AnthropicFormatBody | None = honoured("deprecated name of output_config.format")
    metadata: AnthropicMetadataBody | None = None


class AnthropicMessagesBody(AnthropicPromptBody):
    """The body of `POST /v1/messages`."""

    table: ClassVar[FieldTable] = FieldTable(harmless=HARMLESS, refused=REFUSED)
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None


class AnthropicCountBody(AnthropicPromptBody):
    """The body of `POST /v1/messages/count_tokens`."""

    table: ClassVar[FieldTable] = FieldTable(harmless=HARMLESS_COUNT, refused=REFUSED)
