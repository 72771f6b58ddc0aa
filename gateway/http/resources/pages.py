"""Talks to clients about the API itself: serves the root path, the OpenAPI document and the page
`/docs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, cast

from falcon.asgi import Request, Response
from pydantic.fields import FieldInfo

from gateway.dialects.body import ACCEPTED, EFFECT
from gateway.dialects.registry import APIS
from gateway.http.middleware import Resource
from gateway.http.openapi import PARAMETER, Route, document
from gateway.service import ServiceHandle

EXAMPLES: Mapping[str, Any] = {
    "model": "shoal-tiny",
    "messages": [{"role": "user", "content": "What is shoal?"}],
    "input": "What is shoal?",
    "prompt": "What is shoal?",
    "items": [{"role": "user", "content": "What is shoal?"}],
    "tokens": [1, 2, 3],
    "max_tokens": 100,
    "max_output_tokens": 100,
    "stream": True,
    "dry_run": True,
    "url": "the URL of a page",
    "query": "What is shoal?",
    "documents": ["A group of fish.", "A kind of bread."],
    "request_id": "the request, or the id of its answer",
    "requests": ["the request, or the id of its answer"],
    "model_id": "OWNER/NAME",
    "source": "shoal-tiny",
    "destination": "mine",
    "from": "shoal-tiny",
    "to": "all",
    "size_bytes": 1_000_000,
    "path": "/v1/completions",
    "allowCloudFallback": True,
    "change": "pause",
    "body": {"model": "shoal-tiny", "prompt": "Once upon a time"},
}
"""Example values of fields, for the forms of `/docs`."""
LABELLED: Mapping[str, Any] = {"metadata": {"topic": "fish"}}
"""The example of a body that has only labels."""
MADE = {"model": "mine"}
"""The example of a body that derives a model."""
_SCRIPT = """
const key = document.querySelector("#key");
async function send(form) {
  const shown = form.querySelector("pre"), body = form.querySelector("textarea"), headers = {};
  if (key.value) headers.Authorization = "Bearer " + key.value;
  if (body) headers["Content-Type"] = "application/json";
  const path = form.dataset.path.replace(/{(\\w+)}/g, (_, name) =>
    encodeURIComponent(form.elements[name].value));
  shown.textContent = "";
  const answer = await fetch(path,
    {method: form.dataset.method, headers, body: body ? body.value : undefined});
  shown.textContent = answer.status + " " + answer.headers.get("content-type") + "\\n\\n";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read())
    shown.textContent += piece.value;
}
for (const form of document.forms) form.onsubmit = event => {
  event.preventDefault();
  send(form).catch(error => form.querySelector("pre").textContent += error);
};
"""
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{font-family:ui-monospace,monospace}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
h2{margin:1.6rem 0 .3rem;font-size:1.05rem}summary{cursor:pointer;padding:.2rem 0}
details>*:not(summary){margin-left:1rem}textarea{font-family:ui-monospace,monospace;max-width:100%}
pre{white-space:pre-wrap;overflow-wrap:anywhere}@media(prefers-color-scheme:dark){
body,textarea,input{background:#111;color:#ddd}a{color:#8bf}}
"""


class Root(Resource):
    """`GET /`: a short text about this gateway."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the version, the node and the main paths, as plain text."""
        options = self.handle.options
        spoken = [
            f"{api.title}   {', '.join(endpoint.path for endpoint in api.endpoints[:3])}\n"
            for api in APIS
        ]
        resp.text = (
            f"shoal {options.version} on {options.node_name} is running\n\n{''.join(spoken)}"
            "Reference    /docs, /openapi.json\n"
            "Health       /health, /metrics, /state, /queue\n"
        )
        resp.content_type = "text/plain; charset=utf-8"


class Constant:
    """A path with a constant answer."""

    def __init__(
        self, _handle: ServiceHandle, answer: bytes, content_type: str = "application/json"
    ) -> None:
        self._answer = answer
        self._content_type = content_type

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the constant bytes."""
        resp.data = self._answer
        resp.content_type = self._content_type


class Made:
    """A path with a constant answer, which is computed at the first request."""

    def __init__(self, make: Callable[[], bytes], content_type: str = "application/json") -> None:
        self._make = make
        self._content_type = content_type
        self._making: asyncio.Future[bytes] | None = None

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the constant. A thread computes it once, so other requests do not wait."""
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(self._make))
        # a client that hangs up does not cancel it for the others
        resp.data = await asyncio.shield(self._making)
        resp.content_type = self._content_type


