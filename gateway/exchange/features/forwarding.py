"""Talks to a provider (another LLM service) that speaks the client's dialect: forwards the body,
and passes the answer's bytes to the client.

The body is forwarded unchanged, except for the model's name and our own fields. The HTTP status is
sent to the client once the first bytes arrive. If a stream breaks off later, it ends with an error
in the client's dialect.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from bus.models.tasks import ProviderModel
from bus.process.clock import wall
from bus.translation import ToldInPassing
from gateway.dialects import sse
from gateway.dialects.body import take_extras
from gateway.dialects.dialect import Dialect, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange.flow import FINISHED, Flow, Running, TaskTry
from gateway.exchange.parts import Parts
from gateway.exchange.record import ProvidedAnswer
from gateway.exchange.running import begun
from gateway.fetching import providers

BEGINS_S = 600.0
"""Time limit in seconds for the first bytes of a provider's answer, unless a task sets its own or
the client's timeout ends earlier. An answer that is not a stream sends its first bytes only when it
is complete."""
NO_HEADERS: Mapping[str, str] = {}
WHOLE_BYTES, ERROR_BYTES = 64 << 20, 64 << 10
OTHER = "other"
"""The name in the metrics for all models of a provider that `tasks.toml` does not list. Clients can
invent such names, and each name would add a time series."""


def passed_on(parts: Parts, flow: Flow, trial: TaskTry) -> Flow:
    """Return the flow for a body that shoal does not parse, but forwards to the provider. shoal's
    own fields are removed from the body. Raises BadRequest."""
    fields = dict(flow.fields)
    extras = take_extras(fields)
    if trial.timeout_s is not None:
        extras = replace(extras, timeout_s=trial.timeout_s)
    parsed = Parsed(
        requests=(),
        model=trial.name,
        stream=fields.get("stream") is True and flow.head.kind == "generate",
        answer_id="",
        created_at_s=wall(),
        fingerprint="",
        extras=extras,
    )
    return replace(flow, fields=fields, parsed=parsed)


def call_of(
    parts: Parts, provided: ProviderModel, body: bytes, flow: Flow
) -> providers.ProviderCall:
    """Return the HTTP request for a provider, without sending it. Raises HttpFaultRaised if this
    gateway is shutting down, or if the provider's key is missing."""
    if parts.dispatcher.draining:
        leaves = providers.ProviderFailed("shutdown", "this gateway is shutting down")
        raise HttpFaultRaised(leaves.fault)
    forwards = flow.trial is not None and flow.trial.forwards
    headers = flow.http.headers() if forwards else NO_HEADERS
    dialect = flow.head.dialect.name if forwards else ""
    call = providers.call_of(provided, body, os.environ, headers, dialect)
    if isinstance(call, HttpFault):
        raise HttpFaultRaised(call)
    return call


def counted_as(parts: Parts, provided: ProviderModel) -> str:
    """Return the name under which the metrics count a provider's model."""
    listed = {model.name for model in parts.tasks.table.provided_models()}
    return provided.name if provided.name in listed else f"{provided.provider}:{OTHER}"


def begins_s(flow: Flow) -> float:
    """Return how many seconds a provider may take to send its first bytes."""
    attempt = None if flow.trial is None else flow.trial.attempt
    return BEGINS_S if attempt is None or attempt.budget_s is None else attempt.budget_s


@dataclass(slots=True)
class Forwarded:
    """A request body that was forwarded to a provider, with the provider's answer so far. `tracker`
    reads the token usage from the bytes as they pass; `record` is the entry for the request log.
    `ends_at` is when the client's timeout ends, by the monotonic clock; None if it set none."""

    parts: Parts
    flow: Flow
    call: providers.ProviderCall
    provided: ProviderModel
    answer: providers.ProviderAnswer
    tracker: ToldInPassing
    record: ProvidedAnswer
    ends_at: float | None = field(init=False)

    def __post_init__(self) -> None:
        timeout_s = self.flow.parsed.extras.timeout_s
        self.ends_at = None if timeout_s is None else self.flow.head.came_at + timeout_s

    def left_s(self, most_s: float | None) -> float | None:
        """Return the time limit of the next step in seconds: `most_s`, or the remaining part of the
        client's timeout if that is shorter. None: no limit."""
        if self.ends_at is None:
            return most_s
        left_s = max(0.0, self.ends_at - self.parts.reactor.now())
        return left_s if most_s is None else min(left_s, most_s)

    def tell(self, outcome: str, status: int) -> None:
        """Report the ended answer to the log, the metrics and the records."""
        self.record.usage, self.record.finish = self.tracker.usage, self.tracker.finish
        self.parts.ended_requests.tell_provided(
            self.flow, self.record, outcome=outcome, status=status
        )

    def silence_s(self) -> float | None:
        """Return the longest allowed pause within an answer, in seconds; None: no limit."""
        return self.parts.options.request_timeout_s or None


