"""OpenAI's fields that mean the same in chat completions and completions.

Pure. Each function reads one matter out of a body, or raises `BadRequest` naming the field.
"""

from __future__ import annotations

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId
from bus.wire.messages.requests import Sampling
from gateway.dialects import shared_fields
from gateway.dialects.body import bad_field
from gateway.dialects.dialect import Extras
from gateway.dialects.openai.bodies import SharedBody
from gateway.dialects.shared_fields import LEAST_TOP_P, named_model, temperature_of

MAX_BIASED = 1024
NO_EFFECT_TIERS = ("auto", "default")


def model_of(body: SharedBody) -> ModelId:
    """Return the model asked for, known or not. BadRequest for what cannot be a model's name."""
    return named_model(body.model)


def check_offered(body: SharedBody) -> None:
    """Refuse what the shared fields ask for and we do not have."""
    if body.store:
        raise bad_field("store", "answers are not stored; leave it out")
    if body.service_tier is not None and body.service_tier not in NO_EFFECT_TIERS:
        text = "only 'auto' and 'default' are offered; x_priority orders requests"
        raise bad_field("service_tier", text)
    if body.stream_options is not None and not body.stream:
        raise BadRequest(
            "stream_options is only allowed when stream is true", field="stream_options"
        )


def includes_usage(body: SharedBody) -> bool:
    """Return whether a stream ends with its usage."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def sampling_of(body: SharedBody) -> Sampling:
    """Return how tokens are chosen; what is left out or null takes OpenAI's default."""
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


def client_of(body: SharedBody, extras: Extras) -> str | None:
    """Return the asking client: `x_client_id`, else OpenAI's own words for it, else None."""
    return extras.client_id or body.user or body.safety_identifier


def _biases_of(biases: dict[str, float]) -> dict[int, float]:
    if len(biases) > MAX_BIASED:
        raise bad_field("logit_bias", f"at most {MAX_BIASED} tokens")
    made: dict[int, float] = {}
    for key, bias in biases.items():
        field = f"logit_bias.{key[:20]}"
        if not (len(key) <= 10 and key.isascii() and key.isdigit() and int(key) < 2**31):
            raise bad_field(field, "the key must be a token id")
        if not -100.0 <= bias <= 100.0:
            raise bad_field(field, "must be from -100 to 100")
        made[int(key)] = bias
    return made
