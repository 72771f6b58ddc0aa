"""Which models are here, in OpenAI's and in Ollama's shapes.

Pure. Both are told from the same `ModelListing`. What is not known is left out or said as
zero, never made up; dates are always dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.wire.errors import BadRequest
from gateway.dialects.body import read_object, take_extras, validate
from gateway.dialects.dialect import Limits
from gateway.dialects.encode import json_bytes
from gateway.dialects.ollama.bodies import SHOW_TABLE, OllamaShowBody
from gateway.dialects.ollama.fields import model_of
from gateway.dialects.ollama.render import date

OWNER = "shoal"
OLLAMA_VERSION = "0.13.0"
"""The version of Ollama's API that is spoken; clients compare it with what they need."""
FOREVER_S = 100 * 365 * 86_400.0
"""How far away the expiry of a model that stays is dated, since it must be a date."""


@dataclass(frozen=True, slots=True)
class LoadedCopy:
    """One loaded copy. `expires_at_s` None or infinite: it stays."""

    size_bytes: int
    accelerator_bytes: int
    context_tokens: int
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelListing:
    """What the listings tell of one model.

    `parameters` is a count (4_000_000). `capabilities` are Ollama's words: completion,
    tools, thinking, insert, vision, embedding. `facts` go into `model_info` as they are.
    """

    id: str
    size_bytes: int
    modified_at_s: float
    digest: str = ""
    family: str = ""
    parameters: int = 0
    quantization: str = ""
    weight_format: str = "safetensors"
    context_tokens: int = 0
    capabilities: tuple[str, ...] = ("completion",)
    template: str = ""
    license: str = ""
    parent: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    loaded: tuple[LoadedCopy, ...] = ()


def openai_models(listings: Sequence[ModelListing]) -> bytes:
    """`GET /v1/models`."""
    return json_bytes({"object": "list", "data": [_openai_object(one) for one in listings]})


def openai_model(listing: ModelListing) -> bytes:
    """`GET /v1/models/{id}`."""
    return json_bytes(_openai_object(listing))


def ollama_tags(listings: Sequence[ModelListing]) -> bytes:
    """`GET /api/tags`. `models` is there even when there are none."""
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


def ollama_ps(listings: Sequence[ModelListing], now_s: float) -> bytes:
    """`GET /api/ps`: one entry per loaded copy."""
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


def ollama_show(listing: ModelListing) -> bytes:
    """`POST /api/show`."""
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
            "license": listing.license,
            "details": _details(listing),
            "model_info": info,
            "capabilities": list(listing.capabilities),
            "modified_at": date(listing.modified_at_s),
        }
    )


def parse_show(body: bytes, limits: Limits) -> str:
    """The model that `POST /api/show` asks about, without `:latest`."""
    found = read_object(body, limits)
    take_extras(found)
    asked = validate(OllamaShowBody, found, SHOW_TABLE)
    name = asked.model or asked.name
    if not name:
        raise BadRequest("model is required", field="model")
    return model_of(name)


def ollama_version() -> bytes:
    """`GET /api/version`."""
    return json_bytes({"version": OLLAMA_VERSION})


def parameter_size(parameters: int) -> str:
    """4_000_000 -> `4.0M`, as Ollama writes it."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return f"{parameters / size:.1f}{letter}"
    return str(parameters)


def _openai_object(listing: ModelListing) -> dict[str, Any]:
    return {
        "id": listing.id,
        "object": "model",
        "created": int(listing.modified_at_s),
        "owned_by": OWNER,
        # other servers' words for the same two facts; clients size their prompts by them
        "max_model_len": listing.context_tokens,
        "context_length": listing.context_tokens,
        "capabilities": list(listing.capabilities),
        "loaded": bool(listing.loaded),
    }


def _details(listing: ModelListing) -> dict[str, Any]:
    return {
        "parent_model": listing.parent,
        "format": listing.weight_format,
        "family": listing.family,
        "families": [listing.family] if listing.family else [],
        "parameter_size": parameter_size(listing.parameters),
        "quantization_level": listing.quantization,
    }


def _expiry(copy: LoadedCopy, now_s: float) -> float:
    latest = now_s + FOREVER_S
    return latest if copy.expires_at_s is None else min(latest, copy.expires_at_s)
