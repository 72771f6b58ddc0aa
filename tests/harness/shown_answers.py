# pyright: reportUnknownMemberType=false
# (jsonschema's validate carries no types)
"""Holds live answers against the OpenAPI document: each has the fields that its schema needs, and
none that it does not know.

An answer is known by its method and path, its status and its content type. Of answers that have the
same fields and types one is looked at, so that a test which asks a thousand times pays for one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx
from jsonschema import Draft202012Validator

from gateway.http.openapi import PARAMETER, Route, document
from gateway.http.routes import ROUTES
from tests.harness.sse_frames import FrameReader

ANSWERED_BY = "x-shoal-answered-by"
JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"


def closed(schema: Any) -> Any:
    """A schema that takes no field which it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in cast(dict[str, Any], schema).items()}
    # a property may be called `properties`, too
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def shape(value: Any) -> Any:
    """What two answers of one kind have in common."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return frozenset((name, shape(one)) for name, one in fields.items())
    if isinstance(value, list):
        return (list, frozenset(map(shape, cast(list[Any], value))))
    return type(value)


@functools.cache
def shown(marked_by: str) -> dict[str, Any]:
    """The document of the routes that answer requests with such a header, or without any."""
    routes = [route for route in ROUTES if route.marked_by == marked_by]
    return closed(json.loads(json.dumps(document(routes, title="shoal", version="0"))))


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str], Route]]:
    """Routes, those without parameters first."""
    found: list[tuple[str, re.Pattern[str], Route]] = []
    for route in sorted(ROUTES, key=lambda one: (one.path.count("{"), -len(one.path))):
        path = "".join(
            f"(?:{'.+' if ':path' in part else '[^/]+'})" if part.startswith("{") else
            re.escape(part)
            for part in re.split(r"({\w+(?::\w+)?})", route.path)
        )  # fmt: skip
        found.append((route.method, re.compile(path), route))
    return found


def route_of(request: httpx.Request) -> Route | None:
    """The route that answers a request."""
    path = request.url.path
    found = [
        route
        for method, pattern, route in _patterns()
        if method == request.method and pattern.fullmatch(path)
    ]
    marked = [one for one in found if one.marked_by and one.marked_by in request.headers]
    return next(iter(marked or [one for one in found if not one.marked_by]), None)


class ShownAnswers:
    """Looks at answers, and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.checked: set[tuple[str, str, int]] = set()
        self._seen: set[Any] = set()
        self._validators: dict[Any, Draft202012Validator] = {}

    def look_at(self, answer: httpx.Response) -> None:
        """Look at a whole answer of a gateway; one for a task may be a provider's own."""
        route = route_of(answer.request)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        ours = "x-request-id" in answer.headers and ANSWERED_BY not in answer.headers
        if route is None or not ours:
            return
        path = PARAMETER.sub(r"{\1}", route.path)
        responses = shown(route.marked_by)["paths"][path][route.method.lower()]["responses"]
        told = responses.get(str(answer.status_code), {}).get("content", {}).get(kind)
        if told is None or not answer.content:
            return
        self.checked.add((route.method, route.path, answer.status_code))
        named = (route.method, route.path, answer.status_code, kind)
        for schema, value in _parts(kind, told["schema"], answer):
            known = (named, shape(value))
            if known in self._seen:
                continue
            self._seen.add(known)
            where = (named, id(schema))
            if where not in self._validators:
                components = shown(route.marked_by)["components"]
                self._validators[where] = Draft202012Validator({**schema, "components": components})
            for error in self._validators[where].iter_errors(value):
                self.wrong.append(f"{named}: at {error.json_path}: {error.message[:500]}")


def _parts(kind: str, schema: dict[str, Any], answer: httpx.Response) -> Iterator[tuple[Any, Any]]:
    """What of an answer is JSON, each with its schema."""
    if kind == JSON:
        yield schema, answer.json()
    elif kind == LINES:
        for line in answer.text.split("\n"):
            if line:
                yield schema, json.loads(line)
    elif kind == EVENTS:
        data = schema["properties"]["data"]
        kinds = data.get("anyOf", [data])
        [told] = [one["contentSchema"] for one in kinds if "contentSchema" in one]
        ends = [one["const"] for one in kinds if "const" in one]
        for frame in FrameReader().feed(answer.content):
            if frame.data and frame.data not in ends:
                yield told, json.loads(frame.data)


@contextmanager
def looking(seen: ShownAnswers) -> Iterator[None]:
    """Have every whole answer that this process gets looked at."""
    send = httpx.Client.send

    @functools.wraps(send)
    def sent(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        answer = send(self, request, **options)
        if not options.get("stream"):
            seen.look_at(answer)
        return answer

    httpx.Client.send = sent
    try:
        yield
    finally:
        httpx.Client.send = send
