"""Talks to one runner: a DEALER of our own, requests out, entries in, life watched.

Promises to each `RequestObserver`: entries in their order without a gap (a gap ends the request
with `internal`), and one last word: a terminal entry, `refused`, `displaced` or
`lost_unaccepted`; one that goes on from an answer so far is told nothing of that again. A socket
that is gone and not back in 1 s, or progress owed and not made for 12 s, ends what was accepted
with `runner_lost`. What was never accepted is given back, for nothing had been done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bus.client import BusClient
from bus.links.transport import Change, Link
from bus.wire.data_frames import pack_to_runner, unpack_to_gateway
from bus.wire.errors import BadMessage, FailReason, Refusal
from bus.wire.ids import Boot, RequestId
from bus.wire.instances import Instance
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import (
    CREDIT_WINDOW,
    DATA_PROTOCOL_MAX,
    DATA_PROTOCOL_MIN,
    Accepted,
    AnswerSoFar,
    Cancel,
    ChoiceEnd,
    Credit,
    Displaced,
    Entry,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Ping,
    Pong,
    PrefillProgress,
    Recall,
    Refused,
    StepEntries,
    Submit,
    Suspended,
    TokenDelta,
    ToRunner,
    Traced,
    Welcome,
)
from bus.wire.messages.traces import RankTraced
from bus.wire.shares import Sharer
from gateway.runners.credit import CreditBook
from gateway.runners.late_traces import LateTraces
from gateway.runners.liveness import Liveness, Verdict
from gateway.runners.versions import RECALL_PROTOCOL, as_known

BACK_S = 1.0
"""A lost socket has this long to come back."""
ANSWER_S = 1.0
"""A submit is answered within this long..."""
BUSY_ANSWER_S = 8.0
"""...or, by a runner that still answers pings, within this."""


class RequestObserver(Protocol):
    """The one who asked for a request. All calls come in the loop's thread, time as `now`."""

    def accepted(self, prompt_tokens: int, unheeded: tuple[str, ...], now: float) -> None:
        """Note that the runner owns the request, and which of its fields have no effect there."""
        ...

    def refused(self, refusal: Refusal) -> None:
        """Note that the runner did not take the request; nothing was done."""
        ...

    def displaced(self, so_far: AnswerSoFar | None, now: float) -> None:
        """Note that the runner gave the request back, in favour of another; nothing was done, or
        that which the answer has so far."""
        ...

    def lost_unaccepted(self) -> None:
        """Note that the runner was gone, or silent, before it had taken the request."""
        ...

    def traced(self, told: Traced | RankTraced, now: float) -> None:
        """Take what the runner did for the request when, before its terminal comes; then what each
        rank of its group did, as a rule after that."""
        ...

    def arrived(self, entries: list[Entry], now: float) -> None:
        """Take some entries, in order; the last of all is a terminal."""
        ...


@dataclass(slots=True)
class _Open:
    """A request at this runner. `next_seq` is the number that its next entry must have."""

    request_id: RequestId
    choices: int
    observer: RequestObserver
    submitted_at: float
    credit: CreditBook
    accepted: bool = False
    next_seq: int = 0
    batch: list[Entry] = field(default_factory=list[Entry])


