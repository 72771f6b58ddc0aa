"""Talks to the log, the metrics and the records: reports each request when it has ended.

Each request is reported exactly once, also if it was refused. Reports never contain text of prompts
or answers. Requests without access rights are not reported, because a stranger could send so many
that all other entries are deleted from the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bus.links.reactor import Reactor
from bus.models.tasks import ClientName
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.ids import NodeId, RequestId, is_model_id
from bus.wire.messages.requests import Usage
from gateway.access import AskingClients
from gateway.dialects.dialect import Extras, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.records import ClientTotals, JobRun, Kind, NodeRecords, RequestRow, TraceRow
from gateway.requests.catalog import ModelCatalog
from gateway.requests.dispatcher import Exchange
from gateway.requests.request import ClientRequest
from gateway.requests.tasks import Attempt
from gateway.tracing import (
    GatewayTrace,
    TraceChoice,
    TracedRequest,
    TraceParent,
    TracePlace,
    document_of,
    place_of,
)
from gateway.tracing.otlp import EndedTrace, asked_attributes, open_exporter
from gateway.view.metrics import Metrics
from gateway.view.options import Options

FINISHED = "finished"
RANKS_S = 1.0
"""A trace is stored after this time, even if some ranks have not reported their timings."""


@dataclass(slots=True)
class AskedOver:
    """An HTTP request, from its first byte on. `parsed` is None until its body is parsed.

    `key` is the id of its API key. `answer_id` is the answer's id until the request has one. `run`
    is the run of a job, `attempt` the limits of a task's candidate. `read_at` is when the body was
    complete. `traced` is why it is traced ("": it is not), `parent` the client's span. `client`
    comes from the client id, once the body has one; its cooldown afterwards is `cooldown_s`.
    `owner` is the owner id of a stored answer.
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
        return self.parsed is not None and self.parsed.stream

    def place(self, request: str) -> TracePlace:
        """Return the trace and span ids for one of the runner requests of this HTTP request."""
        parsed = self.parsed
        first = request if parsed is None or not parsed.requests else parsed.requests[0].request_id
        return place_of(request, first, self.parent)


@dataclass(slots=True)
class ProvidedAnswer:
    """The facts of an answer that a provider made. `model` is the model's name in this cluster,
    `counted_as` its name in the metrics. `began_at` is when the first bytes arrived, `finish` the
    finish reason.
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

    def tell(self, exchange: Exchange, details: AskedOver, *, outcome: str, status: int) -> None:
        """Report an exchange: update the metrics, write a log line and write a row for each of its
        requests. `outcome` is `FINISHED` or an error code."""
        now = self._reactor.now()
        requests = exchange.requests
        prompts = [request for request in requests if request.wire.question is None]
        read_tokens = sum(request.prompt_tokens for request in prompts)
        made_tokens = sum(request.answered_tokens for request in requests)
        self._count(details, outcome, read_tokens, made_tokens)
        for request in requests:
            row = _row_of(request, details, outcome, status, now)
            read_once = request.prompt_tokens if request.wire.question is None else 0
            self._tell_row(row, str(exchange.model), read_once)
            queued_s = _queued_s(request, details)
            if queued_s is not None:
                self._metrics.queued(str(exchange.model), queued_s)
            if request.trace is not None:
                self._keep_trace(request, request.trace, details, row, now)

    async def stop(self) -> None:
        """Export the remaining traces; the exporter limits how long this takes."""
        if self._exporter is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._exporter.close)

    def tell_provided(
        self, details: AskedOver, provided: ProvidedAnswer, *, outcome: str, status: int
    ) -> None:
        """Report a request that a provider answered, as `tell` does."""
        now, usage = self._reactor.now(), provided.usage
        self._count(details, outcome, usage.prompt_tokens, usage.completion_tokens)
        row = RequestRow(
            request=provided.request,
            ended_at_s=wall(),
            kind=details.kind,
            dialect=details.dialect,
            seconds=_rounded(now - details.started_at),
            status=status,
            model=provided.model,
            client=provided.extras.client_id,
            key=details.key,
            priority=provided.extras.priority,
            streamed=provided.streamed,
            ttft_s=_since(details, provided.began_at),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish=provided.finish,
            error=_error_of(outcome),
        )
        self._tell_row(row, provided.counted_as, usage.prompt_tokens)

    def tell_refused(self, details: AskedOver, fault: HttpFault) -> None:
        """Report a request that was refused before its exchange existed: count it and write its
        row."""
        self._clients.ended(details.client, ClientTotals(refused=1))
        if not self._records.logs_requests:
            return
        parsed = details.parsed
        first = parsed.requests[0] if parsed is not None and parsed.requests else None
        self._records.log_request(
            RequestRow(
                request=details.answer_id if first is None else first.request_id,
                ended_at_s=wall(),
                kind=details.kind,
                dialect=details.dialect,
                seconds=_rounded(self._reactor.now() - details.started_at),
                status=fault.status,
                model=None if parsed is None else self._model_of(parsed.model),
                client=None if parsed is None else parsed.extras.client_id,
                key=details.key,
                priority=None if parsed is None else parsed.extras.priority,
                streamed=details.streamed,
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
        if self._records.logs_requests:
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
        details: AskedOver,
        row: RequestRow,
        now: float,
    ) -> None:
        """Store a trace once all ranks of its group have reported, or after `RANKS_S`."""
        traced_request = _traced_request(self._options.node, request, details, row, now)

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

    def _count(
        self, details: AskedOver, outcome: str, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """Count an accepted request for its client, and start the client's cooldown."""
        failed = int(outcome != FINISHED)
        totals = ClientTotals(1, 0, failed, prompt_tokens, completion_tokens)
        self._clients.ended(details.client, totals)
        self._clients.rests(details.client, details.cooldown_s)

    def _model_of(self, name: str) -> str | None:
        """Return the model that a name means. If no model matches, return the name itself if it has
        the form of a model id, else None, because such a name can be any text."""
        try:
            return str(self._models.named(name))
        except HttpFaultRaised:
            return name if is_model_id(name) else None


