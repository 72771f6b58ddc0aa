"""Talks to gateway processes, the text thread and the engine's loop: takes requests and sends
vectors.

Runs in the main thread. A submit is answered once with `Accepted` or `Refused`; a repeated submit
gets the same answer and is not run again. An error fails only its own request. One batch is
computed at a time; its vectors go out in at most one message per gateway process.
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
    """All open requests of this runner. Its owner sets the phase and facts of `intake`."""

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
        """Return the addresses of the sockets that gateways connect to."""
        return self._link.addresses

    @property
    def owed(self) -> Collection[RequestId]:
        return self._open.keys()

    def load(self) -> SchedulerLoad:
        """Return the numbers of running and waiting requests."""
        computing = self._computing or frozenset()
        waiting = [request for key, request in self._open.items() if key not in computing]
        best = min((request.request.priority for request in waiting), default=None)
        running = [request for key, request in self._open.items() if key in computing]
        served = min((request.request.priority for request in running), default=None)
        return SchedulerLoad(len(running), len(waiting), best, served)

    def close(self, message: str) -> None:
        """Close the link; open requests must have ended before."""
        self._link.close(message)

    # --- from gateways -------------------------------------------------------------------

    def act_on(self, peer: bytes, message: Asked, now: float) -> None:
        """Act on a gateway's message. Embedding requests are never handed over, so `Recall` is
        ignored."""
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
        """Answer a ping. A batch may take longer than a gateway waits for a step, so each pong
        counts as a step until the batch is late."""
        since = self._loop.status.busy_since
        if since is not None and now - since <= self._loop.limit_s():
            self._beats += 1
        owes = any(request.credit > 0 for request in self._open.values())
        return Pong(self._boot, self._loop.status.steps_done + self._beats, owes)

    def cancel_peer(self, peer: bytes) -> int:
        """Cancel all requests of a gateway process; return how many were open."""
        open_requests = [request for request in self._open.values() if request.peer == peer]
        for request in open_requests:
            self._note("cancel_observed", request.request_id, why="gateway gone")
            request.cancel(self._reactor.now())
            self._forget(request)
        return len(open_requests)

    def _submit(self, peer: bytes, submit: Submit, now: float) -> None:
        request_id = submit.request.request_id
        self._note("task_submission", request_id)
        if request_id in self._open and self._open[request_id].peer == peer:
            self._link.send(peer, Accepted(request_id, 0, 0))
            return
        if request_id in self._open or request_id in self._ended:
            message = f"request {request_id} already exists"
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
        """Start the next batch unless one is running."""
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
        self._computing = frozenset(part.request_id for part in batch.parts)
        self._loop.give(batch)
        for request in batch.parts:
            self._prepare(request)

    def embedded(self, news: Embedded) -> None:
        """Send the vectors of a batch and start the next one."""
        now = self._reactor.now()
        self._computing = None
        self.totals.prompt_tokens += news.batch.tokens
        entries: dict[OpenEmbedding, list[Entry]] = {}
        start = 0
        for request, prompts in news.batch.parts.items():
            vectors = news.vectors[start : start + len(prompts)]
            start += len(prompts)
            entries[request] = request.computed(prompts, vectors, now)
        self._advance()
        self._send(entries)

    def _send(self, entries_of: dict[OpenEmbedding, list[Entry]]) -> None:
        """Send entries, one message per gateway process; drop requests that have ended."""
        by_peer: dict[bytes, list[Entry]] = {}
        for request, entries in entries_of.items():
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
        """Give up silent gateway processes, clients that stopped reading, and late requests."""
        woke_at = self._link.watch(now)
        entries: dict[OpenEmbedding, list[Entry]] = {}
        for request in self._open.values():
            if now >= request.deadline_at:
                entries[request] = request.fail("deadline", TIMED_OUT, now)
            elif min(request.stalled_s(now), now - woke_at) > self._drop_idle_s:
                message = f"the client read nothing for {self._drop_idle_s:g} s"
                entries[request] = request.fail("deadline", message, now)
        self._send(entries)

    def fail_all(self, reason: FailReason, message: str) -> None:
        now = self._reactor.now()
        self._send({request: request.fail(reason, message, now) for request in self._open.values()})

    def _note(self, phase: RecorderPhase, request_id: RequestId, **facts: object) -> None:
        self._recorder.note(wall(), phase, request_id, **facts)
