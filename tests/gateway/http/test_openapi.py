# pyright: reportUnknownMemberType=false
# (jsonschema's validate carries no types)
from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from gateway.dialects.api_table import Generates
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.ollama.bodies import OllamaChatBody, OllamaGenerateBody, OllamaShowBody
from gateway.dialects.openai.bodies import ChatCompletionsBody, CompletionsBody
from gateway.dialects.registry import APIS
from gateway.http.openapi import GENERATION_ERRORS, PARAMETER, Route, document
from gateway.http.routes import ROUTES as EVERY_ROUTE
from tests.gateway.dialects.golden_streams import streams
from tests.harness.shown_answers import ShownAnswers
from tests.harness.sse_frames import FrameReader

ROUTES = [
    Route(
        "POST",
        "/v1/chat/completions",
        "Answer a conversation",
        "openai",
        body=ChatCompletionsBody,
        streams="text/event-stream",
        errors=GENERATION_ERRORS,
    ),
    Route("POST", "/v1/completions", "Continue a prompt", "openai", body=CompletionsBody),
    Route("GET", "/v1/models/{id:path}", "One model", "openai", errors=(404,)),
    Route("POST", "/api/chat", "Chat", "ollama", body=OllamaChatBody, envelope=OLLAMA.envelope),
    Route("POST", "/api/generate", "Generate", "ollama", body=OllamaGenerateBody),
    Route("POST", "/api/show", "Show", "ollama", body=OllamaShowBody, errors=(404,)),
    Route("GET", "/instance/{id}", "One instance", "shoal"),
    Route("DELETE", "/instance/{id}", "Unload it", "shoal"),
]


@cache
def _document(routes: tuple[Route, ...] = tuple(ROUTES)) -> dict[str, Any]:
    """Return the document of routes, as a client reads it. It is made once, for all tests."""
    return json.loads(json.dumps(document(routes, title="shoal", version="0.1.0")))


def test_every_route_is_in_the_document_with_its_parameters() -> None:
    made = _document()
    assert made["openapi"] == "3.1.0"
    assert set(made["paths"]["/instance/{id}"]) == {"get", "delete"}
    [parameter] = made["paths"]["/v1/models/{id}"]["get"]["parameters"]
    assert parameter["required"] is True  # OpenAPI demands it of parameters in paths
    assert (parameter["name"], parameter["in"]) == ("id", "path")
    chat = made["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "429" in chat["responses"]


def test_every_reference_leads_somewhere() -> None:
    made = _document()
    found = set(re.findall(r"#/components/schemas/([\w.]+)", json.dumps(made)))
    assert found == set(made["components"]["schemas"]) & found
    assert {"ChatCompletionsBody", "OllamaChatBody", "Error"} <= found
    assert not any("__" in name for name in made["components"]["schemas"])


def test_the_bodies_are_open_to_unknown_fields_and_show_what_they_need() -> None:
    schemas = _document()["components"]["schemas"]
    assert schemas["ChatCompletionsBody"]["additionalProperties"] is True
    assert schemas["ChatCompletionsBody"]["required"] == ["model", "messages"]
    options = schemas["OllamaChatBody"]["properties"]["options"]
    assert "num_predict" in options["properties"]


def test_operations_have_names_of_their_own() -> None:
    made = _document()
    ids = [one["operationId"] for path in made["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids) == len(ROUTES)


def test_every_generating_route_shows_its_answer_and_its_events() -> None:
    made = _document(tuple(EVERY_ROUTE))
    told = [route for route in EVERY_ROUTE if route.streams is not None and route.event]
    generating = [route for route in told if route.method == "POST"]
    assert {route.path for route in generating} >= {"/v1/chat/completions", "/api/chat"}
    for route in generating:
        shown = made["paths"][PARAMETER.sub(r"{\1}", route.path)]["post"]["responses"]["200"][
            "content"
        ]
        assert route.streams is not None
        whole, event = shown["application/json"]["schema"], shown[route.streams]["schema"]
        assert whole["$ref"].startswith("#/components/schemas/")
        told = event if "anyOf" in event else _told_by(event)
        assert {"$ref": f"#/components/schemas/{route.envelope.shape.__name__}"} in told["anyOf"]
    chunk = made["components"]["schemas"]["ChatChunk"]
    assert chunk["properties"]["object"]["const"] == "chat.completion.chunk"
    assert "usage" not in chunk["required"]
    found = set(re.findall(r"#/components/schemas/([\w.]+)", json.dumps(made)))
    assert found <= set(made["components"]["schemas"])


def _told_by(event: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the JSON in an event's `data`."""
    data = event["properties"]["data"]
    kinds = [one for one in data.get("anyOf", [data]) if "const" not in one]
    assert [one["contentMediaType"] for one in kinds] == ["application/json"]
    return kinds[0]["contentSchema"]


@pytest.mark.parametrize(
    ("name", "stream"),
    [one for one in streams() if not one[0].startswith("ollama")],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_every_event_of_a_stream_is_one_that_the_document_shows(name: str, stream: bytes) -> None:
    made = _document(tuple(EVERY_ROUTE))
    paths = {
        endpoint.dialect.name: endpoint.path
        for api in APIS
        for endpoint in reversed(api.endpoints)
        if isinstance(endpoint, Generates)
    }
    content = made["paths"][paths[name.partition("/")[0]]]["post"]["responses"]["200"]["content"]
    schema = content["text/event-stream"]["schema"]
    told = Draft202012Validator(_told_by(schema) | {"components": made["components"]})
    for frame in FrameReader().feed(stream):
        event = {"data": frame.data} | ({"event": frame.event} if frame.event else {})
        Draft202012Validator(schema).validate(event)
        if {"const": frame.data} not in schema["properties"]["data"].get("anyOf", ()):
            told.validate(json.loads(frame.data))


UNTYPED_MOST = 25
"""Answers of which no more is said than that they are objects; it may only shrink."""


def test_answers_have_schemas_of_their_types() -> None:
    untyped = [
        (route.method, route.path)
        for route in EVERY_ROUTE
        if (route.answers == "application/json" and route.answer is None)
        or (route.streams is not None and route.event is None)
    ]
    assert len(untyped) <= UNTYPED_MOST, untyped
    assert len(EVERY_ROUTE) - len(untyped) >= 138
    made = _document(tuple(EVERY_ROUTE))
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    assert content["schema"], (method, path, status, kind)


def test_an_answer_with_a_field_more_or_one_less_is_seen() -> None:
    seen = ShownAnswers()
    asked = httpx.Request("GET", "http://127.0.0.1/api/version")
    for told in ({"version": "1"}, {"version": "1", "more": 1}, {}):
        answer = httpx.Response(200, json=told, headers={"x-request-id": "1"}, request=asked)
        seen.look_at(answer)
    assert [one.partition(": ")[2] for one in seen.wrong] == [
        "at $: Additional properties are not allowed ('more' was unexpected)",
        "at $: 'version' is a required property",
    ]
