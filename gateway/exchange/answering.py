"""Talks to runners and to the client: waits for an answer, and renders it.

For a stream, this module only waits until the HTTP status is known; `Pipeline` then writes the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from bus.wire.messages.requests import InputsPrompt
from gateway.dialects import sse
from gateway.dialects.collect import Collected, Collector
from gateway.dialects.dialect import Dialect, Parsed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_failed
from gateway.exchange.flow import FINISHED, Flow
from gateway.exchange.headers import tell_ignored, tell_truncated
from gateway.exchange.parts import Parts
from gateway.requests.dispatcher import Exchange
from gateway.requests.inbox import GATHERED, EntryInbox

CLOSED_REQUEST = 499
QUICK_S = 0.5
"""If it is not known after this many seconds whether a request will succeed, its stream begins with
status 200."""
NEVER_S = 7 * 24 * 3600.0


async def begin(parts: Parts, flow: Flow) -> Flow:
    """If a candidate of a task answers, wait for its first token, at most for the task's time
    budget. Raises HttpFaultRaised if none comes in time, so that the next candidate is tried."""
    inbox = flow.exchange.inbox
    attempt = None if flow.trial is None else flow.trial.attempt
    if attempt is None:
        return flow
    if not await inbox.wait_begun(attempt.left_s):
        progress = "; ".join(inbox.take_comments())
        raise HttpFaultRaised(attempt.too_late(flow.parsed.model, progress))
    if (fault := early_fault(inbox)) is not None:
        return faulted(flow, fault)
    attempt.began = True
    return flow


async def answer(parts: Parts, flow: Flow) -> Flow:
    """Wait for the whole answer and render it; for a stream, wait until its status is known."""
    parsed, head = flow.parsed, flow.head
    inbox = flow.exchange.inbox
    if flow.fault is not None:
        return flow
    if parsed.stream:
        has_comments = cast(Dialect, head.dialect).stream_content_type == sse.CONTENT_TYPE
        await inbox.wait_settled(QUICK_S if has_comments else NEVER_S)
        if (fault := early_fault(inbox)) is not None:
            return faulted(flow, fault)
        tell_ignored(parts, flow.http.reply, head.dialect.name, inbox.take_unheeded())
        return flow
    collected = await _collected(inbox)
    if isinstance(collected, HttpFault):
        return faulted(flow, collected)
    if head.kind != "generate" and any(_is_cut_short(item, parsed) for item in collected):
        raise HttpFaultRaised(HttpFault(409, "cancelled", "the request was cancelled"))
    if unheeded := inbox.take_unheeded():
        tell_ignored(parts, flow.http.reply, head.dialect.name, unheeded)
    render = partial(head.dialect.render_whole, parsed, collected, load_s=inbox.load_s)
    if head.kind == "embed":
        tell_truncated(flow.http.reply, [number for item in collected for number in item.cut])
        # encoding many numbers is slow; a thread keeps the loop free
        whole = await asyncio.get_running_loop().run_in_executor(None, render)
    else:
        whole = render()
    flow.http.reply.data = whole
    return replace(flow, answer=whole)


def faulted(flow: Flow, fault: HttpFault) -> Flow:
    """Return the flow with `fault` if the conversation may be cut: the stage `cut` then tries a
    shorter one. Otherwise raise the fault."""
    if not flow.parsed.cuts:
        raise HttpFaultRaised(fault)
    return replace(flow, fault=fault)


def early_fault(inbox: EntryInbox) -> HttpFault | None:
    """Return why an exchange failed before any entry of its answer arrived; None if it did not."""
    if inbox.abandoned:
        return HttpFault(CLOSED_REQUEST, "client_closed", "the client went away")
    return inbox.early_fault


def outcome_of(exchange: Exchange) -> str:
    """Return how an exchange ended: `FINISHED` or an error code."""
    inbox = exchange.inbox
    if inbox.abandoned:
        return "client_closed"
    if inbox.fault is not None:
        return inbox.fault.code
    reasons = (request.failed for request in exchange.requests)
    return next((reason for reason in reasons if reason is not None), FINISHED)


async def comments_before(inbox: EntryInbox) -> AsyncGenerator[bytes]:
    """Yield progress as SSE comments until every request is accepted or the exchange fails. Then
    yield a comment with the ignored fields that came too late for the header."""
    if not inbox.settled:
        yield sse.KEEP_ALIVE
    while not inbox.settled:
        await inbox.wait_settled(1.0)
        for text in inbox.take_comments():
            yield sse.comment(text)
    if unheeded := inbox.take_unheeded():
        yield sse.comment(f"ignored: {', '.join(unheeded)}")


async def _collected(inbox: EntryInbox) -> Sequence[Collected] | HttpFault:
    """Return the complete results of all requests, or why one failed."""
    collector = Collector(inbox.requests)
    inbox.batch = GATHERED
    while not collector.ended:
        entries = await inbox.take()
        inbox.take_comments()
        if entries:
            collector.add(entries)
        if collector.failed is not None:
            return of_failed(collector.failed)
        if not entries and inbox.ended:
            if (fault := early_fault(inbox)) is not None:
                return fault
            break
    return collector.collected


def _is_cut_short(collected: Collected, parsed: Parsed) -> bool:
    """Return whether a vector, or the answer to a question about a prompt, is missing."""
    prompts = {request.request_id: request.prompt for request in parsed.requests}
    prompt = prompts[collected.request_id]
    if isinstance(prompt, InputsPrompt):
        return len(collected.vectors) < len(prompt.inputs)
    return collected.prompt is None
