"""Talks to the bus: requests that wait for an instance of their model, and what they wait for.

The demand is published each second while there is any, and once more when there is none. Waiting
ends by an instance that is ready and has a place, by a time that has run out, or by reasons that
time will not change: the holder says that the model has no place, it has given all copies up, or
the only instances did not answer. Such a reason refuses at the door as well; there it leaves a
wish, for the holder tries again what is wished for. A model that is on no disk is pulled first,
within the pull's own deadlines; its time to be loaded begins when it is listed. What made way for
something urgent waits for as long as its client does. Of those that a full runner gave back one
asks for a place there each second, though all are taken: how long it has waited gets it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from bus.client import BusClient
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.topics import reading_topic
from gateway.cluster.options import Options
from gateway.cluster.pulling import PullsOnDemand, pulling_text
from gateway.cluster.readings import wait_of
from gateway.dialects.faults import HttpFault, of_pull
from gateway.requests.catalog import ModelCatalog, not_loaded
from gateway.requests.placement_check import PlacementCheck
from gateway.requests.request import ClientRequest
from gateway.requests.waiting_queue import (
    FULL_S,
    PUBLISH_S,
    Waiter,
    WaitingQueue,
    loading_text,
    waits_for,
)

SILENT_S = 12.0
"""How long a request waits for the replacement of the only instance, which did not answer."""
WISH_S = 5.0
"""Readings are heard within this; a wish need not last longer."""


class WaitingRoom:
    """The requests of one HTTP process for which no instance is ready.

    `on_ready` is called with a request that an instance may take now, `on_refused` with one that
    waits in vain. `open_requests` are all requests of the process: one that is no longer there
    is passed over.
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
        self._demanded = True  # what an earlier process of this name said is taken back
        self._placement = PlacementCheck(bus, self._refuse_all)
        self._pulls = PullsOnDemand(bus, catalog.readings, options.pull_on_demand)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._queue.waiters

    def add(self, request: ClientRequest) -> Refusal | None:
        """Let a request wait, and have its model's placement checked; or say why it waits in vain,
        or that all is full."""
        given_up = self._catalog.given_up(request.model)
        if given_up is not None:
            self._wish(request)
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
        """Let a request that has waited for the load, or that a runner gave back, wait on for a
        place; or say that all is full, which it never is for one that was given back."""
        now = self._bus.reactor.now()
        self._full_until[request.model] = now + FULL_S
        full = self._take(self._waiter(request))
        if full is None:
            request.waiting_for_place(now)
        return full

    def remove(self, request_id: RequestId) -> bool:
        """Let a request wait no longer; return whether it did."""
        return self._queue.remove(request_id) is not None

    def follow(self) -> None:
        """Give out what an instance may take, end what waits for a model that was given up."""
        for model in self._queue.models():
            if self._catalog.ready(model):
                self._give_out(model)
            elif given_up := self._catalog.given_up(model):
                self._refuse_all(model, given_up)

    def tick(self, now: float, woke_at: float) -> None:
        """Publish the demand, end what waits in vain. To be called several times a second; this
        process last stood still till `woke_at`."""
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
        """Return a line for the person who waits for `request`."""
        position = self._queue.position(request.request_id)
        if self._catalog.ready(request.model):
            why = "; a more urgent request took yours" if request.was_displaced else ""
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
        """Leave the models that are pulled."""
        self._pulls.keep(())

    # --- below ---------------------------------------------------------------------------------

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
        """Let a request wait; refuse the one whose place it gets."""
        taken = self._queue.add(waiter)
        if not isinstance(taken, Waiter):
            return taken
        loser = self._open.get(RequestId(taken.key))
        if loser is not None:
            self._on_refused(loser, _lost_to(waiter.model, len(self._queue.waiters)))
        return None

    def _check_refused(self, now: float) -> None:
        """Have the placement of what the holder places nowhere checked again: a model may have been
        deleted since, or others pinned."""
        for model in self._queue.models():
            wait = wait_of(self._catalog.readings, model, now)
            if wait is not None and wait.phase in ("refused", "hopeless"):
                self._placement.ask(model)

    def _follow_pulls(self, now: float) -> None:
        """Have a model loaded that was pulled, tell who waits for one that cannot be, and leave
        what no client waits for."""
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

    def _wish(self, request: ClientRequest) -> None:
        """Keep the demand of a request that is refused for as long as it takes to be heard."""
        now = self._bus.reactor.now()
        wish = replace(
            self._waiter(request),
            key=f"wish for {request.model}",
            since_at=now,
            deadline_at=now + WISH_S,
        )
        self._queue.wish(wish)
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
        """Yield the requests that wait for a model, in order, as long as they are still open."""
        for waiter in self._queue.of(model):
            request = self._open.get(RequestId(waiter.key))
            if request is not None:
                yield request

    def _give_out(self, model: ModelId) -> None:
        """Submit, in order, as many as there are places for, or one that asks for a place all the
        same; none just after one was refused."""
        now, given, asks = self._bus.reactor.now(), False, None
        if now >= self._asks_at.get(model, 0.0):
            asks = self._queue.asks_first(model, now)
            self._asks_at[model] = now + FULL_S
        for request in self._waiting_for(model):
            is_full = now < self._full_until.get(model, 0.0)
            may_go = not is_full and self._catalog.has_place(model, request.excluded)
            if may_go or request.request_id == asks:
                self._queue.remove(request.request_id)
                self._on_ready(request)
                given = True
        if given:
            self._publish()

    def _give_up_silent(self, model: ModelId, now: float, woke_at: float) -> None:
        """Refuse those who tried all instances, none of which answers or is being replaced."""
        if self._catalog.any_suspect(model):
            return
        text = f"the runner of {model} does not answer; it may be overloaded"
        silent = Refusal(reason="not_ready", message=text, retry_after_s=5.0)
        for request in self._waiting_for(model):
            untried = self._catalog.ready(model, request.excluded)
            if not untried and now - max(request.moved_at, woke_at) >= SILENT_S:
                self._on_refused(request, silent)

    def _refuse_all(self, model: ModelId, refusal: Refusal) -> None:
        """Refuse all, unless an instance got ready after all."""
        if not self._catalog.ready(model):
            for request in self._waiting_for(model):
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
    """Return the refusal of a request that waited, and whose place one for `model` has now."""
    message = (
        f"{waiting} requests wait for models to load, the limit; this one was dropped "
        "for a request "
        f"for {model}, which has fewer"
    )
    return Refusal(reason="queue_full", message=message, retry_after_s=5.0, position=waiting)
