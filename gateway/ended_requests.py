"""Talks to the log, the metrics and the records: what is told of a request that has ended.

Each request is told of once, those that were refused before they had an exchange too; none of what
is told has a word of a prompt or an answer. Who may not come in is not told of: a stranger could
push all others out of the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bus.links.reactor import Reactor
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.ids import NodeId, RequestId, is_model_id
from bus.wire.messages.requests import Usage
from bus.wire.tasks import ClientName
from gateway.clients import AskingClients
from gateway.cluster.metrics import Metrics
from gateway.cluster.options import Options
from gateway.dialects.dialect import Extras, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.records import ClientTotals, JobRun, Kind, NodeRecords, RequestRow, TraceRow
from gateway.requests.catalog import ModelCatalog
from gateway.requests.dispatcher import Exchange
from gateway.requests.otlp import EndedTrace, asked_attributes, open_exporter
from gateway.requests.request import ClientRequest
from gateway.requests.tasks import Attempt
from gateway.requests.tracing import (
    GatewayTrace,
    TraceChoice,
    TracedRequest,
    TraceParent,
    TracePlace,
    document_of,
    place_of,
)

FINISHED = "finished"
RANKS_S = 1.0
"""A trace is kept without the ranks that have not told by then."""


@dataclass(slots=True)
class AskedOver:
    """What is known of a request over HTTP, from its first byte on; `parsed` once its body was.

    `key` is the id of its API key, `answer_id` what its answer is called until it has a name, `run`
    the run of a job that it is, `attempt` what it has to keep to as a candidate of a task.
    `read_at` is when its body had come; `traced` why it is traced, `parent` its client's span.
    `client` is who asks, by its client id once the body says one; it rests for `cooldown_s`
    afterwards. `owner` is whose its answer is, where that is kept.
    """

    kind: Kind
    dialect: str
    started_at: float
    key: str | None
    answer_id: str
    client: ClientName
    parsed: Parsed | None = None
    run: JobRun | None = None
    attempt: Attempt | None = None
    read_at: float | None = None
    traced: TraceChoice = ""
    parent: TraceParent | None = None
    cooldown_s: float = 0.0
    owner: str = ""

    @property
    def streamed(self) -> bool:
        """Return whether the answer comes as a stream."""
        return self.parsed is not None and self.parsed.stream

    def place(self, request: str) -> TracePlace:
        """Return the place of one of its requests in their trace."""
        parsed = self.parsed
        first = request if parsed is None or not parsed.requests else parsed.requests[0].request_id
        return place_of(request, first, self.parent)


@dataclass(slots=True)
class ProvidedAnswer:
    """What is known of an answer that a provider gives.

    `model` is its name here, `counted_as` the one that metrics have for it, `began_at` when its
    first bytes came, `finish` why it ended.
    """

    request: RequestId
    model: str
    counted_as: str
    extras: Extras
    streamed: bool
    began_at: float | None = None
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None


class EndedRequests:
    """What one HTTP process tells of its requests when they have ended."""

    def __init__(
        self,
        *,
        reactor: Reactor,
        log: Log,
        metrics: Metrics,
        records: NodeRecords,
        models: ModelCatalog,
        clients: AskingClients,
        options: Options,
    ) -> None:
        self._options = options
        self._clients = clients
        self._reactor = reactor
        self._log = log
        self._metrics = metrics
        self._records = records
        self._models = models
        self._exporter = open_exporter(options, log, metrics.exported)

    def tell(self, exchange: Exchange, asked: AskedOver, *, outcome: str, status: int) -> None:
        """Tell of an exchange, all its requests: counts, a line each in the log, and a row each.
        `outcome` is `FINISHED` or the code of what went wrong."""
        now = self._reactor.now()
        read = [one.prompt_tokens for one in exchange.requests if one.wire.question is None]
        made = sum(one.answered_tokens for one in exchange.requests)
        self._count(asked, outcome, sum(read), made)
        for request in exchange.requests:
            row = _row_of(request, asked, outcome, status, now)
            read_once = request.prompt_tokens if request.wire.question is None else 0
            self._tell_row(row, str(exchange.model), read_once)
            queued_s = _queued_s(request, asked)
            if queued_s is not None:
                self._metrics.queued(str(exchange.model), queued_s)
            if request.trace is not None:
                self._keep_trace(request, request.trace, asked, row, now)

    async def stop(self) -> None:
        """Send the traces that wait to be exported, for a moment."""
        if self._exporter is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._exporter.close)

    def tell_provided(
        self, asked: AskedOver, provided: ProvidedAnswer, *, outcome: str, status: int
    ) -> None:
        """Tell of a request that a provider was asked, as `tell` does."""
        now, usage = self._reactor.now(), provided.usage
        self._count(asked, outcome, usage.prompt_tokens, usage.completion_tokens)
        row = RequestRow(
            request=provided.request,
            ended_at_s=wall(),
            kind=asked.kind,
            dialect=asked.dialect,
            seconds=_rounded(now - asked.started_at),
            status=status,
            model=provided.model,
            client=provided.extras.client_id,
            key=asked.key,
            priority=provided.extras.priority,
            streamed=provided.streamed,
            ttft_s=_since(asked, provided.began_at),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish=provided.finish,
            error=_error_of(outcome),
        )
        self._tell_row(row, provided.counted_as, usage.prompt_tokens)

    def tell_refused(self, asked: AskedOver, fault: HttpFault) -> None:
        """Count a request that was refused before it had an exchange, and write a row of it."""
        self._clients.ended(asked.client, ClientTotals(refused=1))
        if not self._records.logs_requests:
            return
        parsed = asked.parsed
        first = parsed.requests[0] if parsed is not None and parsed.requests else None
        self._records.log_request(
            RequestRow(
                request=asked.answer_id if first is None else first.request_id,
                ended_at_s=wall(),
                kind=asked.kind,
                dialect=asked.dialect,
                seconds=_rounded(self._reactor.now() - asked.started_at),
                status=fault.status,
                model=None if parsed is None else self._model_of(parsed.model),
                client=None if parsed is None else parsed.extras.client_id,
                key=asked.key,
                priority=None if parsed is None else parsed.extras.priority,
                streamed=asked.streamed,
                error=fault.code,
            )
        )

    def _tell_row(self, row: RequestRow, model: str, read_tokens: int) -> None:
        """Count an answered request for the model that metrics know it by, and write its line and
        its row. `read_tokens`: of its prompt, where no other request counts the same ones."""
        outcome = row.error or FINISHED
        self._metrics.ended(model, outcome, read_tokens, row.ttft_s, row.seconds)
        self._log.info(
            "request",
            request=row.request,
            client=row.client,
            model=row.model,
            instance=row.instance,
            status=row.status,
            outcome=outcome,
            prompt_tokens=row.prompt_tokens,
            tokens=row.completion_tokens,
            ttft_s=row.ttft_s,
            load_s=row.load_s,
            seconds=row.seconds,
        )
        if self._records.logs_requests:
            self._records.log_request(row)

    def _tell_trace(self, trace: TraceRow, told: GatewayTrace, request: ClientRequest) -> None:
        if self._options.keeps_traces:
            self._records.log_request(trace)
        if self._exporter is not None:
            spans = trace.spans + told.enclosing_spans
            asked = asked_attributes(request.wire)
            self._exporter.offer(EndedTrace(trace.trace, spans, asked))

    def _keep_trace(
        self,
        request: ClientRequest,
        trace: GatewayTrace,
        asked: AskedOver,
        row: RequestRow,
        now: float,
    ) -> None:
        """Have a trace kept once the ranks of its runner's group have told, or soon."""
        known = _known_of(self._options.node, request, asked, row, now)

        def keep() -> None:
            """Write the row."""
            trace.when_whole(None)
            self._tell_trace(_trace_of(trace, known), trace, request)

        if trace.is_whole:
            keep()
            return
        late = self._reactor.later(RANKS_S, keep)

        def keep_now() -> None:
            """Write the row, and not again."""
            late.cancel()
            keep()

        trace.when_whole(keep_now)

    def _count(
        self, asked: AskedOver, outcome: str, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """Count for its client a request that was taken; from now on that rests."""
        failed = int(outcome != FINISHED)
        totals = ClientTotals(1, 0, failed, prompt_tokens, completion_tokens)
        self._clients.ended(asked.client, totals)
        self._clients.rests(asked.client, asked.cooldown_s)

    def _model_of(self, name: str) -> str | None:
        """Return the model that a name means; the name where it means none and has the form of one,
        for what has not may be any text."""
        try:
            return str(self._models.named(name))
        except HttpFaultRaised:
            return name if is_model_id(name) else None


def _queued_s(request: ClientRequest, asked: AskedOver) -> float | None:
    """Return how long a request waited until a runner began with it: here and then there. None
    where no runner told that it worked on it."""
    usage, submitted_at = request.usage, request.submitted_at
    if usage is None or submitted_at is None or not usage.prefill_s + usage.decode_s:
        return None
    return submitted_at - asked.started_at + usage.queue_s


def _since(asked: AskedOver, at: float | None) -> float | None:
    """Return how long after a request came something was, None where it never was."""
    return None if at is None else _rounded(at - asked.started_at)


def _error_of(outcome: str) -> str | None:
    return None if outcome == FINISHED else outcome


def _row_of(
    request: ClientRequest, asked: AskedOver, outcome: str, status: int, now: float
) -> RequestRow:
    wire, usage = request.wire, request.usage
    return RequestRow(
        request=request.request_id,
        ended_at_s=wall(),
        kind=asked.kind,
        dialect=asked.dialect,
        seconds=_rounded(now - asked.started_at),
        status=status,
        model=wire.model,
        client=wire.client_id,
        key=asked.key,
        priority=wire.priority,
        streamed=asked.streamed,
        instance=request.instance,
        node=request.node,
        load_s=_rounded(request.inbox.load_s),
        queue_s=None if usage is None else _rounded(usage.queue_s),
        prefill_s=None if usage is None else _rounded(usage.prefill_s),
        decode_s=None if usage is None else _rounded(usage.decode_s),
        ttft_s=_since(asked, request.first_at),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        completion_tokens=request.tokens if usage is None else usage.completion_tokens,
        finish=", ".join(sorted(request.finishes)) or None,
        error=_error_of(outcome),
    )


def _known_of(
    node: NodeId, request: ClientRequest, asked: AskedOver, row: RequestRow, now: float
) -> TracedRequest:
    facts = {
        "model": str(request.model),
        "kind": row.kind,
        "dialect": row.dialect,
        "streamed": row.streamed,
        "why": asked.traced,
        "status": row.status,
        "error": row.error,
        "answer": "" if asked.parsed is None else asked.parsed.answer_id,
        "finishes": sorted(request.finishes),
        "first_token_s": row.ttft_s,
    }
    return TracedRequest(
        request=request.request_id,
        place=asked.place(request.request_id),
        node=node,
        began_at_s=wall() - (now - asked.started_at),
        started_at=asked.started_at,
        read_at=asked.read_at,
        ended_at=now,
        facts=facts,
        usage=request.usage,
    )


def _trace_of(trace: GatewayTrace, known: TracedRequest) -> TraceRow:
    document, facts = document_of(trace, known), known.facts
    seconds = known.ended_at - known.started_at
    return TraceRow(
        request=known.request,
        ended_at_s=known.began_at_s + seconds,
        began_at_s=known.began_at_s,
        seconds=_rounded(seconds),
        why=facts["why"],
        spans=document.spans,
        sums=json_bytes(document.sums),
        trace=json_bytes(document.told),
        model=facts["model"],
        status=facts["status"],
        error=facts["error"],
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
