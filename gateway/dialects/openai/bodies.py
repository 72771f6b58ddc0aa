"""Types of the bodies that OpenAI's clients send to create chat completions and completions.

Pure. This module has only types and ranges, which also appear in the OpenAPI document. The parsers
decide what a combination of fields means. The types of messages are in `messages`. A field of the
type `Unused` is accepted in a body but has no effect; the field's description says why.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

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
from gateway.dialects.openai.custom_tools import NAME, CustomChoiceBody, CustomToolBody
from gateway.dialects.openai.messages import Content, MessageBody, PromptBody, TextPartBody
from gateway.dialects.shared_fields import LEAST_REPETITION, tool_tag

HARMLESS = {
    "prompt_cache_retention": "the prefix cache is limited by memory, not by time",
    "prompt_cache_options": "the prefix cache is limited by memory, not by time",
    "litellm_metadata": "labels for the LiteLLM proxy",
    "guided_decoding_backend": "shoal has one library for all structured output",
}
"""Fields without effect on the answer, each with the reason."""
HARMLESS_COMPLETIONS = {
    **HARMLESS,
    "prediction": "a speed hint for chat completions; it never changes the text",
    "metadata": "labels of stored answers; completions are not stored",
}

REFUSED_BY_SERVERS = {
    "structural_tag": "send 'guided_grammar' or a schema instead",
    "guided_whitespace_pattern": "white space in JSON cannot be chosen",
    "grammar_lazy": "a grammar applies from the first token of the answer",
    "grammar_triggers": "a grammar applies from the first token of the answer",
    "stop_token_ids": "send 'stop' instead",
    "bad_words": "send 'logit_bias' instead",
    "allowed_token_ids": "send 'logit_bias' instead",
    "use_beam_search": "there is no beam search",
    "prompt_logprobs": "send 'echo' with 'logprobs' to /v1/completions instead",
    "truncate_prompt_tokens": "prompts are never truncated here",
}
"""Fields of other servers with OpenAI's API. They would change the answer, so shoal refuses
them."""

REFUSED_CHAT = {
    **REFUSED_BY_SERVERS,
    "audio": "answers are text",
    "web_search_options": "the model has no access to the web",
    "moderation": "there is no moderation",
    "best_of": "send 'n' instead",
    "echo": "this field belongs to /v1/completions",
    "prompt": "this field belongs to /v1/completions; send 'messages'",
    "suffix": "this field belongs to /v1/completions",
}
REFUSED_COMPLETIONS = {
    **REFUSED_BY_SERVERS,
    "messages": "this field belongs to /v1/chat/completions; send 'prompt'",
    "tools": "this field belongs to /v1/chat/completions",
    "tool_choice": "this field belongs to /v1/chat/completions",
    "top_logprobs": "send 'logprobs' as a number instead",
    "max_completion_tokens": "send 'max_tokens' instead",
}

# --- tools and formats --------------------------------------------------------------------


class FunctionBody(Closed):
    """A function that the model may call."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionToolBody(Closed):
    """A function that the client runs."""

    type: Literal["function"]
    function: FunctionBody
    cache_control: Unused = no_effect("prefixes are cached automatically")


class ForeignToolBody(Closed):
    """A tool that is neither a function nor a custom tool. It is reported as ignored and is not
    offered to the model; functions are still offered."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the tool is skipped"
    type: str


ToolBody = Annotated[
    Annotated[FunctionToolBody, Tag("~own")]
    | Annotated[CustomToolBody, Tag("~custom")]
    | Annotated[ForeignToolBody, Tag("~foreign")],
    by_shape("an object", tool_tag("function", "custom")),
]


class NamedFunctionBody(Closed):
    """The function that must be called."""

    name: str


class NamedChoiceBody(Closed):
    """The named function must be called, and no other."""

    type: Literal["function"]
    function: NamedFunctionBody


class AllowedToolBody(Closed):
    """One of the allowed tools."""

    type: Literal["function"]
    function: NamedFunctionBody


class AllowedToolsBody(Closed):
    """The allowed tools, a part of `tools`."""

    mode: Literal["auto", "required"]
    tools: list[
        Annotated[
            Annotated[AllowedToolBody, Tag("~function")]
            | Annotated[CustomChoiceBody, Tag("~custom")],
            by_field("type", "function", "custom"),
        ]
    ] = Field(min_length=1)


class AllowedChoiceBody(Closed):
    """Only some of the tools may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsBody


