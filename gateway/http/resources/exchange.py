"""Talks to clients: answers requests that generate text, embed texts, or examine a prompt, in every
dialect.

An exchange is one request and its answer. First, the whole body is read, parsed and submitted.
While the answer is made, a watcher waits for the client to disconnect. A stream that waits for a
model to load says so in comments, if its dialect has comments. Each exchange ends once and is
recorded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from falcon.asgi import Request, Response

from bus.process.clock import wall
from bus.process.logs import story_of
from bus.wire.messages.requests import InputsPrompt
from gateway.access import with_defaults
from gateway.dialects import api_table, sse
from gateway.dialects.collect import Collected, Collector
from gateway.dialects.dialect import (
    DatedRenderer,
    Dialect,
    Parsed,
    RecallingDialect,
    StreamRenderer,
    WholeDialect,
)
from gateway.dialects.faults import HttpFault, HttpFaultRaised, internal, of_failed
from gateway.ended_requests import AskedOver
from gateway.http.callers import owner_of_kept
from gateway.http.middleware import (
    Resource,
    read_aside,
    read_body,
    receive_of,
    tell_ignored,
    tell_missing,
    tell_not_kept,
    tell_truncated,
)
from gateway.http.resources.answers import (
    listed_answers,
    recall,
)
from gateway.http.resources.jobs import answer_in_background
from gateway.http.resources.keep_alive import load_or_unload
from gateway.http.running import (
    ClientHangUp,
    RunningExchange,
    asked_over,
    comments_before,
    let_in,
    of_client,
    refusals_recorded,
)
from gateway.http.tasks import answer_as_named, named_as_asked, submitted
from gateway.service import HttpService
from gateway.tracing import TRACERESPONSE

QUICK_S = 0.5
"""If it is not known after this many seconds whether a request will succeed, its stream begins with
status 200."""
NEVER_S = 7 * 24 * 3600.0
Again = Callable[[Parsed], RunningExchange]
"""A function that submits a shortened body, after the conversation did not fit into the context."""


@dataclass(frozen=True)
class GenerateResource(Resource):
    """A route that generates text in one dialect."""

    dialect: Dialect

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer by the model, the task or the provider's model that the body names."""
        await answer_as_named(self.service, "generate", self.dialect, req, resp, self._post)

    async def _post(self, req: Request, resp: Response) -> None:
        service = self.service
        facts = asked_over(service, "generate", self.dialect, req, resp)
        with refusals_recorded(service, facts):
            parsed = await _parsed(service, facts, self.dialect, req, resp)
        if parsed.intent != "generate":
            resp.data = _empty(
                self.dialect, parsed, await load_or_unload(service, parsed, facts.client)
            )
            return
        with refusals_recorded(service, facts):
            parsed = await _recalled(service, self.dialect, parsed, req, facts)
            if parsed.background is not None and facts.run is None:
                let_in(service, req, facts)
                await answer_in_background(service, req, resp, parsed)
                service.clients.rests(facts.client, facts.cooldown_s)
                return
            running = _begin(service, req, parsed, facts)
        again = partial(_begin_again, service, req, facts, running.hang_up)
        while (shorter := await self._answered(running, resp, again)) is not None:
            running = again(shorter)

    async def _answered(
        self, running: RunningExchange, resp: Response, again: Again
    ) -> Parsed | None:
        """Answer. If the conversation does not fit and may be cut, return the shortened body."""
        with running.recorded_if_it_fails():
            try:
                await running.in_time()
                await self._answer(running, resp, again)
                return None
            except HttpFaultRaised as raised:
                shorter = running.gave_way(raised.fault)
                if shorter is None:
                    raise
                return shorter

    async def _answer(self, running: RunningExchange, resp: Response, again: Again) -> None:
        """Send the whole answer, or begin a stream."""
        if not running.parsed.stream:
            await _answer_whole(running, self.dialect, await _collected(running), resp)
            return
        has_comments = self.dialect.stream_content_type == sse.CONTENT_TYPE
        await running.exchange.inbox.wait_settled(QUICK_S if has_comments else NEVER_S)
        running.raise_early()
        running.tell_unheeded(resp)
        resp.content_type = self.dialect.stream_content_type
        resp.set_headers(sse.HEADERS)
        resp.stream = _streamed(running, self.dialect, again)


