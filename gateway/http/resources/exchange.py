"""Talks to clients of everything that generates, or reads a prompt: a resource for every dialect.

Order of an exchange: the body is read to its end, parsed, submitted; then a watcher listens for
the client's hang-up while bytes are made. A status is given once it is known; a streamed answer
that has to wait for a load says so in comments, where its dialect has them. In every
case the exchange ends once, and is recorded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from falcon.asgi import Request, Response

from gateway.dialects import sse
from gateway.dialects.collect import Collected, Collector
from gateway.dialects.dialect import Dialect, Parsed, StreamRenderer, WholeDialect
from gateway.dialects.faults import HttpFault, HttpFaultRaised, internal, of_failed
from gateway.http.middleware import (
    Resource,
    key_id,
    name_request,
    read_body,
    receive_of,
    sharer_of,
)
from gateway.http.resources.keep_alive import load_or_unload
from gateway.requests.dispatcher import Exchange
from gateway.service import HttpService

PARSE_ASIDE_BYTES = 128 << 10
"""A larger body is parsed in a thread, so that other streams go on."""
QUICK_S = 0.5
"""How long a streamed answer may be undecided before its status is given as 200."""
NEVER_S = 7 * 24 * 3600.0
CLOSED_REQUEST = 499


@dataclass(slots=True)
class _Running:
    """One exchange under way, and what will be recorded of it."""

    service: HttpService
    parsed: Parsed
    exchange: Exchange
    watcher: asyncio.Task[None]
    started_at: float
    recorded: bool = False

    def end(self, outcome: str, status: int) -> None:
        """Record the exchange, once; what is still open of it is cancelled."""
        if self.recorded:
            return
        self.recorded = True
        self.service.running -= 1
        self.watcher.cancel()
        self.service.dispatcher.abandon(self.exchange.inbox)
        self.service.ended(
            self.exchange, started_at=self.started_at, outcome=outcome, status=status
        )


@dataclass(frozen=True)
class GenerateResource(Resource):
    """A route that generates text in one dialect."""

    dialect: Dialect

    async def on_post(self, req: Request, resp: Response) -> None:
        """Parse the body, submit its requests, answer."""
        service = self.service
        started_at = service.reactor.now()
        parsed = await _parse(service, self.dialect, req)
        if not service.catalog.known:
            await service.catalog.wait_known()
        if parsed.intent != "generate":
            resp.data = await load_or_unload(service, self.dialect, parsed)
            return
        running = _begin(service, req, parsed, started_at)
        inbox = running.exchange.inbox
        with _recorded(running):
            if not parsed.stream:
                _answer_whole(running, self.dialect, await _collected(running), resp)
                return
            has_comments = self.dialect.stream_content_type == sse.CONTENT_TYPE
            await inbox.wait_settled(QUICK_S if has_comments else NEVER_S)
            _raise_early(running)
            resp.content_type = self.dialect.stream_content_type
            for name, value in sse.HEADERS:
                resp.set_header(name, value)
            resp.set_header("x-request-id", parsed.answer_id)
            resp.stream = _streamed(running, self.dialect)


@dataclass(frozen=True)
class ReadPromptResource(Resource):
    """A route that tells of a prompt in one dialect; nothing is generated."""

    dialect: WholeDialect

    async def on_post(self, req: Request, resp: Response) -> None:
        """Parse the body, have its prompt read, answer."""
        service = self.service
        started_at = service.reactor.now()
        parsed = await _parse(service, self.dialect, req)
        if not service.catalog.known:
            await service.catalog.wait_known()
        running = _begin(service, req, parsed, started_at)
        with _recorded(running):
            collected = await _collected(running)
            if any(one.prompt is None for one in collected):
                raise HttpFaultRaised(HttpFault(409, "cancelled", "the request was cancelled"))
            _answer_whole(running, self.dialect, collected, resp)


async def _parse(service: HttpService, dialect: WholeDialect, req: Request) -> Parsed:
    options = service.options
    body = await read_body(req, options.body_limit_bytes, options.body_s, service.bodies)
    context = service.parse_context()
    try:
        if len(body) < PARSE_ASIDE_BYTES:
            return dialect.parse(body, context)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, dialect.parse, body, context)
    finally:
        service.bodies.give_back(len(body))


def _begin(service: HttpService, req: Request, parsed: Parsed, started_at: float) -> _Running:
    """Submit the requests, and watch for the client's hang-up."""
    name_request(req, parsed.answer_id)
    exchange = service.dispatcher.start(
        parsed,
        key_id=key_id(req, service.options),
        sharer=sharer_of(req, service.options, parsed.extras.client_id),
    )
    watcher = asyncio.ensure_future(_watch(req, service, exchange))
    service.running += 1
    return _Running(service, parsed, exchange, watcher, started_at)


