"""The state of one client request within an HTTP process, from its arrival to its terminal entry.

Pure: time arrives as `now`, and the `RequestOwner` (the dispatcher) acts. A request's inbox gets
each entry once, and no entry after the terminal entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bus.wire.calls.processes import OpenRequestRow
from bus.wire.errors import TIMED_OUT, FailReason, FinishReason, Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId, RequestId
from bus.wire.instances import Instance
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import (
    AnswerSoFar,
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    TokenDelta,
    ToolCallDelta,
    Traced,
)
from bus.wire.messages.traces import RankTraced
from bus.wire.shares import Sharer
from gateway.runners.resuming import Loss, Resuming
from gateway.tracing import GatewayTrace
from gateway.view.counters import Counters

if TYPE_CHECKING:
    from gateway.requests.inbox import EntryInbox


class RequestOwner(Protocol):
    """The object that owns all open requests of a process; a request reports its changes to its
    owner."""

    def refused(self, request: ClientRequest, refusal: Refusal) -> None:
        """Handle a runner's refusal: find another runner, or refuse the request to the client."""
        ...

    def displaced(self, request: ClientRequest) -> None:
        """Queue a request again after a runner preempted it, or submit it again after its runner
        was lost."""
        ...

    def ended(self, request: ClientRequest) -> None:
        """Forget a request after its terminal entry."""
        ...


