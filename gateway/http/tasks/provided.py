"""Talks to clients and to providers (other LLM services): forwards a request to a provider, and
passes the answer's bytes to the client.

This module handles requests in the provider's own dialect; the module `translated` handles other
dialects. The request is forwarded unchanged, except for the model's name and our own fields. The
HTTP status is sent to the client once the first bytes arrive. If a stream breaks off later, it ends
with an error in the client's dialect. In every case, the answer is counted and recorded once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, cast

from falcon.asgi import Request, Response

from bus.models.tasks import ProviderModel
from bus.process.clock import wall
from gateway.dialects import sse
from gateway.dialects.body import take_extras
from gateway.dialects.dialect import Dialect, Extras, Parsed, WholeDialect
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.ended_requests import FINISHED, AskedOver, ProvidedAnswer
from gateway.fetching import providers
from gateway.http.middleware import tell_ignored
from gateway.http.running import let_in, of_client, refusals_recorded
from gateway.http.tasks.client import WatchedClient
from gateway.service import HttpService

BEGINS_S = 600.0
"""Time limit for the first bytes of a provider, unless a task or the client sets a shorter limit.
An answer that is no stream sends its first bytes only when it is complete."""
WHOLE_BYTES, ERROR_BYTES = 64 << 20, 64 << 10
OTHER = "other"
"""The name in the metrics for all models that `tasks.toml` does not list. Clients can invent such
names, so there could be any number of them."""


@dataclass(frozen=True)
class ProviderQuestion:
    """A request in the provider's own dialect; `fields` are the fields of the client's body."""

    provided: ProviderModel
    dialect: WholeDialect
    fields: dict[str, Any]
    details: AskedOver


@dataclass(slots=True)
class _Running:
    """An answer of a provider that is in progress, and the data for its record."""

    service: HttpService
    question: ProviderQuestion
    answer: providers.ProviderAnswer
    tracker: providers.ToldInPassing
    record: ProvidedAnswer
    ends_at: float | None
    settle: Callable[[], None]
    over: bool = False

    def left_s(self, most_s: float | None) -> float | None:
        """Return the time limit of the next step: `most_s`, or the rest of the client's timeout."""
        if self.ends_at is None:
            return most_s
        left_s = max(0.0, self.ends_at - self.service.reactor.now())
        return left_s if most_s is None else min(left_s, most_s)

    async def end(self, outcome: str = FINISHED, status: int = 200) -> None:
        """Record the answer, once, and close the connection to the provider."""
        if self.over:
            return
        self.over = True
        self.service.running -= 1
        self.service.provided.discard(self.answer)
        self.record.usage, self.record.finish = self.tracker.usage, self.tracker.finish
        self.settle()
        self.service.ended_requests.tell_provided(
            self.question.details, self.record, outcome=outcome, status=status
        )
        await self.answer.close()


def counted_as(service: HttpService, provided: ProviderModel) -> str:
    """Return the name of a provider's model in the metrics."""
    listed = {model.name for model in service.tasks.table.provided_models()}
    return provided.name if provided.name in listed else f"{provided.provider}:{OTHER}"


async def answer_by_provider(
    service: HttpService,
    req: Request,
    resp: Response,
    question: ProviderQuestion,
    client: WatchedClient,
) -> None:
    """Forward the request, and answer with the provider's answer, whole or as a stream. Raises
    HttpFaultRaised if the provider refuses, or if the request cannot be sent."""
    with refusals_recorded(service, question.details):
        extras, call = _call_of(service, req, question)
    begins_s = _begins_s(question.details)
    stream = question.fields.get("stream") is True
    running = _begun(service, resp, question, extras, call, stream=stream)
    gone = providers.ProviderFailed("client_gone", "the client went away")
    client.on_gone(lambda: running.answer.stop(gone))
    try:
        first = await _first_piece(running, call, begins_s)
        if stream:
            if (attempt := question.details.attempt) is not None:
                attempt.began = True
            resp.content_type = sse.CONTENT_TYPE
            resp.set_headers(sse.HEADERS)
            resp.stream = _streamed(running, first)
        else:
            resp.data = await _whole(running, first)
            await running.end()
    except HttpFaultRaised as raised:
        await running.end(raised.fault.code, raised.fault.status)
        raise
    except BaseException:
        await running.end("internal_error", 500)
        raise


def _call_of(
    service: HttpService, req: Request, question: ProviderQuestion
) -> tuple[Extras, providers.ProviderCall]:
    """Return our own fields (`x_*`) of the body, and the provider call without these fields. Raises
    HttpFaultRaised and BadRequest."""
    if service.dispatcher.draining:
        leaves = providers.ProviderFailed("shutdown", "this gateway is shutting down")
        raise HttpFaultRaised(leaves.fault)
    provided = question.provided
    extras = take_extras(question.fields)
    of_client(service, req, question.details, extras)
    let_in(service, req, question.details)
    body = json_bytes({**question.fields, "model": provided.model})
    headers = {name.lower(): value for name, value in req.headers.items()}
    call = providers.call_of(provided, body, os.environ, headers)
    if isinstance(call, HttpFault):
        raise HttpFaultRaised(call)
    return extras, call


