"""Requests that wait while no instance of their model is ready: bounded, with deadlines.

Pure: time arrives as `now`. Those who ask for a model have their turns in rotation, the requests of
one by (priority, age). A model that cannot load yet blocks no other model's, and none has all
places where another is asked for: what has most gives up. What a runner gave back has its place in
any case. What waits is published as a reading; that reading is what makes the holder load models.
Beside it, `OwnTurns`: requests that wait for others of their own body, which have all the places.
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
"""A runner that was found full has said by then how full it is."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """One request (or a wish to load). `key` is the caller's name for it, `sharer` who asks.
    `queued_at` is since when one that a runner gave back has waited for a place there."""

    key: str
    model: ModelId
    priority: int
    since_at: float
    deadline_at: float
    sharer: Sharer = ()
    queued_at: float | None = None


@dataclass(slots=True)
class WaitingQueue:
    """All that waits at one HTTP process: `limit` waiters, and more of those who have less than
    their share of it; what a runner gave back is not counted against it."""

    limit: int
    waiters: dict[str, Waiter] = field(default_factory=dict[str, Waiter])
    _turns: dict[ModelId, dict[str, int]] = field(default_factory=dict[ModelId, dict[str, int]])

    def add(self, waiter: Waiter) -> Refusal | Waiter | None:
        """Let a request wait; return who lost the place to it, if there was none left. Or refuse:
        full, with its place and when to come again. One that waits already keeps its place."""
        loser = None
        if not self._has_place(waiter):
            loser = self._makes_way(waiter.model)
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
        self.wish(waiter)
        return loser

    def wish(self, waiter: Waiter) -> None:
        """Let one be told of, though it takes no place."""
        self.waiters[waiter.key] = waiter
        self._turns.pop(waiter.model, None)

    def remove(self, key: str) -> Waiter | None:
        """Remove a waiter that waits no longer (served, cancelled, failed)."""
        waiter = self.waiters.pop(key, None)
        if waiter is not None:
            self._turns.pop(waiter.model, None)
        return waiter

    def asks_first(self, model: ModelId, now: float) -> str | None:
        """Return which of those that runners gave back asks for a place there, though all are
        taken: the one with the best standing."""
        back = [
            (standing(waiter.priority, now - waiter.queued_at), waiter.since_at, waiter.key)
            for waiter in self.waiters.values()
            if waiter.model == model and waiter.queued_at is not None
        ]
        return min(back)[2] if back else None

    def models(self) -> set[ModelId]:
        """Return the models that requests wait for."""
        return {waiter.model for waiter in self.waiters.values()}

    def of(self, model: ModelId) -> list[Waiter]:
        """Return a model's waiters in the order in which they are to be submitted."""
        return [self.waiters[key] for key in self._turns_of(model)]

    def position(self, key: str) -> int:
        """Return how many of the same model go first."""
        return self._turns_of(self.waiters[key].model)[key]

    def expired(self, now: float) -> list[Waiter]:
        """Return the waiters whose deadline has come; they stay until removed."""
        return [waiter for waiter in self.waiters.values() if now >= waiter.deadline_at]

    def reading(
        self, node: NodeId, process: str, now: float, *, without: Collection[ModelId] = ()
    ) -> DemandReading:
        """Return the unmet demand, most urgent model first; but for models that cannot be loaded
        yet."""
        models = [
            ModelDemand(
                model=model,
                waiting=len(mine),
                best_priority=min(one.priority for one in mine),
                oldest_s=max(now - one.since_at for one in mine),
                classes=_classes(mine, now),
            )
            for model in self.models() - set(without)
            if (mine := self.of(model))
        ]
        models.sort(key=lambda one: (one.best_priority, -one.oldest_s))
        return DemandReading(node=node, process=process, models=tuple(models))

    def _has_place(self, waiter: Waiter) -> bool:
        if len(self.waiters) < self.limit or waiter.key in self.waiters:
            return True
        sharers = (one.sharer for one in self.waiters.values())
        return waiter.queued_at is not None or has_share(sharers, waiter.sharer, self.limit)

    def _makes_way(self, coming: ModelId) -> Waiter | None:
        """Return whose place goes to one more request for a model, if another one has at least two
        more: of the model with most, of who has most of these, the lowest, the youngest."""
        mine = [waiter for waiter in self.waiters.values() if waiter.queued_at is None]
        models = Shares((one.model,) for one in mine)
        most = models.gives_way((coming,))
        if most is None:
            return None
        theirs = [one for one in reversed(mine) if one.model == most[0]]
        shares = Shares(waiter.sharer for waiter in theirs)
        return max(theirs, key=lambda one: (shares.weight(one.sharer), one.priority, one.since_at))

    def _turns_of(self, model: ModelId) -> dict[str, int]:
        """Return the turn of each of a model's waiters, in order; kept until one comes or goes."""
        if model not in self._turns:
            mine = [waiter for waiter in self.waiters.values() if waiter.model == model]
            mine.sort(key=lambda one: (one.priority, one.since_at))
            order = in_turn([one.sharer for one in mine])
            self._turns[model] = {mine[place].key: turn for turn, place in enumerate(order)}
        return self._turns[model]


