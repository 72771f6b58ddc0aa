"""Talks to clients about answers that are made in the background, in the words of their dialect.

Such an answer is a job with its name: told as its job stands until it is made, its events by the
numbers that they have, also when a reader comes back for the rest of them.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from falcon.asgi import Request, Response

from gateway.dialects import api_table, sse
from gateway.dialects.dialect import KeptAnswer, Parsed, RecallingDialect
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import APIS, asked_at, request_id_of
from gateway.http.callers import owner_of_kept, sharer_of
from gateway.http.middleware import read_aside
from gateway.http.resources.answers import (
    AnswerCancel,
    AnswerItems,
    AnswerResource,
    found_answer,
    items_query,
    recalled,
)
from gateway.http.resources.jobs.found import (
    JobReader,
    check_readers,
    error_of,
    found_job,
    recorded,
    starting_after,
    stopped,
    submitted,
)
from gateway.records import Job, NewJob, mark_of
from gateway.service import HttpService


async def answer_in_background(
    service: HttpService, req: Request, resp: Response, parsed: Parsed
) -> None:
    """Take a body whose answer is made without its client; answer with what there is of it, or with
    its events as they come."""
    wanted, request = parsed.background, parsed.requests[0]
    assert wanted is not None
    if parsed.stream:
        check_readers(service)
    if not service.tasks.table.means(parsed.model):
        service.catalog.check_makes(
            service.catalog.named(parsed.model, or_pulled=True), parsed.requests
        )
    new = NewJob(
        request=request.request_id,
        kind="response",
        path=req.path,
        body=wanted.body,
        owner=await owner_of_kept(req, service.options),
        client=request.client_id or "",
        address=sharer_of(req, service.options, None)[2],
        priority=request.priority,
        created_at_s=parsed.created_at_s,
        ttl_s=service.options.job_ttl_s,
        shown=wanted.shown,
    )
    job = await submitted(service, new)
    if parsed.stream:
        _stream(service, req, resp, job, 0)
    else:
        resp.data = wanted.shown


def _manner(path: str) -> api_table.MadeInBackground:
    """Return how the answers of a path are told that are made in the background."""
    kept = (endpoint for api in APIS for endpoint in api.endpoints if endpoint.path == path)
    found = next(one for one in kept if isinstance(one, api_table.KeepsAnswers))
    assert found.background is not None
    return found.background


def _stands(job: Job) -> bytes:
    return _manner(job.path).stands(job.shown, job.state, error_of(job))


def _stream(service: HttpService, req: Request, resp: Response, job: Job, first: int) -> None:
    resp.content_type = sse.CONTENT_TYPE
    for name, value in sse.HEADERS:
        resp.set_header(name, value)
    manner = _manner(job.path)

    def last(ended: Job, number: int) -> bytes:
        """Tell the end of an answer that nothing made; of another its last event has."""
        if manner.is_made(ended.shown) or number > ended.events:
            return b""
        return manner.last_event(_stands(ended), ended.events)

    resp.stream = JobReader(service, req, job, first).read(lambda _number, data: data, last)


class BackgroundAnswer(AnswerResource):
    """A kept answer, or one that is made in the background."""

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with it as it stands, or with `?stream=true` in its events, also to come."""
        service = self.service
        job = await _job(service, req, answer_id)
        if job is None:
            await super().on_get(req, resp, answer_id)
        elif (req.get_param("stream") or "false").casefold() in ("false", "0"):
            resp.data = _stands(job)
        else:
            first = starting_after(req) + 1
            check_readers(service)
            _stream(service, req, resp, job, first)

    async def on_delete(self, req: Request, resp: Response, answer_id: str) -> None:
        """Keep the answer no longer; one that is being made is stopped first."""
        service = self.service
        job = await _job(service, req, answer_id)
        if job is None:
            await super().on_delete(req, resp, answer_id)
            return
        if job.is_open:
            job = await stopped(service, job)
        await recorded(service.jobs.remove(job.request, job.owner))
        await recorded(service.answers.remove(job.owner, job.request))
        resp.data = self.endpoint.deleted(answer_id)


class BackgroundCancel(AnswerCancel):
    """The stop of an answer that is being made."""

    async def on_post(self, req: Request, resp: Response, answer_id: str) -> None:
        """Stop it, and answer with what there is of it. 400 for one that has ended by itself."""
        service = self.service
        job = await _job(service, req, answer_id)
        if job is None:
            await super().on_post(req, resp, answer_id)
            return
        if job.is_open:
            job = await stopped(service, job)
        elif job.state != "cancelled":
            text = f"only a running answer can be cancelled; this one is '{job.state}'"
            raise HttpFaultRaised(HttpFault(400, "invalid_value", text))
        resp.data = _stands(job)


class BackgroundItems(AnswerItems):
    """What an answer was made from that is kept, or is to be made in the background."""

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with the items; of an answer that is not made, with those of its body, and those
        of the conversation that it goes on from."""
        service = self.service
        job = await _job(service, req, answer_id)
        if job is not None and await found_answer(service, job.owner, job.request) is None:
            body = await recorded(service.jobs.body(job.request, job.owner))
            if body is not None:
                made_from = await _to_be_made(service, job, body)
                resp.data = self.endpoint.items(made_from, items_query(req))
                return
        await super().on_get(req, resp, answer_id)


async def _to_be_made(service: HttpService, job: Job, body: bytes) -> KeptAnswer:
    """Return what an answer is made from, read as its run reads it. Raises HttpFaultRaised (400)
    where what it goes on from is gone."""
    endpoint = asked_at(job.path)
    assert endpoint is not None
    dialect = endpoint.dialect
    context = mark_of(job).context(service.parse_context())
    parsed = await read_aside(len(body), partial(dialect.parse, body, context))
    whole = await recalled(service, cast(RecallingDialect, dialect), parsed, job.owner)
    assert whole.to_keep is not None
    return KeptAnswer(b"", whole.to_keep.items, b"", b"")


async def _job(service: HttpService, req: Request, answer_id: str) -> Job | None:
    owner = await owner_of_kept(req, service.options)
    job = await found_job(service, owner, request_id_of(answer_id))
    return job if job is not None and job.kind == "response" else None
