"""Talks to runners on behalf of requests: from parsed to their last word.

Owns every request of its process. One for which no instance is ready waits
(`gateway.requests.waiting_room`), any other is at a lead runner, or waits for others of its body,
which have all the places there. A refusal is tried elsewhere once;
one that has waited for the load waits on where all are full, as does one that a runner gave back in
favour of a more urgent one; from a copy that makes way for something urgent requests are asked
back, and go on where they were. A runner that vanishes before it had
accepted costs nothing, the request waits again. Deadlines: loading has its own; that of the client
(`x_timeout_s`) counts from the request's arrival, loading included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.client import BusClient
from bus.patience import LostTime
from bus.replica.state import ClusterState
from bus.wire.errors import FailReason, Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.tokens import Cancel
from bus.wire.shares import Sharer, has_share
from gateway.cluster.counters import Counters
from gateway.cluster.http_processes import OpenRequestTold
from gateway.cluster.options import Options
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_refusal
from gateway.requests.catalog import ModelCatalog
from gateway.requests.derived import check_templates, requests_of
from gateway.requests.inbox import EntryInbox
from gateway.requests.request import ClientRequest
from gateway.requests.waiting_queue import OwnTurns
from gateway.requests.waiting_room import WaitingRoom
from gateway.runners.pool import RunnerClients
from gateway.runners.recalls import Recalls

TICK_S = 0.25
QUIET_S = 10.0
"""A stream that has said nothing for this long says so."""
LOADING_SAID_S = 1.0
STOPPING_S = 3.0
"""A runner that was told to stop a request gives its terminal within this, or it is made here."""
MAX_TRIES = 2
"""A full queue is answered by one other instance, then that is the answer."""
MAX_WAITS = 4
"""An instance that turns out not to serve is waited for anew so often."""
NEVER_MS = 7 * 24 * 3600 * 1000
CancelReason = Literal["client", "deadline", "shutdown"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One parsed body under way: where its entries arrive, and its requests for the record."""

    inbox: EntryInbox
    requests: tuple[ClientRequest, ...]
    model: ModelId


