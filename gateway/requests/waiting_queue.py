"""A bounded queue, with deadlines, for requests that wait until an instance of their model is
ready.

Pure: time arrives as `now`. Clients that wait for the same model are served in turn; the requests
of one client are ordered by (priority, age). A model that cannot load yet does not block other
models. If the queue is full, a request for a model with few waiting requests takes a place from the
model with the most. A preempted request is always admitted. The queue is published as a demand
reading, which tells the leader what models to load. `OwnTurns` holds back requests that wait for
other requests of the same body.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId, RequestId
from bus.wire.messages.readings import (
    ClassDemand,
    DemandReading,
    ModelDemand,
    RunnerReading,
    WeightsReading,
)
from bus.wire.pool import PoolWait
from bus.wire.shares import Sharer, Shares, has_share, in_turn, standing
from gateway.requests.request import ClientRequest

PUBLISH_S = 1.0
FULL_S = 1.0
"""After a runner refused a request because it is full, the gateway treats it as full for this long.
A runner reports its load at least this often, so the gateway knows the new load after that."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """One waiting request, or the demand for a model that remains after its request was refused.
    `key`: the request id, or the caller's name for such demand. `sharer`: the client whose fair
    share the request counts towards. `queued_at`: since when a preempted request has waited for a
    place; None for other requests."""

    key: str
    model: ModelId
    priority: int
    since_at: float
    deadline_at: float
    sharer: Sharer = ()
    queued_at: float | None = None


@dataclass(slots=True)
class WaitingQueue:
    """All waiting requests of one HTTP process, at most `limit`. Two kinds of requests are admitted
    beyond the limit: those of a client with less than its fair share, and preempted requests."""

    limit: int
    waiters: dict[str, Waiter] = field(default_factory=dict[str, Waiter])
    _turns: dict[ModelId, dict[str, int]] = field(default_factory=dict[ModelId, dict[str, int]])

    def add(self, waiter: Waiter) -> Refusal | Waiter | None:
        """Queue a request. Return a refusal if the queue is full. If the request takes the place of
        another waiter, return that waiter, so that the caller can refuse its request. None if there
        was a free place. A request that is already in the queue keeps its place."""
        loser = None
        if not self._has_place(waiter):
            loser = self._loser_to(waiter.model)
            if loser is None:
                return Refusal(
                    reason="queue_full",
                    message=(
                        f"{len(self.waiters)} requests already wait for models to load, the limit"
                    ),
                    retry_after_s=5.0,
                    position=len(self.waiters) + 1,
                )
            self.remove(loser.key)
        self.add_demand(waiter)
        return loser

    def add_demand(self, waiter: Waiter) -> None:
        """Add a waiter without checking the limit."""
        self.waiters[waiter.key] = waiter
        self._turns.pop(waiter.model, None)

    def remove(self, key: str) -> Waiter | None:
        """Remove a waiter that was served, cancelled or failed."""
        waiter = self.waiters.pop(key, None)
        if waiter is not None:
            self._turns.pop(waiter.model, None)
        return waiter

    def asks_first(self, model: ModelId, now: float) -> str | None:
        """Return the key of the preempted request that comes first by priority and waiting time;
        None if no preempted request waits for `model`. It is submitted even if all places are
        taken, because the runner may preempt another request in its favour."""
        back = [
            (standing(waiter.priority, now - waiter.queued_at), waiter.since_at, waiter.key)
            for waiter in self.waiters.values()
            if waiter.model == model and waiter.queued_at is not None
        ]
        return min(back)[2] if back else None

    def models(self) -> set[ModelId]:
        """Return the models with waiters."""
        return {waiter.model for waiter in self.waiters.values()}

    def of(self, model: ModelId) -> list[Waiter]:
        """Return a model's waiters in submission order."""
        return [self.waiters[key] for key in self._turns_of(model)]

    def position(self, key: str) -> int:
        """Return how many waiters of the same model are ahead of this one."""
        return self._turns_of(self.waiters[key].model)[key]

    def expired(self, now: float) -> list[Waiter]:
        """Return the waiters whose deadline has passed. They stay in the queue until the caller
        removes them."""
        return [waiter for waiter in self.waiters.values() if now >= waiter.deadline_at]

    def reading(
        self, node: NodeId, process: str, now: float, *, without: Collection[ModelId] = ()
    ) -> DemandReading:
        """Return the number and age of the waiting requests of each model, most urgent model first.
        `without` has models to leave out, because they cannot be loaded yet."""
        models = [
            ModelDemand(
                model=model,
                waiting=len(mine),
                best_priority=min(waiter.priority for waiter in mine),
                oldest_s=max(now - waiter.since_at for waiter in mine),
                classes=_classes(mine, now),
            )
            for model in self.models() - set(without)
            if (mine := self.of(model))
        ]
        models.sort(key=lambda demand: (demand.best_priority, -demand.oldest_s))
        return DemandReading(node=node, process=process, models=tuple(models))

    def _has_place(self, waiter: Waiter) -> bool:
        if len(self.waiters) < self.limit or waiter.key in self.waiters:
            return True
        sharers = (other.sharer for other in self.waiters.values())
        return waiter.queued_at is not None or has_share(sharers, waiter.sharer, self.limit)

    def _loser_to(self, coming: ModelId) -> Waiter | None:
        """Return the waiter that loses its place to a request for `coming`. The loser belongs to
        the model with the most waiters. Within that model, it belongs to the client with the most
        waiters. That client's request with the lowest priority loses; among equals, the youngest.
        None unless that model has at least two more waiters than `coming`."""
        mine = [waiter for waiter in self.waiters.values() if waiter.queued_at is None]
        models = Shares((waiter.model,) for waiter in mine)
        most = models.gives_way((coming,))
        if most is None:
            return None
        theirs = [waiter for waiter in reversed(mine) if waiter.model == most[0]]
        shares = Shares(waiter.sharer for waiter in theirs)
        return max(
            theirs,
            key=lambda waiter: (shares.weight(waiter.sharer), waiter.priority, waiter.since_at),
        )

    def _turns_of(self, model: ModelId) -> dict[str, int]:
        """Return the place in line of each waiter of a model, by key, first in line first. The
        result is cached until a waiter of the model is added or removed."""
        if model not in self._turns:
            mine = [waiter for waiter in self.waiters.values() if waiter.model == model]
            mine.sort(key=lambda waiter: (waiter.priority, waiter.since_at))
            order = in_turn([waiter.sharer for waiter in mine])
            self._turns[model] = {mine[place].key: turn for turn, place in enumerate(order)}
        return self._turns[model]


