"""Talks to a client: reads the body, parses it, and finds out which client sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gateway.dialects.dialect import ParseContext, Parsed
from gateway.exchange.flow import Flow
from gateway.exchange.headers import tell_ignored
from gateway.exchange.parts import Parts

ASIDE_BYTES = 128 << 10
"""Bodies of at least this size are parsed in a thread, so that the event loop stays free."""
_T = TypeVar("_T")


async def read_aside(size_bytes: int, read: Callable[[], _T]) -> _T:
    """Call `read` and return its result; for at least `ASIDE_BYTES`, call `read` in a thread."""
    if size_bytes < ASIDE_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(None, read)


async def read(parts: Parts, flow: Flow) -> Flow:
    """Read the whole body from the client."""
    body = await flow.http.body()
    return replace(flow, body=body, read_at=parts.reactor.now())


async def parse(parts: Parts, flow: Flow) -> Flow:
    """Parse the body. If the client may read the stream again, the bytes of the body stay in memory
    until they are written to the journal."""
    parsed = await parsed_body(parts, flow, flow.body)
    if parsed.extras.reattach_s is not None:
        return replace(flow, parsed=parsed)
    parts.bodies.give_back(len(flow.body))
    return replace(flow, parsed=parsed, body=b"")


async def parsed_body(parts: Parts, flow: Flow, body: bytes) -> Parsed:
    """Return a body, parsed by the dialect of its route."""
    read = partial(flow.head.dialect.parse, body, context_of(parts, flow))
    return await read_aside(len(body), read)


def context_of(parts: Parts, flow: Flow) -> ParseContext:
    """Return what the parsing of a body needs. If the request is the run of a job, its first
    request gets the id of the run."""
    context, run = parts.parse_context(), flow.head.run
    return context if run is None else run.context(context)


async def identify(parts: Parts, flow: Flow) -> Flow:
    """Find out which client sent the request, because the body may name it, and which of its limits
    apply."""
    head, parsed = flow.head, flow.parsed
    extras = parsed.extras
    if extras.client_id is not None:
        key, _, *place = head.sharer
        sharer = (key, extras.client_id, *place)
        head = replace(head, sharer=sharer, client=parts.clients.named(sharer))
    if head.run is not None:
        parsed = head.run.named(parsed)
    if flow.trial is None or not flow.trial.forwards:
        flow.http.reply.set_header("x-request-id", parsed.answer_id)
    profile = parts.clients.book.table.clients.get(head.client.name)
    # a job was checked when it was submitted; a prompt that is only examined generates nothing
    is_bounded = head.run is None and head.kind != "ask"
    return replace(
        flow,
        head=head,
        parsed=parsed,
        profile=profile,
        is_limited=is_bounded and (profile is not None or not parts.clients.cooldowns.is_empty),
        cooldown_s=extras.cooldown_s if is_bounded else 0.0,
    )


async def wait_for_models(parts: Parts, flow: Flow) -> Flow:
    """Wait until the models of the cluster are known. Only a process that just started waits."""
    if not parts.cluster.catalog.known:
        await parts.cluster.catalog.wait_known()
    return flow


async def report_ignored(parts: Parts, flow: Flow) -> Flow:
    """Report the fields of the body that have no effect."""
    parsed, extras = flow.parsed, flow.parsed.extras
    thinks = not extras.for_thinking or parts.cluster.catalog.may_think(parsed.model)
    unheeded = () if thinks else extras.for_thinking
    untraced = ("x_trace",) if extras.trace and not flow.traced else ()
    names = (*extras.ignored, *unheeded, *untraced)
    tell_ignored(parts, flow.http.reply, flow.head.dialect.name, names)
    return flow
