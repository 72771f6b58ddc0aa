"""Passes a runner's times for a request on to the object that observes the request. Ranks report
their times only after the request's end.

Pure: time arrives as `now`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.wire.ids import RequestId
from bus.wire.messages.tokens import Traced
from bus.wire.messages.traces import RankTraced

if TYPE_CHECKING:
    from gateway.runners.observer import RequestObserver

RANKS_S = 2.0
"""Reports of ranks are accepted for this many seconds after a request's end; later ones are
ignored."""


class LateTraces:
    """The observers of requests whose ranks may still report."""

    def __init__(self) -> None:
        self._observers: dict[RequestId, tuple[RequestObserver, float]] = {}

    def pass_on(
        self, message: Traced | RankTraced, observer: RequestObserver | None, now: float
    ) -> None:
        """Pass a report of a request's times on to the request's observer. `observer` is that
        observer while the request is open, else None."""
        self._forget(now)
        request_id = message.request_id
        if isinstance(message, RankTraced):
            if (late := self._observers.get(request_id)) is not None:
                late[0].traced(message, now)
        elif observer is not None:
            observer.traced(message, now)
            if message.ranks:
                self._observers[request_id] = (observer, now)

    def _forget(self, now: float) -> None:
        late = [name for name, (_, at) in self._observers.items() if now - at > RANKS_S]
        for name in late:
            del self._observers[name]