@dataclass(slots=True)
class _Held:
    """The requests of one body that are held back. Until `full_until`, the runners are assumed to
    be full, and a request is submitted only when another request of the body ends."""

    requests: deque[ClientRequest]
    full_until: float = 0.0


class OwnTurns:
    """Holds back requests of a body with many prompts until other requests of the same body have
    ended.

    The first request of a body is submitted immediately, and each further request once a runner has
    a free place. So a body is never refused because its own requests fill a runner's queue. While
    requests of a body are held back, at least one other request of this body is at a runner or in
    the waiting room. `on_place` submits a request. `open_requests` are all open requests of the
    process.
    """

    def __init__(
        self,
        open_requests: Mapping[RequestId, ClientRequest],
        has_place: Callable[[ModelId], bool],
        on_place: Callable[[ClientRequest], None],
    ) -> None:
        self._open = open_requests
        self._has_place = has_place
        self._on_place = on_place
        self._held: dict[RequestId, _Held] = {}  # by the first request of the body

    def start(self, requests: Sequence[ClientRequest], now: float) -> None:
        """Submit the first request of a body, and as many further requests as there are free
        places. Hold back the remaining ones, in order."""
        first, *others = requests
        if others:
            self._held[_body_of(first)] = _Held(deque(others))
            for other in others:
                _waits(other, now)
        self._on_place(first)
        self._fill(_body_of(first), now)

    def hold(self, request: ClientRequest, now: float) -> bool:
        """Hold back a request that a full runner refused, until another request of the same body
        ends. Return False, and do nothing, if no other request of the body is in progress."""
        body = _body_of(request)
        held = self._held.get(body)
        waiting = {other.request_id for other in held.requests} if held else set[RequestId]()
        others = (other.request_id for other in request.inbox.requests if other is not request.wire)
        if not any(other in self._open and other not in waiting for other in others):
            return False
        held = self._held.setdefault(body, _Held(deque()))
        held.requests.appendleft(request)
        held.full_until = now + FULL_S
        _waits(request, now)
        return True

    def ended(self, request: ClientRequest, now: float) -> None:
        """Submit the next request of a body, because `request` has ended."""
        body = _body_of(request)
        held = self._held.get(body)
        if held is not None and not self._remove(request, held):
            self._place_next(body, held)
            self._fill(body, now)

    def tick(self, now: float) -> None:
        """Submit requests for which places became free. The owner calls this method several times a
        second."""
        for body in list(self._held):
            self._fill(body, now)

    def remove(self, request: ClientRequest) -> bool:
        """Remove a request. Return whether it was held back."""
        held = self._held.get(_body_of(request))
        return held is not None and self._remove(request, held)

    def begun(self, request: ClientRequest) -> bool:
        """Return whether any other request of the same body has already ended."""
        return any(wire.request_id not in self._open for wire in request.inbox.requests)

    def take(self, request: ClientRequest) -> Sequence[ClientRequest]:
        """Remove and return all requests that are held back and belong to the same body as
        `request`."""
        held = self._held.pop(_body_of(request), None)
        return held.requests if held else ()

    def _remove(self, request: ClientRequest, held: _Held) -> bool:
        if request not in held.requests:
            return False
        held.requests.remove(request)
        if not held.requests:
            self._held.pop(_body_of(request), None)
        return True

    def _fill(self, body: RequestId, now: float) -> None:
        while (held := self._held.get(body)) is not None:
            model = held.requests[0].model
            if now < held.full_until or not self._has_place(model):
                return
            self._place_next(body, held)

    def _place_next(self, body: RequestId, held: _Held) -> None:
        request = held.requests.popleft()
        if not held.requests:
            del self._held[body]
        self._on_place(request)


