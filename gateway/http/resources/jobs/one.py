"""Talks to clients about one job: told with its result, its events, stopped, removed."""

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
    recorded,
    starting_after,
    stopped,
)
from gateway.records import JOB_PREFIX, Job, JobTold, event_payload, job_request, job_told
from gateway.service import HttpService


class JobAnswer(JobTold):
    """A job with its result: the answer to its request, where that was no stream; null before."""

    result: dict[str, Any] | None


class RemovedJob(TypedDict):
    """A job is kept no longer."""

    id: str
    object: Literal["job"]
    deleted: Literal[True]


class JobResource(Resource):
    """`GET /v1/jobs/{job}` and `DELETE /v1/jobs/{job}`."""

    async def on_get(self, req: Request, resp: Response, job: str) -> None:
        """Answer with the job, and with its result when it has ended. 404 for one that is not
        there."""
        service = self.service
        found = await _found(service, req, job)
        resp.data = await _told(service, found)

    async def on_delete(self, req: Request, resp: Response, job: str) -> None:
        """Remove a job that has ended, with its result. 409 for one that has not."""
        service = self.service
        found = await _found(service, req, job)
        if found.is_open:
            text = f"the job is {found.state}; cancel it first (POST /v1/jobs/{job}/cancel)"
            raise HttpFaultRaised(HttpFault(409, "conflict", text))
        await recorded(service.jobs.remove(found.request, found.owner))
        removed: RemovedJob = {
            "id": f"{JOB_PREFIX}{found.request}",
            "object": "job",
            "deleted": True,
        }
        answer_json(resp, removed)


class JobCancel(Resource):
    """`POST /v1/jobs/{job}/cancel`."""

    async def on_post(self, req: Request, resp: Response, job: str) -> None:
        """Stop a job, and answer with it. 409 for one that has ended otherwise."""
        service = self.service
        found = await _found(service, req, job)
        if found.is_open:
            found = await stopped(service, found)
        elif found.state != "cancelled":
            text = f"only a job that has not ended can be cancelled; this one is {found.state}"
            raise HttpFaultRaised(HttpFault(409, "conflict", text))
        resp.data = await _told(service, found)


class JobEvents(Resource):
    """`GET /v1/jobs/{job}/events[?starting_after=]`."""

    async def on_get(self, req: Request, resp: Response, job: str) -> None:
        """Stream what the job has said and says, each event with its number as `id`, and at its end
        the job."""
        service = self.service
        found, after = await _found(service, req, job), starting_after(req)
        check_readers(service)
        resp.content_type = sse.CONTENT_TYPE
        for name, value in sse.HEADERS:
            resp.set_header(name, value)
        resp.stream = JobReader(service, req, found, after + 1).read(_event, _last)


def _event(number: int, data: bytes) -> bytes:
    told = data.strip()
    if not told.startswith((b"data:", b"event:")):  # a line of a stream, or a whole answer
        told = b"event: answer\ndata: " + told
    return b"id: %d\n" % number + told + b"\n\n"


def _last(job: Job, _number: int) -> bytes:
    return sse.named_frame(f"job.{job.state}", json_bytes(job_told(job)))


async def _found(service: HttpService, req: Request, name: str) -> Job:
    job = await found_job(service, await owner_of_jobs(req, service), job_request(name))
    if job is None:
        text = f"job '{name[:200]}'"
        raise HttpFaultRaised(not_found(text))
    return job


async def _told(service: HttpService, job: Job) -> bytes:
    """Return a job with its result: the answer, where it was no stream."""
    told = job_told(job, await recorded(service.jobs.position(job)))
    whole: JobAnswer = {**told, "result": await _result(service, job)}
    return json_bytes(whole)


async def _result(service: HttpService, job: Job) -> dict[str, Any] | None:
    if job.is_open:
        return None
    if job.shown:
        return orjson.loads(job.shown)
    if not job.content_type.startswith("application/json") or not job.events:
        return None
    _, events = await recorded(service.jobs.more(job.request, job.owner, job.events - 1))
    return event_payload(events[-1][1]) if events and job.state != "failed" else None
