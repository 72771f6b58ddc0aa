"""Parses Ollama's fields that mean the same in chat and generate.

Pure. Missing options get Ollama's documented defaults (temperature 0.8, top_k 40, top_p 0.9).
`repeat_penalty` is an exception: its default is 1.0, since shoal applies the penalty to the whole
prompt and output, and Ollama only to the last 64 tokens. A name may end with Ollama's `:latest`,
which has no meaning.
"""

from __future__ import annotations

import contextlib
import math
import re

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.derived import plain_name
from bus.wire.messages.requests import ImagePart, OutputFormat, Sampling
from gateway.dialects import shared_fields
from gateway.dialects.body import bad_field, validate
from gateway.dialects.faults import HttpFaultRaised, unknown_model
from gateway.dialects.ollama.bodies import (
    NEUTRAL_OPTIONS,
    ModelBody,
    OllamaOptionsBody,
    SharedBody,
)
from gateway.dialects.shared_fields import (
    LEAST_REPETITION,
    LEAST_TOP_P,
    ThinkingAsked,
    named_model,
    temperature_of,
    thinking_asked,
)

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
MOST_NAME = 200
HOTTEST, MOST_REPETITION, LARGEST = 5.0, 10.0, 2**31 - 1
"""The highest temperature, repetition penalty and integer of an option; higher values are lowered
to these."""
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_REGISTRYS = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)*(?::[\w.-]{1,80})?", re.ASCII)
"""Matches the name of a model in a registry, with host and tag."""
_IMAGE_STARTS = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""First base64 characters of each image format's magic bytes."""


def model_of(name: str) -> ModelId:
    """Return the requested model, without `:latest`, `library/` and `hf.co/`.

    Raises BadRequest for an invalid name. For a name from another registry (`ghcr.io/a/b:1`),
    raises the 404 of an unknown model, because no model of shoal can have such a name.
    """
    if not name:
        raise BadRequest("model is required", field="model")
    plain = plain_name(name)
    if not is_model_id(plain) and len(plain) <= MOST_NAME and _REGISTRYS.fullmatch(plain):
        raise HttpFaultRaised(unknown_model(name))
    return named_model(plain)


def options_of(
    body: ModelBody, *, strict: bool = False
) -> tuple[OllamaOptionsBody, tuple[str, ...]]:
    """Return the options that have an effect, and the paths of unknown options. Raises BadRequest
    for an unsupported or misspelt option; with `strict`, for any unknown one."""
    options = {name: value for name, value in (body.options or {}).items() if value is not None}
    for name, neutral in NEUTRAL_OPTIONS.items():
        if name in options and options.pop(name) not in neutral:
            only = " or ".join(str(value) for value in neutral)
            raise bad_field(f"options.{name}", f"not supported; only {only} is accepted")
    return validate(OllamaOptionsBody, options, within="options", strict=strict)


def sampling_of(options: OllamaOptionsBody) -> Sampling:
    """Return the sampling settings. Missing options get Ollama's defaults; a value out of range
    becomes the nearest valid one."""
    heat = options.temperature
    values = {
        "temperature": None if heat is None else temperature_of(_between(0.0, heat, HOTTEST)),
        "top_p": _between_or_none(LEAST_TOP_P, options.top_p, 1.0),
        "top_k": None if options.top_k is None else _whole(options.top_k),
        "min_p": _between_or_none(0.0, options.min_p, 1.0),
        # Ollama's own default, -1, means "draw one"
        "seed": None if options.seed == -1 else options.seed,
        "frequency_penalty": _between_or_none(-2.0, options.frequency_penalty, 2.0),
        "presence_penalty": _between_or_none(-2.0, options.presence_penalty, 2.0),
        "repetition_penalty": _repetition_of(options),
    }
    return shared_fields.sampling_of(values, DEFAULTS)


def _repetition_of(options: OllamaOptionsBody) -> float | None:
    """Return the repetition penalty; 1.0 (no penalty) if it applies to no tokens; None if it is not
    set."""
    if options.repeat_last_n is not None and int(options.repeat_last_n) == 0:
        return 1.0
    penalty = options.repeat_penalty
    return None if penalty is None else _between(LEAST_REPETITION, penalty or 1.0, MOST_REPETITION)


def _whole(number: float) -> int:
    """Return a number's integer part, at least 0."""
    return int(_between(0.0, number, float(LARGEST)))


def _between_or_none(least: float, value: float | None, most: float) -> float | None:
    return None if value is None else _between(least, value, most)


def _between(least: float, value: float, most: float) -> float:
    return min(max(least, value), most)


def max_tokens_of(options: OllamaOptionsBody) -> int | None:
    """Return the most tokens of an answer; None for as many as fit, the meaning of 0 and less."""
    return _whole(options.num_predict or 0.0) or None


def output_of(body: SharedBody) -> OutputFormat:
    """Return the required format of the text, which a grammar enforces."""
    match body.format:
        case None | "":
            return OutputFormat()
        case "json":
            return OutputFormat(kind="json_object")
        case schema:
            return OutputFormat(kind="json_schema", json_schema=schema)


def thinking_of(body: SharedBody) -> ThinkingAsked:
    """Return how much the model should think. A level of effort also switches thinking on."""
    level = body.think if isinstance(body.think, str) else None
    return thinking_asked(
        switches={"think": None if body.think is None else body.think is not False},
        efforts={"think": level},
    )


def check_offered(body: SharedBody) -> None:
    """Raise BadRequest for `shift`, which would drop part of the context during the answer."""
    if body.shift:
        raise bad_field("shift", "an answer ends when the context is full; omit it")


def keep_alive_of(body: ModelBody) -> float | None:
    """Return the seconds to keep the model loaded; infinite if negative, None if not set."""
    match body.keep_alive:
        case None:
            return None
        case str(text):
            seconds = _duration_s(text)
        case number:
            seconds = float(number)
    return math.inf if seconds < 0 else seconds


def image_of(encoded: str, field: str) -> ImagePart:
    """Return a base64 image as a `data:` URL. Raises BadRequest unless it is JPEG, PNG, GIF or
    WebP."""
    for start, kind in _IMAGE_STARTS.items():
        if encoded.startswith(start):
            return ImagePart(url=f"data:image/{kind};base64,{encoded}")
    raise bad_field(field, "must be a JPEG, PNG, GIF or WebP image in base64")


def _duration_s(text: str) -> float:
    """Return a duration in Go's notation ("1h30m", "300ms", "-1m") in seconds; a bare number is
    seconds."""
    stripped = text.strip()
    with contextlib.suppress(ValueError):
        number = float(stripped)
        if math.isfinite(number):
            return number
    sign = -1.0 if stripped.startswith("-") else 1.0
    unsigned = stripped.lstrip("+-")
    parts = _DURATION.findall(unsigned)
    if not parts or "".join(number + unit for number, unit in parts) != unsigned:
        raise bad_field("keep_alive", f"'{text[:40]}' is not a duration")
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)