@dataclass(frozen=True)
class ListedAnswers(GenerateResource):
    """A route that generates text and lists the stored answers made there."""

    endpoint: api_table.KeepsListed

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with a page of the stored answers on all nodes. The header names nodes that did
        not reply."""
        service, owner = self.service, await owner_of_kept(req, self.service.options)
        query = {name: value for name in req.params if (value := req.get_param(name)) is not None}
        page = await listed_answers(service, owner, self.endpoint.asked(query))
        tell_missing(resp, page.missing)
        resp.data = self.endpoint.listing(page.answers, page.has_more)


@dataclass(frozen=True)
class ReadPromptResource(Resource):
    """A route that examines a prompt in one dialect and generates nothing."""

    dialect: WholeDialect

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer by the model, the task or the provider's model that the body names."""
        await answer_as_named(self.service, "ask", self.dialect, req, resp, self._post)

    async def _post(self, req: Request, resp: Response) -> None:
        service = self.service
        facts = asked_over(service, "ask", self.dialect, req, resp)
        with refusals_recorded(service, facts):
            parsed = await _parsed(service, facts, self.dialect, req, resp)
            parsed = await _recalled(service, self.dialect, parsed, req, facts)
            running = _begin(service, req, parsed, facts)
        with running.recorded_if_it_fails():
            await running.in_time()
            collected = await _collected(running)
            if any(item.prompt is None for item in collected):
                raise HttpFaultRaised(HttpFault(409, "cancelled", "the request was cancelled"))
            await _answer_whole(running, self.dialect, collected, resp)


@dataclass(frozen=True)
class EmbedResource(Resource):
    """A route that embeds texts in one dialect."""

    dialect: WholeDialect

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer by the model, the task or the provider's model that the body names."""
        await answer_as_named(self.service, "embed", self.dialect, req, resp, self._post)

    async def _post(self, req: Request, resp: Response) -> None:
        """Answer with the embeddings; the header lists truncated inputs."""
        service = self.service
        facts = asked_over(service, "embed", self.dialect, req, resp)
        with refusals_recorded(service, facts):
            parsed = await _parsed(service, facts, self.dialect, req, resp)
        if parsed.intent != "generate":
            load_s = await load_or_unload(service, parsed, facts.client)
            resp.data = self.dialect.render_whole(parsed, (), load_s=load_s)
            return
        with refusals_recorded(service, facts):
            running = _begin(service, req, parsed, facts)
        with running.recorded_if_it_fails():
            await running.in_time()
            collected = await _collected(running)
            if any(_lacks_vectors(item, parsed) for item in collected):
                raise HttpFaultRaised(HttpFault(409, "cancelled", "the request was cancelled"))
            tell_truncated(resp, [number for item in collected for number in item.cut])
            render = partial(
                self.dialect.render_whole,
                parsed,
                collected,
                load_s=running.exchange.inbox.load_s,
            )
            # encoding many numbers is slow; a thread keeps the loop free
            resp.data = await asyncio.get_running_loop().run_in_executor(None, render)
            running.stay_warm()
            running.end()


def _lacks_vectors(collected: Collected, parsed: Parsed) -> bool:
    prompts = {request.request_id: request.prompt for request in parsed.requests}
    prompt = prompts[collected.request_id]
    return isinstance(prompt, InputsPrompt) and len(collected.vectors) < len(prompt.inputs)


def _empty(dialect: Dialect, parsed: Parsed, load_s: float) -> bytes:
    """Return the answer to a request that only loads or unloads a model."""
    if not parsed.stream:
        return dialect.render_whole(parsed, (), load_s=load_s)
    renderer = dialect.stream(parsed, load_s=load_s)
    return renderer.open() + renderer.close()


async def _parsed(
    service: HttpService, facts: AskedOver, dialect: WholeDialect, req: Request, resp: Response
) -> Parsed:
    """Read and parse the body, and wait until the models are known. Updates `facts`, and sets the
    answer's headers for its id, its trace and its ignored fields."""
    options = service.options
    body = await read_body(req, options.body_limit_bytes, options.body_s, service.bodies)
    facts.read_at = service.reactor.now()
    context, run = service.parse_context(), facts.run
    context = context if run is None else run.context(context)
    try:
        parsed = await read_aside(len(body), partial(dialect.parse, body, context))
    finally:
        service.bodies.give_back(len(body))
    parsed = named_as_asked(req, parsed)
    parsed = with_defaults(parsed, of_client(service, req, facts, parsed.extras))
    facts.parsed = parsed = parsed if run is None else run.named(parsed)
    facts.traced = service.tracing.choose(asked=parsed.extras.trace, parent=facts.parent)
    resp.set_header("x-request-id", parsed.answer_id)
    if facts.traced and parsed.requests:
        resp.set_header(TRACERESPONSE, facts.place(parsed.requests[0].request_id).header)
    if not service.catalog.known:
        await service.catalog.wait_known()
    extras = parsed.extras
    unheeded = extras.for_thinking if not _thinks(service, parsed) else ()
    untraced = ("x_trace",) if extras.trace and not facts.traced else ()
    tell_ignored(service, resp, dialect.name, (*extras.ignored, *unheeded, *untraced))
    return parsed


