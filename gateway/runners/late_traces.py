"""Who is told what a runner did for a request when: its ranks tell of it after the request's end.

Pure: time arrives as `now`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.wire.ids import RequestId
from bus.wire.messages.tokens import Traced
from bus.wire.messages.traces import RankTraced

if TYPE_CHECKING:
    from gateway.runners.connection import RequestObserver

RANKS_S = 2.0
"""What a rank did for a request comes within this, or is not listened to."""


class LateTraces:
    """The observers of requests of whose ranks something may still come."""

    def __init__(self) -> None:
        self._observers: dict[RequestId, tuple[RequestObserver, float]] = {}

    def heard(
        self, message: Traced | RankTraced, observer: RequestObserver | None, now: float
    ) -> None:
        """Pass on what came; `observer` is the request's while it is open."""
        self._forget(now)
        request_id = message.request_id
        if isinstance(message, RankTraced):
            if (known := self._observers.get(request_id)) is not None:
                known[0].traced(message, now)
        elif observer is not None:
            observer.traced(message, now)
            if message.ranks:
                self._observers[request_id] = (observer, now)

    def _forget(self, now: float) -> None:
        late = [name for name, (_, at) in self._observers.items() if now - at > RANKS_S]
        for name in late:
            del self._observers[name]
