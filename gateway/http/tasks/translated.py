"""Talks to providers about requests in another dialect than theirs.

The request of a body that was parsed is asked of the provider in the provider's own dialect, always
as a stream, and what comes back arrives in an inbox as a runner's entries would. So everything
behind the inbox (streams, whole answers, what is kept, jobs, the record) is the same for both.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

from falcon.asgi import Request

from bus.process.logs import story_of
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.tokens import Entry
from bus.wire.tasks import ProviderModel
from gateway.dialects import sse
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised, internal, of_refusal
from gateway.ended_requests import AskedOver
from gateway.fetching import providers
from gateway.http.callers import sharer_of
from gateway.http.tasks.provided import BEGINS_S, ERROR_BYTES, counted_as
from gateway.requests.derived import requests_of
from gateway.requests.dispatcher import Exchange
from gateway.requests.inbox import EntryInbox
from gateway.requests.request import ClientRequest
from gateway.service import HttpService

PROVIDED = "shoal.provided"
"""Where a request's scope has the provider's model that is to answer; None, or not there: one of
the cluster is."""
UNNAMED = "a-provided-model"
"""What the body of such a request calls its model, for a provider's may have any name."""
AHEAD = 64
"""Entries that may wait for a client which reads slowly."""
_GONE = providers.ProviderFailed("client_gone", "the client went away")


def named_as_asked(req: Request, parsed: Parsed) -> Parsed:
    """Return a body with the name that its answer has for a provider's model."""
    provided: ProviderModel | None = req.scope.get(PROVIDED)
    return parsed if provided is None else replace(parsed, model=provided.name)


def submitted(
    service: HttpService, req: Request, parsed: Parsed, asked: AskedOver
) -> tuple[Parsed, Exchange]:
    """Submit the requests of a body, to runners or to the provider whose model it names; return the
    body as it is answered. Raises HttpFaultRaised."""
    sharer = sharer_of(req, service.options, parsed.extras.client_id)
    provided: ProviderModel | None = req.scope.get(PROVIDED)
    if provided is None:
        traced = True if asked.traced else None
        started = service.dispatcher.start(parsed, key_id=asked.key, sharer=sharer, traced=traced)
        return parsed, started
    if service.dispatcher.draining:
        leaves = providers.ProviderFailed("shutdown", "this gateway is shutting down")
        raise HttpFaultRaised(leaves.fault)
    wire = requests_of(parsed, ModelId(provided.name), None, None)[0]
    body = providers.translated(provided, wire)  # refuses what a body may have several of
    call = providers.call_of(provided, json_bytes(body.fields), os.environ, {})
    if isinstance(call, HttpFault):
        raise HttpFaultRaised(call)
    answer = _TranslatedAnswer(service, provided, call, asked, parsed.extras.timeout_s)
    inbox = EntryInbox((wire,), on_sent=answer.sent, on_abandoned=answer.leave)
    request = ClientRequest(
        wire=wire,
        inbox=inbox,
        owner=answer,
        counters=service.counters,
        now=service.reactor.now(),
        timeout_s=None,
        sharer=sharer,
    )
    request.model = ModelId(counted_as(service, provided))
    answer.begin(request, body.unheeded)
    # nothing of a provider's is in memory here, so no wish about that has an effect
    extras = replace(parsed.extras, stay_warm_s=None, keep_alive_s=None)
    return replace(parsed, extras=extras), Exchange(inbox, (request,), request.model)


