"""Talks to clients about traces of requests: those that nodes keep, and which are made.

Any gateway answers for a trace of any node; lists and statistics are of its own, unless all are
asked for.
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
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.middleware import Resource, answer_json, tell_missing
from gateway.http.query import number_of
from gateway.http.resources.answers import records_told
from gateway.http.resources.instances import CommandDone, acknowledged
from gateway.requests.tracing import chrome_trace, trace_parts
from gateway.service import HttpService

LIMIT, MOST = 50, 1000
MOST_REMOVED = 100
WINDOW_S = 3600.0
MOST_WINDOW_S = 365 * 86_400.0
MOST_NAME = 200


class TracingBody(Closed):
    """`PUT /v1/tracing`: `on` is each request or none, `ratio` a share from 0 to 1; one of the two.
    A `ratio` of null: as each node's `records.trace_sample` says."""

    on: bool | None = None
    ratio: float | None = Field(default=None, ge=0.0, le=1.0)


class TracesRemovedBody(Closed):
    """`POST /v1/traces/delete`: `requests` are ids of requests or of their answers."""

    requests: list[Annotated[str, Field(min_length=1, max_length=400)]] = Field(
        min_length=1, max_length=MOST_REMOVED
    )


class TracingAnswer(TypedDict):
    """The share of requests that is traced unasked: what holds here, what the cluster says (null:
    nothing), what this node's setting is, and whether it keeps traces."""

    on: bool
    ratio: float
    cluster: float | None
    setting: float
    keeps: bool


class TracingSetAnswer(TracingAnswer, CommandDone):
    """The same, after it was set."""


class TraceLine(TypedDict):
    """What a list tells of a trace."""

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
    """The traces that a node keeps, the latest first; `kept` of them in all, of `bytes`."""

    node: str
    kept: int
    bytes: int
    traces: list[TraceLine]


class TraceLineOfNode(TraceLine):
    """The same, and the node that keeps it."""

    node: str


class ClusterTracesAnswer(TypedDict):
    """The traces that all nodes keep; `missing` are nodes that did not answer."""

    traces: list[TraceLineOfNode]
    missing: list[str]


class PartFigures(TypedDict):
    """How long a part of requests took, in seconds; `share` of all of them."""

    count: int
    p50: float
    p95: float
    share: float | None


class TraceStatsAnswer(TypedDict):
    """How long traced requests took, and their parts by name."""

    node: str
    window_s: float
    traces: int
    seconds: PartFigures | None
    parts: dict[str, PartFigures | None]


class TraceRemovedAnswer(TypedDict):
    """A trace was removed."""

    request: str
    removed: Literal[True]


class TracesRemovedAnswer(TypedDict):
    """The traces that were removed, and those that there were not."""

    removed: list[str]
    not_found: list[str]


class PartOfTrace(TypedDict):
    """A part of a request: its spans, and their seconds; `share` of the request's."""

    count: int
    seconds: float
    least_s: float
    most_s: float
    mean_s: float
    share: float | None


class TraceTimesAnswer(TypedDict):
    """How long the parts of a request took."""

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
    """`GET /v1/tracing`, `PUT /v1/tracing`: the share of requests that is traced unasked."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with what holds here, what the cluster says and what this node's setting is."""
        answer_json(resp, _tracing_told(self.service))

    async def on_put(self, req: Request, resp: Response) -> None:
        """Have every node trace a share of its requests, from now on; answer as GET does."""
        service = self.service
        asked = await self.read(req, TracingBody)
        said = asked.model_fields_set
        if len(said) != 1 or (said == {"on"} and asked.on is None):
            text = 'send one of {"on": true}, {"on": false}, {"ratio": 0.1} and {"ratio": null}'
            raise BadRequest(text, field="ratio" if "ratio" in said else "on")
        ratio = asked.ratio if asked.on is None else float(asked.on)
        answer = await service.command(SetTracing(command_id=service.command_id(), ratio=ratio))
        await service.noticed(answer)
        told: TracingSetAnswer = {**_tracing_told(service), **acknowledged(answer)}
        answer_json(resp, told)