class MadeForServer(Made):
    """An OpenAPI document; its server is the address that the client used."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the document."""
        await super().on_get(req, resp)
        servers = json.dumps({"servers": [{"url": f"{req.scheme}://{req.netloc}"}]}).encode()
        resp.data = servers[:-1] + b"," + (resp.data or b"{}")[1:]


def openapi(routes: Sequence[Route], version: str) -> bytes:
    """Return the OpenAPI document as JSON."""
    # not orjson: the bounds of a seed exceed 64 bits
    return json.dumps(document(routes, title="shoal", version=version)).encode()


def docs(routes: Sequence[Route], version: str) -> bytes:
    """Return an HTML page of all routes, each with its fields and a form to try it. The page loads
    nothing from other servers."""
    parts = [
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>shoal {escape(version)}</title><style>{_STYLE}</style><h1>shoal</h1>",
        "<p>For programs: <a href=/openapi.json>/openapi.json</a></p>",
        "<p><label>API key, if required <input id=key type=password></label></p>",
    ]
    for tag in dict.fromkeys(route.tag for route in routes):
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_route(route) for route in routes if route.tag == tag]
    return "\n".join([*parts, f"<script>{_SCRIPT}</script>"]).encode()


def _route(route: Route) -> str:
    """Return the line of a route, with its fields and its form. If only a header distinguishes this
    route from another one with the same path, show the name of that header instead of the fields
    and the form."""
    method, path = f"<b>{route.method}</b>", f"<code>{escape(route.path)}</code>"
    head = f"<summary>{method} {path} {escape(route.summary)}</summary>"
    if route.marked_by:
        return f"<details>{head}<p>With the header {escape(route.marked_by)}.</p></details>"
    return f"<details>{head}{_fields(route)}{_form(route)}</details>"


def _fields(route: Route) -> str:
    """Return a body's fields as a table: each with its effect and its description."""
    if route.body is None:
        return ""
    rows = [
        f"<tr><td><code>{escape(info.alias or name)}</code><td>{_standing(info)}"
        f"<td>{escape(info.description or '')}"
        for name, info in route.body.model_fields.items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _standing(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    extra_fields = cast(dict[str, Any], extra) if isinstance(extra, dict) else {}
    if EFFECT in extra_fields:
        return "no effect"
    if ACCEPTED in extra_fields:
        values = " or ".join(json.dumps(value) for value in extra_fields[ACCEPTED]) or "null"
        return f"only <code>{escape(values)}</code>"
    return "required" if info.is_required() else ""


def _form(route: Route) -> str:
    """Return a form that sends a request to the route and shows the answer as it arrives."""
    path = PARAMETER.sub(r"{\1}", route.path)
    names: list[str] = PARAMETER.findall(route.path)
    labels = (f"<label>{escape(name)} <input name='{escape(name)}'></label> " for name in names)
    body = ""
    if route.body is not None:
        text = escape(json.dumps(_example(route), indent=1), quote=False)
        body = f"<textarea rows=6 cols=80 aria-label='body'>{text}</textarea><br>"
    return (
        f"<form data-method={route.method} data-path='{escape(path)}'>"
        f"{''.join(labels)}{body}<button>Send</button><pre></pre></form>"
    )


def _example(route: Route) -> dict[str, Any]:
    """Return an example body, which can be sent once its model exists here."""
    fields = {} if route.body is None else route.body.model_fields
    names = {info.alias or name for name, info in fields.items()}
    made = {name: value for name, value in EXAMPLES.items() if name in names}
    made |= MADE if "from" in made else {}
    made |= LABELLED if set(fields) == set(LABELLED) else {}
    made |= {"name": "a-client"} if "tokens_per_day" in names else {}
    made |= {"nodes": ["a node"]} if {"nodes", "layers"} <= names else {}
    if route.streams is None:
        made.pop("stream", None)
    prompts = [name for name in ("messages", "input", "prompt") if name in made]
    return {name: value for name, value in made.items() if name not in prompts[1:]}