def _waits(request: ClientRequest, now: float) -> None:
    """Record that a request is held back because other requests of its body fill the runner. The
    answer can begin without this request."""
    request.waiting_for_place(now)
    request.waited_for_own = True
    request.inbox.postponed(request.request_id)


def _body_of(request: ClientRequest) -> RequestId:
    return request.inbox.requests[0].request_id


def loading_text(
    model: ModelId,
    readings: Sequence[RunnerReading],
    weights: Sequence[WeightsReading] = (),
    wait: PoolWait | None = None,
    *,
    position: int,
) -> str:
    """Return the progress line for a waiting client: phase, bytes, percent. During a fetch or a
    load, the line shows the progress of the slowest node or rank. If the model waits for memory
    (`wait`), the line gives the reason."""
    mine = [reading for reading in readings if reading.model == model]
    place = f", {position} ahead of you" if position else ""
    under_way = [
        fetch
        for reading in weights
        for fetch in reading.fetches
        if fetch.model == model and fetch.phase not in ("done", "failed")
    ]
    if under_way:
        last = min(under_way, key=lambda fetch: fetch.done_bytes)
        percent = math.floor(100 * last.done_bytes / max(1, last.total_bytes))
        done, total = last.done_bytes / 1e6, last.total_bytes / 1e6
        rate = f"{last.bytes_per_s / 1e6:.0f} MB/s"
        return f"fetching {percent} % ({done:.0f} of {total:.0f} MB, {rate}) {model}{place}"
    for reading in sorted(mine, key=_loaded_ratio):
        if reading.phase == "loading" and reading.total_bytes > 0:
            ratio = _loaded_ratio(reading)
            done, total = reading.done_bytes / 1e6, reading.total_bytes / 1e6
            percent = math.floor(100 * ratio)
            return f"loading {percent} % ({done:.0f} of {total:.0f} MB) {model}{place}"
        if reading.phase in ("loading", "warming"):
            return f"{reading.phase} {model}{place}"
    if wait is not None:
        return f"waiting for {model}: {waits_for(wait)}{place}"
    return f"waiting for {model} to be loaded{place}"


def waits_for(wait: PoolWait) -> str:
    """Return why a model waits, and the expected time until it is ready."""
    if wait.ready_in_s is None:
        return wait.why
    return f"{wait.why}; ready in about {wait.ready_in_s:.0f} s"


def _classes(waiters: Sequence[Waiter], now: float) -> tuple[ClassDemand, ...]:
    """Return the number of waiters and the longest wait for each priority."""
    since: dict[int, list[float]] = {}
    for waiter in waiters:
        since.setdefault(waiter.priority, []).append(waiter.since_at)
    return tuple(
        ClassDemand(priority=priority, waiting=len(at), oldest_s=max(0.0, now - min(at)))
        for priority, at in sorted(since.items())
    )


def _loaded_ratio(reading: RunnerReading) -> float:
    return min(1.0, reading.done_bytes / max(1, reading.total_bytes))
