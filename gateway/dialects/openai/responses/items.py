"""Types of the items in a response's input, as OpenAI's clients send them.

Pure. This module has only types. Clients send items of earlier responses back, with fields that
only answers need. Such a field has the type `Unused`, with the reason why it has no effect. Parts
that text models cannot read have types too, so that the parser can refuse them with a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, Tag
from pydantic.json_schema import SkipJsonSchema

from gateway.dialects.body import (
    Closed,
    Unused,
    by_field,
    by_shape,
    by_type,
    honoured,
    no_effect,
    only,
    refused,
)

# --- content ------------------------------------------------------------------------------


class ResponsesTextPartBody(Closed):
    """Text of a request or of an answer."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Unused = no_effect("citations in an earlier answer")
    logprobs: Unused = no_effect("part of an earlier answer")
    parsed: Unused = no_effect("the client's own parse of the text")
    prompt_cache_breakpoint: Unused = no_effect("prefixes are cached automatically")


class ResponsesRefusalPartBody(Closed):
    """An earlier refusal of the assistant, read as its text."""

    type: Literal["refusal"]
    refusal: str


class ResponsesMediaPartBody(Closed):
    """An image, a file or a sound, with all its fields. The parser refuses such a part."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "a part of this type is refused, whatever its fields"
    type: Literal["input_image", "input_file", "input_audio"] = refused(
        "the models read only text; send the content as text"
    )


_Media = (
    Annotated[ResponsesMediaPartBody, Tag("~input_image")]
    | Annotated[ResponsesMediaPartBody, Tag("~input_file")]
    | Annotated[ResponsesMediaPartBody, Tag("~input_audio")]
)
ResponsesPart = Annotated[
    Annotated[ResponsesTextPartBody, Tag("~input_text")]
    | Annotated[ResponsesTextPartBody, Tag("~output_text")]
    | Annotated[ResponsesTextPartBody, Tag("~text")]
    | Annotated[ResponsesRefusalPartBody, Tag("~refusal")]
    | _Media,
    by_field(
        "type",
        "input_text",
        "output_text",
        "text",
        "refusal",
        "input_image",
        "input_file",
        "input_audio",
    ),
]
ResponsesContent = Annotated[
    Annotated[str, Tag("~text")] | Annotated[list[ResponsesPart], Tag("~parts")],
    by_type("a string or a list of parts", {str: "~text", list: "~parts"}),
]

# --- items --------------------------------------------------------------------------------


class ResponsesMessageBody(Closed):
    """A turn of the conversation; `developer` is the newer name of `system`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ResponsesContent
    id: str | None = None
    status: Unused = no_effect("part of an earlier answer")
    phase: Unused = no_effect("set by OpenAI's own models")


class ResponsesCallBody(Closed):
    """A tool call by the assistant; `arguments` is JSON text, as received."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    id: str | None = None
    status: Unused = no_effect("part of an earlier answer")
    parsed_arguments: Unused = no_effect("the client's own parse of the arguments")
    is_async: Literal[False] | None = only(
        False, why="the model waits for the results of its calls", alias="async"
    )
    # not in the schema: generators of clients treat both names as the same
    async_: SkipJsonSchema[Literal[False] | None] = only(
        False, why="the name of async in the official client"
    )
    namespace: Unused = no_effect("concerns tools that the provider runs")
    caller: Unused = no_effect("in shoal, only the model calls tools")


class ResponsesCallOutputBody(Closed):
    """A tool's result."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: ResponsesContent
    id: str | None = None
    status: Unused = no_effect("part of an earlier call")
    name: Unused = no_effect("the tool's name is known from its call")
    namespace: Unused = no_effect("concerns tools that the provider runs")
    caller: Unused = no_effect("in shoal, only the model calls tools")


class ResponsesThoughtBody(Closed):
    """A piece of the assistant's thinking."""

    type: Literal["reasoning_text", "text"]
    text: str


class ResponsesSummaryBody(Closed):
    """A piece of a summary of the assistant's thinking."""

    type: Literal["summary_text"]
    text: str