class _TranslatedAnswer:
    """One answer of a provider, from the question to its last word."""

    def __init__(
        self,
        service: HttpService,
        provided: ProviderModel,
        call: providers.ProviderCall,
        asked: AskedOver,
        timeout_s: float | None,
    ) -> None:
        self._service = service
        self._provided = provided
        self._call = call
        self._now = service.reactor.now
        self._answer = providers.ProviderAnswer(call)
        self._told = providers.ToldInPassing(is_stream=True)
        self._ends_at = None if timeout_s is None else asked.started_at + timeout_s
        budget_s = None if asked.attempt is None else asked.attempt.budget_s
        self._begins_s = BEGINS_S if budget_s is None else budget_s
        self._ahead = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, request: ClientRequest, unheeded: tuple[str, ...]) -> None:
        """Ask, and pass on what comes."""
        self._service.provided.add(self._answer)
        self._task = asyncio.create_task(self._run(request, unheeded))

    def sent(self, _request_id: RequestId, _choice: int, count: int) -> None:
        """Note that so many entries were sent to the client."""
        self._ahead -= count
        self._room.set()

    def leave(self) -> None:
        """Stop asking: the client is gone, or the answer has ended."""
        self._answer.stop(_GONE)
        self._room.set()

    # --- what a request says (RequestOwner) ---------------------------------------------------

    def refused(self, request: ClientRequest, refusal: Refusal) -> None:
        """Refuse a request: no runner has this model."""
        request.inbox.refuse(of_refusal(refusal))

    def displaced(self, request: ClientRequest) -> None:
        """End a request that is given back: no runner has this model."""
        request.end_cancelled(self._now())

    def ended(self, request: ClientRequest) -> None:
        """Let the provider go: its answer has had its terminal."""
        self.leave()

    # --- the answer -----------------------------------------------------------------------------

    async def _run(self, request: ClientRequest, unheeded: tuple[str, ...]) -> None:
        inbox = request.inbox
        try:
            await self._begun()
            request.accepted(0, unheeded, self._now())
            await self._heard(request)
        except providers.ProviderFailed as failed:
            inbox.refuse(failed.fault)
        except HttpFaultRaised as raised:
            inbox.refuse(raised.fault)
        except Exception as error:
            reference = str(request.request_id)
            self._service.log.error(
                "a provider's answer failed", request=reference, error=story_of(error)
            )
            inbox.refuse(internal(reference))
        finally:
            self._service.provided.discard(self._answer)
            await self._answer.close()

    async def _begun(self) -> None:
        """Ask, until the stream begins. Raises ProviderFailed, or HttpFaultRaised with the
        provider's refusal."""
        answer = self._answer
        await answer.begin(self._left_s(self._begins_s) or 0.0)
        if answer.status != 200:
            said = b""
            while len(said) < ERROR_BYTES and (piece := await answer.piece(self._left_s(5.0))):
                said += piece
            raise HttpFaultRaised(
                providers.refusal_of(
                    self._provided, self._call, answer.status, answer.headers, said[:ERROR_BYTES]
                )
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().casefold()
        if kind != sse.CONTENT_TYPE:
            name = self._provided.provider
            text = f"the provider '{name}' does not stream: it answered with '{kind[:80]}'"
            raise HttpFaultRaised(HttpFault(502, "provider_failed", text))

    async def _heard(self, request: ClientRequest) -> None:
        """Pass on what comes, to the end. Raises ProviderFailed and HttpFaultRaised."""
        hearing = providers.hearing_of(self._provided, request.request_id)
        silence_s = self._service.options.request_timeout_s or None
        within_s: float | None = self._begins_s
        while piece := await self._piece(within_s):
            within_s = silence_s
            await self._passed(request, hearing, self._told.passed(piece))
        await self._passed(request, hearing, self._told.ended())
        if not self._told.whole:
            text = f"the provider '{self._provided.provider}' stopped before the end of its answer"
            raise providers.ProviderFailed("broken", text)
        request.arrived(hearing.end(self._told.usage), self._now())

    async def _piece(self, within_s: float | None) -> bytes:
        """Return what comes next; b"" also where a whole answer is not ended in good order."""
        try:
            return await self._answer.piece(self._left_s(within_s))
        except providers.ProviderFailed as failed:
            if self._told.whole and failed.rule in ("broken", "late"):
                return b""
            raise

    async def _passed(
        self, request: ClientRequest, hearing: providers.Hearing, lines: bytes
    ) -> None:
        entries: list[Entry] = []
        for event in providers.events_in(lines, self._provided.provider):
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
        """Return how long the next step may take: `most_s`, and no longer than the client said."""
        if self._ends_at is None:
            return most_s
        left_s = max(0.0, self._ends_at - self._now())
        return left_s if most_s is None else min(left_s, most_s)