@dataclass(slots=True)
class _Held:
    """What of one body waits for the rest of it; `full_until`: a place is known to be there only
    by an end, until then."""

    requests: deque[ClientRequest]
    full_until: float = 0.0


class OwnTurns:
    """Requests that wait for others of the same body, in order.

    A body of many prompts asks for at most as many places as there are, and its rest waits for
    these: a queue that is full of a body's own requests is no reason to refuse it. While anything
    of a body waits here, another of its requests is with a runner or in the waiting room.
    `on_place` submits one; `open_requests` are all of the process.
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
        self._held: dict[RequestId, _Held] = {}  # by the first of the body

    def start(self, requests: Sequence[ClientRequest], now: float) -> None:
        """Submit the first request of a body, and as many of the others as there are places for."""
        first, *others = requests
        if others:
            self._held[_body_of(first)] = _Held(deque(others))
            for other in others:
                _waits(other, now)
        self._on_place(first)
        self._fill(_body_of(first), now)

    def hold(self, request: ClientRequest, now: float) -> bool:
        """Let a request that a full runner refused wait for others of its body; False where none of
        them is under way."""
        body = _body_of(request)
        held = self._held.get(body)
        waiting = {one.request_id for one in held.requests} if held else set[RequestId]()
        others = (one.request_id for one in request.inbox.requests if one is not request.wire)
        if not any(other in self._open and other not in waiting for other in others):
            return False
        held = self._held.setdefault(body, _Held(deque()))
        held.requests.appendleft(request)
        held.full_until = now + FULL_S
        _waits(request, now)
        return True

    def ended(self, request: ClientRequest, now: float) -> None:
        """Submit the next of a body of which a request has ended."""
        body = _body_of(request)
        held = self._held.get(body)
        if held is not None and not self._remove(request, held):
            self._place_next(body, held)
            self._fill(body, now)

    def tick(self, now: float) -> None:
        """Submit what places have come free for. To be called several times a second."""
        for body in list(self._held):
            self._fill(body, now)

    def remove(self, request: ClientRequest) -> bool:
        """Let a request wait no longer; return whether it did."""
        held = self._held.get(_body_of(request))
        return held is not None and self._remove(request, held)

    def begun(self, request: ClientRequest) -> bool:
        """Return whether another request of the same body has been answered already."""
        return any(one.request_id not in self._open for one in request.inbox.requests)

    def take(self, request: ClientRequest) -> Sequence[ClientRequest]:
        """Let none of a request's body wait any longer; return those that did."""
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
    """Note that others of its body have the places: the answer begins without it."""
    request.waiting_for_place(now)
    request.waited_for_own = True
    request.inbox.held(request.request_id)


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
    """Return a line for the person who waits: phase, bytes, per cent. While the weights are on
    their way to a node, that; of several nodes or ranks the one that is furthest behind; while the
    model waits for memory (`wait`), what it waits for."""
    mine = [one for one in readings if one.model == model]
    place = f", {position} ahead of you" if position else ""
    under_way = [
        fetch
        for reading in weights
        for fetch in reading.fetches
        if fetch.model == model and fetch.phase not in ("done", "failed")
    ]
    if under_way:
        last = min(under_way, key=lambda one: one.done_bytes)
        percent = math.floor(100 * last.done_bytes / max(1, last.total_bytes))
        done, total = last.done_bytes / 1e6, last.total_bytes / 1e6
        rate = f"{last.bytes_per_s / 1e6:.0f} MB/s"
        return f"fetching {percent} % ({done:.0f} of {total:.0f} MB, {rate}) {model}{place}"
    for one in sorted(mine, key=_loaded_ratio):
        if one.phase == "loading" and one.total_bytes > 0:
            ratio = _loaded_ratio(one)
            done, total = one.done_bytes / 1e6, one.total_bytes / 1e6
            percent = math.floor(100 * ratio)
            return f"loading {percent} % ({done:.0f} of {total:.0f} MB) {model}{place}"
        if one.phase in ("loading", "warming"):
            return f"{one.phase} {model}{place}"
    if wait is not None:
        return f"waiting for {model}: {waits_for(wait)}{place}"
    return f"waiting for {model} to be loaded{place}"


def waits_for(wait: PoolWait) -> str:
    """Return what a model waits for, and how long that is expected to take."""
    if wait.ready_in_s is None:
        return wait.why
    return f"{wait.why}; ready in about {wait.ready_in_s:.0f} s"


def _classes(waiters: Sequence[Waiter], now: float) -> tuple[ClassDemand, ...]:
    """Return how many wait, and how long, of each priority."""
    since: dict[int, list[float]] = {}
    for waiter in waiters:
        since.setdefault(waiter.priority, []).append(waiter.since_at)
    return tuple(
        ClassDemand(priority=priority, waiting=len(at), oldest_s=max(0.0, now - min(at)))
        for priority, at in sorted(since.items())
    )


def _loaded_ratio(one: RunnerReading) -> float:
    return min(1.0, one.done_bytes / max(1, one.total_bytes))