def forward(parts: Parts, flow: Flow, provided: ProviderModel) -> Flow:
    """Call the provider, count the call as running, and return the flow that contains it. Raises
    HttpFaultRaised."""
    parsed = flow.parsed
    call = call_of(parts, provided, json_bytes({**flow.fields, "model": provided.model}), flow)
    spilled = flow.of_task if flow.trial is not None and flow.trial.is_spilled else None
    request = next(parts.parse_context().ids) if spilled is None else spilled.requests[0].request_id
    record = ProvidedAnswer(
        request=request,
        model=provided.name,
        counted_as=counted_as(parts, provided),
        extras=parsed.extras,
        streamed=parsed.stream,
    )
    tracker = ToldInPassing(is_stream=parsed.stream)
    answer = providers.ProviderAnswer(call, parts.provided.connections)
    flow = replace(flow, parsed=replace(parsed, answer_id=str(request)))
    forwarded = Forwarded(parts, flow, call, provided, answer, tracker, record)
    gone = providers.ProviderFailed("client_gone", "the client went away")
    flow.http.watch.on_gone(lambda: answer.stop(gone))
    running = Running(None, forwarded.tell, [partial(parts.provided.discard, request)])
    running.relay = partial(_relayed, forwarded)
    flow = begun(parts, flow, running, tracker.spent)
    parts.provided.add(
        providers.OpenProviderRequest(
            request=request,
            provided=provided,
            client=record.extras.client_id,
            priority=record.extras.priority,
            since_at=flow.head.came_at,
            answer=answer,
            tokens=lambda: tracker.usage.completion_tokens,
            begun=lambda: record.began_at is not None,
            cancel=partial(answer.stop, providers.CANCELLED),
        )
    )
    flow.http.reply.set_header("x-request-id", str(request))
    return flow


async def relay(_parts: Parts, flow: Flow) -> Flow:
    """Answer with the provider's answer, whole or as a stream. Raises HttpFaultRaised if the
    provider refuses."""
    assert flow.running is not None and flow.running.relay is not None
    return await flow.running.relay(flow)


async def _relayed(forwarded: Forwarded, flow: Flow) -> Flow:
    running, trial = flow.running, flow.trial
    assert running is not None and trial is not None
    is_streamed = False
    try:
        first = await _first_piece(forwarded)
        if flow.parsed.stream:
            is_streamed = True
            if trial.attempt is not None:
                trial.attempt.began = True
            end = partial(running.end, "client_closed")
            flow.http.stream(_streamed(forwarded, running, first), sse.CONTENT_TYPE, end)
        else:
            flow.http.reply.data = await _whole(forwarded, first)
            running.end()
    finally:
        if not is_streamed:
            await forwarded.answer.close()
    return replace(flow, is_streamed=is_streamed, is_over=True)


async def _first_piece(forwarded: Forwarded) -> bytes:
    """Return the first bytes of an answer. Raises HttpFaultRaised with the provider's refusal."""
    answer, now = forwarded.answer, forwarded.parts.reactor.now
    most_s = begins_s(forwarded.flow)
    late_at = now() + most_s
    try:
        await answer.begin(forwarded.left_s(most_s) or 0.0)
        if answer.status != 200:
            body = await _at_most(forwarded, ERROR_BYTES)
            fault = providers.refusal_of(
                forwarded.provided, forwarded.call, answer.status, answer.headers, body
            )
            raise HttpFaultRaised(fault)
        first = await answer.piece(forwarded.left_s(max(0.0, late_at - now())))
    except providers.ProviderFailed as failed:
        raise HttpFaultRaised(failed.fault) from None
    if not first:
        text = f"the provider '{forwarded.provided.provider}' sent an empty answer"
        raise HttpFaultRaised(HttpFault(502, "provider_broke_off", text, retry_after_s=5.0))
    forwarded.record.began_at = now()
    return first


async def _at_most(forwarded: Forwarded, limit_bytes: int) -> bytes:
    """Return the body of a provider's refusal, cut after `limit_bytes`."""
    body = b""
    while len(body) < limit_bytes and (
        piece := await forwarded.answer.piece(forwarded.left_s(5.0))
    ):
        body += piece
    return body[:limit_bytes]


async def _whole(forwarded: Forwarded, first: bytes) -> bytes:
    """Return a whole answer, which begins with `first`. Raises HttpFaultRaised if it breaks off or
    is larger than `WHOLE_BYTES`."""
    pieces, size = [first], len(first)
    silence_s = forwarded.silence_s()
    try:
        while piece := await forwarded.answer.piece(forwarded.left_s(silence_s)):
            pieces.append(piece)
            size += len(piece)
            if size > WHOLE_BYTES:
                name = forwarded.provided.provider
                text = (
                    f"the answer of the provider '{name}' is too large; the limit is "
                    f"{WHOLE_BYTES >> 20} MiB"
                )
                raise HttpFaultRaised(HttpFault(502, "provider_failed", text))
    except providers.ProviderFailed as failed:
        raise HttpFaultRaised(failed.fault) from None
    body = b"".join(pieces)
    forwarded.tracker.read_whole(body)
    return body


async def _streamed(forwarded: Forwarded, running: Running, first: bytes) -> AsyncGenerator[bytes]:
    """Yield the bytes of a stream as they arrive. If the stream breaks off, end it with an
    error."""
    tracker, outcome = forwarded.tracker, "client_closed"
    silence_s = forwarded.silence_s()
    try:
        piece = first
        while piece:
            if lines := tracker.passed(piece):
                yield lines
            piece = await forwarded.answer.piece(forwarded.left_s(silence_s))
        if held := tracker.ended():
            yield held
        if tracker.whole:
            outcome = FINISHED
        else:
            name = forwarded.provided.provider
            text = f"the provider '{name}' stopped before the end of its answer"
            fault = HttpFault(502, "provider_broke_off", text)
            outcome = fault.code
            yield _error(forwarded, fault)
    except providers.ProviderFailed as failed:
        outcome = failed.fault.code
        yield _error(forwarded, failed.fault)
    finally:
        running.end(outcome)
        forwarded.flow.http.watch.leave()
        await forwarded.answer.close()


def _error(forwarded: Forwarded, fault: HttpFault) -> bytes:
    """Return an error in the stream format of the client's dialect."""
    # only dialects with streams get here
    dialect = cast(Dialect, forwarded.flow.head.dialect)
    before = b"\n" if forwarded.tracker.in_event else b""
    return before + dialect.stream(forwarded.flow.parsed).error(fault)
