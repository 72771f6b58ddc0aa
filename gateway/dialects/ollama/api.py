"""Ollama's API as a table, and its listings of models.

Pure. What is not known of a model is left out or said as zero, never made up; dates are always
dates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.wire.errors import BadRequest
from gateway.dialects import dialect
from gateway.dialects.body import read_body
from gateway.dialects.encode import json_bytes
from gateway.dialects.ollama import bodies
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.ollama.fields import model_of
from gateway.dialects.ollama.render import ERROR_SCHEMA, date, error_object

VERSION = "0.13.0"
"""The version of Ollama's API that is spoken; clients compare it with what they need."""
FOREVER_S = 100 * 365 * 86_400.0
"""How far away the expiry of a model that stays is dated, since it must be a date."""


def render_tags(listings: Sequence[dialect.ModelListing], _now_s: float) -> bytes:
    """Return the answer to `GET /api/tags`; `models` is there even when there are none."""
    return json_bytes(
        {
            "models": [
                {
                    "name": one.id,
                    "model": one.id,
                    "modified_at": date(one.modified_at_s),
                    "size": one.size_bytes,
                    "digest": one.digest,
                    "details": _details(one),
                }
                for one in listings
            ]
        }
    )


def render_ps(listings: Sequence[dialect.ModelListing], now_s: float) -> bytes:
    """Return the answer to `GET /api/ps`: one entry per loaded copy."""
    return json_bytes(
        {
            "models": [
                {
                    "name": one.id,
                    "model": one.id,
                    "size": copy.size_bytes,
                    "size_vram": copy.accelerator_bytes,
                    "digest": one.digest,
                    "details": _details(one),
                    "expires_at": date(_expiry(copy, now_s)),
                    "context_length": copy.context_tokens,
                }
                for one in listings
                for copy in one.loaded
            ]
        }
    )


def render_show(listing: dialect.ModelListing) -> bytes:
    """Return the answer to `POST /api/show`."""
    family = listing.family or "unknown"
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.parameter_count": listing.parameters,
        f"{family}.context_length": listing.context_tokens,
        **listing.facts,
    }
    return json_bytes(
        {
            "modelfile": f"FROM {listing.id}\n",
            "parameters": "",
            "template": listing.template,
            "license": "",
            "details": _details(listing),
            "model_info": info,
            "capabilities": list(listing.capabilities),
            "modified_at": date(listing.modified_at_s),
        }
    )


def parse_show(body: bytes, limits: dialect.Limits) -> tuple[str, tuple[str, ...]]:
    """Return the model that `POST /api/show` asks about, without `:latest`, and the paths of
    fields without effect."""
    asked, extras = read_body(bodies.OllamaShowBody, body, limits)
    name = asked.model or asked.name
    if not name:
        raise BadRequest("model is required", field="model")
    return model_of(name), extras.ignored


def parameter_size(parameters: int) -> str:
    """Return a count as Ollama writes it: 4_000_000 as `4.0M`."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return f"{parameters / size:.1f}{letter}"
    return str(parameters)


def _details(listing: dialect.ModelListing) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": listing.family,
        "families": [listing.family] if listing.family else [],
        "parameter_size": parameter_size(listing.parameters),
        "quantization_level": listing.quantization,
    }


def _expiry(copy: dialect.LoadedCopy, now_s: float) -> float:
    latest = now_s + FOREVER_S
    return latest if copy.expires_at_s is None else min(latest, copy.expires_at_s)


# fmt: off
OLLAMA = dialect.Api(
    title="Ollama API",
    envelope=dialect.ErrorEnvelope("OllamaError", ERROR_SCHEMA, error_object),
    endpoints=(
        dialect.Generates("/api/chat", "A chat turn, streamed unless told otherwise",
                          OllamaChat(), bodies.OllamaChatBody),
        dialect.Generates("/api/generate", "A completion; without a prompt: load or unload",
                          OllamaGenerate(), bodies.OllamaGenerateBody),
        dialect.ListsModels("/api/tags", "Models on disk", render_tags),
        dialect.ShowsAsked("/api/show", "One model in detail", render_show,
                           parse_show, bodies.OllamaShowBody),
        dialect.ListsModels("/api/ps", "Models that are loaded", render_ps, waits=False),
        dialect.Says("/api/version", "Version of the API", json_bytes({"version": VERSION})),
    ),
    prefixes=("/api/", "/ollama/"),
    also_under="/ollama",
)
# fmt: on
