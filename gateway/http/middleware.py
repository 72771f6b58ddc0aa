"""Talks to clients at the edge of HTTP: bodies in limits, who may come in, errors in dialect.

Every answer of 400 and above leaves here, from any code that raised it, in the envelope of the
dialect that owns the path.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import falcon
from falcon.asgi import App, Request, Response

from bus.process.identity import new_name
from bus.wire.shares import Sharer
from gateway.cluster.options import Options
from gateway.dialects import body as bodies
from gateway.dialects import faults, unknown_fields
from gateway.dialects.body import Model
from gateway.dialects.dialect import Limits
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import api_of, envelope_of
from gateway.dialects.to_come import absence
from gateway.http.auth import (
    OPEN_PATHS,
    client_address,
    hashed,
    host_allowed,
    is_known_key,
    offered_key,
    origin_allowed,
)
from gateway.records import job_run_of
from gateway.requests.body_budget import BodyBudget
from gateway.service import HttpService, ServiceHandle

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[..., Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
BODY_SILENCE_S = 30.0
KEY_ID_DIGITS = 16
COMMAND_BYTES = 1 << 20
"""Of a body that asks for something to be done; what asks for text may be larger."""
TRUNCATED_HEADER = "x-shoal-truncated"
NOT_KEPT_HEADER = "x-shoal-not-kept"
TRUNCATED_TOLD = 128
_RECEIVE = "shoal.receive"
_CORS = (
    ("access-control-allow-methods", "GET, POST, DELETE, HEAD, OPTIONS"),
    ("access-control-max-age", "600"),
    (
        "access-control-expose-headers",
        "x-request-id, retry-after, x-queue-position, x-shoal-ignored, x-shoal-truncated, "
        "x-shoal-not-kept",
    ),
)


class ReceiveTap:
    """The ASGI application, with `receive` left where a watcher finds it.

    HEAD is asked as GET, and the body of the answer is left out.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] == "http":
            scope[_RECEIVE] = receive
            if not scope["path"].startswith("/"):
                _make_relative(scope)
            if scope["method"] == "HEAD":
                # a copy: the server reads in its own that no body may follow
                scope, send = {**scope, "method": "GET"}, _bodiless(send)
        await self._app(scope, receive, send)


def _bodiless(send: Send) -> Send:
    """Return a `send` that passes everything on but the bytes of the body."""

    async def sent(event: dict[str, Any]) -> None:
        """Send one event."""
        body = event["type"] == "http.response.body"
        await send({**event, "body": b""} if body else event)

    return sent


def _make_relative(scope: dict[str, Any]) -> None:
    """Turn a target in absolute form (`GET http://host/path`, RFC 9112, 3.2.2) into path and Host;
    what is no such target stays, and is not found."""
    scheme, _, rest = scope["path"].partition("://")
    host, slash, path = rest.partition("/")
    if scheme.casefold() in ("http", "https") and host:
        scope["path"], scope["raw_path"] = f"/{path}", (slash + path).encode() or b"/"
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [(b"host", host.encode()), *others]


def receive_of(req: Request) -> Receive:
    """Return the connection's `receive`; to be used only after the body was read."""
    return req.scope[_RECEIVE]


@dataclass(frozen=True)
class Resource:
    """What answers at a path, with the service of its process; in JSON unless it says otherwise."""

    handle: ServiceHandle

    @property
    def service(self) -> HttpService:
        """Return the service of this process, once it has started."""
        return self.handle.service

    async def read(self, req: Request, body: type[Model], *, empty: bytes = b"{}") -> Model:
        """Return the request's body, of at most `COMMAND_BYTES`, as `body`; `x_*` fields that we
        know say nothing, no bytes mean `empty`. An unknown field is refused: a command that is
        half understood is not carried out.

        Raises HttpFaultRaised (408, 413), BadRequest.
        """
        options = self.service.options
        read = await read_body(req, min(options.body_limit_bytes, COMMAND_BYTES), options.body_s)
        limits = Limits(depth=options.body_depth, strict_fields=True)
        asked, _ = bodies.read_body(body, read or empty, limits)
        return asked


def answer_json(resp: Response, value: Any) -> None:
    """Answer with a value as JSON."""
    resp.data = json_bytes(value)


def tell_ignored(
    service: HttpService, resp: Response, dialect: str, ignored: Sequence[str]
) -> None:
    """Name the fields without effect in the answer's header, the log and the metrics."""
    if ignored:
        service.ignored(dialect, ignored)
        resp.set_header(unknown_fields.HEADER, unknown_fields.header_of(ignored))


