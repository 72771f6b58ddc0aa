"""A job's request as an ASGI scope for the application of this process, with its owner.

Pure. The mark in the scope identifies a run of a job. Its key was checked at submission, its first
request has the run's id, and its answer has the job's name. Clients cannot set the mark, because a
server makes scopes from bytes alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bus.wire.errors import FailReason
from bus.wire.ids import RequestId
from gateway.dialects.dialect import ParseContext, Parsed
from gateway.records.jobs.job import Job

MARK = "shoal.job"
LOST: tuple[FailReason, ...] = ("model_unavailable", "runner_lost")
"""Failures of requests whose runner or node vanished."""


class Computed(Protocol):
    """A request of a run: its tokens, whether a runner computes it, and how it failed."""

    begun: bool
    failed: FailReason | None

    @property
    def answered_tokens(self) -> int:
        """Return the tokens of its answer so far."""
        ...


@dataclass(slots=True)
class JobRun:
    """A run of a job: its owner, the request ids of the job and of this run, and its requests once
    it has any. `counted`: the request already counted for its key when the job was submitted."""

    owner: str
    request: RequestId
    run: RequestId
    created_at_s: float
    counted: bool = False
    computed: Sequence[Computed] = ()

    @property
    def tokens(self) -> int:
        """Return the tokens of its requests together."""
        return sum(request.answered_tokens for request in self.computed)

    @property
    def begun(self) -> bool:
        """Return whether a runner has begun any of them."""
        return any(request.begun for request in self.computed)

    @property
    def lost(self) -> bool:
        """Return whether any of them failed because its runner vanished."""
        return any(request.failed in LOST for request in self.computed)

    def context(self, context: ParseContext) -> ParseContext:
        """Return a parse context that gives the request the run's id and the job's time."""
        ids = itertools.chain((self.run,), context.ids)
        return replace(context, ids=ids, now_s=self.created_at_s)

    def named(self, parsed: Parsed) -> Parsed:
        """Return a body whose answer has the job's name."""
        return replace(parsed, answer_id=parsed.answer_id.replace(self.run, self.request))


def job_run_of(scope: Mapping[str, Any]) -> JobRun | None:
    """Return the run in a request's scope; None for a client's own request."""
    mark = scope.get(MARK)
    return mark if isinstance(mark, JobRun) else None


def mark_of(job: Job) -> JobRun:
    """Return the mark of a job's latest run."""
    # a background answer is submitted by its ordinary route, which counts it for the key
    return JobRun(
        job.owner, job.request, job.run_id, job.created_at_s, counted=job.kind == "response"
    )


def scope_of(job: Job, mark: JobRun, body: bytes, port: int) -> dict[str, Any]:
    """Return the ASGI scope of a run."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": job.path,
        "raw_path": job.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": (job.address, 0),
        "server": ("127.0.0.1", port),
        MARK: mark,
    }