def _queued_s(request: ClientRequest, details: AskedOver) -> float | None:
    """Return how long a request waited, in the gateway and at the runner, before the runner began
    it. None if the runner did not report its part."""
    usage, submitted_at = request.usage, request.submitted_at
    if usage is None or submitted_at is None or not usage.prefill_s + usage.decode_s:
        return None
    return submitted_at - details.started_at + usage.queue_s


def _since(details: AskedOver, at: float | None) -> float | None:
    """Return the time from a request's start to `at`; None if `at` is None."""
    return None if at is None else _rounded(at - details.started_at)


def _error_of(outcome: str) -> str | None:
    return None if outcome == FINISHED else outcome


def _row_of(
    request: ClientRequest, details: AskedOver, outcome: str, status: int, now: float
) -> RequestRow:
    wire, usage = request.wire, request.usage
    return RequestRow(
        request=request.request_id,
        ended_at_s=wall(),
        kind=details.kind,
        dialect=details.dialect,
        seconds=_rounded(now - details.started_at),
        status=status,
        model=wire.model,
        client=wire.client_id,
        key=details.key,
        priority=wire.priority,
        streamed=details.streamed,
        instance=request.instance,
        node=request.node,
        load_s=_rounded(request.inbox.load_s),
        queue_s=None if usage is None else _rounded(usage.queue_s),
        prefill_s=None if usage is None else _rounded(usage.prefill_s),
        decode_s=None if usage is None else _rounded(usage.decode_s),
        ttft_s=_since(details, request.first_at),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        completion_tokens=request.tokens if usage is None else usage.completion_tokens,
        finish=", ".join(sorted(request.finishes)) or None,
        error=_error_of(outcome),
    )


def _traced_request(
    node: NodeId, request: ClientRequest, details: AskedOver, row: RequestRow, now: float
) -> TracedRequest:
    facts = {
        "model": str(request.model),
        "kind": row.kind,
        "dialect": row.dialect,
        "streamed": row.streamed,
        "why": details.traced,
        "status": row.status,
        "error": row.error,
        "answer": "" if details.parsed is None else details.parsed.answer_id,
        "finishes": sorted(request.finishes),
        "first_token_s": row.ttft_s,
    }
    return TracedRequest(
        request=request.request_id,
        place=details.place(request.request_id),
        node=node,
        began_at_s=wall() - (now - details.started_at),
        started_at=details.started_at,
        read_at=details.read_at,
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
