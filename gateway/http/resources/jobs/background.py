"""Talks to clients about answers that are made in the background (`background: true`), in the
client's dialect.

Each background answer is a job with the same name. Until the answer is complete, its path shows the
state of the job. The events of the answer are numbered, so that a reader can resume a stream.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from falcon.asgi import Request, Response

from gateway.dialects import api_table, sse
from gateway.dialects.dialect import KeptAnswer, Parsed, RecallingDialect
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import APIS, endpoint_at, request_id_of
from gateway.exchange import Parts, found_answer, read_aside, recall
from gateway.http.callers import owner_of_kept, sharer_of
from gateway.http.resources.answers import AnswerCancel, AnswerItems, AnswerResource, items_query
from gateway.http.resources.jobs.found import (
    JobReader,
    check_readers,
    error_of,
    found_job,
    starting_after,
    stop_job,
    submit_job,
)
from gateway.http.resources.jobs.streams import send_stream, stream_of
from gateway.records import AllRecords, Job, NewJob, run_of


async def answer_in_background(parts: Parts, req: Request, resp: Response, parsed: Parsed) -> None:
    """Submit a body as a job, and answer with the unfinished answer, or with a stream of its
    events. Raises HttpFaultRaised (429)."""
    background, request = parsed.background, parsed.requests[0]
    records, catalog = parts.records, parts.cluster.catalog
    assert background is not None
    if parsed.stream:
        check_readers(records)
    if not parts.tasks.table.means(parsed.model):
        catalog.check_makes(catalog.named(parsed.model, or_pulled=True), parsed.requests)
    new = NewJob(
        request=request.request_id,
        kind="response",
        path=req.path,
        body=background.body,
        owner=await owner_of_kept(req, parts.options),
        client=request.client_id or "",
        address=sharer_of(req, parts.options, None)[2],
        priority=request.priority,
        created_at_s=parsed.created_at_s,
        ttl_s=parts.options.job_ttl_s,
        shown=background.shown,
    )
    job = await submit_job(records, new)
    if parsed.stream:
        _stream(records, req, resp, job, 0)
    else:
        resp.data = background.shown


def _renderers(path: str) -> api_table.MadeInBackground:
    """Return the renderers of a path's background answers."""
    endpoints = (endpoint for api in APIS for endpoint in api.endpoints if endpoint.path == path)
    stored = next(each for each in endpoints if isinstance(each, api_table.KeepsAnswers))
    assert stored.background is not None
    return stored.background


def _current_state(job: Job) -> bytes:
    return _renderers(job.path).stands(job.shown, job.state, error_of(job))


def _stream(records: AllRecords, req: Request, resp: Response, job: Job, first: int) -> None:
    resp.content_type = sse.CONTENT_TYPE
    for name, value in sse.HEADERS:
        resp.set_header(name, value)
    manner = _renderers(job.path)

    def last(ended: Job, number: int) -> bytes:
        """Render a last event if no run has completed the answer. Otherwise return b"", because the
        events of the run already contain the end."""
        if manner.is_made(ended.shown) or number > ended.events:
            return b""
        return manner.last_event(_current_state(ended), ended.events)

    resp.stream = JobReader(records, req, job, first).read(lambda _number, data: data, last)


class BackgroundAnswer(AnswerResource):
    """A stored answer, or an answer that is being made in the background."""

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with the answer's current state; with `?stream=true` with its events, past and
        future."""
        records = self.records
        streams = (req.get_param("stream") or "false").casefold() not in ("false", "0")
        if streams:
            pieces = await stream_of(self.parts, req, answer_id, starting_after(req))
            if pieces is not None:
                send_stream(req, resp, answer_id, pieces)
                return
        job = await _job(records, req, answer_id)
        if job is None:
            await super().on_get(req, resp, answer_id)
        elif not streams:
            resp.data = _current_state(job)
        else:
            first = starting_after(req) + 1
            check_readers(records)
            _stream(records, req, resp, job, first)

    async def on_delete(self, req: Request, resp: Response, answer_id: str) -> None:
        """Delete the answer; a running one is stopped first."""
        records = self.records
        job = await _job(records, req, answer_id)
        if job is None:
            await super().on_delete(req, resp, answer_id)
            return
        if job.is_open:
            job = await stop_job(records, job)
        await records.jobs.remove(job.request, job.owner)
        await records.answers.remove(job.owner, job.request)
        resp.data = self.endpoint.deleted(answer_id)


class BackgroundCancel(AnswerCancel):
    """`POST` that stops an answer that is being made."""

    async def on_post(self, req: Request, resp: Response, answer_id: str) -> None:
        """Stop the answer, and return its part so far. 400 if it has already ended."""
        records = self.records
        job = await _job(records, req, answer_id)
        if job is None:
            await super().on_post(req, resp, answer_id)
            return
        if job.is_open:
            job = await stop_job(records, job)
        elif job.state != "cancelled":
            text = f"only a running answer can be cancelled; this one is '{job.state}'"
            raise HttpFaultRaised(HttpFault(400, "invalid_value", text))
        resp.data = _current_state(job)


class BackgroundItems(AnswerItems):
    """`GET` of the input items of an answer that is stored or is being made in the background."""

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with the items. For an unfinished answer these are the items of its body and of
        its earlier conversation."""
        parts, records = self.parts, self.records
        job = await _job(records, req, answer_id)
        if job is not None and await found_answer(records.answers, job.owner, job.request) is None:
            body = await records.jobs.body(job.request, job.owner)
            if body is not None:
                made_from = await _unfinished_input(parts, job, body)
                resp.data = self.endpoint.items(made_from, items_query(req))
                return
        await super().on_get(req, resp, answer_id)


async def _unfinished_input(parts: Parts, job: Job, body: bytes) -> KeptAnswer:
    """Return the input of an unfinished answer, parsed as its run parses it. Raises HttpFaultRaised
    (400) if its earlier conversation is gone."""
    endpoint = endpoint_at(job.path)
    assert endpoint is not None
    dialect = endpoint.dialect
    context = run_of(job).context(parts.parse_context())
    parsed = await read_aside(len(body), partial(dialect.parse, body, context))
    whole = await recall(parts, cast(RecallingDialect, dialect), parsed, job.owner)
    assert whole.to_keep is not None
    return KeptAnswer(b"", whole.to_keep.items, b"", b"")


async def _job(records: AllRecords, req: Request, answer_id: str) -> Job | None:
    owner = await owner_of_kept(req, records.options)
    job = await found_job(records, owner, request_id_of(answer_id))
    return job if job is not None and job.kind == "response" else None
