"""The OpenAPI document, made from a table of routes and the models that parse their bodies.

Pure. The same table makes the application; the document says nothing that the code does not
check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from bus.wire.api_keys import Scope
from gateway.dialects import sse
from gateway.dialects.api_table import ErrorEnvelope
from gateway.dialects.registry import DEFAULT_ENVELOPE

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]

Keyless = Literal["anyone", "pulls", "owner"]
"""Who may without a key: anybody on this machine; anybody where `http_anyone_pulls` is set, else
the node's owner; the node's owner."""

PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
"""A name in a path, as the router has it."""
_REFERENCE = "#/components/schemas/{model}"

Mode = Literal["validation", "serialization"]
"""What a schema is of: what is read, or what is told, in which every field stands that has a
default."""
Types = Mapping[tuple[Any, Mode], Any]
_UNSAID = "An object; see the documentation for its fields."
_TEXT: Mapping[str, Any] = {"type": "string"}
_UNTYPED: Mapping[str, Mapping[str, Any]] = {
    "application/json": {"type": "object", "description": _UNSAID},
    "application/gzip": {"type": "string", "format": "binary"},
}
"""The schemas of answers without a type, by their content; any other is text."""

_ERROR_TEXTS: Mapping[int, str] = {
    400: "Invalid body; the message names the field.",
    401: "The API key is missing or unknown.",
    403: "The API key's scope does not allow this.",
    404: "No such model or object.",
    409: "It conflicts with the current state.",
    412: "It changed since the client read it.",
    413: "The body is too large.",
    429: "The queue is full; see `Retry-After` and the position.",
    500: "Internal error.",
    501: "The system does not allow it; see the reason.",
    502: "Another service of this node, or a provider, sent an invalid answer.",
    503: "The model is not ready; see `Retry-After`.",
    504: "A wait passed its deadline; the message names the wait.",
    507: "Not enough memory.",
}
GENERATION_ERRORS = (400, 401, 404, 413, 429, 500, 502, 503, 504, 507)
"""What any route that generates text may answer."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `path` is written as the router has it (`/v1/models/{id:path}`).

    `resource` makes what answers at the path, of the process's service handle. `body` is the model
    that parses it. `answer` is the type of what is answered whole as `answers` (empty: nothing is);
    None where that is JSON: an object of which no more is said. `streams` is the content type of
    a streamed answer, `event` the type of the JSON in each of its events or lines, `ends_with` the
    data of the last event where that is no JSON. `status` is that of an answer. Where two rows have
    one path, the one with
    `marked_by` answers requests with that header; the document shows the other. `scope` is what an
    API key needs to be let in; where it `counts`, a request counts towards what the key may ask
    for. `keyless` is who may without a key, on a node that asks for none: where it is not said,
    anybody may what the scope `inference` opens, and the node's owner alone the rest.
    """

    method: Method
    path: str
    summary: str
    tag: str
    resource: Callable[[Any], object] | None = None
    body: type[BaseModel] | None = None
    answers: str = "application/json"
    answer: Any = None
    status: int = 200
    streams: str | None = None
    event: Any = None
    ends_with: str = ""
    errors: tuple[int, ...] = ()
    envelope: ErrorEnvelope = DEFAULT_ENVELOPE
    marked_by: str = ""
    scope: Scope = "admin"
    counts: bool = False
    keyless: Keyless | None = None

    @property
    def who(self) -> Keyless:
        """Return who may without a key, on a node that asks for none."""
        return self.keyless or ("anyone" if self.scope == "inference" else "owner")

    def is_open_to_all(self, anyone_pulls: bool) -> bool:
        """Return whether anybody on this machine may, without a key; `anyone_pulls`: as `Options`
        have it."""
        return self.who == "anyone" or (self.who == "pulls" and anyone_pulls)


def document(routes: Sequence[Route], *, title: str, version: str) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document: every route, the schemas of bodies, answers and events, the
    error envelopes."""
    kinds: dict[tuple[Any, Mode], None] = dict.fromkeys(
        pair for one in routes for pair in _kinds(one)
    )
    asked: list[tuple[Any, Mode, TypeAdapter[Any]]] = [
        (kind, mode, TypeAdapter[Any](kind)) for kind, mode in kinds
    ]
    types, schema = TypeAdapter.json_schemas(asked, ref_template=_REFERENCE)
    schemas: dict[str, Any] = dict(schema.get("$defs", {}))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {}).setdefault(route.method.lower(), _operation(route, types))
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _kinds(route: Route) -> Iterator[tuple[Any, Mode]]:
    """Yield the types that a route's schemas are made of: of what is read, and of what is told."""
    if route.body is not None:
        yield route.body, "validation"
    for kind in (route.answer, route.event, route.envelope.shape):
        if kind is not None:
            yield kind, "serialization"


def _operation(route: Route, types: Types) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {str(route.status): _answer(route, types), **_errors(route, types)},
    }
    names: list[str] = PARAMETER.findall(route.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": types[route.body, "validation"]}},
        }
    return operation


def _operation_id(route: Route) -> str:
    words = re.sub(r"\W+", "_", PARAMETER.sub(r"\1", route.path)).strip("_") or "root"
    return f"{route.method.lower()}_{words}"


def _answer(route: Route, types: Types) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.answer is not None:
        content[route.answers] = {"schema": types[route.answer, "serialization"]}
    elif route.answers:
        content[route.answers] = {"schema": _UNTYPED.get(route.answers, _TEXT)}
    if route.streams is not None:
        told: dict[str, Any] = {"type": "object", "description": _UNSAID}
        if route.event is not None:
            failure = types[route.envelope.shape, "serialization"]
            told = {"anyOf": [types[route.event, "serialization"], failure]}
        is_sse = route.streams == sse.CONTENT_TYPE
        content[route.streams] = {"schema": _sse_event(told, route.ends_with) if is_sse else told}
    return {"description": route.summary, **({"content": content} if content else {})}


def _sse_event(told: Mapping[str, Any], ends_with: str) -> dict[str, Any]:
    """Return the schema of one server-sent event, as its reader has it: `data` is JSON in a text,
    that of `told`, or what a stream ends with."""
    data: dict[str, Any] = {"contentMediaType": "application/json", "contentSchema": told}
    if ends_with:
        data = {"anyOf": [{"const": ends_with}, data]}
    text = {"type": "string"}
    fields = {"event": text, "id": text, "data": text | data}
    return {"type": "object", "properties": fields, "required": ["data"]}


def _errors(route: Route, types: Types) -> dict[str, Any]:
    reference = types[route.envelope.shape, "serialization"]
    return {
        str(status): {
            "description": _ERROR_TEXTS[status],
            "content": {"application/json": {"schema": reference}},
        }
        for status in sorted({*route.errors, *((403,) if route.scope == "admin" else ())})
    }
