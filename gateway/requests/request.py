"""The life of one request within an HTTP process, from waiting to its last word.

Pure: time arrives as `now`; the `RequestOwner` does what is to be done. A request's inbox gets
each entry once; after a terminal nothing more is passed on.
"""

from __future__ import annotations

from typing import Protocol

from bus.wire.errors import FailReason, Refusal
from bus.wire.ids import InstanceId
from bus.wire.instances import Instance
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import ChoiceEnd, Entry, Failed, Finished, TokenDelta, ToolCallDelta
from gateway.cluster.counters import Counters
from gateway.requests.inbox import EntryInbox


class RequestOwner(Protocol):
    """Who places tickets and keeps them."""

    def place(self, ticket: ClientRequest) -> None:
        """Find it a runner, or let it wait."""
        ...

    def refused(self, ticket: ClientRequest, refusal: Refusal) -> None:
        """A runner did not take it."""
        ...

    def ended(self, ticket: ClientRequest) -> None:
        """It had its terminal."""
        ...

    def now(self) -> float:
        """The loop's clock."""
        ...


class ClientRequest:
    """One request and where it stands. Instants end in `_at` and are monotonic.

    `moved_at` is when it was submitted or last gave an entry; `first_at` when its first token
    came. `excluded` are (instance, generation) pairs that were tried.
    """

    def __init__(
        self,
        *,
        request: GenerationRequest,
        answer: EntryInbox,
        owner: RequestOwner,
        counters: Counters,
        now: float,
        timeout_s: float | None,
    ) -> None:
        self.request = request
        self.answer = answer
        self.since_at = now
        self.moved_at = now
        self.said_at = now
        self.first_at: float | None = None
        self.deadline_at: float | None = None
        self.stopping_since: float | None = None
        self.instance: InstanceId | None = None
        self.excluded: set[tuple[InstanceId, int]] = set()
        self.tries = 0
        self.tokens = 0
        self.prompt_tokens = 0
        self.usage: Usage | None = None
        self.failed: FailReason | None = None
        self.done = False
        self._owner = owner
        self._counters = counters
        self._timeout_s = timeout_s
        self._silence_s = 0.0
        self._waiting_since: float | None = None

    # --- where it stands ----------------------------------------------------------------------

    def waiting(self, now: float) -> None:
        """No instance is ready: the time from here is loading."""
        self.deadline_at = None
        self._silence_s = 0.0
        self._waiting_since = now

    def submitted(self, instance: Instance, now: float, request_timeout_s: float) -> None:
        """An instance is being asked; the clock of the answer starts."""
        self.instance = instance.instance
        self.excluded.add((instance.instance, instance.generation))
        self.tries += 1
        self.moved_at = now
        if self._waiting_since is not None:
            self.answer.load_s += now - self._waiting_since
            self._waiting_since = None
        if self._timeout_s is not None:
            self.deadline_at = now + self._timeout_s
        self._silence_s = request_timeout_s

    def late(self, now: float) -> bool:
        """Whether a deadline has come: of the whole answer (`x_timeout_s`), or of silence."""
        if self.deadline_at is not None and now >= self.deadline_at:
            return True
        return self._silence_s > 0 and now - self.moved_at >= self._silence_s

    def late_text(self) -> str:
        """What a client is told then."""
        if self._timeout_s is not None:
            return f"the answer was not complete after {self._timeout_s:g} s (x_timeout_s)"
        return f"the model made no progress for {self._silence_s:g} s; the request was stopped"

    # --- what the runner says (Sink) ------------------------------------------------------------

    def accepted(self, position: int, prompt_tokens: int) -> None:
        """A runner owns it."""
        self.moved_at = self._owner.now()
        self.prompt_tokens = prompt_tokens
        self.answer.accepted(self.request.request_id, position)

    def refused(self, refusal: Refusal) -> None:
        """A runner does not want it."""
        self._owner.refused(self, refusal)

    def lost_unaccepted(self) -> None:
        """The runner vanished before it took it: as if never asked."""
        self._owner.refused(
            self,
            Refusal(reason="not_ready", message="the model's runner does not answer"),
        )

    def arrived(self, entries: list[Entry]) -> None:
        """Entries, in order."""
        if self.done:
            return
        now = self._owner.now()
        tokens = 0
        for entry in entries:
            if type(entry) is TokenDelta or type(entry) is ToolCallDelta:
                tokens += entry.tokens
        if tokens:
            gap_s = None if self.first_at is None else now - self.moved_at
            self._counters.tokens(self.request.model, tokens, gap_s)
            self.first_at = self.first_at or now
            self.tokens += tokens
        self.moved_at = now
        last = entries[-1]
        self.answer.arrived(self.request.request_id, entries)
        if isinstance(last, Finished | Failed):
            self._end(last)

    # --- ends made here -----------------------------------------------------------------------

    def end_failed(self, reason: FailReason, message: str) -> None:
        """It ends here and now, with an error."""
        usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.tokens)
        self.arrived([Failed(self.request.request_id, 0, reason, message, usage)])

    def end_cancelled(self) -> None:
        """It ends here and now, as cancelled."""
        request_id = self.request.request_id
        ends: list[Entry] = [
            ChoiceEnd(request_id, 0, choice, "cancelled") for choice in range(self.request.n)
        ]
        usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.tokens)
        self.arrived([*ends, Finished(request_id, 0, usage)])

    def _end(self, last: Finished | Failed) -> None:
        self.done = True
        self.usage = last.usage
        self.failed = last.reason if isinstance(last, Failed) else None
        self._owner.ended(self)
