"""Secrets, each of its own place, and the requests that carry them: through each dialect, whole and
streamed, taken and refused."""

from __future__ import annotations

import base64
import json
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.harness.nodes import MODEL

LENGTH = 24
LETTERS = string.ascii_letters + string.digits
Fields = dict[str, Any]


class Planted:
    """Secrets by the place where they were planted."""

    def __init__(self) -> None:
        self.by_place: dict[str, str] = {}

    def at(self, place: str) -> str:
        """The secret of a place, made at the first call."""
        made = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        return self.by_place.setdefault(place, made)


@dataclass(frozen=True)
class Asked:
    """A request. `says` are secrets that its answer tells: made by the model, or sent back."""

    path: str
    body: Fields = field(default_factory=dict[str, Any])
    says: tuple[str, ...] = ()


def taken(planted: Planted, way: str, embedder: str) -> Iterator[Asked]:
    """Requests that are answered, of each dialect; `way` is what their places' names begin with."""
    at = _named(planted, way)
    for stream in (False, True):
        how = f"{'streamed' if stream else 'whole'} "
        yield from _chats(at, how, {"model": MODEL, "stream": stream, "temperature": 0})
        yield from _of_responses(at, how, {"model": MODEL, "stream": stream, "store": False})
        yield from _of_anthropic(at, how, {"model": MODEL, "stream": stream, "max_tokens": 200})
        yield from _of_ollama(at, how, {"model": MODEL, "stream": stream})
    yield from _of_prompts(at)
    yield Asked("/v1/embeddings", {"model": embedder, "input": at("embedded")})
    yield Asked("/api/embed", {"model": embedder, "input": [at("embedded by Ollama's way")]})


class _named:
    """Gives the secrets of places whose names have a beginning."""

    def __init__(self, planted: Planted, way: str) -> None:
        self._planted, self._way = planted, way

    def __call__(self, place: str) -> str:
        return self._planted.at(f"{self._way}: {place}")


def saying(secret: str, said: str) -> Fields:
    """A schema that lets a model say a secret, and nothing else; `said` describes it."""
    spoken = {"type": "string", "enum": [secret], "description": said}
    return {
        "type": "object",
        "properties": {"value": spoken},
        "required": ["value"],
        "additionalProperties": False,
    }


def _tool(secret: str, said: str) -> Fields:
    return {"name": "note", "description": said, "strict": True, "parameters": saying(secret, said)}


def _chats(at: _named, how: str, common: Fields) -> Iterator[Asked]:
    path = "/v1/chat/completions"
    answer, call = at(f"{how}chat answer"), at(f"{how}chat tool arguments")
    form = {"name": "n", "schema": saying(answer, at(f"{how}chat schema")), "strict": True}
    yield Asked(
        path,
        {
            **common,
            "messages": [
                {"role": "system", "content": at(f"{how}chat system")},
                {"role": "user", "content": [{"type": "text", "text": at(f"{how}chat prompt")}]},
            ],
            "response_format": {"type": "json_schema", "json_schema": form},
            "stop": [at(f"{how}chat stop")],
            "metadata": {"note": at(f"{how}chat metadata")},
            "prompt_cache_key": at(f"{how}chat cache key"),
            "x_trace": True,
            "max_tokens": 200,
        },
        (answer,),
    )
    arguments = json.dumps({"value": at(f"{how}chat earlier arguments")})
    earlier = {"name": "note", "arguments": arguments}
    yield Asked(
        path,
        {
            **common,
            "messages": [
                {"role": "user", "content": at(f"{how}chat prompt with tools")},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "call_1", "type": "function", "function": earlier}],
                },
                {
                    "role": "tool",
                    "tool_call_id": "call_1",
                    "content": at(f"{how}chat tool result"),
                },
            ],
            "tools": [
                {"type": "function", "function": _tool(call, at(f"{how}chat tool description"))}
            ],
            "tool_choice": "required",
            "max_tokens": 200,
        },
        (call,),
    )
    told = at(f"{how}completion answer")
    yield Asked(
        "/v1/completions",
        {
            **common,
            "prompt": at(f"{how}completion prompt"),
            "structured_outputs": {"choice": [told]},
            "max_tokens": 200,
        },
        (told,),
    )


