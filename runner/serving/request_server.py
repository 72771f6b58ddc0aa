"""Talks to gateway processes and the engine's loop: takes requests and sends entries.

Runs in the main thread. Each engine turn becomes at most one message per gateway process. A submit
is answered once with `Accepted` or `Refused`; a repeated submit gets the same answer and is not run
again. An error fails only its own request.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection

from bus.process.clock import wall
from bus.process.logs import story_of
from bus.service import Shell
from bus.wire.errors import TIMED_OUT, FailReason, Refusal
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.tokens import (
    Accepted,
    Cancel,
    Credit,
    Displaced,
    Entry,
    Ping,
    Pong,
    Recall,
    Refused,
    StepEntries,
    Submit,
)
from runner import schedule
from runner.recorder import FlightRecorder, RecorderPhase, ServedTotals
from runner.serving.arrivals import Pending, arrived, cannot_take, known_already, too_long
from runner.serving.gateway_link import Asked, GatewayLink
from runner.serving.giving_back import given_back, resume_request
from runner.serving.lead_loop import LeadLoop, Stepped
from runner.serving.open_request import OpenRequest, Order, Outgoing, carry_out
from runner.serving.told_prompt import answer_frames
from runner.serving.trace import trace_of
from runner.text import Answer, PreparedRequest, ReadPrompt, TextThread, TextWorks, text_size

REMEMBERED = 4096
Tap = Callable[[int, list[Entry]], None]
AskRanks = Callable[[OpenRequest, GatewayLink], None]


class RequestServer:
    """All open requests of this runner.

    `tap` sees each step's entries when they are sent. `works` is set when the tokenizer is loaded.
    `phase` follows the runner; only `ready` accepts requests. `ask_ranks` is called when a request
    ends or is handed back, with a callback for its ranks' spans if it is traced.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        shell: Shell,
        *,
        recorder: FlightRecorder,
        loop: LeadLoop,
        text: TextThread[PreparedRequest | ReadPrompt],
        tap: Tap,
    ) -> None:
        self.spec = spec
        self.phase: Phase = "loading"
        self.works: TextWorks | None = None
        self.totals = ServedTotals(used_at=shell.reactor.now())
        self.ask_ranks: AskRanks = lambda _request, _link: None
        self._boot = shell.speaker.boot
        self._reactor = shell.reactor
        self._log = shell.log
        self._recorder = recorder
        self._loop = loop
        self._text = text
        self._tap = tap
        self._open: dict[RequestId, OpenRequest] = {}
        self._pending: dict[RequestId, Pending] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._link = GatewayLink(spec, shell, self)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._link.addresses

    @property
    def owed(self) -> Collection[RequestId]:
        return self._open.keys() | self._pending.keys()

    def close(self, message: str) -> None:
        self._link.close(message)

    # --- from gateways -------------------------------------------------------------------

    def act_on(self, peer: bytes, message: Asked, now: float) -> None:
        match message:
            case Submit():
                self._submit(peer, message, now)
            case Credit(request_id, choice, grant):
                if (request := self._open.get(request_id)) is not None:
                    out = Outgoing()
                    request.grant(choice, grant, now, out)
                    self._deliver({peer: out})
            case Cancel():
                self._cancel(message, now)
            case Recall(request_id, begun):
                self._give_back(request_id, begun=begun)
            case Ping():
                owes = any(not request.is_paused for request in self._open.values())
                self._link.send(peer, Pong(self._boot, self._loop.status.steps_done, owes))

    def cancel_peer(self, peer: bytes) -> int:
        gone = [request for request in self._open.values() if request.peer == peer]
        for request in gone:
            self._note("cancel_observed", request.request_id, why="gateway gone")
            self._ended_now(request, self._reactor.now())
        self._pending = {
            key: pending for key, pending in self._pending.items() if pending.peer != peer
        }
        if self._loop.scheduler is not None:
            with self._loop.scheduling() as scheduler:
                for request in gone:
                    scheduler.cancel(request.request_id, self._reactor.now())
        return len(gone)

    def _submit(self, peer: bytes, submit: Submit, now: float) -> None:
        request_id = submit.request.request_id
        self._note("task_submission", request_id)
        if request_id in self._open and self._open[request_id].peer == peer:
            prompt_tokens = len(self._open[request_id].prepared.tokens)
            self._link.send(peer, Accepted(request_id, 0, prompt_tokens))
            return
        if request_id in self._pending and self._pending[request_id].peer == peer:
            return
        size, returns = text_size(submit.request), self._link.takes_back(peer)
        coming = arrived(peer, submit, size, now, returns=returns)
        refusal = (
            cannot_take(self.spec, self.phase, self._loop.facts, submit)
            or known_already(request_id, self._open, self._pending, self._ended)
            or too_long(coming, self._pending.values())
            or self._full(coming, now)
        )
        if refusal is not None:
            self._link.send(peer, Refused(request_id, refusal))
            return
        self._pending[request_id] = coming
        self.totals.used_at = now
        request = submit.request
        if request.max_tokens is None:
            limit = {"max_tokens": self.spec.default_max_tokens}
            request = request.model_copy(update=limit)
        self._text.prepare(request, lambda answer: self._prepared(request_id, answer))

    def _full(self, coming: Pending, now: float) -> Refusal | None:
        """Return why one more request does not fit; a request with a worse standing that has not
        begun is displaced first."""
        others = [pending.arrival() for pending in self._pending.values()]
        with self._loop.scheduling() as scheduler:
            place = scheduler.intake.make_place(coming.arrival(), others, now)
        if isinstance(place, Refusal):
            return place
        if place is not None:
            self._give_back(place, begun=False)
        return None

    def _give_back(self, request_id: RequestId, *, begun: bool) -> None:
        """Hand a request back to its gateway. If it has begun, its output goes with it, provided
        that another runner can resume it."""
        pending, request = self._pending.pop(request_id, None), self._open.get(request_id)
        if pending is not None:
            self._link.send(pending.peer, Displaced(request_id))
        elif request is not None and (not request.has_begun or (begun and request.may_move)):
            with self._loop.scheduling() as scheduler:
                ends = scheduler.cancel(request_id, self._reactor.now())
            del self._open[request_id]
            self._link.send(request.peer, given_back(request, ends))
            self.ask_ranks(request, self._link)
        else:
            return
        self._note("displaced", request_id)

    def _prepared(self, request_id: RequestId, answer: Answer) -> None:
        """Process the text thread's result: refuse the request, answer its question about the
        prompt, or submit it to the scheduler."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        now = self._reactor.now()
        self._note("prompt_build", request_id)
        if isinstance(answer, PreparedRequest):
            assert self._loop.facts is not None, "ready"
            answer = resume_request(answer, pending.submit.so_far, self._loop.facts)
        if isinstance(answer, Refusal):
            self._link.send(pending.peer, Refused(request_id, answer))
            return
        if isinstance(answer, ReadPrompt):
            for message in answer_frames(request_id, answer, self._loop.status.steps_done):
                self._link.send(pending.peer, message)
            return
        try:
            placed = self._place(pending, answer, now)
        except Exception as error:
            self._log.error("placing a request failed", error=story_of(error))
            placed = Refusal(reason="bad_request", message="the request could not be placed")
        if isinstance(placed, Refusal):
            self._link.send(pending.peer, Refused(request_id, placed))
            return
        count, unheeded = len(answer.tokens), answer.unheeded
        self._link.send(pending.peer, Accepted(request_id, placed.position, count, unheeded))
        if pending.cancelled is not None:
            self._cancel(pending.cancelled, now)

    def _place(
        self, pending: Pending, prepared: PreparedRequest, now: float
    ) -> schedule.Placed | Refusal:
        works = self.works
        assert works is not None, "ready"
        readers = [works.choice(prepared, choice.choice) for choice in prepared.choices]
        so_far = pending.submit.so_far
        seeds = [
            secrets.randbits(63) if prepared_choice.seed is None else prepared_choice.seed
            for prepared_choice in prepared.choices
        ]
        if so_far is not None:
            seeds = [choice.seed for choice in so_far.choices]
        request = OpenRequest(
            prepared,
            readers,
            seeds=seeds,
            peer=pending.peer,
            credit=pending.submit.credit,
            prompt=works.prompt(prepared),
            trace=trace_of(pending, prepared, now, self.spec.group),
            so_far=so_far,
        )
        with self._loop.scheduling() as scheduler:
            placed = scheduler.submit(
                prepared,
                seeds=seeds,
                now=now,
                deadline_at=pending.deadline_at,
                sharer=pending.sharer,
                waited_s=pending.submit.waited_ms / 1000,
                returns=pending.returns,
                made=[tuple(map(TokenId, choice.made)) for choice in request.choices],
            )
        if isinstance(placed, schedule.Placed):
            if placed.displaced is not None:
                self._give_back(placed.displaced, begun=False)
            self._open[prepared.request_id] = request
        return placed

    def _cancel(self, cancel: Cancel, now: float) -> None:
        self._note("cancel_requested", cancel.request_id, why=cancel.why)
        pending = self._pending.get(cancel.request_id)
        if pending is not None:
            pending.cancelled = cancel
        request = self._open.get(cancel.request_id)
        if request is None:
            return
        out = Outgoing()
        if cancel.why == "deadline":
            request.fail("deadline", TIMED_OUT, out)
        else:
            out.orders.append(Order("cancel", request.choices[0].key))
        self._deliver({request.peer: out})
        self._note("cancel_observed", cancel.request_id)

    # --- from the engine -------------------------------------------------------------------

    def stepped(self, news: Stepped) -> None:
        """Turn the events of a step into entries, one message per gateway process."""
        now = self._reactor.now()
        outs: dict[bytes, Outgoing] = {}
        for event in news.events:
            self._happened(event, outs, now, news)
        self._deliver(outs)

    def _happened(
        self,
        event: schedule.RowEvent,
        outs: dict[bytes, Outgoing],
        now: float,
        news: Stepped | None = None,
    ) -> None:
        request = self._open.get(event.key.request_id)
        if request is None:
            return
        if request.trace is not None and news is not None:
            request.trace.took(event, news)
        out = outs.get(request.peer)
        if out is None:
            out = outs[request.peer] = Outgoing()
        choice = event.key.choice
        try:
            match event:
                case schedule.RowToken():
                    if not request.choices[choice].made:
                        self._note("decode_stream", request.request_id)
                    request.token(choice, event.sampled, now, out)
                    self.totals.generated_tokens += 1
                case schedule.RowScored():
                    request.scored(choice, event.scores, now, out)
                case schedule.RowFinished():
                    if event.why:
                        self._note("memory_short", request.request_id, why=event.why)
                        self._log.warning("ended a row: not enough memory", why=event.why)
                    request.row_finished(choice, event.finish, event.cost, now, out)
                case schedule.RowFailed():
                    request.fail(event.reason, event.message, out, event.cost)
                    self._note("error", request.request_id, reason=event.reason)
                case schedule.RowStarted():
                    request.started(choice, event.cached_tokens)
                    self._started(request, event)
                case schedule.RowPrefilled():
                    request.prefilled(choice, event.done, event.total, out)
                    phase = "decode_wait_first_token" if event.done == event.total else "prefill"
                    self._note(phase, request.request_id, done=event.done, total=event.total)
        except Exception as error:
            self._log.error("reading a row failed", error=story_of(error))
            request.fail("internal", "the model's output could not be read", out)
        for what in request.newly_parsed():
            self._note("parser", request.request_id, found=what)
        if request.is_over:
            self._ended_now(request, now)

    def _started(self, request: OpenRequest, event: schedule.RowStarted) -> None:
        if event.key.choice == 0 and request.is_first:
            self.totals.requests += 1
            self.totals.prompt_tokens += len(request.prepared.tokens)
        self._note("kv_cache_lookup", event.key.request_id, cached_tokens=event.cached_tokens)
        if event.cached_tokens:
            self.totals.prefix_hits += 1
            self.totals.cached_tokens += event.cached_tokens

    def _deliver(self, outs: dict[bytes, Outgoing]) -> None:
        """Apply orders (which may make more entries), then send."""
        now = self._reactor.now()
        while self._loop.scheduler is not None and any(out.orders for out in outs.values()):
            events: list[schedule.RowEvent] = []
            with self._loop.scheduling() as scheduler:
                for out in outs.values():
                    for order in out.orders:
                        events += carry_out(order, scheduler, now)
                    out.orders.clear()
            for event in events:
                self._happened(event, outs, now)
        step = self._loop.status.steps_done
        for peer, out in outs.items():
            if not out.entries:
                continue
            for request_id in {entry.request_id for entry in out.entries}:
                request = self._open.get(request_id)
                if request is not None and request.is_over:
                    self._ended_now(request, now)
            self._tap(step, out.entries)
            self._link.send(peer, StepEntries(step, tuple(out.entries)))

    def _ended_now(self, request: OpenRequest, now: float) -> None:
        if self._open.pop(request.request_id, None) is None:
            return
        if request.trace is not None:
            self._link.send(request.peer, request.trace.report(now))
            self.ask_ranks(request, self._link)
        self._note("completion", request.request_id, tokens=request.usage().completion_tokens)
        self.totals.used_at = now
        self._ended[request.request_id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    # --- from the clock ----------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Give up silent gateway processes and clients that stopped reading."""
        woke_at, outs = self._link.watch(now), dict[bytes, Outgoing]()
        for request in list(self._open.values()):
            if min(request.stalled_s(now), now - woke_at) > self.spec.drop_idle_s:
                out = outs.setdefault(request.peer, Outgoing())
                message = f"the client read nothing for {self.spec.drop_idle_s:g} s"
                request.fail("deadline", message, out)
        self._deliver(outs)

    def fail_all(self, reason: FailReason, message: str) -> None:
        outs: dict[bytes, Outgoing] = {}
        for request in list(self._open.values()):
            request.fail(reason, message, outs.setdefault(request.peer, Outgoing()))
        refusal = Refusal(reason="not_ready", message=message)
        for request_id, pending in self._pending.items():
            self._link.send(pending.peer, Refused(request_id, refusal))
        self._pending.clear()
        for out in outs.values():
            out.orders.clear()  # the scheduler may be out of reach; the process ends
        self._deliver(outs)

    def _note(self, phase: RecorderPhase, request_id: RequestId, **facts: object) -> None:
        self._recorder.note(wall(), phase, request_id, **facts)
