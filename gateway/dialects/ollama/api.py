"""Ollama's API as a table of endpoints, and its lists of models.

Pure. Unknown properties of a model are omitted or 0, never invented. A field for a date always has
a date.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from bus.wire.errors import BadRequest
from gateway.dialects import api_table, dialect
from gateway.dialects.body import read_body
from gateway.dialects.encode import json_bytes
from gateway.dialects.ollama import answers, bodies
from gateway.dialects.ollama.derive import (
    OllamaCopyBody,
    OllamaCreateBody,
    derived_of,
    parse_copy,
    parse_create,
)
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.ollama.embeddings import (
    OllamaEmbed,
    OllamaEmbedBody,
    OllamaEmbeddings,
    OllamaEmbeddingsBody,
)
from gateway.dialects.ollama.fields import model_of
from gateway.dialects.ollama.model_info import figures_of
from gateway.dialects.ollama.pull import pull_answer, pull_error_line, pull_line
from gateway.dialects.ollama.render import CONTENT_TYPE, date, error_object

VERSION = "0.14.0"
"""The supported version of Ollama's API, including responses and messages. Clients such as `codex
--oss` check it."""
_MAKING: tuple[answers.OllamaStatus, ...] = (
    {"status": "reading model metadata"},
    {"status": "writing manifest"},
    {"status": "success"},
)
CREATED = tuple(map(json_bytes, _MAKING))
"""The lines of the stream that reports the making of a derived model. The last line is also the
whole answer without a stream."""
_SPOKEN: answers.OllamaVersion = {"version": VERSION}
FOREVER_S = 100 * 365 * 86_400.0
"""A model that never expires gets an expiry date this many seconds in the future, since the API
requires a date."""


def render_tags(listings: Sequence[api_table.ModelListing], _now_s: float) -> bytes:
    """Return the answer to `GET /api/tags`. The member `models` is present even if no model is
    listed."""
    tags: answers.OllamaTags = {
        "models": [
            {
                "name": listing.id,
                "model": listing.id,
                "modified_at": date(listing.modified_at_s),
                "size": listing.size_bytes,
                "digest": listing.digest,
                "details": _details(listing),
                "capabilities": list(listing.capabilities),
            }
            for listing in listings
        ]
    }
    return json_bytes(tags)


def render_ps(listings: Sequence[api_table.ModelListing], now_s: float) -> bytes:
    """Return the answer to `GET /api/ps`: one entry for each instance, under the name of its own
    model."""
    loaded: answers.OllamaProcesses = {
        "models": [
            {
                "name": listing.id,
                "model": listing.id,
                "size": copy.size_bytes,
                "size_vram": copy.accelerator_bytes,
                "digest": listing.digest,
                "details": _details(listing),
                "expires_at": date(_expiry(copy, now_s)),
                "context_length": copy.context_tokens,
            }
            for listing in listings
            if listing.derived is None
            for copy in listing.loaded
        ]
    }
    return json_bytes(loaded)


def render_show(listing: api_table.ModelListing) -> bytes:
    """Return the answer to `POST /api/show`. `model_info` omits unknown properties."""
    parameters = _parameters(listing)
    shown: answers.OllamaShown = {
        "modelfile": _modelfile(listing, parameters),
        "parameters": "\n".join(parameters),
        "template": listing.template,
        "license": listing.license,
        "details": _details(listing),
        "model_info": _model_info(listing),
        "capabilities": list(listing.capabilities),
        "modified_at": date(listing.modified_at_s),
    }
    derived = listing.derived
    if derived is not None and derived.system:
        shown["system"] = derived.system
    if derived is not None and derived.turns:
        shown["messages"] = [{"role": turn.role, "content": turn.content} for turn in derived.turns]
    if listing.tensors:
        shown["tensors"] = [
            {"name": name, "type": dtype, "shape": list(shape)}
            for name, dtype, shape in listing.tensors
        ]
    return json_bytes(shown)


def _parameters(listing: api_table.ModelListing) -> list[str]:
    """Return the parameters as lines of text: one line for each value of a parameter."""
    parameters = {} if listing.derived is None else dict(listing.derived.parameters)
    if listing.max_tokens:
        # Ollama's name for an answer's limit unless its request sets one
        parameters.setdefault("num_predict", listing.max_tokens)
    return [
        f"{name} {json_bytes(value).decode()}"
        for name, values in parameters.items()
        for value in (cast(list[Any], values) if isinstance(values, list | tuple) else [values])
    ]


def _modelfile(listing: api_table.ModelListing, parameters: Sequence[str]) -> str:
    """Return the Modelfile from which `create` would make the model again."""
    derived = listing.derived
    lines = [f"FROM {listing.id if derived is None else derived.base}"]
    lines += [f"PARAMETER {line}" for line in parameters]
    if derived is not None:
        lines += [f'SYSTEM """{derived.system}"""'] if derived.system else []
        lines += [f'MESSAGE {turn.role} """{turn.content}"""' for turn in derived.turns]
        lines += [f'LICENSE """{derived.license}"""'] if derived.license else []
    return "\n".join(lines) + "\n"


def _model_info(listing: api_table.ModelListing) -> dict[str, str | int | float]:
    family = listing.family or "unknown"
    counts = {
        "general.parameter_count": listing.parameters,
        f"{family}.context_length": listing.context_tokens,
        f"{family}.block_count": listing.layers,
        f"{family}.vocab_size": listing.vocabulary,
    }
    present = {name: count for name, count in counts.items() if count}
    return {"general.architecture": family, **present, **figures_of(family, listing.config)}


def parse_show(body: bytes, limits: dialect.Limits) -> api_table.AskedModel:
    """Return the model in a body of `POST /api/show`. Raises BadRequest."""
    parsed_body, extras = read_body(bodies.OllamaShowBody, body, limits)
    return api_table.AskedModel(
        _named(parsed_body), bool(parsed_body.verbose), ignored=extras.ignored
    )


def parse_delete(body: bytes, limits: dialect.Limits) -> api_table.AskedModel:
    """Return the model in a body of `DELETE /api/delete`. Raises BadRequest."""
    parsed_body, extras = read_body(bodies.OllamaDeleteBody, body, limits)
    return api_table.AskedModel(_named(parsed_body), ignored=extras.ignored)


def parse_pull(body: bytes, limits: dialect.Limits) -> api_table.AskedModel:
    """Return the model in a body of `POST /api/pull`. Raises BadRequest."""
    parsed_body, extras = read_body(bodies.OllamaPullBody, body, limits)
    # a registry's name, which need not be a valid model name here
    stream = parsed_body.stream is not False
    return api_table.AskedModel(_name(parsed_body), stream=stream, ignored=extras.ignored)


def _named(body: bodies.NamedModelBody) -> str:
    """Return the name of the model in a body, without the tag `:latest`."""
    return model_of(_name(body))


def _name(body: bodies.NamedModelBody) -> str:
    name = body.model or body.name
    if not name:
        raise BadRequest("model is required", field="model")
    return name


def parameter_size(parameters: int) -> str:
    """Return a count in Ollama's notation: 4_000_000 as `4.0M`."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return f"{parameters / size:.1f}{letter}"
    return str(parameters)


def _details(listing: api_table.ModelListing) -> answers.OllamaDetails:
    return {
        "parent_model": "" if listing.derived is None else listing.derived.parent,
        "format": listing.format,
        "family": listing.family,
        "families": [listing.family] if listing.family else [],
        "parameter_size": parameter_size(listing.parameters),
        "quantization_level": listing.quantization,
    }


def _expiry(copy: dialect.LoadedCopy, now_s: float) -> float:
    latest = now_s + FOREVER_S
    return latest if copy.expires_at_s is None else min(latest, copy.expires_at_s)


# fmt: off
OLLAMA = api_table.Api(
    title="Ollama API",
    envelope=api_table.ErrorEnvelope(answers.OllamaError, error_object),
    endpoints=(
        api_table.Generates("/api/chat", "Chat, streamed by default",
                            OllamaChat(), bodies.OllamaChatBody,
                            answers.OllamaChatAnswer, answers.OllamaChatAnswer),
        api_table.Generates("/api/generate", "Complete a prompt; without a prompt: load or unload",
                            OllamaGenerate(), bodies.OllamaGenerateBody,
                            answers.OllamaGenerateAnswer, answers.OllamaGenerateAnswer),
        api_table.Embeds("/api/embed", "Create embeddings of texts; without texts: load or unload",
                         OllamaEmbed(), OllamaEmbedBody, answers.OllamaEmbedAnswer),
        api_table.Embeds("/api/embeddings", (
                             "Create the embedding of one text (deprecated: use /api/embed)"),
                         OllamaEmbeddings(), OllamaEmbeddingsBody,
                         answers.OllamaEmbeddingsAnswer),
        api_table.ListsModels("/api/tags", (
            "List the models on "
            "disk"
            ), render_tags, answers.OllamaTags),
        api_table.ShowsAsked("/api/show", "Show one model in detail", parse_show,
                             bodies.OllamaShowBody, render_show, answers.OllamaShown),
        api_table.FetchesModel("/api/pull", "Pull a model from a hub to this node's disk",
                               parse_pull, bodies.OllamaPullBody,
                               pull_answer, pull_line, pull_error_line, CONTENT_TYPE,
                               answers.OllamaStatus, answers.OllamaPullStatus),
        api_table.DeletesModel("/api/delete",
                               "Delete a model from this node's disk, or a derived one",
                               parse_delete, bodies.OllamaDeleteBody),
        api_table.DerivesModel("/api/create", "Create a model from another: defaults and prompts",
                               parse_create, OllamaCreateBody, derived_of, CREATED, CONTENT_TYPE,
                               answers.OllamaStatus),
        api_table.DerivesModel("/api/copy", "Give a model an additional name", parse_copy,
                               OllamaCopyBody, derived_of),
        api_table.ListsModels("/api/ps", "List the loaded models", render_ps,
                              answers.OllamaProcesses, waits=False),
        api_table.Says("/api/version", "Version of the API", json_bytes(_SPOKEN),
                       answers.OllamaVersion),
    ),
    prefixes=("/api/", "/ollama/"),
    also_under="/ollama",
)
# fmt: on
