"""Talks to the log, the metrics and the records: reports each request when it has ended.

Each request is reported exactly once, also if it was refused. Reports never contain text of prompts
or answers. Requests without access rights are not reported, because a stranger could send so many
that all other entries are deleted from the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bus.links.reactor import Reactor
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.ids import NodeId, RequestId, is_model_id
from bus.wire.messages.requests import Usage
from gateway.access import AskingClients
from gateway.dialects.dialect import Extras
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange.flow import FINISHED, UNPARSED, Flow
from gateway.records import ClientTotals, NodeRecords, RequestRow, TraceRow
from gateway.requests.catalog import ModelCatalog
from gateway.requests.dispatcher import Exchange
from gateway.requests.request import ClientRequest
from gateway.tracing import GatewayTrace, TracedRequest, document_of
from gateway.tracing.otlp import EndedTrace, asked_attributes, open_exporter
from gateway.view.metrics import Metrics
from gateway.view.options import Options

RANKS_S = 1.0
"""A trace is stored after this time, even if some ranks have not reported their timings."""


@dataclass(slots=True)
class ProvidedAnswer:
    """The facts of an answer that a provider made. `model` is the model's name in this cluster,
    `counted_as` its name in the metrics. `began_at` is when the first bytes arrived. `finish` is
    the finish reason."""

    request: RequestId
    model: str
    counted_as: str
    extras: Extras
    streamed: bool
    began_at: float | None = None
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None


class EndedRequests:
    """Reports the ended requests of one HTTP process to the log, the metrics and the records."""

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

    def tell(self, exchange: Exchange, flow: Flow, outcome: str, status: int) -> None:
        """Report an exchange: update the metrics, write a log line and write a row for each of its
        requests. `outcome` is `FINISHED` or an error code."""
        now = self._reactor.now()
        requests = exchange.requests
        prompts = [request for request in requests if request.wire.question is None]
        read_tokens = sum(request.prompt_tokens for request in prompts)
        made_tokens = sum(request.answered_tokens for request in requests)
        self._count(flow, outcome, read_tokens, made_tokens)
        for request in requests:
            row = _row_of(request, flow, outcome, status, now)
            read_once = request.prompt_tokens if request.wire.question is None else 0
            self._tell_row(row, str(exchange.model), read_once)
            queued_s = _queued_s(request, flow)
            if queued_s is not None:
                self._metrics.queued(str(exchange.model), queued_s)
            if request.trace is not None:
                self._keep_trace(request, request.trace, flow, row, now)

    async def stop(self) -> None:
        """Export the remaining traces; the exporter limits how long this takes."""
        if self._exporter is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._exporter.close)

    def tell_provided(
        self, flow: Flow, provided: ProvidedAnswer, outcome: str, status: int
    ) -> None:
        """Report a request that a provider answered: update the metrics, write a log line and write
        a row. `outcome` is `FINISHED` or an error code."""
        now, usage = self._reactor.now(), provided.usage
        self._count(flow, outcome, usage.prompt_tokens, usage.completion_tokens)
        row = RequestRow(
            request=provided.request,
            ended_at_s=wall(),
            kind=flow.head.kind,
            dialect=flow.head.dialect.name,
            seconds=round(now - flow.head.came_at, 6),
            status=status,
            model=provided.model,
            client=provided.extras.client_id,
            key=flow.head.key,
            priority=provided.extras.priority,
            streamed=provided.streamed,
            ttft_s=_since(flow, provided.began_at),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish=provided.finish,
            error=None if outcome == FINISHED else outcome,
        )
        self._tell_row(row, provided.counted_as, usage.prompt_tokens)

    def tell_refused(self, flow: Flow, fault: HttpFault) -> None:
        """Report a request that was refused before its exchange existed: count it and write its
        row."""
        self._clients.ended(flow.head.client, ClientTotals(refused=1))
        if not self._records.logs_requests:
            return
        parsed, head = flow.parsed, flow.head
        is_forwarded = flow.trial is not None and flow.trial.forwards
        is_parsed = parsed is not UNPARSED and not is_forwarded
        first = parsed.requests[0].request_id if parsed.requests else head.answer_id
        self._records.log_request(
            RequestRow(
                request=first,
                ended_at_s=wall(),
                kind=head.kind,
                dialect=head.dialect.name,
                seconds=round(self._reactor.now() - head.came_at, 6),
                status=fault.status,
                model=self._model_of(parsed.model) if is_parsed else None,
                client=parsed.extras.client_id if is_parsed else None,
                key=head.key,
                priority=parsed.extras.priority if is_parsed else None,
                streamed=is_parsed and parsed.stream,
                error=fault.code,
            )
        )

    def _tell_row(self, row: RequestRow, model: str, read_tokens: int) -> None:
        """Count an answered request; write its log line and its row. `model` is the model's name in
        the metrics. `read_tokens`: prompt tokens, counted once per prompt (`n > 1` shares it)."""
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
        self._records.log_request(row)

    def _tell_trace(self, trace: TraceRow, source: GatewayTrace, request: ClientRequest) -> None:
        if self._options.keeps_traces:
            self._records.log_request(trace)
        if self._exporter is not None:
            spans = trace.spans + source.enclosing_spans
            attributes = asked_attributes(request.wire)
            self._exporter.offer(EndedTrace(trace.trace, spans, attributes))

    def _keep_trace(
        self,
        request: ClientRequest,
        trace: GatewayTrace,
        flow: Flow,
        row: RequestRow,
        now: float,
    ) -> None:
        """Store a trace once all ranks of its group have reported, or after `RANKS_S`."""
        traced_request = _traced_request(self._options.node, request, flow, row, now)

        def keep() -> None:
            trace.when_whole(None)
            self._tell_trace(_trace_of(trace, traced_request), trace, request)

        if trace.is_whole:
            keep()
            return
        late = self._reactor.later(RANKS_S, keep)

        def keep_now() -> None:
            late.cancel()
            keep()

        trace.when_whole(keep_now)

    def _count(self, flow: Flow, outcome: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Count an accepted request for its client, and start the client's cooldown."""
        failed = int(outcome != FINISHED)
        totals = ClientTotals(1, 0, failed, prompt_tokens, completion_tokens)
        self._clients.ended(flow.head.client, totals)
        if flow.cooldown_s:
            self._clients.rests(flow.head.client, flow.cooldown_s)

    def _model_of(self, name: str) -> str | None:
        """Return the model that a name means. If no model matches, return the name itself if it has
        the form of a model id, else None, because such a name can be any text."""
        try:
            return str(self._models.named(name))
        except HttpFaultRaised:
            return name if is_model_id(name) else None


