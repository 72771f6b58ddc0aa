"""Talks to clients about one job: shows, streams, stops and deletes the job."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from gateway.dialects import sse
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised, not_found
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.jobs.found import (
    JobReader,
    check_readers,
    found_job,
    owner_of_jobs,
    starting_after,
    stop_job,
)
from gateway.records import (
    JOB_PREFIX,
    AllRecords,
    Job,
    JobTold,
    event_payload,
    job_request,
    job_told,
)


class JobAnswer(JobTold):
    """A job with its result, the whole answer to its request. The result is null while the job runs
    and for a stream."""

    result: dict[str, Any] | None


class RemovedJob(TypedDict):
    """A deleted job."""

    id: str
    object: Literal["job"]
    deleted: Literal[True]


class JobResource(Resource):
    """`GET /v1/jobs/{job}` and `DELETE /v1/jobs/{job}`."""

    async def on_get(self, req: Request, resp: Response, job: str) -> None:
        """Answer with the job, and with its result if it has ended. 404 for an unknown job."""
        records = self.records
        stored = await _stored_job(records, req, job)
        resp.data = await _job_json(records, stored)

    async def on_delete(self, req: Request, resp: Response, job: str) -> None:
        """Delete an ended job and its result. 409 for an open job."""
        records = self.records
        stored = await _stored_job(records, req, job)
        if stored.is_open:
            text = f"the job is {stored.state}; cancel it first (POST /v1/jobs/{job}/cancel)"
            raise HttpFaultRaised(HttpFault(409, "conflict", text))
        await records.jobs.remove(stored.request, stored.owner)
        removed: RemovedJob = {
            "id": f"{JOB_PREFIX}{stored.request}",
            "object": "job",
            "deleted": True,
        }
        answer_json(resp, removed)


class JobCancel(Resource):
    """`POST /v1/jobs/{job}/cancel`."""

    async def on_post(self, req: Request, resp: Response, job: str) -> None:
        """Stop a job, and answer with it. 409 if it ended without being cancelled."""
        records = self.records
        stored = await _stored_job(records, req, job)
        if stored.is_open:
            stored = await stop_job(records, stored)
        elif stored.state != "cancelled":
            text = f"only a job that has not ended can be cancelled; this one is {stored.state}"
            raise HttpFaultRaised(HttpFault(409, "conflict", text))
        resp.data = await _job_json(records, stored)


class JobEvents(Resource):
    """`GET /v1/jobs/{job}/events[?starting_after=]`."""

    async def on_get(self, req: Request, resp: Response, job: str) -> None:
        """Stream the job's events, past and future, each with its number as `id`. The last event is
        the ended job."""
        records = self.records
        stored, after = await _stored_job(records, req, job), starting_after(req)
        check_readers(records)
        resp.content_type = sse.CONTENT_TYPE
        for name, value in sse.HEADERS:
            resp.set_header(name, value)
        resp.stream = JobReader(records, req, stored, after + 1).read(_event, _last)


def _event(number: int, data: bytes) -> bytes:
    text = data.strip()
    if not text.startswith((b"data:", b"event:")):  # a line of a stream, or a whole answer
        text = b"event: answer\ndata: " + text
    return b"id: %d\n" % number + text + b"\n\n"


def _last(job: Job, _number: int) -> bytes:
    return sse.named_frame(f"job.{job.state}", json_bytes(job_told(job)))


async def _stored_job(records: AllRecords, req: Request, name: str) -> Job:
    job = await found_job(records, await owner_of_jobs(req, records.options), job_request(name))
    if job is None:
        text = f"job '{name[:200]}'"
        raise HttpFaultRaised(not_found(text))
    return job


async def _job_json(records: AllRecords, job: Job) -> bytes:
    """Return a job with its result, as JSON."""
    fields = job_told(job, await records.jobs.position(job))
    whole: JobAnswer = {**fields, "result": await _result(records, job)}
    return json_bytes(whole)


async def _result(records: AllRecords, job: Job) -> dict[str, Any] | None:
    if job.is_open:
        return None
    if job.shown:
        return orjson.loads(job.shown)
    if not job.content_type.startswith("application/json") or not job.events:
        return None
    _, events = await records.jobs.more(job.request, job.owner, job.events - 1)
    return event_payload(events[-1][1]) if events and job.state != "failed" else None
