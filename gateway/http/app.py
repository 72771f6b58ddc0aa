"""Talks to falcon: builds the ASGI application of one HTTP process.

Any ASGI server that supports lifespan can run the result of `build_app`. The bus client is created
only in lifespan startup, after the server has forked, because its sockets do not survive a fork.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from falcon.asgi import App

from bus.process.logs import stray_of_loop
from gateway.control.pulling import answer_pull_changes
from gateway.http.diagnostics import answer_others
from gateway.http.middleware import AccessControl, Asgi, ErrorHandlers, Send
from gateway.http.resources.figures import keep_history
from gateway.http.resources.jobs import continue_streams
from gateway.http.routes import add_routes, check_calls, routed
from gateway.http.scope import KEY, Receive, RequestScope
from gateway.http.settings import answer_settings
from gateway.records import JobRun
from gateway.service import HttpService, ServiceHandle
from gateway.view.options import Options


def build_app(options: Options) -> ReceiveTap:
    """Return the ASGI application for these options, which `gateway.__main__` reads from the
    settings."""
    handle = ServiceHandle(options)
    app: App[Any, Any] = App(middleware=[AccessControl(handle, routed())])
    app.resp_options.xml_error_serialization = False
    app.req_options.strip_url_path_trailing_slash = True
    ErrorHandlers(handle).install(app)
    add_routes(app, handle)
    handle.on_start = _started
    handle.application = tapped = ReceiveTap(cast(Asgi, app))
    return tapped


def _started(service: HttpService) -> None:
    """Answer calls of other nodes, log unhandled exceptions of tasks and callbacks, and keep the
    history. Raises LookupError if this process answers a call that has no row in the access
    table."""
    asyncio.get_running_loop().set_exception_handler(stray_of_loop(service.log))
    answer_others(service.parts)
    answer_settings(service.cluster)
    answer_pull_changes(service.cluster.calls, service.cluster.bus)
    keep_history(service.cluster, service.watch)
    continue_streams(service.parts)
    check_calls(service.cluster.calls.names)


class ReceiveTap:
    """The outermost ASGI application. It completes the `RequestScope`, so that a watcher can listen
    for the client's disconnect.

    A request counts as running for its API key until the last byte of the answer. The framework,
    falcon, reads the first part of the body before its middleware runs, and would wait for a slow
    client. This class gives falcon an empty first part, so callers without access are refused
    immediately. A body that never arrives then runs into the deadline of `read_body`. HEAD is
    routed as GET, and the body of the answer is dropped.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(
        self, scope: dict[str, Any], receive: Receive, send: Any, run: JobRun | None = None
    ) -> None:
        """Answer a request. `run`: the attempt of a job that sends the request; None for a client's
        own request."""
        noted: RequestScope = scope.setdefault(KEY, RequestScope())
        if scope["type"] == "http":
            noted.receive, noted.run = receive, run
            receive = _Opened(noted, receive) if _has_body(scope) else receive
            if not scope["path"].startswith("/"):
                _make_relative(scope)
            if scope["method"] == "HEAD":
                # a copy: the server needs the method HEAD in its own scope, to send no body
                scope, send = {**scope, "method": "GET"}, _bodiless(send)
        try:
            await self._app(scope, receive, send)
        finally:
            for act in noted.at_end:
                act()


class _Opened:
    """An ASGI `receive` that first returns an empty part of the body. If the client disconnects, it
    records in the scope that the body was cut."""

    def __init__(self, noted: RequestScope, receive: Receive) -> None:
        self._noted = noted
        self._receive = receive
        self._is_open = False

    async def __call__(self) -> dict[str, Any]:
        if not self._is_open:
            self._is_open = True
            return {"type": "http.request", "body": b"", "more_body": True}
        event = await self._receive()
        if event["type"] == "http.disconnect":
            self._noted.is_cut = True
        return event


def _has_body(scope: dict[str, Any]) -> bool:
    """Return whether the headers of a request announce a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _bodiless(send: Send) -> Send:
    """Wrap `send` so that no byte of the body is sent."""

    async def sent(event: dict[str, Any]) -> None:
        body = event["type"] == "http.response.body"
        await send({**event, "body": b""} if body else event)

    return sent


def _make_relative(scope: dict[str, Any]) -> None:
    """Handle a request target that does not begin with `/`. If it has the absolute form (`GET
    http://host/path`, RFC 9112, 3.2.2), replace it by its path, and set the Host header from it.
    Otherwise leave it unchanged; it gets a 404 later."""
    scheme, _, rest = scope["path"].partition("://")
    host, slash, path = rest.partition("/")
    if scheme.casefold() in ("http", "https") and host:
        scope["path"], scope["raw_path"] = f"/{path}", (slash + path).encode() or b"/"
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [(b"host", host.encode()), *others]
