"""Makes the ASGI scope in which the application of this process runs a job's request.

Pure. The application also gets a `JobRun`, which tells it that the request is a run of a job. The
API key of a job was checked when the job was submitted, so a run needs no key. The first request of
a run has the request id of the run, and its answer gets the id of the job.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bus.wire.errors import FailReason
from bus.wire.ids import RequestId
from gateway.dialects.dialect import ParseContext, Parsed
from gateway.records.jobs.job import Job

LOST: tuple[FailReason, ...] = ("model_unavailable", "runner_lost")
"""Reasons of failure that mean that the model's runner or its node vanished."""


class Computed(Protocol):
    """A request that the run of a job has sent to a model. It has the tokens of its answer so far,
    whether a runner has begun it, and the reason if it failed."""

    begun: bool
    failed: FailReason | None

    @property
    def answered_tokens(self) -> int:
        """Return the number of tokens of the answer so far."""
        ...


@dataclass(slots=True)
class JobRun:
    """A run of a job. It has the owner, the request ids of the job and of this run, and the runner
    requests once they exist. `counted`: the job already counted towards its key's budget when it
    was submitted."""

    owner: str
    request: RequestId
    run: RequestId
    created_at_s: float
    counted: bool = False
    computed: Sequence[Computed] = ()

    @property
    def tokens(self) -> int:
        """Return the sum of the tokens of all requests of this run."""
        return sum(request.answered_tokens for request in self.computed)

    @property
    def begun(self) -> bool:
        """Return whether a runner has begun any request of this run."""
        return any(request.begun for request in self.computed)

    @property
    def lost(self) -> bool:
        """Return whether any request of this run failed because its runner or node vanished."""
        return any(request.failed in LOST for request in self.computed)

    def context(self, context: ParseContext) -> ParseContext:
        """Return a copy of a parse context in which the request has the id of this run and the time
        of the job."""
        ids = itertools.chain((self.run,), context.ids)
        return replace(context, ids=ids, now_s=self.created_at_s)

    def named(self, parsed: Parsed) -> Parsed:
        """Return a copy of a parsed body whose answer will have the job's name."""
        return replace(parsed, answer_id=parsed.answer_id.replace(self.run, self.request))


def run_of(job: Job) -> JobRun:
    """Return a job's latest run."""
    # a background answer is submitted by its ordinary route, which counts it for the key
    return JobRun(
        job.owner, job.request, job.run_id, job.created_at_s, counted=job.kind == "response"
    )


def scope_of(job: Job, body: bytes, port: int) -> dict[str, Any]:
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
    }
