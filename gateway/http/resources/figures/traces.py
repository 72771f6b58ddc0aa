"""Talks to clients about traces of requests: reads and deletes stored traces, and sets the share of
traced requests.

Any gateway can return a trace of any node. Statistics and the ordinary list cover only the
gateway's own node; the list `/v1/traces/cluster` covers all nodes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.wire.errors import BadRequest
from bus.wire.ids import RequestId
from bus.wire.messages.commands import SetTracing
from gateway.cluster import Cluster
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.exchange import Parts
from gateway.http.callers import key_behind
from gateway.http.middleware import Resource, answer_json, tell_missing
from gateway.http.query import number_of
from gateway.http.resources.instances import CommandDone, acknowledgement
from gateway.records import AllRecords
from gateway.tracing import chrome_trace, trace_parts

LIMIT, MOST = 50, 1000
MOST_REMOVED = 100
WINDOW_S = 3600.0
MOST_WINDOW_S = 365 * 86_400.0
MOST_NAME = 200


class TracingBody(Closed):
    """`PUT /v1/tracing`: either `on` (trace all requests or none) or `ratio`, a share from 0 to 1.
    A `ratio` of null uses each node's `records.trace_sample`."""

    on: bool | None = None
    ratio: float | None = Field(default=None, ge=0.0, le=1.0)


class TracesRemovedBody(Closed):
    """`POST /v1/traces/delete`: `requests` are ids of requests or of their answers."""

    requests: list[Annotated[str, Field(min_length=1, max_length=400)]] = Field(
        min_length=1, max_length=MOST_REMOVED
    )


class TracingAnswer(TypedDict):
    """The share of requests that are traced by default: `ratio` is in force here, `cluster` is the
    cluster's value (null: none), `setting` this node's. `keeps`: this node stores traces."""

    on: bool
    ratio: float
    cluster: float | None
    setting: float
    keeps: bool


class TracingSetAnswer(TracingAnswer, CommandDone):
    """The new share, and the command that set it."""


class TraceLine(TypedDict):
    """A trace in a list."""

    request: str
    ended_at_s: float
    began_at_s: float
    seconds: float
    why: str
    spans: int
    model: str | None
    status: int
    error: str | None


class TracesAnswer(TypedDict):
    """Traces that a node stores, newest first; `kept` is their total number, `bytes` their size."""

    node: str
    kept: int
    bytes: int
    traces: list[TraceLine]


class TraceLineOfNode(TraceLine):
    """A trace in a list, and the node that stores it."""

    node: str


class ClusterTracesAnswer(TypedDict):
    """Traces that all nodes store; `missing` are nodes that did not answer."""

    traces: list[TraceLineOfNode]
    missing: list[str]


class PartFigures(TypedDict):
    """Durations of one part of requests, in seconds; `share` of the whole requests' time."""

    count: int
    p50: float
    p95: float
    share: float | None


class TraceStatsAnswer(TypedDict):
    """Durations of traced requests, and of their parts by name."""

    node: str
    window_s: float
    traces: int
    seconds: PartFigures | None
    parts: dict[str, PartFigures | None]


class TraceRemovedAnswer(TypedDict):
    """A deleted trace."""

    request: str
    removed: Literal[True]


class TracesRemovedAnswer(TypedDict):
    """The deleted traces, and the requests without a trace."""

    removed: list[str]
    not_found: list[str]


class PartOfTrace(TypedDict):
    """A part of a request: the number of its spans, and their durations. `share` is the part's
    share of the request's time."""

    count: int
    seconds: float
    least_s: float
    most_s: float
    mean_s: float
    share: float | None


class TraceTimesAnswer(TypedDict):
    """Durations of the parts of a request."""

    request: str
    node: str
    seconds: float
    parts: dict[str, PartOfTrace]


class ChromeTrace(TypedDict):
    """A trace as Chrome's trace events."""

    traceEvents: list[dict[str, Any]]
    displayTimeUnit: Literal["ms"]
    otherData: dict[str, Any]


class Tracing(Resource):
    """`GET /v1/tracing`, `PUT /v1/tracing`: the share of requests that are traced by default."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the share in force here, the cluster's value and this node's setting."""
        answer_json(resp, _tracing_answer(self.cluster, self.parts))

    async def on_put(self, req: Request, resp: Response) -> None:
        """Set the share on all nodes, and answer like `GET`."""
        cluster, parts = self.cluster, self.parts
        body = await self.read(req, TracingBody)
        fields = body.model_fields_set
        if len(fields) != 1 or (fields == {"on"} and body.on is None):
            text = 'send one of {"on": true}, {"on": false}, {"ratio": 0.1} and {"ratio": null}'
            raise BadRequest(text, field="ratio" if "ratio" in fields else "on")
        ratio = body.ratio if body.on is None else float(body.on)
        answer = await cluster.command(SetTracing(command_id=cluster.command_id(), ratio=ratio))
        await cluster.noticed(answer)
        setting: TracingSetAnswer = {**_tracing_answer(cluster, parts), **acknowledgement(answer)}
        answer_json(resp, setting)


