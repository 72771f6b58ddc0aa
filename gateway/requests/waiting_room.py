"""Talks to the bus: holds the requests for which no instance is ready or has a free place, and
publishes which models they need.

Demand is published each second while requests wait, and once more when no request waits any longer.
The wait of a request ends when an instance is ready and has a place, at a deadline, or when waiting
is hopeless. Waiting is hopeless if the leader finds no place for the model or gave up all its
instances, or if no instance answers. While the leader has given a model up, new requests for it are
refused immediately. Such a request still counts as demand for some seconds, because the leader
retries models in demand. A request whose runner was lost waits until the load deadline.

A model that is on no disk is pulled first. The pull has its own deadlines; the deadline for loading
begins once a node lists the model. A request that was recalled for something urgent waits as long
as its client does. Each second, one preempted request per model is submitted even if all places are
taken. The runner then preempts another request if this one has waited long enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from bus.client import BusClient
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.topics import reading_topic
from gateway.control.pulling import PullsOnDemand, pulling_text
from gateway.dialects.faults import HttpFault
from gateway.requests.catalog import ModelCatalog, not_loaded
from gateway.requests.placement_check import PlacementCheck
from gateway.requests.pull_faults import of_pull
from gateway.requests.request import ClientRequest
from gateway.requests.waiting_queue import (
    FULL_S,
    PUBLISH_S,
    Waiter,
    WaitingQueue,
    loading_text,
    waits_for,
)
from gateway.view.options import Options
from gateway.view.readings import wait_of

SILENT_S = 12.0
"""How long a request waits for a new instance after all instances of its model failed to answer."""
AGAIN_S = 5.0
"""After this time, a request whose runner was lost is sent to the same runner again, if its
instance is still ready."""
DEMAND_S = 5.0
"""How long a refused request counts as demand: long enough for the leader to receive the
reading."""


class WaitingRoom:
    """Holds the requests of one HTTP process for which no instance is ready or has a free place.

    `on_ready` gets each request that an instance can take now. `on_refused` gets each request whose
    wait is hopeless or too long. `open_requests` are all open requests of the process; a waiting
    request that is no longer among them is skipped.
    """

    def __init__(
        self,
        *,
        options: Options,
        bus: BusClient,
        catalog: ModelCatalog,
        open_requests: Mapping[RequestId, ClientRequest],
        on_ready: Callable[[ClientRequest], None],
        on_refused: Callable[[ClientRequest, Refusal | HttpFault], None],
    ) -> None:
        self._queue = WaitingQueue(limit=options.max_waiting)
        self._options = options
        self._bus = bus
        self._catalog = catalog
        self._open = open_requests
        self._on_ready = on_ready
        self._on_refused = on_refused
        self._full_until: dict[ModelId, float] = {}
        self._asks_at: dict[ModelId, float] = {}
        self._published_at = 0.0
        self._demanded = True  # the first reading replaces that of an earlier process of this name
        self._placement = PlacementCheck(bus, self._refuse_all)
        self._pulls = PullsOnDemand(bus, catalog.readings, options.pull_on_demand)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._queue.waiters

    def add(self, request: ClientRequest) -> Refusal | None:
        """Queue a request, and ask the leader whether its model can be placed at all. Return a
        refusal if the wait would be hopeless or the queue is full."""
        given_up = self._catalog.given_up(request.model)
        if given_up is not None and not request.resuming.deaths:
            self._leave_demand(request)
            return given_up
        is_here = request.model in self._catalog.names()
        is_pulled = not is_here and self._pulls.allows(request.model)
        waiter = self._waiter(request)
        full = self._take(replace(waiter, deadline_at=math.inf) if is_pulled else waiter)
        if full is None:
            request.waiting(self._bus.reactor.now())
            if is_pulled:
                self._pulls.want(request.model)
            else:
                self._publish()
                self._placement.ask(request.model)
        return full

    def add_again(self, request: ClientRequest) -> Refusal | None:
        """Queue a request that a runner sent back: either its queue was full, after the request had
        waited for the load, or the runner preempted the request. Return a refusal if this queue is
        full; a preempted request is never refused."""
        now = self._bus.reactor.now()
        self._full_until[request.model] = now + FULL_S
        full = self._take(self._waiter(request))
        if full is None:
            request.waiting_for_place(now)
        return full

    def remove(self, request_id: RequestId) -> bool:
        return self._queue.remove(request_id) is not None

    def follow(self) -> None:
        """Act on a new cluster state: submit requests to ready instances, and refuse the requests
        for models that the leader gave up."""
        for model in self._queue.models():
            if self._catalog.ready(model):
                self._give_out(model)
            elif given_up := self._catalog.given_up(model):
                self._refuse_all(model, given_up)

    def tick(self, now: float, woke_at: float) -> None:
        """Publish the demand and end hopeless waits. The owner calls this method several times a
        second. `woke_at` is when the process last resumed after it was suspended."""
        self._follow_pulls(now)
        if now - self._published_at >= PUBLISH_S:
            self._publish()
            self._check_refused(now)
        for model in self._queue.models():
            if self._catalog.ready(model):
                self._give_out(model)
                self._give_up_silent(model, now, woke_at)
        for waiter in self._queue.expired(now):
            request = self._open.get(RequestId(waiter.key))
            if request is None:
                self._queue.remove(waiter.key)
            elif request.was_displaced and self._catalog.ready(waiter.model):
                self._take(replace(waiter, deadline_at=now + self._options.load_timeout_s))
            else:
                self._on_refused(request, self._too_late(waiter, now))

    def progress(self, request: ClientRequest, now: float) -> str:
        """Return the progress line for the client of `request`."""
        position = self._queue.position(request.request_id)
        if self._catalog.ready(request.model):
            gave_way = request.was_displaced and not request.resuming.deaths
            why = "; a more urgent request took your slot" if gave_way else ""
            return f"waiting for a slot{why}, {position} ahead of you"
        if request.model in self._pulls.models:
            state = self._pulls.state(request.model)
            return pulling_text(request.model, state, position=position)
        return loading_text(
            request.model,
            self._catalog.readings.runners(now),
            self._catalog.readings.weights(now),
            wait_of(self._catalog.readings, request.model, now),
            position=position,
        )

    def close(self) -> None:
        """Stop waiting for pulled models."""
        self._pulls.keep(())

    # --- internals -----------------------------------------------------------------------------

    def _waiter(self, request: ClientRequest) -> Waiter:
        queued_at = request.queued_at if request.was_displaced else None
        from_now = queued_at is not None or request.waited_for_own
        since_at = self._bus.reactor.now() if from_now else request.since_at
        deadline_at = since_at + self._options.load_timeout_s
        return Waiter(
            key=request.request_id,
            model=request.model,
            priority=request.wire.priority,
            since_at=queued_at if request.so_far and queued_at else request.since_at,
            deadline_at=math.inf if request.made_way else deadline_at,
            sharer=request.sharer,
            queued_at=queued_at,
        )

    def _take(self, waiter: Waiter) -> Refusal | None:
        """Queue a request. If it takes the place of another waiter, refuse that waiter's
        request."""
        taken = self._queue.add(waiter)
        if not isinstance(taken, Waiter):
            return taken
        loser = self._open.get(RequestId(taken.key))
        if loser is not None:
            self._on_refused(loser, _lost_to(waiter.model, len(self._queue.waiters)))
        return None

    def _check_refused(self, now: float) -> None:
        """Ask the leader again about models that could not be placed, because other models may have
        been deleted or unpinned since."""
        for model in self._queue.models():
            wait = wait_of(self._catalog.readings, model, now)
            if wait is not None and wait.phase in ("refused", "hopeless"):
                self._placement.ask(model)

    def _follow_pulls(self, now: float) -> None:
        """Ask for models to be loaded whose pull is done, refuse requests whose pull failed, and
        stop pulls that no request waits for."""
        if not self._pulls.models:
            return
        here, loading_until = self._catalog.names(), now + self._options.load_timeout_s
        for model in self._pulls.models & self._queue.models():
            state = self._pulls.state(model)
            if model in here:
                for waiter in self._queue.of(model):
                    self._take(replace(waiter, deadline_at=loading_until))
                self._placement.ask(model)
            elif state is not None and state.phase == "failed":
                for request in list(self._waiting_for(model)):
                    self._on_refused(request, of_pull(state))
        self._pulls.keep(self._queue.models() - here)

    def _leave_demand(self, request: ClientRequest) -> None:
        """Publish the demand of a refused request for `DEMAND_S`, so that the leader receives
        it."""
        now = self._bus.reactor.now()
        demand = replace(
            self._waiter(request),
            key=f"wish for {request.model}",
            since_at=now,
            deadline_at=now + DEMAND_S,
        )
        self._queue.add_demand(demand)
        self._publish()

    def _too_late(self, waiter: Waiter, now: float) -> Refusal:
        waited_s = now - waiter.since_at
        if not self._catalog.ready(waiter.model):
            wait = wait_of(self._catalog.readings, waiter.model, now)
            why = "" if wait is None else waits_for(wait)
            return not_loaded(waiter.model, waited_s, why)
        message = f"no slot of {waiter.model} became free within {waited_s:.0f} s"
        return Refusal(reason="queue_full", message=message, retry_after_s=5.0)

    def _waiting_for(self, model: ModelId) -> Iterator[ClientRequest]:
        """Yield a model's open waiting requests, in order."""
        for waiter in self._queue.of(model):
            request = self._open.get(RequestId(waiter.key))
            if request is not None:
                yield request

    def _give_out(self, model: ModelId) -> None:
        """Submit a model's waiting requests in order while there are free places. Each second, one
        preempted request is submitted even if there is none. Just after a refusal, the instances
        count as full."""
        now, given, asks = self._bus.reactor.now(), False, None
        if now >= self._asks_at.get(model, 0.0):
            asks = self._queue.asks_first(model, now)
            self._asks_at[model] = now + FULL_S
        for request in self._waiting_for(model):
            if request.resuming.deaths and now - request.moved_at >= AGAIN_S:
                request.excluded.clear()  # its runner may live, behind a cut that has healed
            is_full = now < self._full_until.get(model, 0.0)
            may_go = not is_full and self._catalog.has_place(model, request.excluded)
            if may_go or request.request_id == asks:
                self._queue.remove(request.request_id)
                self._on_ready(request)
                given = True
        if given:
            self._publish()

    def _give_up_silent(self, model: ModelId, now: float, woke_at: float) -> None:
        """Refuse requests that were sent to every instance of the model, if no instance answered
        within `SILENT_S`. Do nothing while an instance is suspect, because it may soon be
        replaced."""
        if self._catalog.any_suspect(model):
            return
        text = f"the runner of {model} does not answer; it may be overloaded"
        silent = Refusal(reason="not_ready", message=text, retry_after_s=5.0)
        for request in self._waiting_for(model):
            untried = self._catalog.ready(model, request.excluded)
            if not untried and now - max(request.moved_at, woke_at) >= SILENT_S:
                self._on_refused(request, silent)

    def _refuse_all(self, model: ModelId, refusal: Refusal) -> None:
        """Refuse all waiters of a model, unless an instance is ready. A request whose runner was
        lost waits on, because a cooldown ends and a node may return."""
        if not self._catalog.ready(model):
            for request in list(self._waiting_for(model)):
                if not request.resuming.deaths:
                    self._on_refused(request, refusal)

    def _publish(self) -> None:
        now = self._bus.reactor.now()
        if not self._queue.waiters and not self._demanded:
            return
        self._demanded = bool(self._queue.waiters)
        self._published_at = now
        speaker = self._bus.speaker
        reading = self._queue.reading(
            speaker.node, speaker.process, now, without=self._pulls.models
        )
        self._bus.publish(reading_topic("demand", speaker.node, speaker.process), reading)


def _lost_to(model: ModelId, waiting: int) -> Refusal:
    """Return the refusal for a waiter whose place was taken by a request for `model`."""
    message = (
        f"{waiting} requests wait for models to load, which is the limit; a request for {model} "
        "took the place of yours, because fewer requests wait for that model"
    )
    return Refusal(reason="queue_full", message=message, retry_after_s=5.0, position=waiting)