def tell_truncated(resp: Response, numbers: Sequence[int]) -> None:
    """Name the inputs of which only a part was read, by their numbers, in the answer's header; it
    ends in `+more` where there are more than `TRUNCATED_TOLD`."""
    if numbers:
        more = ["+more"] if len(numbers) > TRUNCATED_TOLD else []
        told = [*map(str, numbers[:TRUNCATED_TOLD]), *more]
        resp.set_header(TRUNCATED_HEADER, ", ".join(told))


def tell_not_kept(resp: Response, why: str) -> None:
    """Say in the answer's header why it is not kept though it was to be; empty: it is."""
    if why:
        resp.set_header(NOT_KEPT_HEADER, " ".join(why.encode("ascii", "replace").decode().split()))


async def read_body(
    req: Request, limit_bytes: int, whole_s: float, budget: BodyBudget | None = None
) -> bytes:
    """Return the whole body, which is to come within `whole_s`; its bytes stay taken from `budget`.

    Raises HttpFaultRaised as soon as it is known to be too large (413), when it is packed (415),
    when nothing more of it comes (408), or when the budget has no room (503); then nothing stays
    taken.
    """
    packed = (req.get_header("content-encoding") or "identity").strip().casefold()
    if packed != "identity":
        raise HttpFaultRaised(faults.packed_body(packed))
    length = req.content_length
    if length is not None and length > limit_bytes:
        raise HttpFaultRaised(faults.too_large(limit_bytes))
    pieces: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    end_at = loop.time() + whole_s
    try:
        async with asyncio.timeout(BODY_SILENCE_S) as patience:
            async for piece in req.stream:
                if size + len(piece) > limit_bytes:
                    raise HttpFaultRaised(faults.too_large(limit_bytes))
                if budget is not None:
                    budget.take(len(piece))
                size += len(piece)
                pieces.append(piece)
                if patience.expired():  # 3.11's `wait_for` returns what came in that very turn
                    raise TimeoutError
                patience.reschedule(min(loop.time() + BODY_SILENCE_S, end_at))
    except BaseException as error:
        if budget is not None:
            budget.give_back(size)
        if not isinstance(error, TimeoutError):
            raise
        text = f"nothing more of the request body came for {BODY_SILENCE_S:.0f} s"
        if loop.time() >= end_at:
            text = f"the request body was not complete after {whole_s:.0f} s"
        raise HttpFaultRaised(HttpFault(408, "body_incomplete", text)) from None
    return b"".join(pieces)


