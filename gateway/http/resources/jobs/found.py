"""Talks to the records: finds, submits and stops a client's jobs, and reads their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar, cast

import orjson
from falcon.asgi import Request

from bus.calls import CallFailed
from bus.wire.ids import RequestId
from gateway.access import check_scope
from gateway.dialects import sse
from gateway.dialects.faults import HttpFault, HttpFaultRaised, not_found, records_unavailable
from gateway.exchange import hung_up
from gateway.http.callers import caller_of, check_owner, owner_of_kept
from gateway.http.scope import scope_of
from gateway.records import AllRecords, Job, JobsFull, NewJob, RecordsUnavailable
from gateway.view.options import Options

STOPPED_S = 8.0
"""A stopped job ends within this time: one round of the job runner, plus the 3 s that the model's
runner has to end a request."""
LOOKED_S = 0.05
LOOK_S, LOOK_ELSEWHERE_S = 0.25, 1.0
"""How often to poll the events of a job of this node, and of another node."""
QUIET_S = 10.0
MOST_READERS = 64
"""Limit of concurrent readers of job events, per HTTP process."""
_T = TypeVar("_T")
RenderEvent = Callable[[int, bytes], bytes]
"""Renders an event, given its number and its data."""


async def submit_job(records: AllRecords, new: NewJob) -> Job:
    """Submit a job, and return it once it is stored durably. Raises HttpFaultRaised (429 at a
    limit, 503 without records)."""
    if not records.options.records_file:
        raise HttpFaultRaised(records_unavailable("this node stores no records and no jobs"))
    outcome = await records.jobs.here.submit(new)
    if isinstance(outcome, JobsFull):
        bounds = records.jobs.here.bounds
        if outcome.open_of_client >= bounds.per_client:
            text = f"this client has {outcome.open_of_client} open jobs, the limit; cancel one"
        elif outcome.stored >= bounds.stored:
            text = f"this node stores {outcome.stored} jobs, the limit; delete ended jobs"
        else:
            text = f"this node's jobs have {outcome.bytes} bytes, the limit; delete ended jobs"
        raise HttpFaultRaised(HttpFault(429, "queue_full", text, retry_after_s=60.0))
    records.job_runner.wake()
    return outcome


async def owner_of_jobs(req: Request, options: Options) -> str | None:
    """Return the owner whose jobs a request may find, by its API key. `?all=true` gives None: all
    jobs, including those of removed keys. Raises HttpFaultRaised (400; 403 for a client that is not
    the node's owner or lacks the scope 'admin')."""
    wanted = (req.get_param("all") or "false").casefold()
    if wanted not in ("true", "false", "1", "0"):
        raise HttpFaultRaised(
            HttpFault(400, "invalid_value", "?all= must be true or false", field="all")
        )
    if wanted in ("false", "0"):
        return await owner_of_kept(req, options)
    caller = caller_of(req)
    assert caller is not None, "an anonymous client reached a path of jobs"
    check_scope(caller, "admin", "?all=true")
    await check_owner(req, options, "?all=true")
    return None


async def found_job(records: AllRecords, owner: str | None, request: RequestId) -> Job | None:
    """Return a job of this owner (None: of any owner). None if no job matches. Raises
    HttpFaultRaised (503, 504)."""
    if not records.options.records_file and records.jobs.is_here(request):
        return None
    return await records.jobs.find(request, owner)


async def stop_job(records: AllRecords, job: Job) -> Job:
    """Stop an open job. Return the job once it has ended, but after `STOPPED_S` at the latest.
    Raises HttpFaultRaised (404, 503, 504)."""
    await records.jobs.stop(job.request, job.owner)
    records.job_runner.wake()
    give_up_at = records.reactor.now() + STOPPED_S
    while True:
        left = await found_job(records, job.owner, job.request)
        if left is None:
            raise HttpFaultRaised(not_found(f"job_{job.request}"))
        if not left.is_open or records.reactor.now() >= give_up_at:
            return left
        await asyncio.sleep(LOOKED_S)


def error_of(job: Job) -> dict[str, Any] | None:
    """Return the error object of a failed job."""
    return None if job.error is None else cast(dict[str, Any], orjson.loads(job.error))


def starting_after(req: Request) -> int:
    """Return the number of the last event that the reader has; -1 for none. Raises HttpFaultRaised
    (400)."""
    text = req.get_param("starting_after") or "-1"
    if text != "-1" and not (text.isascii() and text.isdigit() and len(text) < 10):
        fault = HttpFault(
            400,
            "invalid_value",
            "starting_after must be the number of an event",
            field="starting_after",
        )
        raise HttpFaultRaised(fault)
    return int(text)


class JobReader:
    """A client that reads the events of a job, from number `first` on."""

    def __init__(self, records: AllRecords, req: Request, job: Job, first: int) -> None:
        self._records = records
        self._job = job
        self._first = first
        self._gone = asyncio.Event()
        self._receive = scope_of(req).receive
        is_here = records.jobs.is_here(job.request)
        self._look_s = LOOK_S if is_here else LOOK_ELSEWHERE_S

    async def read(
        self, render: RenderEvent, last: Callable[[Job, int], bytes]
    ) -> AsyncGenerator[bytes]:
        """Yield each rendered event once. When the job has ended, yield `last(job, number)`, where
        `number` is the number after that of the last event."""
        records = self._records
        if records.jobs.here.readers >= MOST_READERS:
            yield sse.comment("too many clients read job events; resume later with starting_after")
            return
        records.jobs.here.readers += 1
        watch = asyncio.ensure_future(self._watch())
        quiet_since = records.reactor.now()
        try:
            while not self._gone.is_set():
                if records.job_runner.is_stopping:
                    yield sse.comment("this gateway is shutting down; resume with starting_after")
                    return
                try:
                    job, events = await self._more()
                except CallFailed as error:
                    yield sse.comment(f"{error}; resume with starting_after")
                    return
                if events:
                    self._first += len(events)
                    yield b"".join(render(number, data) for number, data in events)
                    quiet_since = records.reactor.now()
                    continue
                if job is None or not job.is_open:
                    if job is not None:
                        yield last(job, self._first)
                    return
                if records.reactor.now() - quiet_since >= QUIET_S:
                    quiet_since = records.reactor.now()
                    yield sse.comment(f"{job.state}, {job.tokens} tokens")
                await self._pause()
        finally:
            watch.cancel()
            records.jobs.here.readers -= 1

    async def _more(self) -> tuple[Job | None, list[tuple[int, bytes]]]:
        """Return the job and its next events. Raises CallFailed if the job's node does not
        reply."""
        job = self._job
        try:
            return await self._records.jobs.more(job.request, job.owner, self._first)
        except RecordsUnavailable:
            return job, []
        except CallFailed as error:
            if error.why != "refused":
                raise
            return job, []

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._look_s):
                await self._gone.wait()
        except TimeoutError:
            return

    async def _watch(self) -> None:
        await hung_up(self._receive)
        self._gone.set()


def check_readers(records: AllRecords) -> None:
    """Raise HttpFaultRaised (429) at the limit of readers of job events."""
    if records.jobs.here.readers >= MOST_READERS:
        text = f"too many clients read job events here; the limit is {MOST_READERS}"
        raise HttpFaultRaised(HttpFault(429, "queue_full", text, retry_after_s=1.0))