ToolChoiceBody = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~mode")]
    | Annotated[
        Annotated[
            Annotated[NamedChoiceBody, Tag("~function")]
            | Annotated[CustomChoiceBody, Tag("~custom")]
            | Annotated[AllowedChoiceBody, Tag("~allowed_tools")],
            by_field("type", "function", "custom", "allowed_tools"),
        ],
        Tag("~object"),
    ],
    by_type(
        "'none', 'auto', 'required' or an object naming a function", {str: "~mode", dict: "~object"}
    ),
]


FunctionChoiceBody = Annotated[
    Annotated[Literal["none", "auto"], Tag("~mode")] | Annotated[NamedFunctionBody, Tag("~object")],
    by_type("'none', 'auto' or an object with a name", {str: "~mode", dict: "~object"}),
]


class TextFormatBody(Closed):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormatBody(Closed):
    """Any JSON object; with llama.cpp's `schema`, an object that obeys it. Both are enforced."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class JsonSchemaBody(Closed):
    """A schema that the answer obeys, whether `strict` or not."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = no_effect(
        "for people; the model sees only the schema"
    )
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = no_effect("schemas are always enforced")
    description: str | None = no_effect("for people; the model sees only the schema")


class JsonSchemaFormatBody(Closed):
    """JSON that obeys a schema; enforced."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaBody


ResponseFormatBody = Annotated[
    Annotated[TextFormatBody, Tag("~text")]
    | Annotated[JsonObjectFormatBody, Tag("~json_object")]
    | Annotated[JsonSchemaFormatBody, Tag("~json_schema")],
    by_field("type", "text", "json_object", "json_schema"),
]

SchemaBody = Annotated[
    Annotated[dict[str, Any], Tag("~object")] | Annotated[str, Tag("~text")],
    by_type("a JSON schema, as an object or as its text", {dict: "~object", str: "~text"}),
]
Choices = Annotated[list[str], Field(min_length=1, fail_fast=True)]


class StructuredOutputsBody(Closed):
    """The form of the text, under vLLM's names. Only one of the first five fields may be set."""

    json_: SchemaBody | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = only(why="send a grammar instead")
    whitespace_pattern: str | None = only(why="omit it")
    disable_any_whitespace: bool | None = only(False, why="omit it")
    disable_additional_properties: bool | None = only(
        False, why="set additionalProperties in the schema"
    )


# --- the bodies ---------------------------------------------------------------------------


StopBody = Annotated[
    Annotated[str, Tag("~one")] | Annotated[list[str], Tag("~many")],
    by_type("a string or a list of strings", {str: "~one", list: "~many"}),
]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]


class StreamOptionsBody(Closed):
    """Additional parts of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Unused = no_effect(
        "padding against traffic analysis; events are not padded"
    )


TierBody = Literal["auto", "default", "flex", "scale", "priority"]
VerbosityBody = Literal["low", "medium", "high"]


class SharedBody(Closed):
    """Fields of both chat completions and completions."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptionsBody | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = honoured("number of answers to each prompt")
    max_tokens: Annotated[int, Field(ge=-1)] | None = honoured("at least 1; -1: as many as fit")
    prompt_cache_key: str | None = honoured("requests with the same key go to one instance")
    stop: StopBody | None = honoured("at most 16 texts")
    seed: Seed | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = honoured("0 or -1: off")
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=LEAST_REPETITION, le=10.0)] | None = None
    logit_bias: dict[str, float] | None = honoured(
        "maps token ids to a bias from -100 to 100; at most 1,024 tokens"
    )
    ignore_eos: bool | None = honoured("true: do not stop at the end token, but at max_tokens")
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: TierBody | None = honoured(
        "flex: as x_priority low; priority: as x_priority high; repeated in the answer"
    )
    response_format: ResponseFormatBody | None = None
    guided_json: SchemaBody | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputsBody | None = None
    json_schema: SchemaBody | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None


