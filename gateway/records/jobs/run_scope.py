"""A job's request as the application is asked it, in process: a scope of ASGI, and whose it is.

Pure. The mark in the scope says that a request is a run of a job: its key was looked at when it was
submitted, its first request has the run's id, and its answer is named by the job. No client can set
it, for a server makes scopes of bytes alone.
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
"""How a request ends whose runner, or whose node, went away."""


class Computed(Protocol):
    """A request of a run: how many tokens its answer has, whether a runner computes it, and how it
    failed."""

    begun: bool
    failed: FailReason | None

    @property
    def answered_tokens(self) -> int:
        """Return them, so far."""
        ...


@dataclass(slots=True)
class JobRun:
    """A run of a job: who owns it, the ids of the job's request and of this run's; and its requests
    once it has any. `counted`: its key was counted for a request when the job was submitted."""

    owner: str
    request: RequestId
    run: RequestId
    created_at_s: float
    counted: bool = False
    computed: Sequence[Computed] = ()

    @property
    def tokens(self) -> int:
        """Return how many tokens its requests have."""
        return sum(one.answered_tokens for one in self.computed)

    @property
    def begun(self) -> bool:
        """Return whether a runner computes any of them, or did."""
        return any(one.begun for one in self.computed)

    @property
    def lost(self) -> bool:
        """Return whether any of them ended because its runner did."""
        return any(one.failed in LOST for one in self.computed)

    def context(self, context: ParseContext) -> ParseContext:
        """Return what a parser may know, so that it makes the run's request."""
        ids = itertools.chain((self.run,), context.ids)
        return replace(context, ids=ids, now_s=self.created_at_s)

    def named(self, parsed: Parsed) -> Parsed:
        """Return a body whose answer has the job's name."""
        return replace(parsed, answer_id=parsed.answer_id.replace(self.run, self.request))


def job_run_of(scope: Mapping[str, Any]) -> JobRun | None:
    """Return the run that a request is; None for a client's own."""
    found = scope.get(MARK)
    return found if isinstance(found, JobRun) else None


def mark_of(job: Job) -> JobRun:
    """Return the mark of a job's latest run."""
    # an answer in the background is submitted where it would be asked for, which counts
    return JobRun(
        job.owner, job.request, job.run_id, job.created_at_s, counted=job.kind == "response"
    )


def scope_of(job: Job, mark: JobRun, body: bytes, port: int) -> dict[str, Any]:
    """Return the scope of a run of this job."""
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