async def _recalled(
    service: HttpService, dialect: WholeDialect, parsed: Parsed, req: Request, facts: AskedOver
) -> Parsed:
    """Return the body with its earlier conversation, if it names one. Sets `facts.owner`."""
    if parsed.to_keep is None:
        return parsed
    # only a RecallingDialect sets `to_keep`
    recalling = cast(RecallingDialect, dialect)
    facts.owner = await owner_of_kept(req, service.options)
    return await recall(service, recalling, parsed, facts.owner)


def _thinks(service: HttpService, parsed: Parsed) -> bool:
    """Return whether the model may think, by its card. Without thinking fields, return True."""
    return not parsed.extras.for_thinking or service.catalog.may_think(parsed.model)


def _begin(
    service: HttpService,
    req: Request,
    parsed: Parsed,
    facts: AskedOver,
    hang_up: ClientHangUp | None = None,
) -> RunningExchange:
    """Submit the requests and watch for the client's hang-up, with `hang_up` if one exists."""
    let_in(service, req, facts)
    parsed, exchange = submitted(service, req, parsed, facts)
    hang_up = hang_up or ClientHangUp(receive_of(req), service.dispatcher.abandon)
    hang_up.watch(exchange.inbox)
    running = RunningExchange(service, facts, parsed, exchange, hang_up, facts.owner)
    running.begin()
    return running


def _begin_again(
    service: HttpService, req: Request, facts: AskedOver, hang_up: ClientHangUp, parsed: Parsed
) -> RunningExchange:
    """Submit a shortened body with the same facts and hang-up watcher."""
    with refusals_recorded(service, facts):
        return _begin(service, req, parsed, facts, hang_up)


async def _answer_whole(
    running: RunningExchange, dialect: WholeDialect, collected: Sequence[Collected], resp: Response
) -> None:
    running.tell_unheeded(resp)
    load_s = running.exchange.inbox.load_s
    resp.data = dialect.render_whole(running.parsed, collected, load_s=load_s)
    tell_not_kept(resp, await running.keep(resp.data))
    running.stay_warm()
    running.end()


async def _collected(running: RunningExchange) -> tuple[Collected, ...]:
    """Return the complete results of all requests. Raises HttpFaultRaised if one failed."""
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
            running.raise_early()
            break
    return collector.collected


async def _streamed(
    running: RunningExchange, dialect: Dialect, again: Again
) -> AsyncGenerator[bytes]:
    """Yield the bytes of a stream. If the conversation does not fit and the client allows it to be
    cut, submit a shortened body."""
    outcome = "client_closed"
    renderer: StreamRenderer | None = None
    try:
        while True:
            inbox = running.exchange.inbox
            async for comment in comments_before(inbox):
                yield comment
            shorter = running.gave_way(inbox.early_fault)
            if shorter is None:
                break
            running = again(shorter)
        tokens = sum(request.prompt_tokens for request in running.exchange.requests)
        counted = replace(running.parsed, prompt_tokens=tokens)
        renderer = dialect.stream(counted, load_s=inbox.load_s)
        running.stay_warm()
        if inbox.abandoned:
            return
        if inbox.fault is None:
            yield renderer.open()
        async for piece in _pieces(running, renderer):
            yield piece
        outcome = running.outcome
    except HttpFaultRaised as refused:
        yield dialect.stream(running.parsed).error(refused.fault)
    except Exception as error:
        reference = str(running.exchange.requests[0].request_id)
        running.service.log.error("a stream failed", request=reference, error=story_of(error))
        outcome = "internal_error"
        failed = renderer or dialect.stream(running.parsed)
        yield failed.error(internal(reference))
    finally:
        running.end(outcome)


async def _pieces(running: RunningExchange, renderer: StreamRenderer) -> AsyncGenerator[bytes]:
    inbox = running.exchange.inbox
    dated = renderer if isinstance(renderer, DatedRenderer) else None
    while True:
        entries = await inbox.take()
        if dated is not None:
            dated.at(wall())
        piece = renderer.render(entries) if entries else b""
        if inbox.abandoned:
            return
        if inbox.fault is not None:
            piece += renderer.error(inbox.fault)
            yield await running.keep_streamed(renderer) + piece
            return
        if renderer.ended:
            last = renderer.close()
            if piece and running.writes:
                yield piece  # its text does not wait for the disk
                piece = b""
            yield piece + await running.keep_streamed(renderer) + last
            return
        for text in inbox.take_comments():
            piece += renderer.comment(text)
        if piece:
            yield piece
