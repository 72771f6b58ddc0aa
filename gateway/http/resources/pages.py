"""Talks to clients about itself: the root, the OpenAPI document, a page that reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from falcon.asgi import Request, Response

from gateway.dialects.registry import APIS
from gateway.http.middleware import Resource
from gateway.http.openapi import Route, document
from gateway.service import ServiceHandle

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{font-family:ui-monospace,monospace}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
h2{margin:1.6rem 0 .3rem;font-size:1.05rem}@media(prefers-color-scheme:dark){
body{background:#111;color:#ddd}a{color:#8bf}}
"""


class Root(Resource):
    """`GET /`: a gateway answers here."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer in plain text what this is and where to go."""
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
    """A path that always says the same."""

    def __init__(
        self, _handle: ServiceHandle, answer: bytes, content_type: str = "application/json"
    ) -> None:
        self._answer = answer
        self._content_type = content_type

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with it."""
        resp.data = self._answer
        resp.content_type = self._content_type


def openapi(routes: Sequence[Route], version: str) -> bytes:
    """Return the OpenAPI document."""
    # not orjson: a seed's bounds exceed its 64-bit integers
    return json.dumps(document(routes, title="shoal", version=version)).encode()


def docs(routes: Sequence[Route], version: str) -> bytes:
    """Return every route in one plain page, from the same table."""
    parts = [
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>shoal {escape(version)}</title><style>{_STYLE}</style><h1>shoal</h1>",
        "<p>Machine-readable: <a href=/openapi.json>/openapi.json</a></p>",
    ]
    for tag in dict.fromkeys(route.tag for route in routes):
        parts.append(f"<h2>{escape(tag)}</h2><table>")
        parts += [
            f"<tr><td><code>{route.method}</code><td><code>{escape(route.path)}</code>"
            f"<td>{escape(route.summary)}{_fields(route)}"
            for route in routes
            if route.tag == tag
        ]
        parts.append("</table>")
    return "\n".join(parts).encode()


def _fields(route: Route) -> str:
    if route.body is None:
        return ""
    names = ", ".join(
        f"<code>{escape(field.alias or name)}</code>"
        for name, field in route.body.model_fields.items()
    )
    return f"<br><small>{names}</small>"