class AccessControl:
    """Middleware: Host, Origin, key; life and death of the process's service.

    Every answer has an `x-request-id`: a number of this process, until the answer has a name.
    """

    def __init__(self, handle: ServiceHandle) -> None:
        self._handle = handle
        self._count = itertools.count(1)

    async def process_startup(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Build the service at lifespan startup; leave its drain for the gunicorn worker."""
        service = self._handle.start()
        state = scope.get("state")
        if isinstance(state, dict):
            state["on_drain"] = service.drain
            state["on_end"] = service.end_all
            state["is_busy"] = lambda: bool(service.running)

    async def process_shutdown(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Close the service at lifespan shutdown."""
        await self._handle.stop()

    async def process_request(self, req: Request, resp: Response) -> None:
        """Refuse strangers before anything is read."""
        options = self._handle.options
        resp.set_header("x-request-id", f"http-{self._handle.service.boot}-{next(self._count):x}")
        host, origin = req.get_header("host"), req.get_header("origin")
        foreign = origin is None and req.get_header("sec-fetch-site") == "cross-site"
        if foreign and (req.method != "GET" or req.path not in OPEN_PATHS):
            raise HttpFaultRaised(faults.forbidden("pages of other sites may not call"))
        if not host_allowed(host, options.names):
            raise HttpFaultRaised(
                faults.forbidden(f"the Host name {host!r} is not ours; list it in http_names")
            )
        if not origin_allowed(origin, host, options.origins):
            raise HttpFaultRaised(
                faults.forbidden(f"pages from {origin} may not call; list it in cors_origins")
            )
        if origin is not None:
            resp.set_header("access-control-allow-origin", origin)
            resp.set_header("vary", "origin")
            for name, value in _CORS:
                resp.set_header(name, value)
        if req.method == "OPTIONS" and origin is not None:
            asked = req.get_header("access-control-request-headers")
            if asked:
                resp.set_header("access-control-allow-headers", asked)
            resp.status = 204
            resp.complete = True
            return
        if options.keys and req.path not in OPEN_PATHS and job_run_of(req.scope) is None:
            self._check_key(req)
        if self._handle.service.dispatcher.draining:
            resp.set_header("connection", "close")
        if (req.get_header("upgrade") or "").strip().casefold() == "websocket":
            # what comes next on this connection is no HTTP
            resp.set_header("connection", "close")
            raise HttpFaultRaised(absence(req.path) or faults.no_websocket(req.path))

    async def process_response(
        self, req: Request, resp: Response, resource: object, req_succeeded: bool
    ) -> None:
        """Name the request where its API's clients look for its name."""
        api = api_of(req.path, lambda header: req.get_header(header) is not None)
        request_id = resp.get_header("x-request-id")
        if api is not None and api.id_header and request_id is not None:
            resp.set_header(api.id_header, request_id)

    def _check_key(self, req: Request) -> None:
        if _key_of(req) is None:
            raise HttpFaultRaised(
                faults.unauthorized("an API key is needed: Authorization: Bearer <key>")
            )
        if not has_key(req, self._handle.options):
            raise HttpFaultRaised(faults.unauthorized("this API key is not known here"))


def has_key(req: Request, options: Options) -> bool:
    """Return whether a request carries a key that is known here, or none is needed."""
    key = _key_of(req)
    return not options.keys or (key is not None and is_known_key(key, options.keys))


def key_id(req: Request, options: Options) -> str | None:
    """Return the id of the API key that a request carries, None where fewer than two are known; a
    job's is that of who submitted it."""
    if (run := job_run_of(req.scope)) is not None:
        return run.owner or None
    key = _key_of(req)
    return hashed(key)[-KEY_ID_DIGITS:] if key is not None and len(options.keys) > 1 else None


def sharer_of(req: Request, options: Options, client_id: str | None) -> Sharer:
    """Return who asks, for an even share: API key, client id, address, connection."""
    host, port = req.scope.get("client") or ("", 0)
    forwarded = req.get_header("x-forwarded-for")
    address = client_address(str(host), forwarded, options.trusted_proxies)
    return (key_id(req, options) or "", client_id or "", address, f"{host}:{port}")


def _key_of(req: Request) -> str | None:
    return offered_key(req.get_header("authorization"), req.get_header("x-api-key"))


class ErrorHandlers:
    """Errors to answers. `install` makes it the application's only way to fail."""

    def __init__(self, handle: ServiceHandle) -> None:
        self._handle = handle

    def install(self, app: App[Any, Any]) -> None:
        """Take every kind of error; falcon has a handler of its own for its errors."""
        app.add_error_handler(Exception, self._answer)
        app.add_error_handler(falcon.HTTPError, self._answer)

    async def _answer(self, req: Request, resp: Response, error: Exception, params: Any) -> None:
        request_id = resp.get_header("x-request-id")
        fault = self._fault_of(req, error, request_id)
        envelope = envelope_of(req.path, lambda header: req.get_header(header) is not None)
        answer = envelope.answer(fault, request_id or "")
        self._handle.service.metrics.fault(answer.status)
        resp.status = answer.status
        resp.stream = None
        for name, value in answer.headers:
            resp.set_header(name, value)
        resp.data = answer.body
        if answer.status in (408, 413):
            resp.set_header("connection", "close")

    def _fault_of(self, req: Request, error: Exception, request_id: str | None) -> HttpFault:
        if isinstance(error, falcon.HTTPError):
            return _fault_of_falcon(req, error)
        fault = faults.of_error(error)
        if fault is None:
            reference = new_name("err")
            self._handle.service.log.error(
                "a request failed here",
                reference=reference,
                path=req.path,
                request=request_id,
                error="".join(traceback.format_exception(error)),
            )
            fault = faults.internal(reference)
        return fault


def _fault_of_falcon(req: Request, error: falcon.HTTPError) -> HttpFault:
    headers = dict(cast(Any, error.headers) or {})
    # a path that is to come may look like one that is answered: `/v1/responses/{answer_id}`
    if error.status_code in (404, 405) and (absent := absence(req.path)) is not None:
        return absent
    if isinstance(error, falcon.HTTPMethodNotAllowed):
        names = {one.strip() for one in str(headers.get("Allow", "")).split(",") if one.strip()}
        return faults.method_not_allowed(
            req.method, [*names, *({"HEAD"} if "GET" in names else ())]
        )
    if error.status_code == 404:
        return faults.not_found(req.path)
    retry_after = str(headers.get("Retry-After", ""))
    return HttpFault(
        error.status_code,
        error.code if isinstance(error.code, str) else "refused",
        error.description or error.title or "refused",
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
    )