class TraceList(Resource):
    """`GET /v1/traces[?limit=&model=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the traces of this node, newest first. 503 if they cannot be read."""
        records = self.records
        limit = round(number_of(req, "limit", LIMIT, least=1, most=MOST))
        traces = await records.traces.latest(limit, req.get_param("model"))
        answer_json(resp, {"node": records.options.node, **traces})


class ClusterTraces(Resource):
    """`GET /v1/traces/cluster[?limit=&model=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the traces of all nodes, newest first, and the nodes that did not reply."""
        limit = round(number_of(req, "limit", LIMIT, least=1, most=MOST))
        latest = await self.records.traces.latest_of_all(
            limit, req.get_param("model"), key_behind(req)
        )
        tell_missing(resp, latest.missing)
        answer_json(resp, {"traces": latest.traces, "missing": latest.missing})


class TraceStats(Resource):
    """`GET /v1/traces/stats[?window_s=&model=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the durations of the parts of traced requests that ended within `window_s`.
        503 if they cannot be read."""
        records = self.records
        window_s = number_of(req, "window_s", WINDOW_S, least=1.0, most=MOST_WINDOW_S)
        stats = await records.traces.stats(window_s, req.get_param("model"))
        answer_json(resp, {"node": records.options.node, "window_s": window_s, **stats})


class TraceResource(Resource):
    """`GET /v1/traces/{request}`, `DELETE /v1/traces/{request}`; `request` is the id of a request
    or of its answer."""

    async def on_get(self, req: Request, resp: Response, request: str) -> None:
        """Answer with a trace as Chrome's trace events, which Perfetto opens."""
        trace = orjson.loads(await _stored_trace(self.records, req, request))
        answer_json(resp, chrome_trace(trace))

    async def on_delete(self, req: Request, resp: Response, request: str) -> None:
        """Delete a trace. 404 if it does not exist."""
        name = request_id_of(request)
        is_gone = await self.records.traces.remove(name, key_behind(req))
        if not is_gone:
            raise _no_trace(name)
        gone: TraceRemovedAnswer = {"request": name, "removed": True}
        answer_json(resp, gone)


class RawTrace(Resource):
    """`GET /v1/traces/{request}/raw`."""

    async def on_get(self, req: Request, resp: Response, request: str) -> None:
        """Answer with a trace in its stored form."""
        resp.data = await _stored_trace(self.records, req, request)


class TraceTimes(Resource):
    """`GET /v1/traces/{request}/stats`."""

    async def on_get(self, req: Request, resp: Response, request: str) -> None:
        """Answer with the durations of the parts of one trace."""
        trace = orjson.loads(await _stored_trace(self.records, req, request))
        about = {name: trace[name] for name in ("request", "node", "seconds")}
        answer_json(resp, {**about, "parts": trace_parts(trace)})


class TraceRemoval(Resource):
    """`POST /v1/traces/delete`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Delete traces on all nodes, and answer with the deleted ones and those not found."""
        body = await self.read(req, TracesRemovedBody, empty=b"")
        names = dict.fromkeys(map(request_id_of, body.requests))
        key, traces = key_behind(req), self.records.traces
        removed = [name for name in names if await traces.remove(name, key)]
        answer: TracesRemovedAnswer = {
            "removed": [*removed],
            "not_found": [name for name in names if name not in removed],
        }
        answer_json(resp, answer)


def _tracing_answer(cluster: Cluster, parts: Parts) -> TracingAnswer:
    tracing = parts.tracing
    ratio = tracing.ratio if tracing.keeps else 0.0
    return {
        "on": ratio > 0.0,
        "ratio": ratio,
        "cluster": cluster.bus.state.trace_ratio,
        "setting": tracing.own,
        "keeps": cluster.options.keeps_traces,
    }


async def _stored_trace(records: AllRecords, req: Request, request: str) -> bytes:
    """Return the stored trace of a request. Raises HttpFaultRaised (404, 503, 504)."""
    name = request_id_of(request)
    trace = await records.traces.find(name, key_behind(req))
    if trace is None:
        raise _no_trace(name)
    return trace


def _no_trace(name: RequestId) -> HttpFaultRaised:
    text = f"no trace of {name[:MOST_NAME]!r}"
    return HttpFaultRaised(HttpFault(404, "trace_not_found", text))