@contextmanager
def _recorded(running: _Running) -> Generator[None]:
    """Record how the exchange ended, should it fail before its stream began."""
    try:
        yield
    except HttpFaultRaised as error:
        running.end(error.fault.code, error.fault.status)
        raise
    except BaseException:
        running.end("internal_error", 500)
        raise


async def _watch(req: Request, service: HttpService, exchange: Exchange) -> None:
    """End the exchange when the client hangs up. To be started once the body was read."""
    receive = receive_of(req)
    while (await receive())["type"] != "http.disconnect":
        pass
    service.dispatcher.abandon(exchange.inbox)


def _raise_early(running: _Running) -> None:
    inbox = running.exchange.inbox
    if inbox.abandoned:
        raise HttpFaultRaised(HttpFault(CLOSED_REQUEST, "client_closed", "the client went away"))
    fault = inbox.early_fault
    if fault is not None:
        raise HttpFaultRaised(fault)


def _keep_alive(running: _Running) -> None:
    """Wish that the model stays as long as the body says."""
    extras = running.parsed.extras
    keep_alive_s = extras.stay_warm_s if extras.keep_alive_s is None else extras.keep_alive_s
    running.service.keep_alive(running.exchange.model, keep_alive_s)


def _answer_whole(
    running: _Running, dialect: WholeDialect, collected: Sequence[Collected], resp: Response
) -> None:
    load_s = running.exchange.inbox.load_s
    resp.data = dialect.render_whole(running.parsed, collected, load_s=load_s)
    resp.set_header("x-request-id", running.parsed.answer_id)
    _keep_alive(running)
    running.end("finished", 200)


async def _collected(running: _Running) -> tuple[Collected, ...]:
    """Return all that came. Raises HttpFaultRaised when it cannot be complete."""
    inbox = running.exchange.inbox
    collector = Collector(inbox.requests)
    while not collector.ended:
        entries = await inbox.take()
        inbox.take_comments()
        if entries:
            collector.add(entries)
        if collector.failed is not None:
            raise HttpFaultRaised(of_failed(collector.failed))
        if not entries and inbox.ended:
            _raise_early(running)
            break
    return collector.collected


async def _streamed(running: _Running, dialect: Dialect) -> AsyncGenerator[bytes]:
    """Yield the bytes of a stream, from its first to its last. One piece per wake-up."""
    inbox = running.exchange.inbox
    outcome = "client_closed"
    try:
        if not inbox.settled:
            yield sse.KEEP_ALIVE
        while not inbox.settled:
            await inbox.wait_settled(1.0)
            for text in inbox.take_comments():
                yield sse.comment(text)
        tokens = sum(request.prompt_tokens for request in running.exchange.requests)
        known = replace(running.parsed, prompt_tokens=tokens)
        renderer = dialect.stream(known, load_s=inbox.load_s)
        _keep_alive(running)
        if inbox.abandoned:
            return
        if inbox.fault is None:
            yield renderer.open()
        async for piece in _pieces(running, renderer):
            yield piece
        outcome = _outcome_of(running)
    except Exception as error:
        reference = str(running.exchange.requests[0].request_id)
        running.service.log.error("a stream failed here", request=reference, error=repr(error))
        outcome = "internal_error"
        yield dialect.stream(running.parsed).error(internal(reference))
    finally:
        running.end(outcome, 200)


async def _pieces(running: _Running, renderer: StreamRenderer) -> AsyncGenerator[bytes]:
    inbox = running.exchange.inbox
    while True:
        entries = await inbox.take()
        piece = renderer.render(entries) if entries else b""
        if inbox.abandoned:
            return
        if inbox.fault is not None:
            yield piece + renderer.error(inbox.fault)
            return
        if renderer.ended:
            yield piece + renderer.close()
            return
        for text in inbox.take_comments():
            piece += renderer.comment(text)
        if piece:
            yield piece


def _outcome_of(running: _Running) -> str:
    inbox = running.exchange.inbox
    if inbox.abandoned:
        return "client_closed"
    if inbox.fault is not None:
        return inbox.fault.code
    reasons = (request.failed for request in running.exchange.requests)
    return next((reason for reason in reasons if reason is not None), "finished")
