"""Talks to one runner over its own DEALER socket: sends requests, receives entries (the parts of
answers), watches whether the runner is alive.

Each `RequestObserver` receives entries in order and without a gap; a gap ends the request with
`internal`. If a request is resumed, its observer does not receive the answer so far again. The
runner is lost if the socket stays disconnected for 1 s, or if the runner makes no progress for 12 s
with a request that could advance. If the runner is silent for 2 s, or makes no progress for 6 s,
and another is ready, requests leave it for the other one. When a runner is lost, an observer may
resume its request if the runner reported the tokens (`resumes`) or no part of the answer has come.
Other accepted requests end with `runner_lost`. A request that was never accepted is returned to
the dispatcher, since no work was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bus.client import BusClient
from bus.wire.data_frames import unpack_to_gateway
from bus.wire.errors import BadMessage, FailReason
from bus.wire.ids import Boot, RequestId
from bus.wire.instances import Instance
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import (
    CREDIT_WINDOW,
    Accepted,
    Begun,
    Cancel,
    Credit,
    Displaced,
    Entry,
    Failed,
    Finished,
    Goodbye,
    Ping,
    Pong,
    Recall,
    Refused,
    StepEntries,
    Submit,
    Suspended,
    Traced,
    Welcome,
)
from bus.wire.messages.traces import RankTraced
from bus.wire.shares import Sharer
from gateway.runners.credit import CreditBook
from gateway.runners.late_traces import LateTraces
from gateway.runners.liveness import Liveness, Verdict
from gateway.runners.observer import RequestObserver
from gateway.runners.resuming import LOST, Loss, Occupant, Resumption, judge
from gateway.runners.runner_socket import RunnerSocket

ANSWER_S = 1.0
"""Time within which a runner must answer a submit."""
BUSY_ANSWER_S = 8.0
"""Time within which a runner must answer a submit if it still answers pings."""


@dataclass(slots=True)
class _Open:
    """An open request at this runner. `next_seq` is the sequence number of its next entry.
    `resumes`: the runner reports its tokens, so that another runner can resume it. `begun`: the
    runner has begun to compute it."""

    request_id: RequestId
    choices: int
    observer: RequestObserver
    submitted_at: float
    credit: CreditBook
    accepted: bool = False
    resumes: bool = False
    begun: bool = False
    next_seq: int = 0
    batch: list[Entry] = field(default_factory=list[Entry])

    @property
    def may_resume(self) -> bool:
        """Return whether another runner may continue the request, or begin it again because no part
        of its answer has come."""
        is_unanswered = self.accepted and not self.credit.is_used
        return self.resumes or (is_unanswered and self.observer.resuming.is_on)


class RunnerConnection:
    """One DEALER socket to one lead runner, until that runner ends or is replaced."""

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
        self.model = instance.model
        self.verdict: Verdict = "well"
        self._boot = bus.speaker.boot
        self._runner_boot: Boot | None = None
        self._reactor = bus.reactor
        self._log = bus.log.bind(instance=self.instance, generation=self.generation)
        self._on_dead = on_dead
        self._open: dict[RequestId, _Open] = {}
        self._traces = LateTraces()
        self._dead = False
        now = self._reactor.now()
        self.life = Liveness(moved_at=now, heard_at=now, ticked_at=now)
        node = instance.lead and instance.lead.node
        gone = partial(self.end, "runner_lost", "the runner's process is gone")
        self._socket = RunnerSocket(
            bus, identity, address, node, on_message=self._receive, on_gone=gone
        )

    # --- calls of the pool ----------------------------------------------------------------

    @property
    def open_requests(self) -> int:
        """Return the number of unfinished requests at this runner."""
        return len(self._open)

    def submit(
        self,
        request: GenerationRequest,
        observer: RequestObserver,
        *,
        remaining_ms: int,
        sharer: Sharer,
        waited_ms: int,
        again: Resumption,
    ) -> None:
        """Send a request to the runner. The observer receives its last call in any case."""
        now = self._reactor.now()
        open_request = _Open(request.request_id, request.n, observer, now, CreditBook(request.n))
        self._open[request.request_id] = open_request
        terms = self.generation, CREDIT_WINDOW, remaining_ms, sharer, waited_ms, again.so_far
        submit = Submit(request, *terms, again.resumes, again.deaths, again.suspect)
        if not self._send_adapted(submit):
            del self._open[request.request_id]
            observer.lost_unaccepted()

    def ask(self, message: Cancel | Recall) -> None:
        """Ask the runner to stop a request or to return it to this gateway. The observer still
        receives its last call."""
        self._send_adapted(message)

    def leave(self) -> None:
        """Move the requests of this silent or stuck runner to another one, where they resume.
        Requests that cannot resume stay, and so do suspects.

        A silent runner may still be alive, so its requests do not become suspects the first time,
        and all of them may begin at the next runner at once. If that one is lost too, they are
        suspects."""
        moving = [
            request
            for request in self._open.values()
            if request.may_resume and request.observer.resuming.may_leave
        ]
        if not moving:
            return
        self.verdict = "suspect"
        now = self._reactor.now()
        is_silent = now >= self.life.silent_at
        why = "did not answer" if is_silent else "made no progress"
        seconds = now - (self.life.heard_at if is_silent else self.life.moved_at)
        message = f"the runner {why} for {seconds:.1f} s"
        self._log.warning("requests leave a runner", why=message, leaving=len(moving))
        for request in moving:
            del self._open[request.request_id]
            self._send_adapted(Cancel(request.request_id, "shutdown"))
            request.begun = request.begun and request.observer.resuming.resumes > 0
        _lose(moving, "runner_lost", message, now)

    def forget(self, request_id: RequestId) -> None:
        """Ignore all further entries of this request; its observer is not called again."""
        self._open.pop(request_id, None)

    def sent_to_client(self, request_id: RequestId, choice: int, count: int) -> None:
        """Count `count` entries as sent to the client. The runner may then send the same number of
        further entries."""
        request = self._open.get(request_id)
        if request is not None and (grant := request.credit.sent(choice, count)):
            self._socket.send(Credit(request_id, choice, grant))

    def tick(self, now: float) -> None:
        """Ping the runner and check whether it is alive. Call this every second."""
        self._socket.send(Ping(self._boot))
        owed = any(request.credit.may_move for request in self._open.values())
        verdict = self.life.tick(owed=owed, now=now)
        if verdict != self.verdict:
            self.verdict = verdict
            self._log.warning("runner", verdict=verdict, open_requests=len(self._open))
        for request in list(self._open.values()):
            if not request.accepted and _overdue(request, self.life, now):
                self._give_up(request)
        if verdict == "lost":
            self.end("runner_lost", "the runner made no progress for 12 s")

    def end(self, reason: FailReason, message: str) -> None:
        """End the connection: each observer receives its last call, and the socket is closed."""
        if self._dead:
            return
        self._dead = True
        self._socket.close()
        still_open, self._open = list(self._open.values()), {}
        _lose(
            [each for each in still_open if each.may_resume], reason, message, self._reactor.now()
        )
        for request in still_open:
            if not request.accepted:
                request.observer.lost_unaccepted()
            elif not request.may_resume:
                failed = Failed(request.request_id, request.next_seq, reason, message, Usage(), {})
                request.observer.arrived([failed], self._reactor.now())
        self._on_dead(self)

    # --- messages of the runner ---------------------------------------------------------------

    def _receive(self, frames: list[bytes]) -> None:
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
                self.life.pong(step=message.step, now=self._reactor.now())
            case Accepted():
                self._accepted(message)
            case Begun():
                request = self._open.get(message.request_id)
                if request is not None and _fits_begun(message, request):
                    request.begun = True
                    request.observer.resuming.began(message, self._reactor.now())
            case Refused():
                request = self._open.pop(message.request_id, None)
                if request is not None:
                    request.observer.refused(message.refusal)
            case Displaced() | Suspended():
                self._displaced(message)
            case Traced() | RankTraced():
                request = self._open.get(message.request_id)
                self._traces.pass_on(message, request and request.observer, self._reactor.now())
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
        for waiting in self._socket.choose(message.protocol):
            if not isinstance(waiting, Submit) or waiting.request.request_id in self._open:
                self._send_adapted(waiting)

    def _accepted(self, message: Accepted) -> None:
        request = self._open.get(message.request_id)
        if request is not None and not request.accepted:
            now = self._reactor.now()
            request.accepted, request.resumes = True, message.resumes
            if not message.resumes:
                request.begun = request.observer.resuming.computes = True
            self.life.entries(now)
            request.observer.accepted(message.prompt_tokens, message.unheeded, now)

    def _displaced(self, message: Displaced | Suspended) -> None:
        request = self._open.get(message.request_id)
        if request is None:
            return
        so_far = message.so_far if isinstance(message, Suspended) else None
        if request.next_seq and so_far is None:
            self._broken(request, "the runner returned it without its answer so far")
            return
        del self._open[message.request_id]
        request.observer.displaced(so_far, self._reactor.now())

    def _step(self, entries: tuple[Entry, ...]) -> None:
        touched: dict[RequestId, _Open] = {}
        lost: list[tuple[_Open, Failed]] = []
        for entry in entries:
            request = self._open.get(entry.request_id)
            if request is None:
                continue
            if entry.seq != request.next_seq or not request.credit.takes(entry):
                self._broken(request, entry.seq)
                continue
            if type(entry) is Failed and request.may_resume and entry.reason in LOST:
                del self._open[request.request_id]
                lost.append((request, entry))
                continue
            request.next_seq += 1
            request.batch.append(entry)
            touched[request.request_id] = request
            if type(entry) is Finished or type(entry) is Failed:
                del self._open[request.request_id]
        if touched:
            now = self._reactor.now()
            self.life.entries(now)
            for request in touched.values():
                batch, request.batch = request.batch, []
                request.observer.arrived(batch, now)
        if lost:
            last = lost[0][1]
            _lose([each for each, _ in lost], last.reason, last.message, self._reactor.now())

    def _broken(self, request: _Open, got: int | str) -> None:
        self._log.error(
            "a request's entries are broken",
            request=request.request_id,
            expected=request.next_seq,
            got=got,
        )
        del self._open[request.request_id]
        self._socket.send(Cancel(request.request_id, "shutdown"))
        lost = "part of the answer was lost"
        failed = Failed(request.request_id, request.next_seq, "internal", lost, Usage(), {})
        request.observer.arrived([*request.batch, failed], self._reactor.now())
        request.batch = []

    # --- below -----------------------------------------------------------------------------------

    def _give_up(self, request: _Open) -> None:
        self._log.warning("a submit was not answered", request=request.request_id)
        del self._open[request.request_id]
        self._send_adapted(Cancel(request.request_id, "shutdown"))
        request.observer.lost_unaccepted()

    def _send_adapted(self, message: Submit | Cancel | Recall) -> bool:
        """Send a message in the runner's version of the data plane. If the version cannot express a
        request, end it. Return False if the message could not be sent."""
        sent = self._socket.send_adapted(message)
        if isinstance(sent, bool):
            return sent
        assert isinstance(message, Submit)
        self._open.pop(message.request.request_id).observer.refused(sent)
        return True


def _overdue(request: _Open, life: Liveness, now: float) -> bool:
    """Return whether the runner should have answered the submit of a request by now."""
    is_answering = now - life.heard_at < 2 * ANSWER_S + 0.5
    return now - max(request.submitted_at, life.woke_at) >= (
        BUSY_ANSWER_S if is_answering else ANSWER_S
    )


def _lose(lost: Sequence[_Open], reason: FailReason, message: str, now: float) -> None:
    """Tell the observers of accepted requests that the runner is lost."""
    occupants = [
        Occupant(
            request.request_id,
            request.begun and request.credit.may_move,
            request.observer.resuming.is_suspect,
            request.observer.resuming.on_trial,
        )
        for request in lost
    ]
    verdicts = judge(occupants, died=reason == "runner_lost")
    for request in lost:
        request.observer.lost(Loss(reason, message, verdicts[request.request_id]), now)


def _fits_begun(begun: Begun, request: _Open) -> bool:
    return request.resumes and len(begun.seeds) == request.choices and not len(begun.prompt) % 4