class ResponsesReasoningBody(Closed):
    """Earlier thinking of the assistant: its content, else the thinking that shoal encoded, else
    its summary."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ResponsesSummaryBody] | None = None
    content: list[ResponsesThoughtBody] | None = None
    encrypted_content: str | None = honoured("accepted only from shoal's own answers")
    status: Unused = no_effect("part of an earlier answer")


class ResponsesCustomCallBody(Closed):
    """A call of a custom tool. It is treated as a function call whose only argument is the tool's
    text input."""

    type: Literal["custom_tool_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: str
    id: str | None = None
    status: Unused = no_effect("part of an earlier answer")
    namespace: Unused = no_effect("concerns tools that the provider runs")
    caller: Unused = no_effect("in shoal, only the model calls tools")


class ResponsesCustomOutputBody(Closed):
    """A custom tool's result."""

    type: Literal["custom_tool_call_output"]
    call_id: str = Field(min_length=1)
    output: ResponsesContent
    id: str | None = None
    status: Unused = no_effect("part of an earlier call")
    name: Unused = no_effect("the tool's name is known from its call")
    caller: Unused = no_effect("in shoal, only the model calls tools")


class ResponsesForeignItemBody(Closed):
    """A call of a tool that is neither a function nor a custom tool, or its result. The model does
    not get it."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the item is skipped"
    type: str


class ResponsesReferenceBody(Closed):
    """A reference to an item of a stored response, by its id alone."""

    type: Literal["item_reference"] | None = None
    id: str


def _item_tag(value: Any) -> str | None:
    """Return the tag of an item's type. An item without a type is a message if it has a role,
    otherwise a reference."""
    if isinstance(value, Mapping):
        fields = cast(Mapping[str, Any], value)
        kind = fields.get("type")
        if kind is None:
            return "~message" if "role" in fields else "~item_reference"
    else:
        kind = getattr(value, "type", None)
    if isinstance(kind, str) and kind in FOREIGN_TYPES:
        return "~foreign"
    return f"~{kind}" if isinstance(kind, str) and kind in ITEM_TYPES else None


ITEM_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "item_reference",
)
FOREIGN_TYPES = frozenset(
    ("apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "computer_call",
     "computer_call_output", "file_search_call", "image_generation_call", "local_shell_call",
     "local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call",
     "mcp_list_tools", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output",
     "web_search_call")
)  # fmt: skip
"""Types of items of unsupported tools. A conversation that began at another server may contain such
items."""
ResponsesItem = Annotated[
    Annotated[ResponsesMessageBody, Tag("~message")]
    | Annotated[ResponsesCallBody, Tag("~function_call")]
    | Annotated[ResponsesCallOutputBody, Tag("~function_call_output")]
    | Annotated[ResponsesCustomCallBody, Tag("~custom_tool_call")]
    | Annotated[ResponsesCustomOutputBody, Tag("~custom_tool_call_output")]
    | Annotated[ResponsesReasoningBody, Tag("~reasoning")]
    | Annotated[ResponsesReferenceBody, Tag("~item_reference")]
    | Annotated[ResponsesForeignItemBody, Tag("~foreign")],
    by_shape(f"an item whose type is one of {', '.join(ITEM_TYPES)}", _item_tag),
]
KeptItem = (
    ResponsesMessageBody
    | ResponsesCallBody
    | ResponsesCallOutputBody
    | ResponsesCustomCallBody
    | ResponsesCustomOutputBody
    | ResponsesReasoningBody
    | ResponsesReferenceBody
)
AnyItem = KeptItem | ResponsesForeignItemBody
ResponsesInput = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[ResponsesItem], Field(fail_fast=True)], Tag("~items")],
    by_type("a string or a list of items", {str: "~text", list: "~items"}),
]


class ResponsesItems(Closed):
    """A list that has only items. It is used to parse stored items again."""

    items: Annotated[list[ResponsesItem], Field(fail_fast=True)]
