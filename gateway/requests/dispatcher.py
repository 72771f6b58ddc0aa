"""Talks to runners: owns every open request of one HTTP process, from parsing to the end of the
answer.

If a model has no ready instance, its requests wait in the waiting room
(`gateway.requests.waiting_room`). Any other request is at a runner, or waits because other requests
of the same body have taken all free places. If a runner refuses a request, one other instance is
tried. If every instance is full, a request that already waited for the load stays queued, and so
does a preempted request.

If an instance is evicted for something urgent, its requests are recalled and resume at other
instances. If a runner is lost, the requests that it had accepted resume at another one (decision
0098), and the others are sent to another instance. Loading has its own deadline. The client's
deadline (`x_timeout_s`) counts from the request's arrival and includes the time for loading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bus.client import BusClient
from bus.patience import LostTime
from bus.replica.state import ClusterState
from bus.wire.calls.processes import OpenRequestRow
from bus.wire.errors import FailReason, Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.tokens import Cancel
from bus.wire.shares import Sharer, has_share
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_refusal
from gateway.requests.catalog import ModelCatalog
from gateway.requests.derived import meaning_of
from gateway.requests.inbox import EntryInbox
from gateway.requests.request import ClientRequest, open_row
from gateway.requests.splitting import PhaseSplits
from gateway.requests.waiting_queue import OwnTurns
from gateway.requests.waiting_room import WaitingRoom
from gateway.runners.pool import RunnerClients
from gateway.runners.recalls import Recalls
from gateway.runners.resuming import KeptMemory, Resuming
from gateway.view.counters import Counters
from gateway.view.options import Options

TICK_S = 0.25
QUIET_S = 10.0
"""Seconds of silence after which a stream gets a keep-alive."""
PROGRESS_S = 1.0
STOPPING_S = 3.0
"""If a runner has not ended a cancelled request after this many seconds, the gateway ends it."""
MAX_TRIES = 2
"""If this many instances refused a request because their queues are full, it is refused or
queued."""
MAX_WAITS = 4
"""If this many instances refused a request because they do not serve now (draining, not ready), it
is refused."""
SHUTS_DOWN = "this gateway is shutting down"
NEVER_MS = 7 * 24 * 3600 * 1000
CancelReason = Literal["client", "deadline", "shutdown"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A parsed body in progress. A body can have several requests. `inbox` receives the entries of
    the answer; `requests` are recorded in the request log at the end."""

    inbox: EntryInbox
    requests: tuple[ClientRequest, ...]
    model: ModelId