def _of_responses(at: _named, how: str, common: Fields) -> Iterator[Asked]:
    answer, call = at(f"{how}response answer"), at(f"{how}response tool arguments")
    form = {"type": "json_schema", "name": "n", "schema": saying(answer, "answer")}
    yield Asked(
        "/v1/responses",
        {
            **common,
            "instructions": at(f"{how}response instructions"),
            "input": at(f"{how}response prompt"),
            "text": {"format": form},
        },
        (answer,),
    )
    yield Asked(
        "/v1/responses",
        {
            **common,
            "input": [
                {"role": "user", "content": at(f"{how}response prompt with tools")},
                {
                    "type": "function_call", "call_id": "c", "name": "note",
                    "arguments": json.dumps({"value": at(f"{how}response earlier arguments")}),
                },
                {
                    "type": "function_call_output", "call_id": "c",
                    "output": at(f"{how}response tool result"),
                },
            ],
            "tools": [{"type": "function", **_tool(call, at(f"{how}response tool description"))}],
            "tool_choice": "required",
        },
        (call,),
    )  # fmt: skip


def _of_anthropic(at: _named, how: str, common: Fields) -> Iterator[Asked]:
    call = at(f"{how}message tool arguments")
    tool = _tool(call, at(f"{how}message tool description"))
    schema = tool.pop("parameters")
    document = {
        "type": "document",
        "title": at(f"{how}message file name"),
        "source": {"type": "text", "media_type": "text/plain", "data": at(f"{how}message file")},
    }
    yield Asked(
        "/v1/messages",
        {
            **common,
            "system": at(f"{how}message system"),
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": at(f"{how}message prompt")}, document],
                }
            ],
            "tools": [{**tool, "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": "note"},
        },
        (call,),
    )


def _of_ollama(at: _named, how: str, common: Fields) -> Iterator[Asked]:
    answer, told = at(f"{how}Ollama answer"), at(f"{how}Ollama generated")
    yield Asked(
        "/api/chat",
        {
            **common,
            "messages": [{"role": "user", "content": at(f"{how}Ollama prompt")}],
            "format": saying(answer, "answer"),
        },
        (answer,),
    )
    yield Asked(
        "/api/generate",
        {
            **common,
            "prompt": at(f"{how}Ollama generate prompt"),
            "system": at(f"{how}Ollama system"),
            "format": saying(told, "answer"),
        },
        (told,),
    )


def _of_prompts(at: _named) -> Iterator[Asked]:
    text = at("applied template")
    turns = [{"role": "user", "content": text}]
    yield Asked("/apply-template", {"model": MODEL, "messages": turns}, (text,))
    yield Asked("/tokenize", {"model": MODEL, "prompt": at("tokenized")})
    counted = [{"role": "user", "content": at("counted by Anthropic's way")}]
    yield Asked("/v1/messages/count_tokens", {"model": MODEL, "messages": counted})
    body = {"model": MODEL, "input": at("counted by responses' way")}
    yield Asked("/v1/responses/input_tokens", body)