class Dispatcher:
    """All requests of one HTTP process, by id in `requests` until their last word."""

    def __init__(
        self,
        options: Options,
        bus: BusClient,
        catalog: ModelCatalog,
        clients: RunnerClients,
        counters: Counters,
    ) -> None:
        self.requests: dict[RequestId, ClientRequest] = {}
        self.draining = False
        self._options = options
        self._reactor = bus.reactor
        self._catalog = catalog
        self._clients = clients
        self._counters = counters
        self._recalls = Recalls()
        self._own = OwnTurns(self.requests, lambda one: catalog.has_place(one, ()), self._place)
        self._room = WaitingRoom(
            options=options,
            bus=bus,
            catalog=catalog,
            open_requests=self.requests,
            on_ready=self._place,
            on_refused=self._refuse,
        )
        bus.on_state.append(self._follow)
        self._lost = LostTime()
        self._timer = bus.reactor.every(TICK_S, self._tick)

    # --- what resources ask ------------------------------------------------------------------

    def start(
        self,
        parsed: Parsed,
        *,
        sharer: Sharer,
        key_id: str | None = None,
        traced: Literal[True] | None = None,
    ) -> Exchange:
        """Submit the requests of a body, asked by `sharer` with the API key of that id, or let
        them wait; `traced`: runners are to tell what they do when.

        Raises HttpFaultRaised when they cannot even wait, or name no model that is here and makes
        such answers; also for a conversation with a model that has a Go template.
        """
        self._check_room(sharer)
        model = self._catalog.named(parsed.model, or_pulled=True)
        self._catalog.check_makes(model, parsed.requests)
        card, derived = self._catalog.cards().get(model), self._catalog.derived(parsed.model)
        own = None if card is None else card.defaults
        check_templates(parsed.requests, derived, own)
        adapters = self._catalog.adapters
        adapter = adapters.meant(parsed.model, self._catalog.names(), derived)
        if adapter is None and own is not None and own.adapter in adapters.beside(model):
            adapter = own.adapter
        told = {"key_id": key_id, "adapter": adapter, "trace": traced}
        whole = requests_of(parsed, model, derived, own)
        wires = tuple(one.model_copy(update=told) for one in whole)
        inbox = EntryInbox(wires, on_sent=self._clients.sent_to_client)
        requests = tuple(
            ClientRequest(
                wire=wire,
                inbox=inbox,
                owner=self,
                counters=self._counters,
                now=self._reactor.now(),
                timeout_s=parsed.extras.timeout_s,
                sharer=sharer,
                affinity=parsed.affinity,
            )
            for wire in wires
        )
        self.requests.update((request.request_id, request) for request in requests)
        self._own.start(requests, self._reactor.now())
        return Exchange(inbox, requests, model)

    def abandon(self, inbox: EntryInbox) -> None:
        """Cancel and forget the requests of a client that is gone."""
        inbox.abandon()
        for wire in inbox.requests:
            self._drop(wire.request_id, "client")

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request, with all others of its answer; the client gets an ordinary end.

        Returns False when the request is not open here.
        """
        asked = self.requests.get(request_id)
        if asked is None:
            return False
        for held in self._own.take(asked):
            held.end_cancelled(self._reactor.now())
        for wire in asked.inbox.requests:
            request = self.requests.get(wire.request_id)
            if request is not None:
                self._stop(request)
        return True

    def fail_all(self, reason: FailReason, message: str) -> None:
        """End every open request now, in words (shutdown)."""
        for request in list(self.requests.values()):
            self._fail(request, reason, message, "shutdown")

    def records(self) -> list[OpenRequestTold]:
        """Return a plain record of each request that is open here."""
        now = self._reactor.now()
        return [
            {
                "request": str(request.request_id),
                "model": str(request.model),
                "client": request.wire.client_id,
                "priority": request.wire.priority,
                "instance": request.instance,
                "waiting": not request.begun,
                "tokens": request.tokens,
                "seconds": round(now - request.since_at, 3),
            }
            for request in self.requests.values()
        ]

    def close(self) -> None:
        """Stop the clock of deadlines, and leave the models that were waited for."""
        self._timer.cancel()
        self._room.close()

    # --- what requests say (RequestOwner) -----------------------------------------------------

    def refused(self, request: ClientRequest, refusal: Refusal) -> None:
        """Try a request that a runner refused elsewhere, once; else that is the answer."""
        self._clients.forget(request.request_id)
        passing = refusal.reason in ("draining", "not_ready", "wrong_generation", "protocol")
        elsewhere = self._catalog.ready(request.model, request.excluded)
        busy = refusal.reason == "queue_full"
        waited = request.has_waited or request.was_displaced or self._own.begun(request)
        if (busy and elsewhere and request.tries < MAX_TRIES) or (
            passing and request.tries < MAX_WAITS
        ):
            self._place(request)
        elif busy and self._own.hold(request, self._reactor.now()):
            pass  # what it waits for is the same client's
        elif busy and waited:
            self._refuse(request, self._room.add_again(request))
        else:
            self._refuse(request, refusal)

    def displaced(self, request: ClientRequest) -> None:
        """Let a request wait in its old place; one that is being stopped ends."""
        self._clients.forget(request.request_id)
        if request.stopping_since is not None:
            request.end_cancelled(self._reactor.now())
        else:
            self._refuse(request, self._room.add_again(request))

    def ended(self, request: ClientRequest) -> None:
        """Forget a request that had its terminal; if it failed, its answer's others as well."""
        self.requests.pop(request.request_id, None)
        self._room.remove(request.request_id)
        self._clients.forget(request.request_id)
        if request.failed is not None:
            self._drop_all(request.inbox)
        else:
            self._own.ended(request, self._reactor.now())

    # --- time and state ------------------------------------------------------------------------

    def _follow(self, state: ClusterState) -> None:
        self._clients.follow(state)
        self._recalls.follow(state.instances, self._reactor.now())
        self._room.follow()

    def _tick(self) -> None:
        now = self._reactor.now()
        self._lost.pass_by(now)
        self._room.tick(now, self._lost.woke_at)
        self._own.tick(now)
        for request in list(self.requests.values()):
            if request.late(now, self._lost.woke_at):
                waits = request.request_id in self._room
                wait = f": {self._room.progress(request, now)}" if waits else ""
                self._fail(request, "deadline", request.late_text() + wait, "deadline")
            elif request.stopping_since is not None and now - request.stopping_since > STOPPING_S:
                self._clients.forget(request.request_id)
                request.end_cancelled(now)
            elif not request.recalled and (
                recall := self._recalls.due(request.instance, request.wire, now)
            ):
                request.recalled = True
                self._clients.ask(recall)
            else:
                self._say(request, now)

    def _say(self, request: ClientRequest, now: float) -> None:
        """Tell a client that waits how far loading is, or that all is well."""
        if request.request_id in self._room:
            if now - request.said_at >= LOADING_SAID_S:
                request.said_at = now
                request.inbox.say(self._room.progress(request, now))
        elif request.instance and now - max(request.moved_at, request.said_at) >= QUIET_S:
            request.said_at = now
            request.inbox.say("keep-alive")

    # --- one request ---------------------------------------------------------------------------

    def _place(self, request: ClientRequest) -> None:
        """Submit to a ready instance, or let wait for one."""
        chosen = self._catalog.choose(request.wire, request.excluded, request.affinity)
        if chosen is None:
            self._refuse(request, self._room.add(request))
            return
        now = self._reactor.now()
        request.submitted(chosen, now, self._options.request_timeout_s)
        remaining_ms = NEVER_MS
        if request.deadline_at is not None:
            remaining_ms = max(1, int(1000 * (request.deadline_at - now)))
        self._clients.submit(
            chosen,
            request.wire,
            request,
            remaining_ms=remaining_ms,
            sharer=request.sharer,
            waited_ms=int(1000 * request.waited_s(now)),
            so_far=request.so_far,
        )

    def _stop(self, request: ClientRequest) -> None:
        now = self._reactor.now()
        if self._room.remove(request.request_id):
            request.end_cancelled(now)
        elif self._clients.ask(Cancel(request.request_id, "client")):
            request.stopping_since = request.stopping_since or now

    def _fail(
        self, request: ClientRequest, reason: FailReason, message: str, why: CancelReason
    ) -> None:
        self._clients.ask(Cancel(request.request_id, why))
        request.end_failed(reason, message, self._reactor.now())

    def _refuse(self, request: ClientRequest, refusal: Refusal | HttpFault | None) -> None:
        """Refuse a request with all others of its answer, if there is a reason to."""
        if refusal is None:
            return
        fault = refusal if isinstance(refusal, HttpFault) else of_refusal(refusal)
        request.inbox.refuse(fault)
        self._drop_all(request.inbox)

    def _drop_all(self, inbox: EntryInbox) -> None:
        for wire in inbox.requests:
            self._drop(wire.request_id, "shutdown")

    def _drop(self, request_id: RequestId, why: CancelReason) -> None:
        request = self.requests.pop(request_id, None)
        if request is None:
            return
        if not self._room.remove(request_id) and not self._own.remove(request):
            self._clients.ask(Cancel(request_id, why))
        self._clients.forget(request_id)

    def _check_room(self, sharer: Sharer) -> None:
        """Raise HttpFaultRaised while no request may be opened: draining, or as many as may be."""
        most = self._options.max_open
        if self.draining:
            message = "this gateway is shutting down"
            refusal = Refusal(reason="draining", message=message, retry_after_s=2.0)
        elif len(self.requests) >= most and not has_share(
            (request.sharer for request in self.requests.values()), sharer, most
        ):
            refusal = Refusal(
                reason="queue_full",
                message=f"this gateway already has {len(self.requests)} open requests, its limit",
                position=len(self.requests) + 1,
            )
        else:
            return
        raise HttpFaultRaised(of_refusal(refusal))
