"""The OpenAPI document, made from a table of routes and the models that parse their bodies.

Pure. The same table makes the application; the document says nothing that the code does not
check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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

_ERROR_TEXTS: Mapping[int, str] = {
    400: "The body cannot be honoured as it stands; the field is named.",
    401: "No key, or one that is not ours.",
    403: "The key may not do this.",
    404: "No such model or thing.",
    409: "It contradicts what is there.",
    412: "It was changed since the one who asks looked at it.",
    413: "The body is too large.",
    429: "The queue is full; `Retry-After` and the position are said.",
    500: "Our own failure.",
    501: "The system forbids it here; the reason is said.",
    502: "Another service of this node, or a provider, gave no sense.",
    503: "The model is not ready; `Retry-After` is said.",
    504: "A wait passed its deadline; the message names the wait.",
    507: "Not enough memory.",
}
GENERATION_ERRORS = (400, 401, 404, 413, 429, 500, 502, 503, 504, 507)
"""What any route that generates text may answer."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `path` is written as the router has it (`/v1/models/{id:path}`).

    `resource` makes what answers at the path, of the process's service handle. `body` is the model
    that parses it. `answer` is the type of what is answered whole; `streams` is the content type of
    a streamed answer, `event` the type of the JSON in each of its events or lines, `ends_with` the
    data of the last event where that is no JSON. Where two rows have one path, the one with
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
    told = (kind for route in routes for kind in (route.body, route.answer, route.event))
    kinds = list(dict.fromkeys(kind for kind in told if kind is not None))
    shown, schema = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter[Any](kind)) for kind in kinds], ref_template=_REFERENCE
    )
    schemas: dict[str, Any] = dict(schema.get("$defs", {}))
    types = {kind: shown[kind, "validation"] for kind in kinds}
    schemas |= {route.envelope.name: route.envelope.schema for route in routes}
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


def _operation(route: Route, types: Mapping[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {"200": _answer(route, types), **_errors(route)},
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
            "content": {"application/json": {"schema": types[route.body]}},
        }
    return operation


def _operation_id(route: Route) -> str:
    words = re.sub(r"\W+", "_", PARAMETER.sub(r"\1", route.path)).strip("_") or "root"
    return f"{route.method.lower()}_{words}"


def _answer(route: Route, types: Mapping[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {route.answers: {}}
    if route.answer is not None:
        content[route.answers] = {"schema": types[route.answer]}
    if route.streams is not None:
        content[route.streams] = {}
    if route.streams is not None and route.event is not None:
        failure = {"$ref": _REFERENCE.format(model=route.envelope.name)}
        told = {"anyOf": [types[route.event], failure]}
        is_sse = route.streams == sse.CONTENT_TYPE
        content[route.streams] = {"schema": _sse_event(told, route.ends_with) if is_sse else told}
    return {"description": route.summary, "content": content}


def _sse_event(told: Mapping[str, Any], ends_with: str) -> dict[str, Any]:
    """Return the schema of one server-sent event, as its reader has it: `data` is JSON in a text,
    that of `told`, or what a stream ends with."""
    data: dict[str, Any] = {"contentMediaType": "application/json", "contentSchema": told}
    if ends_with:
        data = {"anyOf": [{"const": ends_with}, data]}
    text = {"type": "string"}
    fields = {"event": text, "id": text, "data": text | data}
    return {"type": "object", "properties": fields, "required": ["data"]}


def _errors(route: Route) -> dict[str, Any]:
    reference = {"$ref": _REFERENCE.format(model=route.envelope.name)}
    return {
        str(status): {
            "description": _ERROR_TEXTS[status],
            "content": {"application/json": {"schema": reference}},
        }
        for status in sorted({*route.errors, *((403,) if route.scope == "admin" else ())})
    }