class TraceList(Resource):
    """`GET /v1/traces[?limit=&model=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the traces of this node, the latest first. 503 while they cannot be read."""
        service = self.service
        limit = round(number_of(req, "limit", LIMIT, least=1, most=MOST))
        with records_told():
            found = await service.traces.latest(limit, req.get_param("model"))
        answer_json(resp, {"node": service.options.node, **found})


class ClusterTraces(Resource):
    """`GET /v1/traces/cluster[?limit=&model=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the traces of all nodes, the latest first; nodes whose are missing are
        named."""
        limit = round(number_of(req, "limit", LIMIT, least=1, most=MOST))
        with records_told():
            found = await self.service.traces.latest_of_all(limit, req.get_param("model"))
        tell_missing(resp, found.missing)
        answer_json(resp, {"traces": found.traces, "missing": found.missing})


class TraceStats(Resource):
    """`GET /v1/traces/stats[?window_s=&model=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with how long the parts of traced requests took that ended in the last seconds.
        503 while they cannot be read."""
        service = self.service
        window_s = number_of(req, "window_s", WINDOW_S, least=1.0, most=MOST_WINDOW_S)
        with records_told():
            found = await service.traces.stats(window_s, req.get_param("model"))
        answer_json(resp, {"node": service.options.node, "window_s": window_s, **found})


class TraceResource(Resource):
    """`GET /v1/traces/{request}`, `DELETE /v1/traces/{request}`: by the id of a request or of its
    answer."""

    async def on_get(self, req: Request, resp: Response, request: str) -> None:
        """Answer with a trace as Chrome's trace events, which Perfetto opens."""
        answer_json(resp, chrome_trace(orjson.loads(await _found(self.service, request))))

    async def on_delete(self, req: Request, resp: Response, request: str) -> None:
        """Remove a trace."""
        name = request_id_of(request)
        with records_told():
            is_gone = await self.service.traces.remove(name)
        if not is_gone:
            raise _no_trace(name)
        gone: TraceRemovedAnswer = {"request": name, "removed": True}
        answer_json(resp, gone)


class RawTrace(Resource):
    """`GET /v1/traces/{request}/raw`."""

    async def on_get(self, req: Request, resp: Response, request: str) -> None:
        """Answer with a trace as it is kept."""
        resp.data = await _found(self.service, request)


class TraceTimes(Resource):
    """`GET /v1/traces/{request}/stats`."""

    async def on_get(self, req: Request, resp: Response, request: str) -> None:
        """Answer with how long the parts of one trace took."""
        told = orjson.loads(await _found(self.service, request))
        about = {name: told[name] for name in ("request", "node", "seconds")}
        answer_json(resp, {**about, "parts": trace_parts(told)})


class TraceRemoval(Resource):
    """`POST /v1/traces/delete`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Remove traces, whichever nodes have them, and answer with those that there were and
        those that there were not."""
        asked = await self.read(req, TracesRemovedBody, empty=b"")
        names = dict.fromkeys(map(request_id_of, asked.requests))
        with records_told():
            removed = [name for name in names if await self.service.traces.remove(name)]
        told: TracesRemovedAnswer = {
            "removed": [*removed],
            "not_found": [name for name in names if name not in removed],
        }
        answer_json(resp, told)


def _tracing_told(service: HttpService) -> TracingAnswer:
    tracing = service.tracing
    ratio = tracing.ratio if tracing.keeps else 0.0
    return {
        "on": ratio > 0.0,
        "ratio": ratio,
        "cluster": service.bus.state.trace_ratio,
        "setting": tracing.own,
        "keeps": service.options.keeps_traces,
    }


async def _found(service: HttpService, request: str) -> bytes:
    """Return the trace of a request as it is kept. Raises HttpFaultRaised."""
    name = request_id_of(request)
    with records_told():
        trace = await service.traces.find(name)
    if trace is None:
        raise _no_trace(name)
    return trace


def _no_trace(name: RequestId) -> HttpFaultRaised:
    text = f"no trace of {name[:MOST_NAME]!r}"
    return HttpFaultRaised(HttpFault(404, "trace_not_found", text))