def _begins_s(details: AskedOver) -> float:
    budget_s = None if details.attempt is None else details.attempt.budget_s
    return BEGINS_S if budget_s is None else budget_s


def _begun(
    service: HttpService,
    resp: Response,
    question: ProviderQuestion,
    extras: Extras,
    call: providers.ProviderCall,
    *,
    stream: bool,
) -> _Running:
    """Count a new answer as running, and return its state."""
    details, provided = question.details, question.provided
    request = next(service.parse_context().ids)
    record = ProvidedAnswer(
        request=request,
        model=provided.name,
        counted_as=counted_as(service, provided),
        extras=extras,
        streamed=stream,
    )
    tracker = providers.ToldInPassing(is_stream=stream)
    answer = providers.ProviderAnswer(call)
    ends_at = None if extras.timeout_s is None else details.started_at + extras.timeout_s
    settle = service.api_keys.spends(details.key, tracker.spent)
    service.running += 1
    service.clients.rests(details.client, details.cooldown_s)
    service.provided.add(answer)
    resp.set_header("x-request-id", str(request))
    tell_ignored(service, resp, question.dialect.name, ("x_trace",) if extras.trace else ())
    return _Running(service, question, answer, tracker, record, ends_at, settle)


async def _first_piece(running: _Running, call: providers.ProviderCall, begins_s: float) -> bytes:
    """Return the first bytes of an answer. Raises HttpFaultRaised with the provider's refusal."""
    answer = running.answer
    now = running.service.reactor.now
    late_at = now() + begins_s
    try:
        await answer.begin(running.left_s(begins_s) or 0.0)
        if answer.status != 200:
            body = await _at_most(running, ERROR_BYTES)
            fault = providers.refusal_of(
                running.question.provided, call, answer.status, answer.headers, body
            )
            raise HttpFaultRaised(fault)
        first = await answer.piece(running.left_s(max(0.0, late_at - now())))
    except providers.ProviderFailed as failed:
        raise HttpFaultRaised(failed.fault) from None
    if not first:
        text = f"the provider '{running.question.provided.provider}' sent an empty answer"
        raise HttpFaultRaised(HttpFault(502, "provider_broke_off", text, retry_after_s=5.0))
    running.record.began_at = now()
    return first


async def _at_most(running: _Running, limit_bytes: int) -> bytes:
    """Return at most the first `limit_bytes` of the body of a provider's refusal."""
    body = b""
    while len(body) < limit_bytes and (piece := await running.answer.piece(running.left_s(5.0))):
        body += piece
    return body[:limit_bytes]


async def _whole(running: _Running, first: bytes) -> bytes:
    """Return a whole answer, which begins with `first`. Raises HttpFaultRaised if it breaks off or
    is larger than `WHOLE_BYTES`."""
    pieces, size = [first], len(first)
    silence_s = running.service.options.request_timeout_s or None
    try:
        while piece := await running.answer.piece(running.left_s(silence_s)):
            pieces.append(piece)
            size += len(piece)
            if size > WHOLE_BYTES:
                name = running.question.provided.provider
                text = (
                    f"the answer of the provider '{name}' is too large; the limit is "
                    f"{WHOLE_BYTES >> 20} MiB"
                )
                raise HttpFaultRaised(HttpFault(502, "provider_failed", text))
    except providers.ProviderFailed as failed:
        raise HttpFaultRaised(failed.fault) from None
    body = b"".join(pieces)
    running.tracker.read_whole(body)
    return body


async def _streamed(running: _Running, first: bytes) -> AsyncGenerator[bytes]:
    """Yield the bytes of a stream as they arrive; if it breaks off, end with an error."""
    tracker, outcome = running.tracker, "client_closed"
    silence_s = running.service.options.request_timeout_s or None
    try:
        piece = first
        while piece:
            if lines := tracker.passed(piece):
                yield lines
            piece = await running.answer.piece(running.left_s(silence_s))
        if held := tracker.ended():
            yield held
        if tracker.whole:
            outcome = FINISHED
        else:
            name = running.question.provided.provider
            text = f"the provider '{name}' stopped before the end of its answer"
            fault = HttpFault(502, "provider_broke_off", text)
            outcome = fault.code
            yield _error(running, fault)
    except providers.ProviderFailed as failed:
        outcome = failed.fault.code
        yield _error(running, failed.fault)
    finally:
        await running.end(outcome)


def _error(running: _Running, fault: HttpFault) -> bytes:
    """Return an error in the stream format of the client's dialect."""
    # only dialects with streams get here
    dialect = cast(Dialect, running.question.dialect)
    parsed = Parsed(
        requests=(),
        model=running.record.model,
        stream=True,
        answer_id=str(running.record.request),
        created_at_s=wall(),
        fingerprint="",
    )
    before = b"\n" if running.tracker.in_event else b""
    return before + dialect.stream(parsed).error(fault)
