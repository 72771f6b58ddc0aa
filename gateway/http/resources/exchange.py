"""Talks to clients: hands requests that generate text, embed texts, or examine a prompt to the
stages (`gateway.exchange`), in every dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from falcon.asgi import Request, Response

from gateway.dialects import api_table, sse
from gateway.dialects.dialect import Parsed, WholeDialect
from gateway.exchange import Asked, ClientWatch, Flow, Parts, Pipeline
from gateway.http.callers import key_id, owner_of_kept, sharer_of
from gateway.http.middleware import Resource, read_body, tell_missing
from gateway.http.resources.answers import listed_answers
from gateway.http.resources.jobs import answer_in_background
from gateway.http.scope import scope_of
from gateway.records import Kind
from gateway.tracing import TRACEPARENT, parent_of


class FalconSide:
    """The falcon side of one request: the stages read the request here, and write the answer to
    `reply`."""

    def __init__(self, parts: Parts, req: Request, resp: Response) -> None:
        self.path = req.path
        self.reply = resp
        self.watch = ClientWatch(scope_of(req).receive)
        self._parts = parts
        self._req = req

    async def body(self) -> bytes:
        options = self._parts.options
        return await read_body(
            self._req, options.body_limit_bytes, options.body_s, self._parts.bodies
        )

    async def owner(self) -> str:
        return await owner_of_kept(self._req, self._parts.options)

    def headers(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in self._req.headers.items()}

    def stream(
        self, pieces: AsyncGenerator[bytes], content_type: str, at_end: Callable[[], None]
    ) -> None:
        self.reply.content_type = content_type
        self.reply.set_headers(sse.HEADERS)
        self.reply.stream = pieces
        # a generator that was never started does not run its end
        scope_of(self._req).at_end += (at_end, self.watch.leave)

    async def run_in_background(self, parsed: Parsed) -> None:
        await answer_in_background(self._parts, self._req, self.reply, parsed)


@dataclass(frozen=True)
class ExchangeResource(Resource):
    """A route whose requests go through the stages (`gateway.exchange`). All its requests have one
    kind (generate, embed or ask) and one dialect."""

    dialect: WholeDialect
    kind: Kind

    async def on_post(self, req: Request, resp: Response) -> Flow:
        """Answer the request with the model, the task or the provider's model that the body names.
        Return what the stages recorded about the request."""
        flow = Flow(self._head_of(req, resp), FalconSide(self.parts, req, resp))
        return await Pipeline(self.parts, flow).answer()

    def _head_of(self, req: Request, resp: Response) -> Asked:
        parts = self.parts
        scope, sharer = scope_of(req), sharer_of(req, parts.options, None)
        traceparent = req.get_header(TRACEPARENT)
        tasks, profiles = parts.tasks.table, parts.clients.book.table
        share = parts.cluster.bus.state.trace_ratio
        return Asked(
            kind=self.kind,
            dialect=self.dialect,
            answer_id=resp.get_header("x-request-id") or "",
            came_at=scope.came_at or parts.reactor.now(),
            key=key_id(req),
            sharer=sharer,
            client=parts.clients.named(sharer),
            run=scope.run,
            parent=None if traceparent is None else parent_of(traceparent),
            may_be_traced=traceparent is not None
            or (parts.tracing.own if share is None else share) > 0.0,
            may_name=bool(tasks.tasks or tasks.providers)
            or (bool(profiles.clients) and profiles.has_models),
        )


@dataclass(frozen=True)
class ListedAnswers(ExchangeResource):
    """A route that generates text and lists the stored answers made there."""

    endpoint: api_table.KeepsListed

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with a page of the stored answers on all nodes. The header names nodes that did
        not reply."""
        records, owner = self.records, await owner_of_kept(req, self.records.options)
        query = {name: value for name in req.params if (value := req.get_param(name)) is not None}
        page = await listed_answers(records, owner, self.endpoint.query(query))
        tell_missing(resp, page.missing)
        resp.data = self.endpoint.listing(page.answers, page.has_more)
