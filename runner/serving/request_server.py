"""Talks to gateway processes: takes their requests and sends the entries of a responder's answers.

Runs in the main thread. A submit is answered once with `Accepted` or `Refused`; a repeated submit
gets the same answer and is not run again. Each request ends exactly once. A role provides only the
`Responder`, which gets requests and returns pieces of answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from bus.process.clock import wall
from bus.process.logs import story_of
from bus.service import Shell
from bus.wire.errors import TIMED_OUT, FailReason, Refusal
from bus.wire.ids import RequestId
from bus.wire.instances import Phase
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Cancel,
    Credit,
    Entry,
    Ping,
    Pong,
    Recall,
    Refused,
    StepEntries,
    Submit,
    ToGateway,
)
from bus.wire.proposals import Attach, FromProposer, Propose, Withdraw
from runner.recorder import FlightRecorder, RecorderPhase, ServedTotals
from runner.serving.arrivals import known_already, not_served, too_long
from runner.serving.gateway_link import Asked, GatewayLink
from runner.serving.open_request import OpenRequest, Responder
from runner.serving.proposals import NoProposals, ProposalTaker
from runner.text import text_size

REMEMBERED = 4096
Tap = Callable[[int, Sequence[Entry]], None]


class RequestServer:
    """All open requests of this runner. `responder` is set before the first message arrives. `tap`
    is called with the entries of each message that is sent to a gateway, while the topic "token" is
    among the `wanted` ones. `phase` is the runner's
    phase; requests are accepted only in the phase `ready`. `proposals` answers verifiers. `open`
    has the requests that began and have not ended."""

    responder: Responder
    proposals: ProposalTaker

    def __init__(
        self,
        spec: RunnerSpec,
        shell: Shell,
        *,
        recorder: FlightRecorder,
        tap: Tap,
        wanted: Collection[str] = (),
    ) -> None:
        self.spec = spec
        self.phase: Phase = "loading"
        self.totals = ServedTotals(used_at=shell.reactor.now())
        self.open: dict[RequestId, OpenRequest] = {}
        self._boot = shell.speaker.boot
        self._reactor = shell.reactor
        self._log = shell.log
        self._recorder = recorder
        self._tap, self._wanted = tap, wanted
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._outboxes: dict[bytes, list[Entry]] = {}
        self._link = GatewayLink(spec, shell, self)
        self.proposals = NoProposals(self.send)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._link.addresses

    @property
    def owed(self) -> Collection[RequestId]:
        return self.open.keys()

    def close(self, message: str) -> None:
        """Close the connection to gateways with a last `message`. All open requests must have ended
        before."""
        self._link.close(message)

    # --- from gateways -------------------------------------------------------------------

    def act_on(self, peer: bytes, message: Asked, now: float) -> None:
        match message:
            case Submit():
                self._submit(peer, message, now)
            case Credit(request_id, choice, grant):
                if (request := self.open.get(request_id)) is not None:
                    request.grant(choice, grant, now)
            case Cancel(request_id, why):
                self.note("cancel_requested", request_id, why=why)
                if (request := self.open.get(request_id)) is not None:
                    request.cancel(why, now)
                    self.note("cancel_observed", request_id)
            case Recall(request_id, begun):
                self.give_back(request_id, begun=begun)
            case Attach() | Propose() | Withdraw():
                self.proposals.take(peer, message, now)
            case Ping():
                self.proposals.alive(peer, now)
                owes = any(not each.is_paused for each in self.open.values() if each.accepted)
                self._link.send(peer, Pong(self._boot, self.responder.step(now), owes))
        self.flush()

    def cancel_peer(self, peer: bytes) -> int:
        gone = [request for request in self.open.values() if request.peer == peer]
        self._outboxes.pop(peer, None)
        self.proposals.drop(peer)
        for request in gone:
            self.note("cancel_observed", request.request_id, why="gateway gone")
            request.drop(self._reactor.now())
        return len(gone)

    def _submit(self, peer: bytes, submit: Submit, now: float) -> None:
        request_id = submit.request.request_id
        again = {"deaths": submit.deaths, "suspect": submit.suspect} if submit.deaths else {}
        self.note("task_submission", request_id, **again)
        same = self.open.get(request_id)
        if same is not None and same.submit.deaths < submit.deaths:
            same.drop(now)  # the gateway had taken this runner for lost
        elif same is not None and same.peer == peer:
            if same.accepted is not None:
                self._link.send(peer, same.accepted)
            return
        request = OpenRequest(
            submit,
            peer=peer,
            now=now,
            host=self,
            entries=self._outboxes.setdefault(peer, []),
            size=text_size(submit.request),
            returns=self._link.takes_back(peer),
        )
        try:
            refusal = (
                not_served(self.spec, self.phase, submit)
                or known_already(request_id, self.open, () if submit.deaths else self._ended)
                or too_long(request, self.open.values())
                or self.responder.refusal(request, now)
            )
            if refusal is None:
                self.open[request_id] = request
                self.totals.used_at = now
                self.responder.begin(request, now)
            else:
                self._link.send(peer, Refused(request_id, refusal))
        except Exception as error:
            self.failed(request, error, "the request could not be placed", now)

    # --- from the responder ----------------------------------------------------------------

    def send(self, peer: bytes, message: ToGateway | FromProposer) -> None:
        """Send a message immediately, before the entries that wait for `flush`."""
        self._link.send(peer, message)

    def flush(self) -> None:
        """Send the new entries of all requests, in one message per gateway process."""
        for peer, entries in tuple(self._outboxes.items()):
            if entries:
                step, batch = self.responder.step(self._reactor.now()), tuple(entries)
                entries.clear()
                if "token" in self._wanted:
                    self._tap(step, batch)
                self._link.send(peer, StepEntries(step, batch))

    def give_back(self, request_id: RequestId, *, begun: bool) -> None:
        """Hand a request back to its gateway, if the responder can stop it. `begun`: a request of
        whose answer a part was already sent may be handed back too."""
        request, now = self.open.get(request_id), self._reactor.now()
        if request is None:
            return
        self.flush()
        message = self.responder.give_back(request, now, begun=begun)
        if message is not None:
            request.is_over = True
            self.open.pop(request_id, None)
            self._link.send(request.peer, message)
            self.note("displaced", request_id)

    def failed(self, request: OpenRequest, error: Exception, message: str, now: float) -> None:
        """Log an error of the responder, and end the request that it belongs to."""
        self._log.error("answering a request failed", what=message, error=story_of(error))
        request.refuse(Refusal(reason="bad_request", message=message), now)
        request.fail("internal", message, now)

    def note(self, phase: RecorderPhase, request_id: RequestId, **facts: object) -> None:
        """Add an entry about a request to the flight recorder."""
        self._recorder.note(wall(), phase, request_id, **facts)

    # --- from open requests --------------------------------------------------------------

    def ended(self, request: OpenRequest, now: float) -> Usage:
        """Forget a request that is over; its id can't be used again if it was accepted."""
        usage, request_id = Usage(), request.request_id
        if self.open.pop(request_id, None) is None:
            return usage
        try:
            usage = self.responder.end(request, now)
        except Exception as error:
            self._log.error("ending a request failed", error=story_of(error))
        if request.accepted is not None:
            drafts = {drafter: list(count) for drafter, count in usage.drafters.items()}
            more = {"drafts": drafts} if drafts else {}
            self.note("completion", request_id, tokens=usage.completion_tokens, **more)
            self.totals.used_at = now
            self._ended[request_id] = None
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        return usage

    # --- from the clock ------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Drop gateway processes that are silent; end requests that are late or whose client no
        longer reads."""
        woke_at, idle_s = self._link.watch(now), self.spec.drop_idle_s
        for request in tuple(self.open.values()):
            if request.accepted is None:
                continue
            if now >= request.deadline_at:
                request.fail("deadline", TIMED_OUT, now)
            elif min(request.stalled_s(now), now - woke_at) > idle_s:
                request.fail("deadline", f"the client read nothing for {idle_s:g} s", now)
        self.flush()

    def fail_all(self, reason: FailReason, message: str) -> None:
        """End every open request."""
        for request in tuple(self.open.values()):
            request.fail(reason, message, self._reactor.now())
        self.flush()
