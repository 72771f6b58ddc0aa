"""Builds the OpenAPI document from the table of routes and from the pydantic models that parse the
bodies.

Pure. The application is built from the same table, so the document cannot differ from the code.
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
"""The users who need no key for a route. `anyone`: every user of this machine. `pulls`: every user
of this machine if `http_anyone_pulls` is set, else only the node's owner. `owner`: only the node's
owner."""

PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
"""Matches a parameter in a path of the router, such as `{id:path}`."""
_REFERENCE = "#/components/schemas/{model}"

Mode = Literal["validation", "serialization"]
"""pydantic's mode of a schema. `validation`: the schema of input. `serialization`: the schema of
output, in which fields with a default are always present."""
Types = Mapping[tuple[Any, Mode], Any]
_UNSAID = "An object; see the documentation for its fields."
_TEXT: Mapping[str, Any] = {"type": "string"}
_UNTYPED: Mapping[str, Mapping[str, Any]] = {
    "application/json": {"type": "object", "description": _UNSAID},
    "application/gzip": {"type": "string", "format": "binary"},
}
"""Schemas of untyped answers, by content type. Answers of any other content type are described as
text."""

_ERROR_TEXTS: Mapping[int, str] = {
    400: "Invalid body; the message names the field.",
    401: "The API key is missing or unknown.",
    403: "The API key's scope does not allow this.",
    404: "No such model or object.",
    409: "The request conflicts with the current state.",
    412: "The object changed since the client read it.",
    413: "The body is too large.",
    429: "The queue is full; see `Retry-After` and the position.",
    500: "Internal error.",
    501: "The system does not allow the action; see the reason.",
    502: "Another service of this node, or a provider, sent an invalid answer.",
    503: "The model is not ready; see `Retry-After`.",
    504: "A deadline passed; the message says what shoal waited for.",
    507: "Not enough memory.",
}
GENERATION_ERRORS = (400, 401, 404, 413, 429, 500, 502, 503, 504, 507)
"""Error statuses that every route that generates text can answer with."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    - `path`: in the router's form, such as `/v1/models/{id:path}`.
    - `resource`: builds the falcon resource from the process's service handle.
    - `body`: the pydantic model that describes and parses the body.
    - `answers`: the content type of an answer that is not a stream; empty if there is none.
      `answer`: the type of that answer; None: an untyped object. `status`: the status of success.
    - `streams`: the content type of a stream. `event`: the type of the JSON in each event or line.
      `ends_with`: the data of a last event that is not JSON.
    - `marked_by`: if two rows have one path, the row with `marked_by` answers requests that have
      this header. The document shows only the other row.
    - `scope`: the scope that an API key needs. `counts`: requests count towards the key's budget.
    - `keyless`: who may use the route without a key, on a node without keys (None: `anyone` for the
      scope `inference`, else `owner`).
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
        """Return who may use the route without a key, on a node without keys."""
        return self.keyless or ("anyone" if self.scope == "inference" else "owner")

    def is_open_to_all(self, anyone_pulls: bool) -> bool:
        """Return whether every user of this machine may use the route without a key. `anyone_pulls`
        is the option of that name."""
        return self.who == "anyone" or (self.who == "pulls" and anyone_pulls)


def document(routes: Sequence[Route], *, title: str, version: str) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document: every route, with schemas of bodies, answers, events and
    error envelopes."""
    kinds: dict[tuple[Any, Mode], None] = dict.fromkeys(
        pair for route in routes for pair in _kinds(route)
    )
    adapters: list[tuple[Any, Mode, TypeAdapter[Any]]] = [
        (kind, mode, TypeAdapter[Any](kind)) for kind, mode in kinds
    ]
    types, schema = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE)
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
    """Yield the types that need a schema: those of a route's body, answer, events and errors."""
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
        event: dict[str, Any] = {"type": "object", "description": _UNSAID}
        if route.event is not None:
            failure = types[route.envelope.shape, "serialization"]
            event = {"anyOf": [types[route.event, "serialization"], failure]}
        is_sse = route.streams == sse.CONTENT_TYPE
        content[route.streams] = {"schema": _sse_event(event, route.ends_with) if is_sse else event}
    return {"description": route.summary, **({"content": content} if content else {})}


def _sse_event(content: Mapping[str, Any], ends_with: str) -> dict[str, Any]:
    """Return the schema of one server-sent event: `data` is a string with JSON of the schema
    `content`, or `ends_with`."""
    data: dict[str, Any] = {"contentMediaType": "application/json", "contentSchema": content}
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