class RunnerConnection:
    """One DEALER to one lead runner, for as long as its generation lives."""

    def __init__(
        self,
        *,
        instance: Instance,
        address: str,
        identity: str,
        bus: BusClient,
        on_dead: Callable[[RunnerConnection], None],
    ) -> None:
        self.instance = instance.instance
        self.generation = instance.generation
        self.verdict: Verdict = "well"
        self._identity = identity
        self._boot = bus.speaker.boot
        self._runner_boot: Boot | None = None
        self._reactor = reactor = bus.reactor
        self._log = bus.log.bind(instance=self.instance, generation=self.generation)
        self._on_dead = on_dead
        self._open: dict[RequestId, _Open] = {}
        self._traces = LateTraces()
        self._protocol: int | None = None
        self._unsent: list[Submit | Cancel | Recall] = []
        """What waits for the runner's welcome, which says what it understands."""
        self._connects = 0
        self._lost_at: float | None = None
        self._dead = False
        now = reactor.now()
        self._life = Liveness(moved_at=now, heard_at=now, ticked_at=now)
        node = instance.lead and instance.lead.node
        self._link = Link("dealer", identity=identity, security=bus.security)
        self._link.tally = None if node is None else bus.traffic.way(node, "data")
        self._link.connect(address, peer=node)
        reactor.watch_changes(self._link, self._changed)
        reactor.watch(self._link, self._heard)
        self._send_hello()

    # --- what the pool asks ---------------------------------------------------------------

    @property
    def open_requests(self) -> int:
        """Return the number of requests here that have not ended."""
        return len(self._open)

    def submit(
        self,
        request: GenerationRequest,
        observer: RequestObserver,
        *,
        remaining_ms: int,
        sharer: Sharer,
        waited_ms: int,
        so_far: AnswerSoFar | None,
    ) -> None:
        """Hand a request over. The observer gets its last word in any case."""
        now = self._reactor.now()
        one = _Open(request.request_id, request.n, observer, now, CreditBook(request.n))
        self._open[request.request_id] = one
        credit = CREDIT_WINDOW
        submit = Submit(request, self.generation, credit, remaining_ms, sharer, waited_ms, so_far)
        if not self._send_known(submit):
            del self._open[request.request_id]
            observer.lost_unaccepted()

    def ask(self, message: Cancel | Recall) -> None:
        """Have a request stopped, or given back; its last word still comes."""
        self._send_known(message)

    def forget(self, request_id: RequestId) -> None:
        """Drop what still comes of this request; its sink is called no more."""
        self._open.pop(request_id, None)

    def sent_to_client(self, request_id: RequestId, choice: int, count: int) -> None:
        """Note that `count` entries have left; the runner may send as many again."""
        one = self._open.get(request_id)
        if one is not None and (grant := one.credit.sent(choice, count)):
            self._send(Credit(request_id, choice, grant))

    def tick(self, now: float) -> None:
        """Ping and judge the runner, each second."""
        self._send(Ping(self._boot))
        owed = any(one.credit.may_move for one in self._open.values())
        verdict = self._life.tick(owed=owed, now=now)
        if verdict != self.verdict:
            self.verdict = verdict
            self._log.warning("runner", verdict=verdict, open_requests=len(self._open))
        for one in list(self._open.values()):
            if not one.accepted and _overdue(one, self._life, now):
                self._give_back(one)
        if verdict == "lost":
            self.end("runner_lost", "the runner made no progress for 12 s")

    def end(self, reason: FailReason, message: str) -> None:
        """End the connection: every request gets its last word, the socket is closed."""
        if self._dead:
            return
        self._dead = True
        self._reactor.unwatch(self._link)
        self._link.close()
        still_open, self._open = list(self._open.values()), {}
        for one in still_open:
            if one.accepted:
                failed = Failed(one.request_id, one.next_seq, reason, message, Usage(), {})
                one.observer.arrived([failed], self._reactor.now())
            else:
                one.observer.lost_unaccepted()
        self._on_dead(self)

    # --- what the runner says ---------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if change == "connected":
            self._connects += 1
            self._lost_at = None
            if self._connects > 1:
                self._send_hello()
            return
        if self._lost_at is None:
            self._lost_at = self._reactor.now()
            self._reactor.later(BACK_S, self._end_if_still_lost)

    def _end_if_still_lost(self) -> None:
        if self._lost_at is not None and self._reactor.now() - self._lost_at >= BACK_S * 0.9:
            self.end("runner_lost", "the runner's process is gone")

    def _heard(self, frames: list[bytes]) -> None:
        try:
            message = unpack_to_gateway(frames[-1])
        except BadMessage as error:
            self._log.error("bad frame from a runner", error=str(error)[:200])
            self.end("internal", "the runner sent an invalid frame")
            return
        match message:
            case StepEntries():
                self._step(message.entries)
            case Pong():
                self._life.pong(step=message.step, now=self._reactor.now())
            case Accepted():
                self._accepted(message)
            case Refused():
                one = self._open.pop(message.request_id, None)
                if one is not None:
                    one.observer.refused(message.refusal)
            case Displaced() | Suspended():
                self._displaced(message)
            case Traced() | RankTraced():
                one = self._open.get(message.request_id)
                self._traces.heard(message, one and one.observer, self._reactor.now())
            case Welcome():
                self._welcomed(message)
            case Goodbye():
                self._log.warning(
                    "the runner closed the connection", message_text=message.message[:200]
                )
                self.end("model_unavailable", message.message)

    def _welcomed(self, message: Welcome) -> None:
        wrong = (message.instance, message.generation) != (self.instance, self.generation)
        again = self._runner_boot not in (None, message.boot)
        self._runner_boot = message.boot
        if wrong or again:
            self.end("runner_lost", "another runner answers at this address")
            return
        self._protocol = message.protocol
        unsent, self._unsent = self._unsent, []
        for waiting in unsent:
            if not isinstance(waiting, Submit) or waiting.request.request_id in self._open:
                self._send_known(waiting)

    def _accepted(self, message: Accepted) -> None:
        one = self._open.get(message.request_id)
        if one is not None and not one.accepted:
            now = self._reactor.now()
            one.accepted = True
            self._life.entries(now)
            one.observer.accepted(message.prompt_tokens, message.unheeded, now)

    def _displaced(self, message: Displaced | Suspended) -> None:
        one = self._open.get(message.request_id)
        if one is None:
            return
        so_far = message.so_far if isinstance(message, Suspended) else None
        if one.next_seq and so_far is None:
            self._broken(one, "nothing: it was preempted")
            return
        del self._open[message.request_id]
        one.observer.displaced(so_far, self._reactor.now())

    def _step(self, entries: tuple[Entry, ...]) -> None:
        touched: dict[RequestId, _Open] = {}
        for entry in entries:
            one = self._open.get(entry.request_id)
            if one is None:
                continue
            if entry.seq != one.next_seq or not _fits(entry, one):
                self._broken(one, entry.seq)
                continue
            one.next_seq += 1
            one.batch.append(entry)
            touched[one.request_id] = one
            if type(entry) is Finished or type(entry) is Failed:
                del self._open[one.request_id]
        if not touched:
            return
        now = self._reactor.now()
        self._life.entries(now)
        for one in touched.values():
            batch, one.batch = one.batch, []
            one.observer.arrived(batch, now)

    def _broken(self, one: _Open, got: int | str) -> None:
        self._log.error(
            "a request's entries are broken",
            request=one.request_id,
            expected=one.next_seq,
            got=got,
        )
        del self._open[one.request_id]
        self._send(Cancel(one.request_id, "shutdown"))
        failed = Failed(
            one.request_id, one.next_seq, "internal", "part of the answer was lost", Usage(), {}
        )
        one.observer.arrived([*one.batch, failed], self._reactor.now())
        one.batch = []

    # --- below -----------------------------------------------------------------------------------

    def _give_back(self, one: _Open) -> None:
        self._log.warning("a submit was not answered", request=one.request_id)
        del self._open[one.request_id]
        self._send_known(Cancel(one.request_id, "shutdown"))
        one.observer.lost_unaccepted()

    def _send_known(self, message: Submit | Cancel | Recall) -> bool:
        """Send in the version of the data plane that the runner chose; kept until it has."""
        if self._protocol is None:
            self._unsent.append(message)
            return not self._dead
        if isinstance(message, Submit):
            known = as_known(message, self._protocol)
            if isinstance(known, Refusal):
                self._open.pop(message.request.request_id).observer.refused(known)
                return True
            message = known
        elif isinstance(message, Recall) and self._protocol < RECALL_PROTOCOL:
            return True
        return self._send(message)

    def _send_hello(self) -> None:
        self._send(Hello(self._identity, self._boot, DATA_PROTOCOL_MIN, DATA_PROTOCOL_MAX))

    def _send(self, message: ToRunner) -> bool:
        return not self._dead and self._link.send(pack_to_runner(message))


def _overdue(one: _Open, life: Liveness, now: float) -> bool:
    """Return whether a runner should have answered a submit by now."""
    heard = now - life.heard_at < 2 * ANSWER_S + 0.5
    return now - max(one.submitted_at, life.woke_at) >= (BUSY_ANSWER_S if heard else ANSWER_S)


def _fits(entry: Entry, one: _Open) -> bool:
    """Return whether the entry names a choice that was asked for and has credit; notes its cost."""
    if type(entry) is TokenDelta:  # the hot path
        return 0 <= entry.choice < one.choices and one.credit.received(entry.choice)
    if isinstance(entry, Finished | Failed | PrefillProgress):
        return True
    if not 0 <= entry.choice < one.choices:
        return False
    if isinstance(entry, ChoiceEnd):
        one.credit.ended(entry.choice)
        return True
    return one.credit.received(entry.choice)
