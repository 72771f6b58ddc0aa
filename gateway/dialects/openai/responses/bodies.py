"""Types of the bodies that OpenAI's clients send to create a response.

Pure. This module has only types and ranges, which also appear in the OpenAPI document. The parser
decides what a combination of fields means. The types of items are in `items`. A field of the type
`Unused` is accepted in a body but has no effect; the field's description says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, Tag

from gateway.dialects.body import (
    Closed,
    FieldTable,
    Unused,
    by_field,
    by_shape,
    by_type,
    honoured,
    no_effect,
    only,
)
from gateway.dialects.openai.bodies import (
    Budget,
    EffortBody,
    ForeignToolBody,
    TierBody,
    VerbosityBody,
)
from gateway.dialects.openai.custom_tools import NAME, ResponsesCustomToolBody
from gateway.dialects.openai.responses.items import ResponsesInput
from gateway.dialects.shared_fields import tool_tag

HARMLESS = {
    "client_metadata": "the client's own labels",
    "context_management": "shoal never edits conversations",
    "prompt_cache_retention": "the prefix cache is limited by memory, not by time",
    "prompt_cache_options": "the prefix cache is limited by memory, not by time",
    "litellm_metadata": "labels for the LiteLLM proxy",
}
"""Fields that do not change the answer, each with the reason."""

HARMLESS_COUNT = {
    **HARMLESS,
    **dict.fromkeys(
        ("stream", "stream_options", "max_output_tokens", "max_tool_calls", "temperature", "top_p",
         "frequency_penalty", "presence_penalty", "top_logprobs", "include", "metadata", "store",
         "background", "service_tier", "prompt_cache_key"),
        "a count generates no answer",
    ),
    "truncation": "a count covers the whole prompt",
}  # fmt: skip
"""Fields that do not change a token count, each with the reason. Clients ask for a count with the
body of the response that they are about to create, so a count accepts all of that body's fields."""

REFUSED = {
    "prompt": "prompts are not stored here; send 'instructions' and 'input'",
    "moderation": "there is no moderation",
    "messages": "send 'input'",
    "max_tokens": "send 'max_output_tokens'",
    "max_completion_tokens": "send 'max_output_tokens'",
    "response_format": "send 'text' with a 'format' instead",
    "reasoning_effort": "send 'reasoning' with an 'effort' instead",
    "n": "a response is one answer",
    "logprobs": "send 'top_logprobs'",
}

# --- tools --------------------------------------------------------------------------------


class ResponsesFunctionBody(Closed):
    """A function that the client runs."""

    type: Literal["function"]
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    is_async: Literal[False] | None = only(
        False, why="the model waits for the results of its calls", alias="async"
    )
    defer_loading: Unused = no_effect("the model sees every tool from the start")
    allowed_callers: Unused = no_effect("in shoal, only the model calls tools")
    output_schema: Unused = no_effect("chat templates cannot show it to the model")


ResponsesTool = Annotated[
    Annotated[ResponsesFunctionBody, Tag("~own")]
    | Annotated[ResponsesCustomToolBody, Tag("~custom")]
    | Annotated[ForeignToolBody, Tag("~foreign")],
    by_shape("an object", tool_tag("function", "custom")),
]


class ResponsesNamedChoiceBody(Closed):
    """The named function or custom tool must be called, and no other."""

    type: Literal["function", "custom"]
    name: str


class ResponsesAllowedToolBody(Closed):
    """One of the allowed tools, which the client runs."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "for kinds of tools that are skipped"
    type: str
    name: str | None = None


class ResponsesAllowedChoiceBody(Closed):
    """Only some of the tools may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["none", "auto", "required"] = "auto"
    tools: list[ResponsesAllowedToolBody]


def _choice_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "~mode"
    if isinstance(value, Mapping):
        kind = cast(Mapping[str, Any], value).get("type")
        return f"~{kind}" if kind in ("function", "custom", "allowed_tools") else None
    return None


ResponsesToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~mode")]
    | Annotated[ResponsesNamedChoiceBody, Tag("~function")]
    | Annotated[ResponsesNamedChoiceBody, Tag("~custom")]
    | Annotated[ResponsesAllowedChoiceBody, Tag("~allowed_tools")],
    by_shape(
        "'none', 'auto', 'required', or an object whose type is 'function', 'custom' or "
        "'allowed_tools'",
        _choice_tag,
    ),
]

