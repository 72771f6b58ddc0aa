"""Talks to clients about ended requests: lists the latest ones, and computes statistics.

Any HTTP process can answer for its whole node, because all processes of the node write to one file.
Requests of other nodes are not included.
"""

from __future__ import annotations

from typing import Annotated, Any

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from gateway.dialects.encode import Dump
from gateway.http.middleware import Resource, answer_json
from gateway.http.query import is_yes, number_of
from gateway.records import RecentQuery, RequestRow, StatsTold

LIMIT, MOST = 50, 1000
WINDOW_S = 3600.0
MOST_WINDOW_S = 3650 * 86_400.0


class RecentAnswer(TypedDict):
    """The requests that ended last, newest first."""

    node: str
    requests: list[Annotated[dict[str, Any], Dump(RequestRow)]]


class StatsAnswer(StatsTold):
    """Counts and percentiles of the requests that ended within a window."""

    node: str


class RecentRequests(Resource):
    """`GET /requests/recent[?limit=&model=&client=&errors_only=&since=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the requests that ended last, newest first. 503 if they cannot be read."""
        records = self.records
        since = req.get_param("since")
        query = RecentQuery(
            limit=round(number_of(req, "limit", LIMIT, least=1, most=MOST)),
            model=req.get_param("model"),
            client=req.get_param("client"),
            errors_only=is_yes(req, "errors_only"),
            since_s=None if since is None else number_of(req, "since", 0.0, least=0.0, most=1e11),
        )
        rows = await records.of_node.recent(query)
        answer: RecentAnswer = {"node": records.options.node, "requests": rows}
        answer_json(resp, answer)


class RequestStats(Resource):
    """`GET /requests/stats[?window_s=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with counts and percentiles of the requests that ended within `window_s`: for all
        of them, by model, and by client. 503 if they cannot be read."""
        records = self.records
        window_s = number_of(req, "window_s", WINDOW_S, least=1.0, most=MOST_WINDOW_S)
        stats = await records.of_node.stats(window_s)
        answer: StatsAnswer = {"node": records.options.node, **stats}
        answer_json(resp, answer)
