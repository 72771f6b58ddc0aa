"""Talks to the event loop: collects the entries (tokens, ends, errors) that runners send for one
client's answer. The answer can belong to several requests.

Entries of each request keep their order. A runner sends entries only while it has credit. It gets
credit back for the entries of one `take` at the next `take`, because they have been sent to the
client by then. The answer ends when each request has had its terminal entry, or when one request
has failed. After that, `take` returns nothing more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import (
    CREDIT_WINDOW,
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

GATHERED = CREDIT_WINDOW // 4
"""If the client gets the answer in one piece, `take` waits until this many entries have come. The
runner still has credit at that point."""
_COSTS = frozenset((TokenDelta, PromptTokens, ToolCallDelta, Vectors))
OnSent = Callable[[RequestId, int, int], None]


class EntryInbox:
    """The inbox of one exchange (the submitted requests of one body). `take` waits for `batch`
    entries or the end.

    `fault` is set if the exchange was refused before its first entry. `load_s` is the time in
    seconds that its requests waited for a model to load.
    """

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
        self.batch = 1

    # --- the client's side ----------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Return whether the HTTP status is decided: every submitted request is accepted, or the
        exchange was refused or abandoned."""
        return not self._unaccepted or self.fault is not None or self.abandoned

    @property
    def ended(self) -> bool:
        """Return whether no more entries will come."""
        return not self._unended or self.fault is not None or self.abandoned

    @property
    def early_fault(self) -> HttpFault | None:
        """Return a failure that arrived before any other entry, so that it can still become the
        HTTP status; else None."""
        if self.fault is not None:
            return self.fault
        first = self._first()
        return of_failed(first) if isinstance(first, Failed) else None

    async def wait_settled(self, patience_s: float) -> bool:
        """Wait until `settled` is true, at most `patience_s`. Return whether `settled` is true."""
        try:
            async with asyncio.timeout(patience_s):
                while not self.settled:
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def wait_begun(self, patience_s: float | None) -> bool:
        """Wait for the first entry or the end of the answer, at most `patience_s` (None: no limit).
        Return False if neither came in time."""
        try:
            async with asyncio.timeout(patience_s):
                while self._first() is None and not self.ended:
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def take(self) -> list[Entry]:
        """Wait for an entry, then return all queued entries. The list is empty if only comments
        came or the answer has ended. Each call confirms that the entries of the previous call were
        sent."""
        if self._taken:
            self._give_credit()
        while not (len(self._queue) >= self.batch or self._comments or self.ended):
            await self._wait()
        self._taken, self._queue = self._queue, []
        return self._taken

    def take_comments(self) -> list[str]:
        """Return the progress comments that arrived since the last call."""
        comments, self._comments = self._comments, []
        return comments

    def take_unheeded(self) -> tuple[str, ...]:
        """Return the paths of request fields that the model ignores. Each path is returned only
        once."""
        unheeded, self._unheeded = tuple(self._unheeded), []
        return unheeded

    # --- the runners' side ----------------------------------------------------------------

    def accepted(self, request_id: RequestId, unheeded: Sequence[str] = ()) -> None:
        """Record that a runner accepted this request. `unheeded` are the request fields that the
        runner ignores."""
        self._unaccepted.discard(request_id)
        self._unheeded += [name for name in unheeded if name not in self._unheeded]
        self._wake()

    def postponed(self, request_id: RequestId) -> None:
        """Record that a request waits until other requests of this exchange have ended. The answer
        can begin without it."""
        self._unaccepted.discard(request_id)
        self._wake()

    def arrived(
        self, request_id: RequestId, entries: Sequence[Entry], old: Sequence[int] = ()
    ) -> None:
        """Add entries of one request. If a terminal entry is among them, it is the last. `old` has
        the choice of each further entry that a runner sent again although the client already has
        it. Such entries are dropped, and the runner gets its credit for them back."""
        for choice in old:
            self._on_sent(request_id, choice, 1)
        self._queue.extend(entries)
        self._unaccepted.discard(request_id)
        if not entries:
            return
        last = entries[-1]
        if isinstance(last, Failed):
            self._unended.clear()
        elif isinstance(last, Finished):
            self._unended.discard(request_id)
        if len(self._queue) >= self.batch or not self._unended:
            self._wake()

    def suspended(self, request_id: RequestId) -> None:
        """Record that a request resumes at another runner. The entries from the old runner that
        have not reached the client yet give no credit to the new runner."""
        for (of_request, choice), count in _costs([*self._taken, *self._queue]).items():
            if of_request == request_id:
                self._free[of_request, choice] = count

    def refuse(self, fault: HttpFault) -> None:
        """Refuse the exchange with `fault`, because no runner accepts it."""
        if self.fault is None and not self.ended:
            self.fault = fault
            self._wake()

    def say(self, comment: str) -> None:
        """Queue a keep-alive or a progress comment, replacing any comment not taken yet."""
        if not self.ended:
            self._comments = [comment]
            self._wake()

    def abandon(self) -> None:
        """Drop the queue, because the client has disconnected."""
        self.abandoned = True
        self._queue.clear()
        self._wake()
        if self._on_abandoned is not None:
            self._on_abandoned()

    # --- internals ------------------------------------------------------------------------

    def _first(self) -> Entry | None:
        """Return the first queued entry that is not prefill progress."""
        return next(
            (entry for entry in self._queue if not isinstance(entry, PrefillProgress)), None
        )

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
    """Return how much credit these entries cost the runner, by request and choice."""
    return Counter(
        (entry.request_id, entry.choice)
        for entry in entries
        if isinstance(entry, TokenDelta | PromptTokens | ToolCallDelta | Vectors)
    )
