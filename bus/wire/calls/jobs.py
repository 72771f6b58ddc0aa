"""Calls about jobs. Pure. `request` names the job or a run of it; `owner` None means any owner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.calls.answers import OwnedRecord
from bus.wire.ids import RequestId
from bus.wire.messages.wire import Message

JobKind = Literal["job", "response"]
"""How a job was submitted: as a job, or as an answer in the background."""
JobState = Literal["queued", "loading", "running", "done", "failed", "cancelled"]


class StoredJob(Message):
    """The row of a job in the records file; `gateway/records/jobs/job.py` explains the columns."""

    number: int
    request: RequestId
    kind: JobKind
    path: str
    owner: str
    client: str
    address: str
    priority: int
    created_at_s: float
    ttl_s: float
    metadata: bytes
    shown: bytes
    state: JobState
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


class FindJob(Message):
    """Find a job."""

    owner: str | None
    request: RequestId


class JobFound(Message):
    """The job; None if this owner has no such job."""

    job: StoredJob | None = None


class ReadJobBody(OwnedRecord):
    """Read the body of the request that a job runs."""


class JobBodyRead(Message):
    """The body as JSON; None if this owner has no such job."""

    body: bytes | None = None


class FindPosition(OwnedRecord):
    """Ask how many jobs are ahead of a job in the queue."""


class JobPosition(Message):
    """The number of jobs ahead; None if the job is not queued or does not exist."""

    position: int | None = None


class ReadEvents(OwnedRecord):
    """Read the next events of a job, from number `first` on."""

    first: int = Field(ge=0)


class EventsRead(Message):
    """The job and its events, each with its number; no job if it does not exist."""

    job: StoredJob | None = None
    events: tuple[tuple[int, bytes], ...] = ()


class ListJobs(Message):
    """List the latest jobs, at most `limit`, that come after `after` in the list: the time and the
    request of the last job already listed."""

    owner: str | None
    limit: int = Field(ge=0)
    after: tuple[float, RequestId] | None = None


class JobsFound(Message):
    """The listed jobs of one node, latest first."""

    jobs: tuple[StoredJob, ...] = ()


class StopJob(OwnedRecord):
    """Ask for a job to be stopped."""


class RemoveJob(OwnedRecord):
    """Delete an ended job."""


class Noted(Message):
    """The reply to a call that returns nothing: the call was carried out."""