class ClientRequest:
    """One client request and its state. Instants end in `_at` and are monotonic.

    `wire`: the request in the form that runners get. `sharer`: the client whose fair share the
    request counts towards. `affinity`: as in `Parsed`. `moved_at`: time of the last progress
    (submission, acceptance or an entry). `first_at`: when the first token came. `begun`: an entry
    came, so a runner computes the request. `excluded`: the (instance, generation) pairs tried; a
    generation is one load attempt. `has_waited`: the request waited for a model to load.
    `waited_for_own`: it waited for other requests of the same body.

    `was_displaced`: a runner preempted the request. `queued_at`: the time of the first submission,
    or of the preemption if a runner had begun the request. `submitted_at`: when the request was
    submitted to the runner that first began it. `so_far`: the part of the answer that existed at
    the preemption; None if no runner had begun the request. `recalled`: the gateway asked the
    runner to return the request. `made_way`: the runner returned the request after such a recall.
    `node`: the node of the instance's rank 0. `finishes`: finish reasons of the choices. `trace`:
    None if the request is not traced. `spill`: what `/queue` says about its spilling over to a
    provider; None if nothing is configured.

    `resuming`: what the request needs to outlive its runner.
    """

    def __init__(
        self,
        *,
        wire: GenerationRequest,
        inbox: EntryInbox,
        owner: RequestOwner,
        counters: Counters,
        now: float,
        timeout_s: float | None,
        sharer: Sharer,
        affinity: str = "",
    ) -> None:
        self.wire = wire
        self.sharer = sharer
        self.affinity = affinity
        self.request_id: RequestId = wire.request_id
        self.model: ModelId = wire.model
        self.inbox = inbox
        self.since_at = now
        self.moved_at = now
        self.commented_at = now
        self.first_at: float | None = None
        self.deadline_at: float | None = None if timeout_s is None else now + timeout_s
        self.stopping_since: float | None = None
        self.instance: InstanceId | None = None
        self.node: NodeId | None = None
        self.excluded: set[tuple[InstanceId, int]] = set()
        self.tries = 0
        self.has_waited = self.waited_for_own = False
        self.was_displaced = False
        self.queued_at: float | None = None
        self.submitted_at: float | None = None
        self.so_far: AnswerSoFar | None = None
        self.recalled = self.made_way = False
        self.begun = False
        self.tokens = 0
        self.prompt_tokens = 0
        self.usage: Usage | None = None
        self.finishes: set[FinishReason] = set()
        self.trace = GatewayTrace(now) if wire.trace else None
        self.spill: str | None = None
        self.failed: FailReason | None = None
        self.done = False
        self.resuming = Resuming()
        self._owner = owner
        self._counters = counters
        self._timeout_s = timeout_s
        self._silence_s = 0.0
        self._waiting_since: float | None = None

    @property
    def spent_tokens(self) -> int:
        """Return the tokens that count towards the key's budget so far. The prompt counts once a
        runner has accepted the request. A request that only examines a prompt uses no tokens."""
        return 0 if self.wire.question is not None else self.prompt_tokens + self.answered_tokens

    @property
    def answered_tokens(self) -> int:
        """Return the number of tokens of the answer so far. The final count includes tokens that
        come without an entry, such as an end token."""
        return max(self.tokens, 0 if self.usage is None else self.usage.completion_tokens)

    # --- state ------------------------------------------------------------------------------

    def waiting(self, now: float) -> None:
        """Record that no instance is ready. From now on, waiting counts as loading time."""
        self._stand_by()
        self.has_waited = True
        self._waiting_since = now
        if self.trace is not None:
            self.trace.waits("wait_model", now)

    def waiting_for_place(self, now: float) -> None:
        """Record that all instances are full or being evicted. The request can be sent to each of
        them again later."""
        self._stand_by()
        self.excluded.clear()
        self.tries = 0
        if self.trace is not None:
            self.trace.waits("wait_place", now)

    def submitted(self, instance: Instance, now: float, request_timeout_s: float) -> None:
        """Record that the request was sent to an instance. `request_timeout_s` limits the time
        between two entries; 0: no limit. The limit does not apply before the first entry, because
        until then the request can be in the runner's queue. During that time, the steps that the
        runner reports show whether the runner still works."""
        self.instance = instance.instance
        self.node = None if instance.lead is None else instance.lead.node
        self.excluded.add((instance.instance, instance.generation))
        self.tries += 1
        self.moved_at = now
        self.queued_at = self.queued_at if self.was_displaced else now
        if self.so_far is None:
            self.submitted_at = now
        self.begun = self.recalled = False
        if self._waiting_since is not None:
            self.inbox.load_s += now - self._waiting_since
            self._waiting_since = None
        self._silence_s = request_timeout_s
        if self.trace is not None:
            self.trace.submitted(instance.instance, self.node, now)

    def waited_s(self, now: float) -> float:
        """Return how long a preempted request has waited since `queued_at`; 0 for a request that
        was never preempted."""
        return now - self.queued_at if self.was_displaced and self.queued_at is not None else 0.0

    def late(self, now: float, woke_at: float) -> bool:
        """Return whether the client's deadline (`x_timeout_s`) or the limit of silence has passed.
        Silence is counted from the last progress, or from `woke_at` if the process was suspended
        after that."""
        if self.deadline_at is not None and now >= self.deadline_at:
            return True
        return self.begun and 0 < self._silence_s <= now - max(self.moved_at, woke_at)

    def late_text(self) -> str:
        """Return the message to the client for the deadline that has passed."""
        if self._timeout_s is not None:
            return f"the answer was not complete within {self._timeout_s:g} s (x_timeout_s)"
        return f"the model made no progress for {self._silence_s:g} s; the request was stopped"

    # --- the runner's reports (RequestObserver) -----------------------------------------------

    def accepted(self, prompt_tokens: int, unheeded: tuple[str, ...], now: float) -> None:
        """Record that a runner accepted the request. `unheeded` are the request fields that the
        runner ignores."""
        self.moved_at = now
        self.prompt_tokens = prompt_tokens
        if self.trace is not None:
            self.trace.accepted(now)
        self.inbox.accepted(self.request_id, unheeded if self.so_far is None else ())

    def refused(self, refusal: Refusal) -> None:
        """Tell the owner that a runner refused the request. The owner finds another runner, or
        refuses the request to the client."""
        self._owner.refused(self, refusal)

    def displaced(self, so_far: AnswerSoFar | None, now: float) -> None:
        """Ask the owner to queue the preempted request again, so that it resumes from `so_far` (its
        answer until then). The waiting time counts from the first submission, or from now if a
        runner had begun the request."""
        self.was_displaced = True
        self.made_way = self.made_way or self.recalled
        if so_far is not None:
            self.so_far, self.queued_at = so_far, now
            self.inbox.suspended(self.request_id)
            self.resuming.suspended(so_far)
        self._owner.displaced(self)

    def lost(self, loss: Loss, now: float) -> None:
        """Ask the owner to submit the request again, because its runner is lost. End the request if
        it cannot resume."""
        if why := self.resuming.lost(loss.verdict, self.moved_at, now):
            self._counters.lost(self.model, "culprit" if loss.verdict == "culprit" else "ended")
            self.end_failed(loss.reason, f"{loss.message}; {why}", now)
            return
        self._counters.lost(self.model, "resumed")
        logprobs = self.wire.top_logprobs is not None
        self.so_far = self.resuming.so_far(logprobs=logprobs) or self.so_far
        self.was_displaced, self.queued_at, self.moved_at = True, now, now
        self.excluded = {tried for tried in self.excluded if tried[0] == self.instance}
        self.tries = 0
        self.inbox.suspended(self.request_id)
        self._owner.displaced(self)

    def lost_unaccepted(self) -> None:
        """Ask the owner to send the request to another instance, because its runner vanished before
        accepting it."""
        self._owner.refused(
            self, Refusal(reason="not_ready", message="the model's runner does not answer")
        )

    def traced(self, timings: Traced | RankTraced, now: float) -> None:
        """Add the timings of the runner, or of another rank of the runner's group, to the trace."""
        if self.trace is not None:
            self.trace.add_timings(timings, now)

    def arrived(self, entries: list[Entry], now: float) -> None:
        """Count the tokens of these entries and pass the entries to the inbox, in order. Entries
        after the terminal entry are ignored."""
        resuming, old = self.resuming, ()
        if resuming.deaths:
            entries, old = resuming.news(entries)
        if self.done or not (entries or old):
            return
        tokens, record = 0, resuming.record
        for entry in entries:
            if type(entry) is TokenDelta or type(entry) is ToolCallDelta:
                tokens += entry.tokens
                if record is not None and not record.add(entry):
                    resuming.drop()
                    record = None
            elif type(entry) is ChoiceEnd:
                self.finishes.add(entry.finish_reason)
                resuming.over.add(entry.choice)
        if tokens:
            if resuming.is_suspect or not resuming.first_at:
                resuming.count(self.tokens, tokens, now)
            gap_s = None if self.first_at is None else now - self.moved_at
            self._counters.tokens(self.model, tokens, gap_s)
            self.first_at = self.first_at or now
            self.tokens += tokens
        self.moved_at = now
        self.begun = True
        last = entries[-1] if entries else None
        terminal = last if isinstance(last, Finished | Failed) else None
        if terminal is not None and terminal.usage.completion_tokens > self.tokens:
            # Some tokens came without text, such as an ignored end token.
            self._counters.tokens(self.model, terminal.usage.completion_tokens - self.tokens, None)
            self.tokens = terminal.usage.completion_tokens
        if self.trace is not None:
            self.trace.arrived(now, ended=terminal is not None)
        if isinstance(last, Failed):
            message = self.late_text() if last.message == TIMED_OUT else last.message
            first = last.request_id, last.seq, last.reason, message
            terminal = resuming.explained(Failed(*first, last.usage, last.details))
        if terminal is not None:
            terminal = resuming.counted(terminal) if resuming.deaths else terminal
            entries = [*entries[:-1], terminal]
        self.inbox.arrived(self.request_id, entries, old)
        if terminal is not None:
            self._end(terminal)

    # --- terminals made by the gateway ------------------------------------------------------

    def end_failed(self, reason: FailReason, message: str, now: float) -> None:
        """End the request with an error that the gateway detected, such as a passed deadline."""
        self.arrived([Failed(self.request_id, 0, reason, message, _usage_of(self), {})], now)

    def end_cancelled(self, now: float) -> None:
        """End the request as cancelled: send an end for every choice, then the terminal entry."""
        ends: list[Entry] = [
            ChoiceEnd(self.request_id, 0, choice, "cancelled", None)
            for choice in range(self.wire.n)
        ]
        self.arrived([*ends, Finished(self.request_id, 0, _usage_of(self))], now)

    def _stand_by(self) -> None:
        self.instance = self.node = None
        self.begun = False
        self._silence_s = 0.0

    def _end(self, last: Finished | Failed) -> None:
        self.done = True
        self.resuming.end()
        self.usage = last.usage
        if last.usage.drafters:
            self._counters.drafted(self.model, last.usage)
        if (unbrought := self.answered_tokens - self.tokens) > 0:
            self._counters.tokens(self.model, unbrought, None)
        self.prompt_tokens = self.prompt_tokens or last.usage.prompt_tokens
        self.failed = last.reason if isinstance(last, Failed) else None
        self._owner.ended(self)


def open_row(request: ClientRequest, now: float) -> OpenRequestRow:
    """Return what `/queue` says about an open request."""
    return OpenRequestRow(
        request=str(request.request_id),
        model=str(request.model),
        client=request.wire.client_id,
        priority=request.wire.priority,
        instance=request.instance,
        waiting=not request.begun,
        tokens=request.tokens,
        seconds=round(now - request.since_at, 3),
        spill=None if request.begun else request.spill,
    )


def _usage_of(request: ClientRequest) -> Usage:
    """Return the usage so far."""
    return Usage(prompt_tokens=request.prompt_tokens, completion_tokens=request.tokens)
