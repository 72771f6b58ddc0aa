"""The reports that the sender of a request gets from the connection to its runner.

Pure: time arrives as `now`. Every observer receives exactly one last call: a terminal entry,
`refused`, `displaced`, `lost` or `lost_unaccepted`.
"""

from __future__ import annotations

from typing import Protocol

from bus.wire.errors import Refusal
from bus.wire.messages.tokens import AnswerSoFar, Entry, Traced
from bus.wire.messages.traces import RankTraced
from gateway.runners.resuming import Loss, Resuming


class RequestObserver(Protocol):
    """The sender of a request. It learns of the request's progress, in the loop's thread."""

    resuming: Resuming

    def accepted(self, prompt_tokens: int, unheeded: tuple[str, ...], now: float) -> None:
        """The runner has accepted the request. `unheeded` names fields that have no effect at this
        runner."""
        ...

    def lost(self, loss: Loss, now: float) -> None:
        """The runner that had accepted the request and reports its tokens is lost."""
        ...

    def refused(self, refusal: Refusal) -> None:
        """The runner refused the request; no work was done."""
        ...

    def displaced(self, so_far: AnswerSoFar | None, now: float) -> None:
        """The runner preempted the request in favour of another request. `so_far` is the part of
        the answer that the runner has made; None if it has made none."""
        ...

    def lost_unaccepted(self) -> None:
        """The runner was gone or silent, and it had not accepted the request."""
        ...

    def traced(self, trace: Traced | RankTraced, now: float, /) -> None:
        """Receive the runner's times for the request, before its terminal entry. Each rank's times
        follow, usually after that entry."""
        ...

    def arrived(self, entries: list[Entry], now: float) -> None:
        """Receive entries in order; the very last one is a terminal entry."""
        ...
