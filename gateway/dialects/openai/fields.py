"""Parses OpenAI's fields that mean the same in chat completions and completions.

Pure. Each function reads one setting of a body, or raises `BadRequest` naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import Sampling
from bus.wire.shares import PRIORITIES
from gateway.dialects import shared_fields
from gateway.dialects.body import bad_field, ignoring
from gateway.dialects.dialect import Extras, Limits
from gateway.dialects.openai import bodies
from gateway.dialects.openai.bodies import SharedBody
from gateway.dialects.openai.custom_tools import NOT_HELD, CustomChoiceBody, unheld_in
from gateway.dialects.shared_fields import (
    LEAST_TOP_P,
    NO_SUCH_TOOL,
    foreign_in,
    temperature_of,
)

MAX_BIASED = 1024
AS_MANY_AS_FIT = -1
MOST_VARIABLES, LONGEST_NAME, LONGEST_VALUE = 16, 64, 4096
"""Maximum number of template variables, and maximum characters of their names and texts."""
OURS = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
     "chat_template", "tokenize")
)  # fmt: skip
"""Template arguments that the request itself determines, or that no client may set."""
TIERS: Mapping[str, str] = {"flex": "low", "priority": "high"}
"""OpenAI's service tiers, each with the value of `x_priority` that it stands for."""
MANNERS: Mapping[str, str] = {
    "low": "Keep your answers short.",
    "high": "Answer at length, in detail.",
}
"""The sentence that is added to the end of the system prompt, for each value of `verbosity`."""


def check_offered(body: SharedBody) -> None:
    """Raise BadRequest for combinations of shared fields that are not supported."""
    if body.stream_options is not None and not body.stream:
        raise BadRequest(
            "stream_options is only allowed when stream is true", field="stream_options"
        )


def check_modalities(body: bodies.ChatCompletionsBody) -> None:
    """Raise BadRequest if the answer is to have other parts than text."""
    if body.modalities is not None and body.modalities != ["text"]:
        raise bad_field("modalities", 'only ["text"] is supported')


def includes_usage(body: SharedBody) -> bool:
    """Return whether a stream ends with its usage."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def sampling_of(body: SharedBody) -> Sampling:
    """Return the sampling settings; missing and null fields get OpenAI's defaults."""
    return shared_fields.sampling_of(
        {
            "temperature": None if body.temperature is None else temperature_of(body.temperature),
            "top_p": None if body.top_p is None else max(LEAST_TOP_P, body.top_p),
            "top_k": None if body.top_k is None else max(0, body.top_k),
            "min_p": body.min_p,
            "seed": body.seed,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
            "repetition_penalty": body.repetition_penalty,
            "logit_bias": None if body.logit_bias is None else _biases_of(body.logit_bias),
        }
    )


def priority_of(tier: str | None, extras: Extras) -> int:
    """Return a request's priority: `x_priority`, or if that is the normal priority, the one of the
    service tier."""
    normal = PRIORITIES["normal"]
    return (
        PRIORITIES[TIERS.get(tier or "", "normal")]
        if extras.priority == normal
        else extras.priority
    )


def tier_of(tier: str | None) -> str:
    """Return the service tier that an answer reports."""
    return tier if tier is not None and tier in TIERS else "default"


def manner_of(verbosity: str | None) -> str:
    """Return the sentence about the answer's length that is added to the end of the system prompt;
    empty if the body has no `verbosity`."""
    return MANNERS.get(verbosity or "", "")


def most_of(tokens: int | None, field: str) -> int | None:
    """Return the maximum tokens of an answer; None: as many as fit. Raises BadRequest for 0."""
    if tokens == 0:
        raise bad_field(field, "must be at least 1, or -1 for as many as fit")
    return None if tokens == AS_MANY_AS_FIT else tokens


def echoed_fields_of(body: SharedBody) -> dict[str, Any]:
    """Return the body's fields that the answer repeats: the service tier, if the body has one."""
    return {} if body.service_tier is None else {"service_tier": tier_of(body.service_tier)}


def client_of(body: SharedBody, extras: Extras) -> str | None:
    """Return the client: `x_client_id`, else OpenAI's own fields, else None."""
    return extras.client_id or body.user or body.safety_identifier


def _biases_of(biases: dict[str, float]) -> dict[int, float]:
    if len(biases) > MAX_BIASED:
        raise bad_field("logit_bias", f"too many tokens; the limit is {MAX_BIASED}")
    made: dict[int, float] = {}
    for key, bias in biases.items():
        field = f"logit_bias.{key[:20]}"
        if not (len(key) <= 10 and key.isascii() and key.isdigit() and int(key) < 2**31):
            raise bad_field(field, "the key must be a token id")
        if not -100.0 <= bias <= 100.0:
            raise bad_field(field, "must be from -100 to 100")
        made[int(key)] = bias
    return made


def report_tools(tools: Sequence[bodies.ToolBody] | None, extras: Extras, limits: Limits) -> Extras:
    """Return `extras` with two more kinds of ignored fields: tools that are not offered to the
    model, and formats that are not enforced."""
    foreign = foreign_in(tools, bodies.ForeignToolBody)
    extras = ignoring(extras, foreign, NO_SUCH_TOOL, limits)
    return ignoring(extras, unheld_in(tools), NOT_HELD, limits)


def tool_named(
    choice: bodies.NamedChoiceBody | bodies.AllowedToolBody | CustomChoiceBody,
) -> tuple[str, str]:
    """Return the kind and the name of the tool that a tool choice names."""
    if isinstance(choice, CustomChoiceBody):
        return "custom", choice.custom.name
    return "function", choice.function.name


def predicted_of(prediction: bodies.PredictionBody | None) -> str | None:
    """Return the text that the client expects as the answer; None without one."""
    if prediction is None:
        return None
    content = prediction.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return text or None


def variables_of(
    arguments: bodies.TemplateArgumentsBody | None,
) -> dict[str, bool | int | float | str] | None:
    """Return the template's variables other than those about thinking. Raises BadRequest for a
    variable that clients may not set."""
    variables: dict[str, bool | int | float | str] = {}
    for name, value in (arguments.model_extra or {} if arguments is not None else {}).items():
        field = f"chat_template_kwargs.{name[:LONGEST_NAME]}"
        if value is None:
            continue
        if name in OURS:
            raise bad_field(field, "is set by the server; omit it")
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            raise bad_field(field, f"a variable's name has at most {LONGEST_NAME} letters")
        if not isinstance(value, bool | int | float | str):
            raise bad_field(field, "must be text, a number, true or false")
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            raise bad_field(field, f"must have at most {LONGEST_VALUE} characters")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise bad_field(field, "must be a 64-bit number")
        variables[name] = value
    if len(variables) > MOST_VARIABLES:
        raise bad_field(
            "chat_template_kwargs", f"too many variables; the limit is {MOST_VARIABLES}"
        )
    return variables or None
