"""Ollama's fields that mean the same in chat and generate.

Pure. What is left out takes Ollama's documented defaults (temperature 0.8, top_k 40,
top_p 0.9), save `repeat_penalty`: 1.0, since ours covers the whole prompt and output, not
the last 64 tokens. A name may carry Ollama's `:latest`, which says nothing.
"""

from __future__ import annotations

import contextlib
import math
import re

from bus.wire.ids import ModelId
from bus.wire.messages.requests import ImagePart, OutputFormat, Sampling
from gateway.dialects.body import bad_field, validate
from gateway.dialects.dialect import ParseContext
from gateway.dialects.ollama.bodies import NEUTRAL_OPTIONS, OllamaOptionsBody, SharedBody
from gateway.dialects.shared_fields import (
    LEAST_REPETITION,
    LEAST_TOP_P,
    named_model,
    temperature_of,
)

DEFAULT_TEMPERATURE = 0.8
DEFAULT_TOP_K = 40
DEFAULT_TOP_P = 0.9
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_IMAGE_STARTS = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""The first base64 characters of each image format's magic bytes."""


def model_of(name: str) -> ModelId:
    """Return the model asked for, without `:latest`. BadRequest for what cannot be a name."""
    return named_model(name.removesuffix(":latest"))


def options_of(asked: SharedBody, context: ParseContext) -> OllamaOptionsBody:
    """Return the options, each honoured; BadRequest, by name, for one that cannot be."""
    found = {name: value for name, value in (asked.options or {}).items() if value is not None}
    for name, neutral in NEUTRAL_OPTIONS.items():
        if name in found and found.pop(name) not in neutral:
            only = " or ".join(str(one) for one in neutral)
            raise bad_field(f"options.{name}", f"not offered; only {only} is accepted")
    options = validate(OllamaOptionsBody, found, within="options")
    _check_context(asked, options, context)
    if options.num_predict == 0:
        raise bad_field("options.num_predict", "must be at least 1, or -1 for as many as fit")
    if options.repeat_last_n not in (None, -1, 0):
        text = "only -1 (prompt and output) and 0 (off) are offered"
        raise bad_field("options.repeat_last_n", text)
    if options.repeat_penalty and options.repeat_penalty < LEAST_REPETITION:
        text = f"must be 0 (off) or from {LEAST_REPETITION:g} to 10"
        raise bad_field("options.repeat_penalty", text)
    return options


def sampling_of(options: OllamaOptionsBody) -> Sampling:
    """Return how tokens are chosen; options left out take Ollama's defaults."""
    penalised = options.repeat_last_n != 0 and options.repeat_penalty
    asked = DEFAULT_TEMPERATURE if options.temperature is None else options.temperature
    return Sampling(
        temperature=temperature_of(asked),
        top_p=DEFAULT_TOP_P if options.top_p is None else max(LEAST_TOP_P, options.top_p),
        top_k=DEFAULT_TOP_K if options.top_k is None else max(0, options.top_k),
        min_p=options.min_p or 0.0,
        # Ollama's own default, -1, means "draw one"
        seed=None if options.seed == -1 else options.seed,
        frequency_penalty=options.frequency_penalty or 0.0,
        presence_penalty=options.presence_penalty or 0.0,
        repetition_penalty=penalised or 1.0,
    )


def max_tokens_of(options: OllamaOptionsBody) -> int | None:
    """Return how many tokens at most; None for as many as fit."""
    asked = options.num_predict
    return None if asked is None or asked < 0 else asked


def output_of(asked: SharedBody) -> OutputFormat:
    """Return the format that the text must have; enforced."""
    match asked.format:
        case None | "":
            return OutputFormat()
        case "json":
            return OutputFormat(kind="json_object")
        case schema:
            return OutputFormat(kind="json_schema", json_schema=schema)


def thinking_of(asked: SharedBody) -> bool | None:
    """Return whether to think; levels mean "yes": how long a model thinks is its own to say."""
    return True if isinstance(asked.think, str) else asked.think


def check_offered(asked: SharedBody) -> None:
    """Refuse what would drop a part of the conversation unseen."""
    for name, value in (("truncate", asked.truncate), ("shift", asked.shift)):
        if value:
            raise bad_field(name, "what does not fit is refused, never cut; leave it out")


def keep_alive_of(asked: SharedBody) -> float | None:
    """Return the seconds to keep the model after this; infinite when negative; None if not said."""
    match asked.keep_alive:
        case None:
            return None
        case str(text):
            seconds = _duration_s(text)
        case number:
            seconds = float(number)
    return math.inf if seconds < 0 else seconds


def image_of(encoded: str, field: str) -> ImagePart:
    """Return a base64 image as a `data:` URL. BadRequest for no JPEG, PNG, GIF or WebP."""
    for start, kind in _IMAGE_STARTS.items():
        if encoded.startswith(start):
            return ImagePart(url=f"data:image/{kind};base64,{encoded}")
    raise bad_field(field, "must be a JPEG, PNG, GIF or WebP image in base64")


def _duration_s(text: str) -> float:
    """Return in seconds Go's durations ("1h30m", "300ms", "-1m"), and bare numbers as seconds."""
    stripped = text.strip()
    with contextlib.suppress(ValueError):
        number = float(stripped)
        if math.isfinite(number):
            return number
    sign = -1.0 if stripped.startswith("-") else 1.0
    unsigned = stripped.lstrip("+-")
    parts = _DURATION.findall(unsigned)
    if not parts or "".join(number + unit for number, unit in parts) != unsigned:
        raise bad_field("keep_alive", f"'{text[:40]}' is no duration")
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def _check_context(asked: SharedBody, options: OllamaOptionsBody, context: ParseContext) -> None:
    limit = context.context_tokens.get(asked.model.removesuffix(":latest"))
    if options.num_ctx is not None and limit is not None and options.num_ctx > limit:
        raise bad_field("options.num_ctx", f"the model's context is {limit} tokens")
