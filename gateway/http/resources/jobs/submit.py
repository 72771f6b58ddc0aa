"""Talks to clients about jobs: accepts new jobs, and lists the jobs of a client.

An invalid job is refused when it is submitted, with the error that its request would get. For this
check, the dialect of its path parses the body, and the model must exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.process.clock import wall
from bus.wire.errors import BadRequest
from bus.wire.shares import PRIORITIES
from gateway.access import cooldown_of
from gateway.dialects import body as bodies
from gateway.dialects.body import Closed, bad_field
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFaultRaised, not_found
from gateway.dialects.registry import endpoint_at
from gateway.exchange import Parts, own_model, read_aside, tell_ignored
from gateway.http.callers import owner_of_kept, sharer_of
from gateway.http.middleware import Resource, answer_json, read_body, tell_missing
from gateway.http.resources.jobs.found import found_job, owner_of_jobs, submit_job
from gateway.records import JOB_PREFIX, JobTold, NewJob, job_request, job_told

BODY_BYTES = 8 << 20
"""Size limit for the body of a job. The limit is lower than for other requests, because the body is
stored."""
MOST_TTL_S = 30 * 86_400.0
LIMIT, MOST = 20, 100
Label = Annotated[str, Field(max_length=512)]
LabelName = Annotated[str, Field(max_length=64)]
SAYS_PRIORITY: Mapping[str, tuple[str, ...]] = {"service_tier": ("flex", "priority")}
"""Fields of dialects that set a priority, each with the values that do so."""


class JobBody(Closed):
    """The body of `POST /v1/jobs`."""

    others: ClassVar[str] = ""
    path: str = Field(description="the route of the request, such as /v1/chat/completions")
    body: dict[str, Any] = Field(description="the body of the request")
    ttl_s: Annotated[float, Field(ge=1.0, le=MOST_TTL_S)] | None = Field(
        default=None, description="seconds to store the result"
    )
    metadata: Annotated[dict[LabelName, Label], Field(max_length=16)] | None = Field(
        default=None, description="labels, returned with the job"
    )


class JobsAnswer(TypedDict):
    """A page of jobs; `first_id` and `last_id` are null if the page is empty."""

    object: Literal["list"]
    data: list[JobTold]
    first_id: str | None
    last_id: str | None
    has_more: bool


class JobList(Resource):
    """`POST /v1/jobs` and `GET /v1/jobs[?limit=&after=]`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Accept a job; it is stored durably before the answer. 400 if its request is invalid, 429
        at a limit."""
        parts, records = self.parts, self.records
        options = parts.options
        content = await read_body(req, min(options.body_limit_bytes, BODY_BYTES), options.body_s)
        limits = replace(parts.parse_context().limits, strict_fields=True)
        submission, _ = bodies.read_body(JobBody, content, limits)
        owner = await owner_of_kept(req, options)
        parsed, body = await _parse_submission(parts, req, submission)
        asking = parts.clients.named(sharer_of(req, options, parsed.extras.client_id))
        parts.clients.check(asking)
        first = parsed.requests[0] if parsed.requests else None
        client = parsed.extras.client_id or (first.client_id if first else None) or ""
        new = NewJob(
            request=first.request_id if first else next(parts.parse_context().ids),
            kind="job",
            path=submission.path,
            body=body,
            owner=owner,
            client=client,
            address=sharer_of(req, options, None)[2],
            priority=first.priority if first else PRIORITIES["batch"],
            created_at_s=wall(),
            ttl_s=options.job_ttl_s if submission.ttl_s is None else submission.ttl_s,
            metadata=json_bytes(submission.metadata or {}),
        )
        job = await submit_job(records, new)
        rest_s = cooldown_of(parsed.extras, parts.clients.profile(asking))
        parts.clients.rests(asking, rest_s)
        tell_ignored(parts, resp, "jobs", [f"body.{name}" for name in parsed.extras.ignored])
        resp.set_header("x-request-id", f"{JOB_PREFIX}{job.request}")
        resp.status = 202
        answer_json(resp, job_told(job, await records.jobs.position(job)))

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with a page of the client's jobs on all nodes, newest first, without results.
        `?all=true` lists all clients' jobs and needs an admin key. The header names nodes that did
        not reply; their jobs are missing."""
        records, owner = self.records, await owner_of_jobs(req, self.records.options)
        limit, after = _limit_of(req), req.get_param("after")
        job = None
        if after is not None:
            job = await found_job(records, owner, job_request(after))
            if job is None:
                raise HttpFaultRaised(not_found(f"job '{after[:200]}'"))
        listed = await records.jobs.listed(owner, limit + 1, job)
        tell_missing(resp, listed.missing)
        data = [job_told(job) for job in listed.jobs[:limit]]
        page: JobsAnswer = {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(listed.jobs) > limit,
        }
        answer_json(resp, page)


async def _parse_submission(
    parts: Parts, req: Request, submission: JobBody
) -> tuple[Parsed, bytes]:
    """Return a job's parsed request, and its body as it will be sent. The body gets the priority
    `batch` if it states none, and its client's model if it names none. Raises BadRequest and
    HttpFaultRaised, like the request itself."""
    endpoint = endpoint_at(submission.path)
    if endpoint is None:
        raise bad_field("path", "must be the path of a model request, such as /v1/chat/completions")
    fields = submission.body
    if "x_priority" not in fields and not any(
        fields.get(name) in values for name, values in SAYS_PRIORITY.items()
    ):
        fields = {**fields, "x_priority": "batch"}
    if (own := own_model(parts.clients, sharer_of(req, parts.options, None), fields)) is not None:
        fields = {**fields, "model": own}
    body = json_bytes(fields)
    context = parts.parse_context()
    try:
        parsed = await read_aside(len(body), partial(endpoint.dialect.parse, body, context))
    except BadRequest as error:
        field = "body" if error.field is None else f"body.{error.field}"
        raise BadRequest(f"body: {error.message}", field=field) from None
    if parsed.background is not None:
        raise bad_field("body.background", "a job always runs in the background; omit this field")
    catalog = parts.cluster.catalog
    if not catalog.known:
        await catalog.wait_known()
    if not parts.tasks.table.means(parsed.model):
        model = catalog.named(parsed.model, or_pulled=True)
        catalog.check_makes(model, parsed.requests)
    return parsed, body


def _limit_of(req: Request) -> int:
    text = req.get_param("limit")
    if text is None:
        return LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MOST):
        raise bad_field("limit", f"must be a number from 1 to {MOST}")
    return int(text)
