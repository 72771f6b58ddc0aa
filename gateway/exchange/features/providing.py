"""Talks to providers: sends them the requests of a body.

If a provider speaks the client's dialect, the body is forwarded (`forwarding`). Otherwise the
parsed request is translated to the provider's dialect, and the provider is asked for a stream. The
answer is converted to the entries that runners send, and goes into the request's inbox. So the
later stages are the same for runners and providers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bus.models.tasks import ProviderModel
from bus.process.logs import story_of
from bus.translation import Hearing, ToldInPassing, events_in, hearing_of
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.tokens import Entry
from gateway.dialects import sse
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised, internal, of_refusal
from gateway.exchange.features.forwarding import (
    ERROR_BYTES,
    begins_s,
    call_of,
    counted_as,
    forward,
)
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts
from gateway.exchange.running import submitted
from gateway.fetching import providers
from gateway.requests.derived import requests_of
from gateway.requests.dispatcher import Exchange
from gateway.requests.inbox import EntryInbox
from gateway.requests.request import ClientRequest

AHEAD = 64
"""If this many entries wait for a slow client, reading from the provider pauses."""
_GONE = providers.ProviderFailed("client_gone", "the client went away")


async def provide(parts: Parts, flow: Flow) -> Flow:
    """Submit the body to the provider of its model. Raises HttpFaultRaised."""
    provided, trial = flow.provided, flow.trial
    assert provided is not None and trial is not None
    return (forward if trial.forwards else _translate)(parts, flow, provided)


def _translate(parts: Parts, flow: Flow, provided: ProviderModel) -> Flow:
    parsed = flow.parsed
    wire = requests_of(parsed, ModelId(provided.name), None, None)[0]
    body = providers.provider_body(provided, wire)  # refuses a request for several choices
    call = call_of(parts, provided, json_bytes(body.fields), flow)
    answer = _TranslatedAnswer(parts, flow, provided, call)
    inbox = EntryInbox((wire,), on_sent=answer.sent, on_abandoned=answer.leave)
    request = ClientRequest(
        wire=wire,
        inbox=inbox,
        owner=answer,
        counters=parts.counters,
        now=parts.reactor.now(),
        timeout_s=None,
        sharer=flow.head.sharer,
    )
    request.model = ModelId(counted_as(parts, provided))
    answer.begin(request, body.unheeded)
    # a provider's model is not in memory here, so keep-alive times have no effect
    extras = replace(parsed.extras, stay_warm_s=None, keep_alive_s=None)
    flow = replace(flow, parsed=replace(parsed, extras=extras))
    return submitted(parts, flow, Exchange(inbox, (request,), request.model))


class _TranslatedAnswer:
    """One answer of a provider, from sending the request to the end. It owns the requests of the
    exchange, as the dispatcher owns those of runners."""

    def __init__(
        self, parts: Parts, flow: Flow, provided: ProviderModel, call: providers.ProviderCall
    ) -> None:
        self._parts = parts
        self._provided = provided
        self._target = providers.target_of(provided)
        self._call = call
        self._now = parts.reactor.now
        self._answer = providers.ProviderAnswer(call, parts.provided.connections)
        self._tracker = ToldInPassing(is_stream=True)
        timeout_s = flow.parsed.extras.timeout_s
        self._ends_at = None if timeout_s is None else flow.head.came_at + timeout_s
        self._begins_s = begins_s(flow)
        self._ahead = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, request: ClientRequest, unheeded: tuple[str, ...]) -> None:
        """Start a task that sends the request and puts the answer into the inbox."""
        self._parts.provided.add(
            providers.OpenProviderRequest(
                request=request.request_id,
                provided=self._provided,
                client=request.wire.client_id,
                priority=request.wire.priority,
                since_at=request.since_at,
                answer=self._answer,
                tokens=lambda: request.tokens,
                begun=lambda: request.begun,
                cancel=lambda: request.end_cancelled(self._now()),
            )
        )
        self._task = asyncio.create_task(self._run(request, unheeded))

    def sent(self, _request_id: RequestId, _choice: int, count: int) -> None:
        """Record that `count` entries were sent to the client."""
        self._ahead -= count
        self._room.set()

    def leave(self) -> None:
        """Stop the task, because the client has disconnected or the answer has ended."""
        self._answer.stop(_GONE)
        self._room.set()

    # --- RequestOwner -------------------------------------------------------------------------

    def refused(self, request: ClientRequest, refusal: Refusal) -> None:
        """Refuse a request to its client. No runner has a provider's model, so no other one is
        tried."""
        request.inbox.refuse(of_refusal(refusal))

    def displaced(self, request: ClientRequest) -> None:
        """End a preempted request instead of queueing it again. No runner has a provider's model,
        so no runner could continue the request."""
        request.end_cancelled(self._now())

    def ended(self, request: ClientRequest) -> None:
        """Close the connection to the provider, because the request has its terminal entry."""
        self.leave()

    # --- the answer -----------------------------------------------------------------------------

    async def _run(self, request: ClientRequest, unheeded: tuple[str, ...]) -> None:
        inbox = request.inbox
        try:
            await self._begun()
            request.accepted(0, unheeded, self._now())
            await self._pass_on(request)
        except providers.ProviderFailed as failed:
            inbox.refuse(failed.fault)
        except HttpFaultRaised as raised:
            inbox.refuse(raised.fault)
        except Exception as error:
            reference = str(request.request_id)
            self._parts.log.error(
                "a provider's answer failed", request=reference, error=story_of(error)
            )
            inbox.refuse(internal(reference))
        finally:
            self._parts.provided.discard(request.request_id)
            await self._answer.close()

    async def _begun(self) -> None:
        """Send the request and wait until the stream begins. Raises ProviderFailed, or
        HttpFaultRaised with the provider's refusal."""
        answer = self._answer
        await answer.begin(self._left_s(self._begins_s) or 0.0)
        if answer.status != 200:
            body = b""
            while len(body) < ERROR_BYTES and (piece := await answer.piece(self._left_s(5.0))):
                body += piece
            raise HttpFaultRaised(
                providers.refusal_of(
                    self._provided, self._call, answer.status, answer.headers, body[:ERROR_BYTES]
                )
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().casefold()
        if kind != sse.CONTENT_TYPE:
            name = self._provided.provider
            text = f"the provider '{name}' does not stream: it answered with '{kind[:80]}'"
            raise HttpFaultRaised(HttpFault(502, "provider_failed", text))

    async def _pass_on(self, request: ClientRequest) -> None:
        """Convert the whole answer to entries and put them into the inbox. Raises ProviderFailed
        and HttpFaultRaised."""
        hearing = hearing_of(self._target, request.request_id, request.wire.n)
        silence_s = self._parts.options.request_timeout_s or None
        within_s: float | None = self._begins_s
        while piece := await self._piece(within_s):
            within_s = silence_s
            await self._passed(request, hearing, self._tracker.passed(piece))
        await self._passed(request, hearing, self._tracker.ended())
        if not self._tracker.whole:
            text = f"the provider '{self._provided.provider}' stopped before the end of its answer"
            raise providers.ProviderFailed("broken", text)
        with providers.stream_faults():
            last = hearing.end(self._tracker.usage)
        request.arrived(last, self._now())

    async def _piece(self, within_s: float | None) -> bytes:
        """Return the next bytes of the answer. Return b"" at the end, and also if the connection
        breaks after the answer was complete."""
        try:
            return await self._answer.piece(self._left_s(within_s))
        except providers.ProviderFailed as failed:
            if self._tracker.whole and failed.rule in ("broken", "late"):
                return b""
            raise

    async def _passed(self, request: ClientRequest, hearing: Hearing, lines: bytes) -> None:
        entries: list[Entry] = []
        with providers.stream_faults():
            for event in events_in(lines, self._target.name):
                if (fault := providers.failure_within(self._call, event)) is not None:
                    raise HttpFaultRaised(fault)
                entries += hearing.take(event)
        if not entries:
            return
        self._ahead += len(entries)
        request.arrived(entries, self._now())
        while self._ahead > AHEAD and not request.inbox.ended:
            self._room.clear()
            await self._room.wait()

    def _left_s(self, most_s: float | None) -> float | None:
        """Return the time limit of the next step in seconds: `most_s`, or the remaining part of the
        client's timeout if that is shorter. None: no limit."""
        if self._ends_at is None:
            return most_s
        left_s = max(0.0, self._ends_at - self._now())
        return left_s if most_s is None else min(left_s, most_s)
