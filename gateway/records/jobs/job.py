"""A job: a request that runs without its client, and its life.

Pure. A job is in one state; what ends it ends it once. Each run of it is an attempt with a request
id of its own, so that none can be taken for another; a run that its process did not end, for that
died, is a cut, and so many of them end the job. What an attempt says is numbered events, which go
on over attempts.
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
"""What a job becomes: `again` is a run that is to begin anew."""
OPEN: tuple[State, ...] = tuple(state for state, signals in NEXT.items() if signals)
HELD: tuple[State, ...] = tuple(state for state, signals in NEXT.items() if "again" in signals)
"""The states in which a process runs the job."""
MOST_CUTS = 3
JOB_PREFIX = "job_"

Kind = Literal["job", "response"]
"""What it was asked for as: a job, or an answer in the background that has a name of its own."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted. `request` is the id of its first run, of which its name is made.

    `body` is JSON of what `path` takes. `owner` is the id of an API key, empty where there is one
    or none, `client` and `address` are who asked with it. `shown` is what the answer is before it
    is made, where it has a name; else empty. Times are wall-clock; `ttl_s` counts from its end.
    """

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
    """A job as the file has it, without its body and events.

    `events` is how many there are, `told` of how many a reader was told. `runner` names the process
    that runs it, `beat` counts while that lives. An answer that is no stream is the last event.
    """

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
        """Return whether it has not ended."""
        return self.state in OPEN

    @property
    def run_id(self) -> RequestId:
        """Return the request id of its latest run."""
        return run_id(self.request, self.attempts)


def run_id(request: RequestId, attempt: int) -> RequestId:
    """Return the request id of a run: the first one's is the job's, each other has its own."""
    return request if attempt < 2 else RequestId(f"{request}.{attempt}")


def job_of_run(request: RequestId) -> RequestId:
    """Return the job's request id of a run's; that of any other request is its own."""
    head, dash, count = request.rpartition("-")
    return RequestId(f"{head}{dash}{count.partition('.')[0]}") if dash else request


def job_request(name: str) -> RequestId:
    """Return the request id in a job's name, which may lack its prefix."""
    return RequestId(name.removeprefix(JOB_PREFIX))


class JobProgress(TypedDict):
    """How far a job is."""

    tokens: int
    events: int


class JobError(TypedDict):
    """Why a job failed, and the status that its request would have had."""

    code: str
    message: str
    status: int | None


class JobTold(TypedDict):
    """A job without its result; times are whole seconds since 1970. `position`: how many are before
    it; `key` is the id of the API key that it is of."""

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
    """Return a job as it is told, without its result. `position`: how many are before it; `key` is
    the id of the API key that it is of."""
    expires_at_s = None if job.ended_at_s is None else job.ended_at_s + job.ttl_s
    told: JobTold = {
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
    return told


def error_text(code: str, message: str, status: int | None = None) -> str:
    """Return why a job failed, as JSON."""
    return orjson.dumps({"code": code, "message": message, "status": status}).decode()


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