class Dispatcher:
    """Places, cancels and ends the open requests of one HTTP process; `requests` has them by id."""

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
        self._bus = bus
        self._reactor = bus.reactor
        self._log = bus.log
        self._catalog = catalog
        self._clients = clients
        self._counters = counters
        self._recalls = Recalls()
        self._memory = KeptMemory()
        self._splits = PhaseSplits(bus, catalog, clients, counters, self._place)
        self._own = OwnTurns(self.requests, lambda model: catalog.has_place(model, ()), self._place)
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

    # --- for the HTTP resources --------------------------------------------------------------

    def start(
        self,
        parsed: Parsed,
        *,
        sharer: Sharer,
        key_id: str | None = None,
        traced: Literal[True] | None = None,
        since_at: float | None = None,
        takes_over: Callable[[ClientRequest], bool] | None = None,
    ) -> Exchange:
        """Submit the requests of a body to instances, or queue them.

        The requests count towards the fair share of the client `sharer`; `key_id` is its API key.
        With `traced`, runners report timings. A request that has waited before keeps its place in
        line and its loading deadline, which count from `since_at`. `takes_over` is for a body with
        one request: it adds the part of the answer that an earlier HTTP process received, and
        returns whether a runner must continue the answer. Raises HttpFaultRaised if the gateway is
        full or the model is unknown. Also raises it if the model cannot make such answers, or if
        the model of a conversation has a Go template.
        """
        self._check_room(sharer)
        card = self._catalog.plain(parsed.model)
        kinds = {request.wants for request in parsed.requests}
        is_plain = card is not None and card.defaults is None and not parsed.manner
        if card is not None and is_plain and kinds == {card.makes}:
            model, adapter, whole = card.model, None, parsed.requests
        else:
            model, adapter, whole = meaning_of(self._catalog, parsed)
        updates = {"model": model, "key_id": key_id, "adapter": adapter, "trace": traced}
        wires = tuple(request.model_copy(update=updates) for request in whole)
        resumes = self._options.resume and parsed.extras.resume
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
        for request in requests:
            request.since_at = request.since_at if since_at is None else since_at
            request.resuming = Resuming(self._memory if resumes else None)
        self.requests.update((request.request_id, request) for request in requests)
        if takes_over is not None and not takes_over(requests[0]):
            pass  # its answer is complete
        elif len(requests) == 1:
            self._place(requests[0])
        else:
            self._own.start(requests, self._reactor.now())
        return Exchange(inbox, requests, model)

    def abandon(self, inbox: EntryInbox) -> None:
        """Cancel and forget the requests of a disconnected client."""
        inbox.abandon()
        for wire in inbox.requests:
            self._drop(wire.request_id, "client")

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request and all other requests of the same body. The client gets an ordinary end
        of the answer. Return False if this process has no such open request."""
        target = self.requests.get(request_id)
        if target is None:
            return False
        for waiting in self._own.take(target):
            waiting.end_cancelled(self._reactor.now())
        for wire in target.inbox.requests:
            request = self.requests.get(wire.request_id)
            if request is not None:
                self._stop(request)
        return True

    def fail_all(self, reason: FailReason, message: str) -> None:
        """End every open request with an error, for example at shutdown."""
        for request in list(self.requests.values()):
            self._fail(request, reason, message, "shutdown")

    def rows(self) -> tuple[OpenRequestRow, ...]:
        """Return a row for each open request of this process."""
        now = self._reactor.now()
        return tuple(open_row(request, now) for request in self.requests.values())

    def close(self) -> None:
        """Stop the timer of the deadlines, and stop waiting for models that are being pulled."""
        self._timer.cancel()
        self._splits.close()
        self._room.close()

    # --- the requests' reports (RequestOwner) -------------------------------------------------

    def refused(self, request: ClientRequest, refusal: Refusal) -> None:
        """Handle a runner's refusal: try another instance, queue the request, or refuse it to the
        client."""
        self._clients.forget(request.request_id)
        passing = refusal.reason in ("draining", "not_ready", "wrong_generation", "protocol")
        elsewhere = self._catalog.ready(request.model, request.excluded)
        busy = refusal.reason == "queue_full"
        waited = request.has_waited or request.was_displaced or self._own.begun(request)
        if (busy and elsewhere and request.tries < MAX_TRIES) or (
            passing and (request.tries < MAX_WAITS or request.resuming.deaths)
        ):
            self._place(request)
        elif busy and self._own.hold(request, self._reactor.now()):
            pass  # it waits for requests of its own body
        elif busy and waited:
            self._refuse(request, self._room.add_again(request))
        else:
            self._refuse(request, refusal)

    def displaced(self, request: ClientRequest) -> None:
        """Queue a preempted request in its old place, or submit a request again whose runner was
        lost. If the request is being cancelled, or was lost during shutdown, end it instead."""
        self._clients.forget(request.request_id)
        resuming = request.resuming
        if request.stopping_since is not None:
            request.end_cancelled(self._reactor.now())
        elif resuming.is_lost and self.draining:
            self._fail(request, "model_unavailable", SHUTS_DOWN, "shutdown")
        elif resuming.is_lost:
            facts = {"deaths": resuming.deaths, "suspect": resuming.is_suspect}
            self._log.warning("a request resumes", request=request.request_id, **facts)
            self._place(request)
        else:
            self._refuse(request, self._room.add_again(request))

    def ended(self, request: ClientRequest) -> None:
        """Forget a request after its terminal entry. If the request failed, also drop the other
        requests of the same body."""
        self.requests.pop(request.request_id, None)
        if request.request_id in self._splits.held:
            self._splits.stop(request.request_id)
        if request.resuming.is_culprit:
            self._log.error("a request killed its runner again", request=request.request_id)
        if request.has_waited or request.was_displaced or request.waited_for_own:
            self._room.remove(request.request_id)
        self._clients.forget(request.request_id)
        if request.failed is not None:
            self._drop_all(request.inbox)
        elif len(request.inbox.requests) > 1:
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
        """Queue the loading progress or a keep-alive for a client that waits."""
        if request.request_id in self._room:
            if now - request.commented_at >= PROGRESS_S:
                request.commented_at = now
                request.inbox.say(self._room.progress(request, now))
        elif (request.instance or request.request_id in self._splits) and now - max(
            request.moved_at, request.commented_at
        ) >= QUIET_S:
            request.commented_at = now
            request.inbox.say("keep-alive")

    # --- one request ---------------------------------------------------------------------------

    def _place(self, request: ClientRequest) -> None:
        """Submit the request to a ready instance; if there is none, queue the request."""
        was_held = request.request_id in self._splits.held
        chosen = self._splits.take(request) if was_held else None
        chosen = chosen or self._catalog.choose(request.wire, request.excluded, request.affinity)
        if chosen is None:
            self._refuse(request, self._room.add(request))
            return
        may_split = not was_held and len(self._bus.state.instances) > 1
        if may_split and self._splits.begin(request, chosen):
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
            again=request.resuming.submit(request.so_far),
        )

    def _stop(self, request: ClientRequest) -> None:
        now = self._reactor.now()
        if self._room.remove(request.request_id) or self._splits.stop(request.request_id):
            request.end_cancelled(now)
        elif self._clients.ask(Cancel(request.request_id, "client")):
            request.stopping_since = request.stopping_since or now

    def _fail(
        self, request: ClientRequest, reason: FailReason, message: str, why: CancelReason
    ) -> None:
        self._clients.ask(Cancel(request.request_id, why))
        request.end_failed(reason, message, self._reactor.now())

    def _refuse(self, request: ClientRequest, refusal: Refusal | HttpFault | None) -> None:
        """Refuse a request and all other requests of the same body. If its runner was lost, end it
        with an error instead. Do nothing if `refusal` is None."""
        if refusal is None:
            return
        if request.resuming.deaths:
            text = f"the runner was lost, and the answer could not resume: {refusal.message}"
            self._fail(request, "runner_lost", text, "shutdown")
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
        self._splits.stop(request_id)
        if not self._room.remove(request_id) and not self._own.remove(request):
            self._clients.ask(Cancel(request_id, why))
        self._clients.forget(request_id)

    def _check_room(self, sharer: Sharer) -> None:
        """Raise HttpFaultRaised if the gateway is draining. Also raise it if the gateway has
        `max_open` open requests and this client already has its fair share of them."""
        most = self._options.max_open
        if self.draining:
            refusal = Refusal(reason="draining", message=SHUTS_DOWN, retry_after_s=2.0)
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
