"""Talks to clients around each resource: limits bodies, checks access, writes error answers.

All error answers (status 400 and above) are made here, in the error format of the path's dialect.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import falcon
from falcon.asgi import App, Request, Response

from bus.process.identity import new_name
from bus.process.logs import story_of
from gateway.access import (
    EXPOSED_HEADERS,
    caller_of_key,
    caller_of_run,
    check_scope,
    host_allowed,
    is_open,
    offered_key,
    page_allowed,
    page_refused,
    spent,
    unknown_caller,
)
from gateway.cluster import Cluster
from gateway.dialects import body as bodies
from gateway.dialects import faults
from gateway.dialects.body import Model
from gateway.dialects.dialect import Limits
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_refusal
from gateway.dialects.registry import HAVE_ID_HEADERS, api_of, envelope_of
from gateway.dialects.to_come import absence
from gateway.exchange import Parts, fault_of, one_line
from gateway.http.callers import check_owner
from gateway.http.openapi import Route
from gateway.http.scope import Receive, scope_of
from gateway.records import AllRecords
from gateway.requests.body_budget import BodyBudget
from gateway.service import ServiceHandle
from gateway.view.watching import Watch

Send = Callable[..., Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
BODY_SILENCE_S = 30.0
COMMAND_BYTES = 1 << 20
"""Size limit for the bodies of commands. Bodies of generation requests can be larger."""
_PULLS = (
    "; with `http_anyone_pulls = true` in that user's shoal.toml every user of "
    "this machine can pull"
)
LEFT_BYTES = 16 << 10
"""A shorter body usually arrives together with its headers, so the connection stays open even if
the body was not read."""
_CORS = (
    ("access-control-allow-methods", "GET, POST, PUT, DELETE, HEAD, OPTIONS"),
    ("access-control-max-age", "600"),
    ("access-control-expose-headers", EXPOSED_HEADERS),
)


@dataclass(frozen=True)
class Resource:
    """Base class of the falcon resources; gives each the facades of this process."""

    handle: ServiceHandle

    @property
    def cluster(self) -> Cluster:
        """Return the facade for nodes, models and commands of the cluster."""
        return self.handle.service.cluster

    @property
    def parts(self) -> Parts:
        """Return the facade for what answers requests."""
        return self.handle.service.parts

    @property
    def records(self) -> AllRecords:
        """Return the facade for stored records."""
        return self.handle.service.records

    @property
    def watch(self) -> Watch:
        """Return the facade for streams of what happens in the cluster."""
        return self.handle.service.watch

    async def read(self, req: Request, body: type[Model], *, empty: bytes = b"{}") -> Model:
        """Return the request's body (at most `COMMAND_BYTES`), parsed as the model `body`.

        If the body is missing, `empty` is parsed. Our own `x_*` fields are ignored. Any other
        unknown field is refused, because the command may mean something else without it. Raises
        HttpFaultRaised (408, 413) and BadRequest.
        """
        options = self.cluster.options
        read = await read_body(req, min(options.body_limit_bytes, COMMAND_BYTES), options.body_s)
        limits = Limits(depth=options.body_depth, strict_fields=True)
        parsed, _ = bodies.read_body(body, read or empty, limits)
        return parsed


def answer_json(resp: Response, value: Any) -> None:
    """Set the answer's body to `value` as JSON; the status stays unchanged."""
    resp.data = json_bytes(value)


def tell_missing(resp: Response, nodes: Sequence[str]) -> None:
    """List the nodes missing from an answer, with reasons, in `x-shoal-missing-nodes`."""
    if nodes:
        resp.set_header("x-shoal-missing-nodes", one_line(", ".join(nodes)))