EffortBody = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Budget = Annotated[int, Field(ge=-1)]


class TemplateArgumentsBody(Closed):
    """Arguments of the model's chat template. These four have a fixed meaning. A body may set up to
    16 other variables of the template, which are text, numbers, true or false."""

    reads_others: ClassVar[bool] = True
    enable_thinking: bool | None = None
    thinking: bool | None = honoured("same as enable_thinking")
    reasoning_effort: EffortBody | None = None
    thinking_budget: Budget | None = None


class ChatReasoningBody(Closed):
    """How much the model should think, as in OpenRouter's API."""

    effort: EffortBody | None = None
    max_tokens: Budget | None = honoured("same as thinking_budget")
    enabled: bool | None = None
    exclude: bool | None = only(False, why="thinking has its own field in the answer")


class ChatThinkingBody(Closed):
    """Whether to think, as in several providers' APIs. With `adaptive`, the model card decides."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = honoured("same as thinking_budget")


class PredictionBody(Closed):
    """The text that the client expects as the answer, such as a file before an edit."""

    type: Literal["content"]
    content: Content[TextPartBody]


class ChatCompletionsBody(SharedBody):
    """The body of `POST /v1/chat/completions`."""

    table: ClassVar[FieldTable] = FieldTable(harmless=HARMLESS, refused=REFUSED_CHAT)
    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    store: bool | None = honoured("store the answer on the node, to be read later")
    metadata: Any = honoured("with store: at most 16 labels, stored with the answer")
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = honoured(
        "must not differ from max_tokens"
    )
    tools: Annotated[list[ToolBody], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionBody], Field(fail_fast=True)] | None = honoured(
        "OpenAI's deprecated form of tools; the answer has at most one function_call"
    )
    function_call: FunctionChoiceBody | None = honoured("OpenAI's deprecated form of tool_choice")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: EffortBody | None = honoured(
        "none: no thinking; others: think, at the nearest level of the model's template; "
        "minimal: no thinking if the template has no levels"
    )
    reasoning: ChatReasoningBody | None = None
    thinking: ChatThinkingBody | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = honoured("maximum number of thinking tokens; -1: no limit")
    thinking_budget_tokens: Budget | None = honoured("same as thinking_budget")
    thinking_token_budget: Budget | None = honoured("same as thinking_budget")
    chat_template_kwargs: TemplateArgumentsBody | None = None
    continue_final_message: bool | None = honoured("continue the last assistant turn")
    modalities: list[str] | None = only(["text"], why="answers are text")
    prediction: PredictionBody | None = honoured("makes a matching answer faster; never changes it")
    verbosity: VerbosityBody | None = honoured(
        "low and high add a sentence about length to the system prompt"
    )


class CompletionsBody(SharedBody):
    """The body of `POST /v1/completions`."""

    table: ClassVar[FieldTable] = FieldTable(
        harmless=HARMLESS_COMPLETIONS, refused=REFUSED_COMPLETIONS
    )
    prompt: PromptBody
    store: bool | None = only(False, why="only chat completions and responses are stored")
    suffix: str | None = honoured("text after the gap that the model fills, if it can")
    echo: bool | None = honoured("put the prompt before the answer")
    max_tokens: Annotated[int, Field(ge=-1)] | None = honoured(
        "default 16; 0 only with echo; -1: as many as fit"
    )
    best_of: Annotated[int, Field(ge=1, le=128)] | None = honoured(
        "must equal n, because answers are not ranked"
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