def _queued_s(request: ClientRequest, flow: Flow) -> float | None:
    """Return how long a request waited, in the gateway and at the runner, before the runner began
    it. None if the runner did not report its part."""
    usage, submitted_at = request.usage, request.submitted_at
    if usage is None or submitted_at is None or not usage.prefill_s + usage.decode_s:
        return None
    return submitted_at - flow.head.came_at + usage.queue_s


def _since(flow: Flow, at: float | None) -> float | None:
    """Return the time from a request's start to `at`; None if `at` is None."""
    return None if at is None else round(at - flow.head.came_at, 6)


def _row_of(
    request: ClientRequest, flow: Flow, outcome: str, status: int, now: float
) -> RequestRow:
    wire, usage = request.wire, request.usage
    return RequestRow(
        request=request.request_id,
        ended_at_s=wall(),
        kind=flow.head.kind,
        dialect=flow.head.dialect.name,
        seconds=round(now - flow.head.came_at, 6),
        status=status,
        model=wire.model,
        client=wire.client_id,
        key=flow.head.key,
        priority=wire.priority,
        streamed=flow.parsed.stream,
        instance=request.instance,
        node=request.node,
        load_s=round(request.inbox.load_s, 6),
        queue_s=None if usage is None else round(usage.queue_s, 6),
        prefill_s=None if usage is None else round(usage.prefill_s, 6),
        decode_s=None if usage is None else round(usage.decode_s, 6),
        ttft_s=_since(flow, request.first_at),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        completion_tokens=request.tokens if usage is None else usage.completion_tokens,
        finish=", ".join(sorted(request.finishes)) or None,
        error=None if outcome == FINISHED else outcome,
    )


def _traced_request(
    node: NodeId, request: ClientRequest, flow: Flow, row: RequestRow, now: float
) -> TracedRequest:
    facts = {
        "model": str(request.model),
        "kind": row.kind,
        "dialect": row.dialect,
        "streamed": row.streamed,
        "why": flow.traced,
        "status": row.status,
        "error": row.error,
        "answer": flow.parsed.answer_id,
        "finishes": sorted(request.finishes),
        "first_token_s": row.ttft_s,
    }
    return TracedRequest(
        request=request.request_id,
        place=flow.place(request.request_id),
        node=node,
        began_at_s=wall() - (now - flow.head.came_at),
        started_at=flow.head.came_at,
        read_at=flow.read_at,
        ended_at=now,
        facts=facts,
        usage=request.usage,
    )


def _trace_of(trace: GatewayTrace, request: TracedRequest) -> TraceRow:
    document, facts = document_of(trace, request), request.facts
    seconds = request.ended_at - request.started_at
    return TraceRow(
        request=request.request,
        ended_at_s=request.began_at_s + seconds,
        began_at_s=request.began_at_s,
        seconds=round(seconds, 6),
        why=facts["why"],
        spans=document.spans,
        sums=json_bytes(document.sums),
        trace=json_bytes(document.told),
        model=facts["model"],
        status=facts["status"],
        error=facts["error"],
    )