async def read_body(
    req: Request, limit_bytes: int, whole_s: float, budget: BodyBudget | None = None
) -> bytes:
    """Read the whole body. Its bytes stay reserved in `budget` until the caller frees them.

    Raises HttpFaultRaised: 413 too large; 415 compressed; 408 after a pause of `BODY_SILENCE_S`, or
    after `whole_s` in all; 400 if the client disconnected early; 503 if the budget is full. After
    an error, no bytes stay reserved.
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
        async with asyncio.timeout(min(BODY_SILENCE_S, whole_s)) as patience:
            async for piece in req.stream:
                if size + len(piece) > limit_bytes:
                    raise HttpFaultRaised(faults.too_large(limit_bytes))
                if budget is not None:
                    budget.take(len(piece))
                size += len(piece)
                pieces.append(piece)
                if patience.expired():  # Python 3.11 may deliver a piece after the timeout
                    raise TimeoutError
                patience.reschedule(min(loop.time() + BODY_SILENCE_S, end_at))
        if scope_of(req).is_cut:
            text = "the connection ended before the request body was complete"
            raise HttpFaultRaised(HttpFault(400, "body_incomplete", text))
    except BaseException as error:
        if budget is not None:
            budget.give_back(size)
        if not isinstance(error, TimeoutError):
            raise
        text = f"no more of the request body arrived for {BODY_SILENCE_S:.0f} s"
        if loop.time() >= end_at:
            text = f"the request body was not complete within {whole_s:.0f} s"
        raise HttpFaultRaised(HttpFault(408, "body_incomplete", text)) from None
    scope_of(req).is_read = True
    return b"".join(pieces)


class AccessControl:
    """falcon middleware: checks Host, Origin and API key; starts and stops the process's service.

    Every answer has an `x-request-id`: a number of this process until the request has its own id.
    `rows` has the routes by (method, path), with the path in the router's form.
    """

    def __init__(self, handle: ServiceHandle, rows: Mapping[tuple[str, str], Route]) -> None:
        self._handle = handle
        self._rows = rows
        options = handle.options
        pulls = options.anyone_pulls
        self._open_to_all = {key for key, row in rows.items() if row.is_open_to_all(pulls)}
        self._asks_for_keys = options.asks_for_keys
        self._host_allowed = lru_cache(256)(partial(host_allowed, names=options.names))
        self._count = itertools.count(1)

    async def process_startup(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Build the service at lifespan startup; give the worker the functions to drain it."""
        service = self._handle.start()
        if isinstance(state := scope.get("state"), dict):
            state["on_drain"] = service.drain
            state["on_end"] = service.end_all
            state["is_busy"] = lambda: bool(service.parts.running)

    async def process_shutdown(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Close the service at lifespan shutdown."""
        await self._handle.stop()

    async def process_request(self, req: Request, resp: Response) -> None:
        """Refuse pages of other sites and unknown callers before the body; answer preflights."""
        options = self._handle.options
        resp.set_header(
            "x-request-id",
            f"http-{self._handle.service.cluster.bus.speaker.boot}-{next(self._count):x}",
        )
        host, origin = req.get_header("host"), req.get_header("origin")
        foreign = origin is None and req.get_header("sec-fetch-site") == "cross-site"
        if foreign and (req.method != "GET" or not is_open(req.path)):
            raise HttpFaultRaised(faults.forbidden("pages of other sites are not allowed"))
        if not self._host_allowed(host):
            raise HttpFaultRaised(
                faults.forbidden(f"the Host name {host!r} is not allowed; add it to http_names")
            )
        if origin is not None and not page_allowed(origin, host, options):
            raise page_refused(origin)
        if origin is not None:
            resp.set_header("access-control-allow-origin", origin)
            resp.set_header("vary", "origin")
            for name, value in _CORS:
                resp.set_header(name, value)
        if req.method == "OPTIONS" and origin is not None:
            if names := req.get_header("access-control-request-headers"):
                resp.set_header("access-control-allow-headers", names)
            if req.get_header("access-control-request-private-network") is not None:
                resp.set_header("access-control-allow-private-network", "true")
            resp.status = 204
            resp.complete = True
            return
        await self._identify(req)
        if self._handle.service.parts.dispatcher.draining:
            resp.set_header("connection", "close")
        if (req.get_header("upgrade") or "").strip().casefold() == "websocket":
            # the next bytes of this connection are not HTTP
            resp.set_header("connection", "close")
            raise HttpFaultRaised(absence(req.path) or faults.no_websocket(req.path))

    async def process_response(
        self, req: Request, resp: Response, resource: object, req_succeeded: bool
    ) -> None:
        """Copy the request id to the header in which clients of this API expect it."""
        if not req.path.startswith(HAVE_ID_HEADERS):
            return
        api = api_of(req.path, lambda header: req.get_header(header) is not None)
        request_id = resp.get_header("x-request-id")
        if api is not None and api.id_header and request_id is not None:
            resp.set_header(api.id_header, request_id)

    async def process_resource(
        self, req: Request, resp: Response, resource: object, params: Any
    ) -> None:
        """Refuse an API key without the needed scope or budget; else count the request for the key.

        The body has not been read yet. A path without a row is only for the node's owner.
        """
        caller = scope_of(req).caller
        key = (req.method, req.uri_template or "")
        row = self._rows.get(key)
        if caller is not None and not caller.has_key:
            if key not in self._open_to_all:
                options = self._handle.options
                also = _PULLS if row is not None and row.who == "pulls" else ""
                await check_owner(req, options, f"{req.method} {req.path}", also)
            return
        if caller is None or not caller.of_cluster or caller.key_id is None:
            return
        needed = "admin" if row is None else row.scope
        check_scope(caller, needed, f"{req.method} {req.path}")
        if row is not None and row.counts:
            keys = self._handle.service.cluster.api_keys
            scope = scope_of(req)
            run = scope.run
            counted = run is not None and run.counted
            if (over := keys.over_budget(caller.key_id, counted=counted)) is not None:
                raise spent(over)
            scope.at_end.append(keys.come(caller.key_id, counted=counted))

    async def _identify(self, req: Request) -> None:
        """Store the caller in the scope. Raises HttpFaultRaised (401) for a missing or unknown key,
        except on open paths."""
        options, keys = self._handle.options, self._handle.service.cluster.api_keys
        scope = scope_of(req)
        if (run := scope.run) is not None:
            if run.owner and (refusal := await keys.wait_known()) is not None:
                raise HttpFaultRaised(of_refusal(refusal))
            scope.caller = caller_of_run(run.owner, keys.book.keys)
            return
        key = offered_key(req.get_header("authorization"), req.get_header("x-api-key"))
        asked_for = self._asks_for_keys or not keys.has_state or bool(keys.book.keys)
        caller = caller_of_key(key, options, keys.find, asked_for=asked_for)
        may_be_known = not keys.has_state and (key is not None or not options.asks_for_keys)
        if caller is None and may_be_known and not is_open(req.path):
            if (refusal := await keys.wait_known()) is not None:
                raise HttpFaultRaised(of_refusal(refusal))
            asked_for = options.asks_for_keys or bool(keys.book.keys)
            caller = caller_of_key(key, options, keys.find, asked_for=asked_for)
        scope.caller = caller
        if caller is None and not is_open(req.path):
            raise unknown_caller(key)


def _leaves_body(req: Request) -> bool:
    """Return whether a refused request has an unread body that may still be arriving. The server
    then closes the connection, and the answer must announce that."""
    length = req.content_length
    chunked = req.get_header("transfer-encoding") is not None
    is_long = chunked if length is None else length > LEFT_BYTES
    return is_long and not scope_of(req).is_read


class ErrorHandlers:
    """Turns exceptions of resources into error answers."""

    def __init__(self, handle: ServiceHandle) -> None:
        self._handle = handle

    def install(self, app: App[Any, Any]) -> None:
        """Register for every exception, and for falcon's errors, which have a default handler."""
        app.add_error_handler(Exception, self._answer)
        app.add_error_handler(falcon.HTTPError, self._answer)

    async def _answer(self, req: Request, resp: Response, error: Exception, params: Any) -> None:
        request_id = resp.get_header("x-request-id")
        fault = self._fault_of(req, error, request_id)
        envelope = envelope_of(req.path, lambda header: req.get_header(header) is not None)
        answer = envelope.answer(fault, request_id or "")
        self._handle.service.parts.metrics.fault(answer.status)
        resp.status = answer.status
        resp.stream = None
        for name, value in answer.headers:
            resp.set_header(name, value)
        resp.data = answer.body
        if answer.status in (408, 413) or _leaves_body(req):
            resp.set_header("connection", "close")

    def _fault_of(self, req: Request, error: Exception, request_id: str | None) -> HttpFault:
        if isinstance(error, falcon.HTTPError):
            return _fault_of_falcon(req, error)
        fault = fault_of(error)
        if fault is None:
            reference = new_name("err")
            self._handle.service.log.error(
                "a request failed",
                reference=reference,
                path=req.uri_template,
                request=request_id,
                error=story_of(error),
            )
            fault = faults.internal(reference)
        return fault


def _fault_of_falcon(req: Request, error: falcon.HTTPError) -> HttpFault:
    headers = dict(cast(Any, error.headers) or {})
    # a path of a planned endpoint may match an existing route: `/v1/responses/{answer_id}`
    if error.status_code in (404, 405) and (absent := absence(req.path)) is not None:
        return absent
    if isinstance(error, falcon.HTTPMethodNotAllowed):
        methods = [method.strip() for method in str(headers.get("Allow", "")).split(",")]
        names = {method for method in methods if method}
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
