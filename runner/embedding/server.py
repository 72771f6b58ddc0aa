"""Talks to gateway processes, the text thread and the engine's loop: requests in, vectors out.

Runs in the main thread. A submit is answered once: `Accepted` or `Refused`; a repeated one is
answered again and done once. What is wrong with a request fails that request alone. One batch is
computed at a time; each turn becomes at most one message per gateway process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from functools import partial

from bus.process.clock import wall
from bus.service import Shell
from bus.wire.errors import TIMED_OUT, FailReason, Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.tokens import (
    Accepted,
    Cancel,
    Credit,
    Entry,
    Ping,
    Pong,
    Recall,
    Refused,
    StepEntries,
    Submit,
)
from runner.embedding.batches import next_batch
from runner.embedding.inputs import PreparedInputs
from runner.embedding.intake import EmbeddingIntake
from runner.embedding.loop import Embedded, EmbeddingLoop
from runner.embedding.open_embedding import OpenEmbedding
from runner.recorder import FlightRecorder, RecorderPhase, ServedTotals
from runner.schedule import SchedulerLoad
from runner.serving.arrivals import UNNAMED
from runner.serving.gateway_link import Asked, GatewayLink
from runner.text import TextThread

REMEMBERED = 4096


class EmbeddingServer:
    """The requests that this runner owes an end, and what becomes of them. `intake` is told where
    the runner stands."""

    def __init__(
        self,
        spec: RunnerSpec,
        shell: Shell,
        *,
        recorder: FlightRecorder,
        loop: EmbeddingLoop,
        text: TextThread[PreparedInputs],
    ) -> None:
        self.intake = EmbeddingIntake(spec)
        self.totals = ServedTotals(used_at=shell.reactor.now())
        self._boot = shell.speaker.boot
        self._reactor = shell.reactor
        self._drop_idle_s = spec.drop_idle_s
        self._recorder = recorder
        self._loop = loop
        self._text = text
        self._open: dict[RequestId, OpenEmbedding] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._batches = 0
        self._beats = 0
        self._computing: frozenset[RequestId] | None = None
        self._link = GatewayLink(spec, shell, self)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the sockets where gateways find this runner."""
        return self._link.addresses

    @property
    def owed(self) -> Collection[RequestId]:
        """Return the requests that are owed an end."""
        return self._open.keys()

    def load(self) -> SchedulerLoad:
        """Return how many requests are being computed, and how many wait for their turn."""
        computing = self._computing or frozenset()
        waiting = [one for key, one in self._open.items() if key not in computing]
        best = min((one.request.priority for one in waiting), default=None)
        running = [one for key, one in self._open.items() if key in computing]
        served = min((one.request.priority for one in running), default=None)
        return SchedulerLoad(len(running), len(waiting), best, served)

    def close(self, message: str) -> None:
        """Say goodbye and go; what is open has been ended before."""
        self._link.close(message)

    # --- from gateways -------------------------------------------------------------------

    def asked(self, peer: bytes, message: Asked, now: float) -> None:
        """Take up what a gateway process asks for; nothing is given back here."""
        match message:
            case Submit():
                self._submit(peer, message, now)
            case Credit(request_id, _, grant):
                request = self._open.get(request_id)
                if request is not None:
                    request.grant(grant, now)
                    self._advance()
            case Cancel():
                self._cancel(message, now)
            case Recall():
                pass
            case Ping():
                self._link.send(peer, self._pong(now))

    def _pong(self, now: float) -> Pong:
        """Return the answer to a ping. A batch may take longer than a gateway waits for a step: as
        long as it is not late, each answer counts as one."""
        since = self._loop.status.busy_since
        if since is not None and now - since <= self._loop.limit_s():
            self._beats += 1
        owes = any(one.credit > 0 for one in self._open.values())
        return Pong(self._boot, self._loop.status.steps_done + self._beats, owes)

    def gone(self, peer: bytes) -> int:
        """Cancel what a gateway process asked for; return how many requests were open."""
        gone = [request for request in self._open.values() if request.peer == peer]
        for request in gone:
            self._note("cancel_observed", request.request_id, why="gateway gone")
            request.cancel(self._reactor.now())
            self._forget(request)
        return len(gone)

    def _submit(self, peer: bytes, submit: Submit, now: float) -> None:
        request_id = submit.request.request_id
        self._note("task_submission", request_id)
        if request_id in self._open and self._open[request_id].peer == peer:
            self._link.send(peer, Accepted(request_id, 0, 0))
            return
        if request_id in self._open or request_id in self._ended:
            message = f"request {request_id} is known already"
            self._link.send(peer, Refused(request_id, Refusal(reason="conflict", message=message)))
            return
        refusal = self.intake.refusal(submit, self._open.values())
        if refusal is not None:
            self._link.send(peer, Refused(request_id, refusal))
            return
        request = OpenEmbedding(submit, peer=peer, sharer=submit.sharer or UNNAMED, now=now)
        self._link.send(peer, Accepted(request_id, len(self._open), 0))
        self._open[request_id] = request
        self.totals.requests += 1
        self.totals.used_at = now
        self._prepare(request)

    def _cancel(self, cancel: Cancel, now: float) -> None:
        self._note("cancel_requested", cancel.request_id, why=cancel.why)
        request = self._open.get(cancel.request_id)
        if request is None:
            return
        if cancel.why == "deadline":
            entries = request.fail("deadline", TIMED_OUT, now)
        else:
            entries = request.cancel(now)
        self._send({request: entries})
        self._note("cancel_observed", cancel.request_id)

    # --- inputs and batches ----------------------------------------------------------------

    def _prepare(self, request: OpenEmbedding) -> None:
        part = request.part()
        if part is not None:
            self._text.prepare(part, partial(self._prepared, request))

    def _prepared(self, request: OpenEmbedding, answer: PreparedInputs | Refusal) -> None:
        if request.is_over:
            return
        self._note("prompt_build", request.request_id)
        if isinstance(answer, Refusal):
            self._send({request: request.refused(answer, self._reactor.now())})
            return
        request.prepared(answer.prompts)
        self._prepare(request)
        self._advance()

    def _advance(self) -> None:
        """Have the next batch computed, unless one is being computed."""
        facts = self.intake.facts
        if self._computing is not None or facts is None:
            return
        batch = next_batch(
            self._open.values(),
            number=self._batches + 1,
            budget_tokens=self._loop.pace.budget_tokens,
            vector_bytes=4 * facts.width,
            now=self._reactor.now(),
        )
        if batch is None:
            return
        self._batches += 1
        self._computing = frozenset(one.request_id for one in batch.parts)
        self._loop.give(batch)
        for request in batch.parts:
            self._prepare(request)

    def embedded(self, news: Embedded) -> None:
        """Send the vectors of a batch, and have the next one computed."""
        now = self._reactor.now()
        self._computing = None
        self.totals.prompt_tokens += news.batch.tokens
        told: dict[OpenEmbedding, list[Entry]] = {}
        start = 0
        for request, prompts in news.batch.parts.items():
            vectors = news.vectors[start : start + len(prompts)]
            start += len(prompts)
            told[request] = request.computed(prompts, vectors, now)
        self._advance()
        self._send(told)

    def _send(self, told: dict[OpenEmbedding, list[Entry]]) -> None:
        """Send entries, one message per gateway process; forget requests that are over."""
        by_peer: dict[bytes, list[Entry]] = {}
        for request, entries in told.items():
            if entries:
                by_peer.setdefault(request.peer, []).extend(entries)
            if request.is_over:
                self._forget(request)
        step = self._loop.status.steps_done
        for peer, entries in by_peer.items():
            self._link.send(peer, StepEntries(step, tuple(entries)))

    def _forget(self, request: OpenEmbedding) -> None:
        if self._open.pop(request.request_id, None) is None:
            return
        self._note("completion", request.request_id)
        self.totals.used_at = self._reactor.now()
        self._ended[request.request_id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    # --- from the clock ----------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Give up silent gateway processes, readers that never come back, and what is too late."""
        woke_at = self._link.watch(now)
        told: dict[OpenEmbedding, list[Entry]] = {}
        for request in self._open.values():
            if now >= request.deadline_at:
                told[request] = request.fail("deadline", TIMED_OUT, now)
            elif min(request.stalled_s(now), now - woke_at) > self._drop_idle_s:
                message = f"the reader took nothing for {self._drop_idle_s:g} s"
                told[request] = request.fail("deadline", message, now)
        self._send(told)

    def fail_all(self, reason: FailReason, message: str) -> None:
        """End everything that is open."""
        now = self._reactor.now()
        self._send({one: one.fail(reason, message, now) for one in self._open.values()})

    def _note(self, phase: RecorderPhase, request_id: RequestId, **facts: object) -> None:
        self._recorder.note(wall(), phase, request_id, **facts)
