"""Talks to runners and to the bus on behalf of requests: from parsed to their last word.

Owns a request while no instance of its model is ready (`gateway.requests.waiting_queue`), then
hands it to a lead runner. A refusal is tried elsewhere once; a runner that vanishes before it had
accepted costs nothing, the request waits again. Deadlines: loading has its own; the time of the
answer counts from its submission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from bus.client import BusClient
from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.errors import FailReason, Refusal
from bus.wire.ids import InstanceId, ModelId, RequestId
from bus.wire.messages.tokens import Cancel
from bus.wire.topics import reading_topic
from gateway.cluster.counters import Counters
from gateway.cluster.options import Options
from gateway.cluster.readings import ClusterReadings
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_refusal, unknown_model
from gateway.requests.inbox import EntryInbox
from gateway.requests.placement_check import PlacementCheck
from gateway.requests.request import ClientRequest
from gateway.requests.routing import (
    InstanceLoad,
    affinity_of,
    choose,
    given_up,
    model_named,
    reading_rows,
    ready_instances,
)
from gateway.requests.waiting_queue import Waiter, WaitingQueue, loading_text
from gateway.runners.pool import RunnerClients

TICK_S = 0.25
QUIET_S = 10.0
"""A stream that has said nothing for this long says so."""
LOADING_SAID_S = 1.0
MAX_TRIES = 2
"""A full queue is answered by one other instance, then that is the answer."""
MAX_WAITS = 4
"""An instance that turns out not to serve is waited for anew so often."""
WATCH_S = 0.05
SILENT_S = 12.0
"""How long a request waits for the replacement of the only instance, which did not answer."""
NEVER_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Exchange:
    """One parsed body under way: where its entries arrive, and its tickets for the record."""

    answer: EntryInbox
    tickets: tuple[ClientRequest, ...]
    model: ModelId


class Dispatcher:
    """All requests of one HTTP process."""

    def __init__(
        self,
        *,
        options: Options,
        process: str,
        bus: BusClient,
        view: ClusterReadings,
        clients: RunnerClients,
        counters: Counters,
        log: Log,
    ) -> None:
        self.readings = view
        self.waiting = WaitingQueue(limit=options.max_waiting)
        self.tickets: dict[RequestId, ClientRequest] = {}
        self.draining = False
        self._options = options
        self._process = process
        self._bus = bus
        self._clients = clients
        self._counters = counters
        self._log = log
        self._published_at = 0.0
        self._demanded = True  # what an earlier process of this name said is taken back
        self._feasibility = PlacementCheck(bus, self._never)
        bus.on_state.append(self._follow)
        self._timer = bus.reactor.every(TICK_S, self._tick)

    # --- what resources ask ------------------------------------------------------------------

    def model(self, name: str) -> ModelId:
        """The model that a client's name means. Raises HttpFaultRaised (404) for none."""
        names = self.readings.model_names()
        found = model_named(name, names)
        if found is None:
            raise HttpFaultRaised(unknown_model(name, sorted(names)))
        return found

    def start(self, parsed: Parsed) -> Exchange:
        """Submit, or let wait. Raises HttpFaultRaised when it cannot even wait."""
        self._check_room()
        model = self.model(parsed.model)
        requests = tuple(one.model_copy(update={"model": model}) for one in parsed.requests)
        answer = EntryInbox(requests, on_sent=self._clients.sent_to_client)
        tickets = tuple(
            ClientRequest(
                request=request,
                answer=answer,
                owner=self,
                counters=self._counters,
                now=self.now(),
                timeout_s=parsed.extras.timeout_s,
            )
            for request in requests
        )
        for ticket in tickets:
            if answer.fault is None:
                self.tickets[ticket.request.request_id] = ticket
                self.place(ticket)
        return Exchange(answer, tickets, model)

    def abandon(self, answer: EntryInbox) -> None:
        """The client is gone: its requests are cancelled and forgotten."""
        answer.abandon()
        for request in answer.requests:
            self._drop(request.request_id, "client")

    def cancel(self, request_id: RequestId) -> bool:
        """Somebody asks to stop a request; its client gets an ordinary end. The whole answer
        is meant. False when it is not open here."""
        asked = self.tickets.get(request_id)
        if asked is None:
            return False
        for request in asked.answer.requests:
            ticket = self.tickets.get(request.request_id)
            if ticket is not None:
                self._stop(ticket)
        return True

    def fail_all(self, reason: FailReason, message: str) -> None:
        """Every open request ends now (shutdown)."""
        for ticket in list(self.tickets.values()):
            self._fail(ticket, reason, message, why="shutdown")

    async def wait_ready(self, model: ModelId) -> None:
        """Until an instance of the model is ready. Raises HttpFaultRaised when none is in time."""
        since_at = self.now()
        while not ready_instances(self._bus.state.instances.values(), model):
            waited_s = self.now() - since_at
            if waited_s >= self._options.load_timeout_s:
                raise HttpFaultRaised(_not_loaded(model, waited_s))
            if why := given_up(self._bus.state.instances.values(), model):
                raise HttpFaultRaised(of_refusal(_hopeless(model, why)))
            await asyncio.sleep(WATCH_S)

    def now(self) -> float:
        """The loop's clock."""
        return self._bus.reactor.now()

    def close(self) -> None:
        """No more ticks."""
        self._timer.cancel()

    # --- what tickets ask --------------------------------------------------------------------

    def place(self, ticket: ClientRequest) -> None:
        """Submit to a ready instance, or wait for one."""
        request = ticket.request
        ready = ready_instances(self._bus.state.instances.values(), request.model, ticket.excluded)
        chosen = choose(ready, self._loads(one.instance for one in ready), affinity_of(request))
        if chosen is None:
            self._wait(ticket)
            return
        now = self.now()
        ticket.submitted(chosen, now, self._options.request_timeout_s)
        remaining_ms = NEVER_MS
        if ticket.deadline_at is not None:
            remaining_ms = max(1, int(1000 * (ticket.deadline_at - now)))
        self._clients.submit(chosen, request, ticket, remaining_ms=remaining_ms)

    def refused(self, ticket: ClientRequest, refusal: Refusal) -> None:
        """A runner said no: elsewhere once, else that is the answer."""
        self._clients.forget(ticket.request.request_id)
        passing = refusal.reason in ("draining", "not_ready", "wrong_generation", "protocol")
        elsewhere = ready_instances(
            self._bus.state.instances.values(), ticket.request.model, ticket.excluded
        )
        busy = refusal.reason == "queue_full"
        if (busy and elsewhere and ticket.tries < MAX_TRIES) or (
            passing and ticket.tries < MAX_WAITS
        ):
            self.place(ticket)
            return
        self._refuse(ticket.answer, of_refusal(refusal))

    def ended(self, ticket: ClientRequest) -> None:
        """It had its terminal. One that failed takes the others of its answer along."""
        request_id = ticket.request.request_id
        self.tickets.pop(request_id, None)
        self.waiting.remove(request_id)
        self._clients.forget(request_id)
        if ticket.failed is not None:
            self._drop_others(ticket.answer)

    # --- waiting -----------------------------------------------------------------------------

    def _wait(self, ticket: ClientRequest) -> None:
        waiter = Waiter(
            key=ticket.request.request_id,
            model=ticket.request.model,
            priority=ticket.request.priority,
            since_at=ticket.since_at,
            deadline_at=ticket.since_at + self._options.load_timeout_s,
        )
        full = self.waiting.add(waiter)
        if full is not None:
            self._refuse(ticket.answer, of_refusal(full))
            return
        ticket.waiting(self.now())
        self._publish()
        self._feasibility.ask(ticket.request.model)

    def _never(self, model: ModelId, refusal: Refusal) -> None:
        """The holder says that no time will make room: whoever waits is told its reasons."""
        if ready_instances(self._bus.state.instances.values(), model):
            return
        for waiter in self.waiting.of(model):
            self._refuse(self.tickets[RequestId(waiter.key)].answer, of_refusal(refusal))

    def _follow(self, state: ClusterState) -> None:
        self._clients.follow(state)
        for model in self.waiting.models():
            if ready_instances(state.instances.values(), model):
                self._submit_waiting(model)
            else:
                self._fail_hopeless(state, model)

    def _submit_waiting(self, model: ModelId) -> None:
        for waiter in self.waiting.of(model):
            ticket = self.tickets[RequestId(waiter.key)]
            if ready_instances(
                self._bus.state.instances.values(), ticket.request.model, ticket.excluded
            ):
                self.waiting.remove(waiter.key)
                self.place(ticket)
        self._publish()

    def _give_up_silent(self, model: ModelId, now: float) -> None:
        """The instances that did not answer are all there is, and none is being replaced."""
        all_ready = ready_instances(self._bus.state.instances.values(), model)
        for waiter in self.waiting.of(model):
            ticket = self.tickets[RequestId(waiter.key)]
            untried = [o for o in all_ready if (o.instance, o.generation) not in ticket.excluded]
            stale = any(self._clients.suspect(one.instance) for one in all_ready)
            if all_ready and not untried and not stale and now - ticket.moved_at >= SILENT_S:
                self._refuse(ticket.answer, of_refusal(_silent(model)))

    def _fail_hopeless(self, state: ClusterState, model: ModelId) -> None:
        """All copies were given up: whoever waits is told why."""
        why = given_up(state.instances.values(), model)
        if why is None:
            return
        for waiter in self.waiting.of(model):
            fault = of_refusal(_hopeless(model, why))
            self._refuse(self.tickets[RequestId(waiter.key)].answer, fault)

    def _publish(self) -> None:
        now = self.now()
        if not self.waiting.waiters and not self._demanded:
            return
        self._demanded = bool(self.waiting.waiters)
        self._published_at = now
        node = self._options.node
        reading = self.waiting.reading(node, self._process, now)
        self._bus.publish(reading_topic("demand", node, self._process), reading)

    # --- time ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.now()
        if now - self._published_at >= 1.0:
            self._publish()
        for model in self.waiting.models():
            self._give_up_silent(model, now)
        for waiter in self.waiting.expired(now):
            fault = _not_loaded(waiter.model, now - waiter.since_at)
            self._refuse(self.tickets[RequestId(waiter.key)].answer, fault)
        for ticket in list(self.tickets.values()):
            if ticket.late(now):
                self._fail(ticket, "deadline", ticket.late_text(), why="deadline")
            elif ticket.stopping_since is not None and now - ticket.stopping_since > 3.0:
                self._clients.forget(ticket.request.request_id)
                ticket.end_cancelled()
            else:
                self._say(ticket, now)

    def _say(self, ticket: ClientRequest, now: float) -> None:
        key = ticket.request.request_id
        if key in self.waiting.waiters:
            if now - ticket.said_at >= LOADING_SAID_S:
                ticket.said_at = now
                place = self.waiting.position(key)
                model, view = ticket.request.model, self.readings
                text = loading_text(model, view.runners(), view.weights(), position=place)
                ticket.answer.say(text)
        elif now - max(ticket.moved_at, ticket.said_at) >= QUIET_S:
            ticket.said_at = now
            ticket.answer.say("keep-alive")

    # --- ends ------------------------------------------------------------------------------------

    def _stop(self, ticket: ClientRequest) -> None:
        request_id = ticket.request.request_id
        if self.waiting.remove(request_id) is not None:
            ticket.end_cancelled()
        elif self._clients.cancel(Cancel(request_id, "client")):
            ticket.stopping_since = ticket.stopping_since or self.now()

    def _fail(self, ticket: ClientRequest, reason: FailReason, message: str, *, why: str) -> None:
        cancel = "deadline" if why == "deadline" else "shutdown"
        self._clients.cancel(Cancel(ticket.request.request_id, cancel))
        ticket.end_failed(reason, message)

    def _refuse(self, answer: EntryInbox, fault: HttpFault) -> None:
        answer.refuse(fault)
        self._drop_others(answer)

    def _drop_others(self, answer: EntryInbox) -> None:
        for request in answer.requests:
            self._drop(request.request_id, "shutdown")

    def _drop(self, request_id: RequestId, why: str) -> None:
        if self.tickets.pop(request_id, None) is None:
            return
        if self.waiting.remove(request_id) is None:
            self._clients.cancel(Cancel(request_id, "client" if why == "client" else "shutdown"))
        self._clients.forget(request_id)

    # --- below ------------------------------------------------------------------------------------

    def _check_room(self) -> None:
        if self.draining:
            refusal = Refusal(
                reason="draining", message="this gateway is shutting down", retry_after_s=2.0
            )
            raise HttpFaultRaised(of_refusal(refusal))
        if len(self.tickets) >= self._options.max_open:
            refusal = Refusal(
                reason="queue_full",
                message=f"{len(self.tickets)} requests are open at this gateway",
                position=len(self.tickets) + 1,
            )
            raise HttpFaultRaised(of_refusal(refusal))

    def _loads(self, instances: Iterable[InstanceId]) -> dict[InstanceId, InstanceLoad]:
        loads: dict[InstanceId, InstanceLoad] = {}
        for instance in instances:
            rows = max(
                reading_rows(self.readings.runner_of(instance)), self._clients.open_at(instance)
            )
            loads[instance] = InstanceLoad(rows, self._clients.suspect(instance))
        return loads


def _not_loaded(model: ModelId, waited_s: float) -> HttpFault:
    refusal = Refusal(
        reason="pending",
        message=f"{model} was not loaded within {waited_s:.0f} s; it may be soon",
        retry_after_s=5.0,
    )
    return of_refusal(refusal)


def _hopeless(model: ModelId, why: str) -> Refusal:
    return Refusal(
        reason="not_ready", message=f"{model} cannot be loaded: {why}", retry_after_s=30.0
    )


def _silent(model: ModelId) -> Refusal:
    return Refusal(
        reason="not_ready",
        message=f"the runner of {model} does not answer; it may be overloaded",
        retry_after_s=5.0,
    )
