"""Talks to the event loop: what one client waits for, gathered from one request or several.

Entries come in the order of their requests' own numbers; credit is given back only for what
`take` gave out *before* the last call, for by then it has been sent. The answer has ended
when each request has had its terminal, or one has failed; after that `take` gives no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import (
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptTokens,
    TokenDelta,
    ToolCallDelta,
    Vectors,
)
from gateway.dialects.faults import HttpFault, of_failed

_COSTS = frozenset((TokenDelta, PromptTokens, ToolCallDelta, Vectors))
OnSent = Callable[[RequestId, int, int], None]


class EntryInbox:
    """The inbox of one HTTP exchange. `fault` is set when it was refused before any entry;
    `load_s` is how long it waited for a model to load."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        on_sent: OnSent,
        on_abandoned: Callable[[], None] | None = None,
    ) -> None:
        self.requests = tuple(requests)
        self.fault: HttpFault | None = None
        self.abandoned = False
        self.load_s = 0.0
        self._comments: list[str] = []
        self._unheeded: list[str] = []
        self._unaccepted = {request.request_id for request in requests}
        self._unended = {request.request_id for request in requests}
        self._queue: list[Entry] = []
        self._taken: list[Entry] = []
        self._waiting: asyncio.Future[None] | None = None
        self._on_sent = on_sent
        self._on_abandoned = on_abandoned
        self._free: Counter[tuple[RequestId, int]] = Counter()
        self._single = len(requests) == 1 and requests[0].n == 1

    # --- what the client's side asks ------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Return whether a status can be given: all accepted that are asked, refused, or failed at
        once."""
        return not self._unaccepted or self.fault is not None or self.abandoned

    @property
    def ended(self) -> bool:
        """Return whether nothing more will come."""
        return not self._unended or self.fault is not None or self.abandoned

    @property
    def early_fault(self) -> HttpFault | None:
        """Return a failure that can still be a status, because nothing precedes it; else None."""
        if self.fault is not None:
            return self.fault
        first = self._first()
        return of_failed(first) if isinstance(first, Failed) else None

    async def wait_settled(self, patience_s: float) -> bool:
        """Wait until `settled`, at most so long; returns whether it is."""
        try:
            async with asyncio.timeout(patience_s):
                while not self.settled:
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def wait_begun(self, patience_s: float | None) -> bool:
        """Wait for the first entry of an answer, or its end, at most so long (None: for ever);
        returns whether it is there."""
        try:
            async with asyncio.timeout(patience_s):
                while self._first() is None and not self.ended:
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def take(self) -> list[Entry]:
        """Return all entries that are there, waiting for the first. Empty when only comments came,
        or when it has ended. Calling again says that what was given has been sent."""
        if self._taken:
            self._give_credit()
        while not (self._queue or self._comments or self.ended):
            await self._wait()
        self._taken, self._queue = self._queue, []
        return self._taken

    def take_comments(self) -> list[str]:
        """Take the words of progress since the last call."""
        comments, self._comments = self._comments, []
        return comments

    def take_unheeded(self) -> tuple[str, ...]:
        """Take the paths of fields that the model gives no effect, those not taken before."""
        unheeded, self._unheeded = tuple(self._unheeded), []
        return unheeded

    # --- what the runners' side tells -----------------------------------------------------

    def accepted(self, request_id: RequestId, unheeded: Sequence[str] = ()) -> None:
        """Note that a runner owns this request, and which of its fields have no effect there."""
        self._unaccepted.discard(request_id)
        self._unheeded += [name for name in unheeded if name not in self._unheeded]
        self._wake()

    def held(self, request_id: RequestId) -> None:
        """Note that a request waits for others of this exchange, which can begin without it."""
        self._unaccepted.discard(request_id)
        self._wake()

    def arrived(self, request_id: RequestId, entries: Sequence[Entry]) -> None:
        """Take in entries of one request, its terminal (if here) last."""
        self._queue.extend(entries)
        self._unaccepted.discard(request_id)
        last = entries[-1]
        if isinstance(last, Failed):
            self._unended.clear()
        elif isinstance(last, Finished):
            self._unended.discard(request_id)
        self._wake()

    def suspended(self, request_id: RequestId) -> None:
        """Note that a request goes on at another runner: what is here of it, and was not sent yet,
        gives no credit there."""
        for (of_request, choice), count in _costs([*self._taken, *self._queue]).items():
            if of_request == request_id:
                self._free[of_request, choice] = count

    def refuse(self, fault: HttpFault) -> None:
        """Refuse the exchange: no runner takes it; `fault` is the answer."""
        if self.fault is None and not self.ended:
            self.fault = fault
            self._wake()

    def say(self, comment: str) -> None:
        """Leave a keep-alive or a word of progress. One that was not yet taken is replaced."""
        if not self.ended:
            self._comments = [comment]
            self._wake()

    def abandon(self) -> None:
        """Drop what is queued: the client is gone; nothing more is given out."""
        self.abandoned = True
        self._queue.clear()
        self._wake()
        if self._on_abandoned is not None:
            self._on_abandoned()

    # --- below ---------------------------------------------------------------------------------

    def _first(self) -> Entry | None:
        """Return the first entry that waits to be taken and is more than a word of progress."""
        return next((one for one in self._queue if not isinstance(one, PrefillProgress)), None)

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _give_credit(self) -> None:
        taken, self._taken = self._taken, []
        if self._single and not self._free:
            count = sum(map(_COSTS.__contains__, map(type, taken)))
            self._on_sent(self.requests[0].request_id, 0, count)
            return
        for (request_id, choice), count in _costs(taken).items():
            free = min(count, self._free[request_id, choice])
            self._free[request_id, choice] -= free
            self._on_sent(request_id, choice, count - free)
        self._free = +self._free


def _costs(entries: Sequence[Entry]) -> Counter[tuple[RequestId, int]]:
    """Return how many of these entries cost credit, by request and choice."""
    return Counter(
        (entry.request_id, entry.choice)
        for entry in entries
        if isinstance(entry, TokenDelta | PromptTokens | ToolCallDelta | Vectors)
    )