# --- text formats -------------------------------------------------------------------------


class ResponsesTextFormatBody(Closed):
    """Free text."""

    type: Literal["text"]


class ResponsesJsonFormatBody(Closed):
    """The answer must be a JSON object, which a grammar enforces."""

    type: Literal["json_object"]


class ResponsesSchemaFormatBody(Closed):
    """The answer must be JSON that obeys a schema. A grammar enforces it, whether `strict` or
    not."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = honoured("for people; repeated in the response")
    strict: bool | None = no_effect("schemas are always enforced; the response has true")


ResponsesFormat = Annotated[
    Annotated[ResponsesTextFormatBody, Tag("~text")]
    | Annotated[ResponsesJsonFormatBody, Tag("~json_object")]
    | Annotated[ResponsesSchemaFormatBody, Tag("~json_schema")],
    by_field("type", "text", "json_object", "json_schema"),
]


class ResponsesTextBody(Closed):
    """The form of the text."""

    format: ResponsesFormat | None = None
    verbosity: VerbosityBody | None = honoured(
        "low and high add a sentence about length to the system prompt; repeated in the response"
    )


SummaryBody = Literal["auto", "concise", "detailed", "none"]


class ResponsesEffortBody(Closed):
    """How much the model should think, and how the answer shows the thinking."""

    effort: EffortBody | None = None
    max_tokens: Budget | None = honoured("maximum number of thinking tokens; -1: no limit")
    summary: SummaryBody | None = honoured("also return the whole thinking as its summary")
    generate_summary: SummaryBody | None = honoured("deprecated name of summary")
    context: Unused = no_effect("the template decides which earlier thinking the model sees")


class ResponsesStreamOptionsBody(Closed):
    """Additional parts of a stream."""

    include_obfuscation: Unused = no_effect(
        "padding against traffic analysis; events are not padded"
    )


# --- the conversation -----------------------------------------------------------------------


class ResponsesConversationBody(Closed):
    """A conversation by its id."""

    id: str


ResponsesConversation = Annotated[
    Annotated[str, Tag("~id")] | Annotated[ResponsesConversationBody, Tag("~object")],
    by_type("a conversation's id, or an object with an id", {str: "~id", dict: "~object"}),
]

# --- the body -----------------------------------------------------------------------------

Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Label = Annotated[str, Field(max_length=512)]
LabelName = Annotated[str, Field(max_length=64)]


class ResponsesPromptBody(Closed):
    """All fields of a body that determine the prompt."""

    model: str
    input: ResponsesInput | None = None
    instructions: str | None = None
    tools: Annotated[list[ResponsesTool], Field(fail_fast=True)] | None = None
    tool_choice: ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: ResponsesTextBody | None = None
    reasoning: ResponsesEffortBody | None = None
    previous_response_id: str | None = None
    conversation: ResponsesConversation | None = honoured(
        "the conversation's items come first; those of this response are added to it"
    )
    user: str | None = None
    safety_identifier: str | None = None


class ResponsesBody(ResponsesPromptBody):
    """The body of `POST /v1/responses`."""

    table: ClassVar[FieldTable] = FieldTable(harmless=HARMLESS, refused=REFUSED)
    stream: bool | None = None
    stream_options: ResponsesStreamOptionsBody | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = no_effect(
        "concerns tools that the provider runs; repeated in the response"
    )
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = honoured(
        "auto: drop the oldest turns of a conversation that does not fit"
    )
    metadata: Annotated[dict[LabelName, Label], Field(max_length=16)] | None = honoured(
        "labels; repeated in the response"
    )
    store: bool | None = None
    background: bool | None = honoured(
        "true: answer at once with an unfinished response, which is completed in the background"
    )
    service_tier: TierBody | None = honoured(
        "flex: as x_priority low; priority: as x_priority high; repeated in the response"
    )
    prompt_cache_key: str | None = honoured(
        "requests with the same key go to one instance; repeated in the response"
    )


class ResponsesCountBody(ResponsesPromptBody):
    """The body of `POST /v1/responses/input_tokens`."""

    table: ClassVar[FieldTable] = FieldTable(harmless=HARMLESS_COUNT, refused=REFUSED)
