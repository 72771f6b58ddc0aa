"""A job (a request that runs without a connection to its client), its states and their transitions.

Pure. A job is in one state at a time, and ends exactly once. Each run of a job has its own request
id, so that runs are never confused. A run is interrupted if the process that runs the job dies. A
job fails after `MOST_CUTS` interrupted runs. The numbers of a job's events continue from one run to
the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import orjson
from typing_extensions import TypedDict

from bus.wire.ids import RequestId

State = Literal["queued", "loading", "running", "done", "failed", "cancelled"]
Signal = Literal["claim", "begin", "again", "finish", "fail", "stop"]
NEXT: Mapping[State, Mapping[Signal, State]] = {
    "queued": {"claim": "loading", "fail": "failed", "stop": "cancelled"},
    "loading": {
        "begin": "running",
        "again": "queued",
        "finish": "done",
        "fail": "failed",
        "stop": "cancelled",
    },
    "running": {"again": "queued", "finish": "done", "fail": "failed", "stop": "cancelled"},
    "done": {},
    "failed": {},
    "cancelled": {},
}
"""The next state for each signal. The signal `again` means that the job will be run again."""
OPEN: tuple[State, ...] = tuple(state for state, signals in NEXT.items() if signals)
HELD: tuple[State, ...] = tuple(state for state, signals in NEXT.items() if "again" in signals)
"""The states in which a process runs the job."""
MOST_CUTS = 3
JOB_PREFIX = "job_"

Kind = Literal["job", "response"]
"""The way a job was submitted: as a job, or as a background answer, which has its own name."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to submit. `request` is the request id of its first run, from which the job's name is
    made. `body` is the JSON body for `path`. `owner` is the id of an API key, or "" for the node's
    owner and for the only key of its settings. `client` and `address` identify the caller. `shown`
    is the JSON that clients of a background answer get until the answer is made; empty for other
    jobs. Times are wall-clock; `ttl_s` counts from the end of the job."""

    request: RequestId
    kind: Kind
    path: str
    body: bytes
    owner: str
    client: str
    address: str
    priority: int
    created_at_s: float
    ttl_s: float
    metadata: bytes = b"{}"
    shown: bytes = b""


@dataclass(frozen=True, slots=True)
class Job:
    """The row of a job, without its body and its events. `events` is the number of events; `told`
    is how many of them a reader has received. `runner` is the name of the HTTP process that runs
    the job. `beat` is a counter that this process increments while it lives. An answer that is no
    stream is stored as the last event."""

    number: int
    request: RequestId
    kind: Kind
    path: str
    owner: str
    client: str
    address: str
    priority: int
    created_at_s: float
    ttl_s: float
    metadata: bytes
    shown: bytes
    state: State
    attempts: int
    cuts: int
    runner: str | None
    beat: int
    cancelled: int
    told: int
    ready_at_s: float
    started_at_s: float | None
    ended_at_s: float | None
    tokens: int
    events: int
    status: int | None
    content_type: str
    error: str | None

    @property
    def is_open(self) -> bool:
        """Return whether the job has not ended."""
        return self.state in OPEN

    @property
    def run_id(self) -> RequestId:
        """Return the request id of the latest run."""
        return run_id(self.request, self.attempts)


def run_id(request: RequestId, attempt: int) -> RequestId:
    """Return the request id of a run. The first run has the request id of the job; later runs have
    this id with a number."""
    return request if attempt < 2 else RequestId(f"{request}.{attempt}")


def job_of_run(request: RequestId) -> RequestId:
    """Return the request id of the job to which the run `request` belongs. Any other id is returned
    unchanged."""
    head, dash, count = request.rpartition("-")
    return RequestId(f"{head}{dash}{count.partition('.')[0]}") if dash else request


def job_request(name: str) -> RequestId:
    """Return the request id in a job's name, with or without its prefix."""
    return RequestId(name.removeprefix(JOB_PREFIX))


class JobProgress(TypedDict):
    """Progress of a job."""

    tokens: int
    events: int


class JobError(TypedDict):
    """Why a job failed, and the HTTP status of its request."""

    code: str
    message: str
    status: int | None


class JobTold(TypedDict):
    """A job without its result. Times are whole seconds since 1970. `position`: how many jobs are
    ahead of this one. `key`: the id of the API key that submitted the job."""

    id: str
    object: Literal["job"]
    status: State
    path: str
    key: str | None
    created_at: int | None
    started_at: int | None
    ended_at: int | None
    expires_at: int | None
    ttl_s: float
    priority: int
    position: int | None
    attempts: int
    cancel_requested: bool
    progress: JobProgress
    metadata: dict[str, str]
    error: JobError | None


def job_told(job: Job, position: int | None = None) -> JobTold:
    """Return a job in the form of the API, without its result. `position` is how many jobs are
    ahead of this one."""
    expires_at_s = None if job.ended_at_s is None else job.ended_at_s + job.ttl_s
    document: JobTold = {
        "id": f"{JOB_PREFIX}{job.request}",
        "object": "job",
        "status": job.state,
        "path": job.path,
        "key": job.owner or None,
        "created_at": _whole(job.created_at_s),
        "started_at": _whole(job.started_at_s),
        "ended_at": _whole(job.ended_at_s),
        "expires_at": _whole(expires_at_s),
        "ttl_s": job.ttl_s,
        "priority": job.priority,
        "position": position,
        "attempts": job.attempts,
        "cancel_requested": bool(job.cancelled) and job.is_open,
        "progress": {"tokens": job.tokens, "events": job.events},
        "metadata": orjson.loads(job.metadata),
        "error": None if job.error is None else orjson.loads(job.error),
    }
    return document


def error_text(code: str, message: str, status: int | None = None) -> str:
    """Return a job's error as JSON."""
    return orjson.dumps({"code": code, "message": message, "status": status}).decode()


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