def refused(planted: Planted, way: str) -> Iterator[tuple[str, str, Fields]]:
    """Requests that are refused, as method, path and httpx's arguments; their places' names begin
    with `way`."""
    at = _named(planted, way)
    chat = "/v1/chat/completions"
    good: Fields = {"model": MODEL, "messages": [{"role": "user", "content": at("prompt")}]}
    wrong: dict[str, Fields] = {
        "temperature": {"temperature": at("a number")},
        "role": {"messages": [{"role": at("a role"), "content": "x"}]},
        "messages": {"messages": at("messages")},
        "a type": {"response_format": {"type": at("a type")}},
        "a schema": {"response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": at("a schema's type")}}}},
        "a file": {"messages": [{"role": "user", "content": [{
            "type": "file", "file": {"filename": at("a file's name"),
                                     "file_data": at("a file's content")}}]}]},
        "an image": {"messages": [{"role": "user", "content": [{
            "type": "image_url", "image_url": {"url": f"https://x.example/?key={at('image URL')}"}
        }]}], "x_images": at("a field")},
        "model": {"model": at("the name of a model")},
        "bias": {"logit_bias": {at("a bias"): 1}},
        "choice": {"tool_choice": {"type": "function", "function": {"name": at("a tool")}}},
    }  # fmt: skip
    for fields in wrong.values():
        yield "POST", chat, {"json": {**good, **fields}}
    for path in (chat, "/v1/responses", "/v1/messages", "/api/chat", "/v1/embeddings", "/v1/jobs"):
        cut = f'{{"model": "{MODEL}", "key": "{at(f"malformed JSON at {path}")}'.encode()
        yield "POST", path, {"content": cut}
        yield "POST", path, {"json": [at(f"a list at {path}")]}
        wrong_field = {at(f"a field at {path}"): at(f"of {path}")}
        body = {"model": MODEL, "messages": at(f"messages at {path}"), **wrong_field}
        yield "POST", path, {"json": body}
    for path in ("/v1/models", "/events", "/requests/recent", "/v1/traces", "/no/such/path"):
        yield "GET", f"{path}/{at(f'a path below {path}')}", {}
        query = {"key": at(f"the query of {path}"), "after": at(f"after at {path}")}
        yield "GET", f"{path}/none", {"params": query}
    for path in ("/v1/responses/{}", "/instance/{}", "/v1/traces/{}/raw", "/v1/jobs/{}",
                 "/v1/conversations/{}", "/v1/diagnostics/node/processes/{}/log",
                 "/v1/chat/completions/{}", "/dashboard/{}"):  # fmt: skip
        yield "GET", path.format(at(f"an id in {path}")), {}
    yield "POST", "/v1/files", {"files": {"file": (at("an upload's name"), at("an upload"))}}
    yield "PUT", f"/{at('a path that is put to')}", {"content": at("what was put").encode()}
    page = (
        f"https://127.0.0.1:9/{at('a path that is fetched')}?token={at('a query that is fetched')}"
    )
    yield "POST", "/v1/tools/open_url", {"json": {"url": page}}
    yield "POST", "/v1/tools/open_url", {"json": {"url": f"{at('a scheme')}:x"}}
    user = f"https://me:{at('a password in a URL')}@example.org/"
    yield "POST", "/v1/tools/open_url", {"json": {"url": user}}
    yield "POST", "/v1/tools/web_search", {"json": {"query": at("searched for")}}
    yield "GET", "/models/search", {"params": {"query": at("a search of models"), "limit": "x"}}
    yield "PUT", "/settings", {"json": {"settings": {"log_level": at("a setting")}}}


def headers(planted: Planted, way: str) -> Fields:
    """Headers that say secrets, and mean nothing here."""
    at = _named(planted, way)
    user = base64.b64encode(f"me:{at('a password')}".encode()).decode()
    return {
        "X-Planted": at("a header"),
        "Cookie": f"session={at('a cookie')}",
        "Proxy-Authorization": f"Basic {user}",
        "User-Agent": at("a user agent"),
        "Referer": f"https://example.org/?key={at('a referrer')}",
        "OpenAI-Organization": at("an organisation"),
        "X-Request-ID": at("a request id"),
        "traceparent": f"00-{at('a trace')}-00",
        "Idempotency-Key": at("an idempotency key"),
    }


def raw_requests(planted: Planted, way: str, host: str) -> Iterator[bytes]:
    """What no HTTP client sends: heads that a server refuses before a request is known."""
    at = _named(planted, way)
    lines = (
        f"GET /{at('a bad version')} HTTP/9.9\r\nHost: {host}",
        f"{at('a method')} / HTTP/1.1\r\nHost: {host}",
        f"GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {at('a length')}",
        f"GET / HTTP/1.1\r\nHost: {host}\r\nbad {at('a bad name')}: x",
        f"GET / HTTP/1.1\r\nHost: {host}\r\nX-A: {at('a control')}\x01\x00",
        f"GET / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: {at('an encoding')}",
        f"GET / HTTP/1.1\r\nHost: {at('a host')}.example",
        f"GET http://{host}/x?key={at('an absolute target')} HTTP/1.1\r\nHost: {host}",
        f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nOrigin: https://{at('an origin')}.example",
        f"GET /{at('a bad escape')}%zz?%ff%{at('a bad query')} HTTP/1.1\r\nHost: {host}",
        at("no HTTP at all"),
        f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Big: {at('a header that is too large') * 4000}",
    )
    for line in lines:
        yield f"{line}\r\nConnection: close\r\n\r\n".encode()
