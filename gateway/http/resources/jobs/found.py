"""Talks to the records: a client's job, found or refused; submitted, stopped, and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, cast

import orjson
from falcon.asgi import Request

from bus.wire.ids import RequestId
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.dialects import sse
from gateway.dialects.faults import HttpFault, HttpFaultRaised, not_found, records_unavailable
from gateway.http.auth import check_scope
from gateway.http.callers import caller_of, check_owner, owner_of_kept
from gateway.http.middleware import receive_of
from gateway.http.resources.answers import records_told
from gateway.http.running import hung_up
from gateway.records import Job, JobsFull, NewJob, RecordsUnavailable
from gateway.service import HttpService

STOPPED_S = 8.0
"""A job that was told to stop has ended within this: a round, and the 3 s that its runner has."""
LOOKED_S = 0.05
LOOK_S, LOOK_ELSEWHERE_S = 0.25, 1.0
"""Between two looks for more events of a job, and of one of another node."""
QUIET_S = 10.0
MOST_READERS = 64
"""Clients of one HTTP process that read the events of jobs."""
_T = TypeVar("_T")
Told = Callable[[int, bytes], bytes]
"""Renders an event by its number."""


async def recorded(question: Awaitable[_T]) -> _T:
    """Return the answer of the records. Raises HttpFaultRaised (503, 504) while there is none."""
    with records_told():
        return await question


async def submitted(service: HttpService, new: NewJob) -> Job:
    """Submit a job; it outlives this process when this returns. Raises HttpFaultRaised (429)."""
    if not service.options.records_file:
        raise HttpFaultRaised(records_unavailable("this node stores no records and no jobs"))
    found = await recorded(service.jobs.here.submit(new))
    if isinstance(found, JobsFull):
        bounds = service.jobs.here.bounds
        if found.open_of_client >= bounds.per_client:
            text = f"this client has {found.open_of_client} open jobs, its limit"
        elif found.kept >= bounds.kept:
            text = f"this node stores {found.kept} jobs, its limit; delete some"
        else:
            text = f"jobs on this node take {found.bytes} bytes, the limit; delete finished ones"
        raise HttpFaultRaised(HttpFault(429, "queue_full", text, retry_after_s=60.0))
    service.job_runner.wake()
    return found


async def owner_of_jobs(req: Request, service: HttpService) -> str | None:
    """Return whose jobs a request may find: those of its API key; with `?all=true` everybody's
    (None), those of keys that were removed too. Raises HttpFaultRaised (400; 403 for one who is not
    the node's owner, or without the scope 'admin')."""
    wanted = (req.get_param("all") or "false").casefold()
    if wanted not in ("true", "false", "1", "0"):
        raise HttpFaultRaised(HttpFault(400, "invalid_value", "all: true or false", field="all"))
    if wanted in ("false", "0"):
        return await owner_of_kept(req, service.options)
    caller = caller_of(req)
    assert caller is not None, "no jobs folder is open"
    check_scope(caller, "admin", "?all=true")
    await check_owner(req, service.options, "?all=true")
    return None


async def found_job(service: HttpService, owner: str | None, request: RequestId) -> Job | None:
    """Return a job of this owner's (None: of anybody's); None where there is none. Raises
    HttpFaultRaised (503)."""
    if not service.options.records_file and service.jobs.is_here(request):
        return None
    return await recorded(service.jobs.find(request, owner))


async def stopped(service: HttpService, job: Job) -> Job:
    """Stop a job that is open, and return it once it has ended, or as it is after `STOPPED_S`.
    Raises HttpFaultRaised (503, 404)."""
    await recorded(service.jobs.stop(job.request, job.owner))
    service.job_runner.wake()
    give_up_at = service.reactor.now() + STOPPED_S
    while True:
        left = await found_job(service, job.owner, job.request)
        if left is None:
            raise HttpFaultRaised(not_found(f"job_{job.request}"))
        if not left.is_open or service.reactor.now() >= give_up_at:
            return left
        await asyncio.sleep(LOOKED_S)


def error_of(job: Job) -> dict[str, Any] | None:
    """Return why a job failed."""
    return None if job.error is None else cast(dict[str, Any], orjson.loads(job.error))


def starting_after(req: Request) -> int:
    """Return the number of the event after which a reader goes on; -1 for all. Raises
    HttpFaultRaised (400)."""
    text = req.get_param("starting_after") or "-1"
    if text != "-1" and not (text.isascii() and text.isdigit() and len(text) < 10):
        fault = HttpFault(
            400, "invalid_value", "starting_after: the number of an event", field="starting_after"
        )
        raise HttpFaultRaised(fault)
    return int(text)


class JobReader:
    """A client that reads the events of a job, from the one numbered `first` on."""

    def __init__(self, service: HttpService, req: Request, job: Job, first: int) -> None:
        self._service = service
        self._job = job
        self._first = first
        self._gone = asyncio.Event()
        self._receive = receive_of(req)
        is_here = service.jobs.is_here(job.request)
        self._look_s = LOOK_S if is_here else LOOK_ELSEWHERE_S

    async def read(self, told: Told, last: Callable[[Job, int], bytes]) -> AsyncGenerator[bytes]:
        """Yield what is told of each event, once, and of the job when it has ended."""
        service = self._service
        if service.jobs.here.readers >= MOST_READERS:
            yield sse.comment("too many clients read job events; resume later with starting_after")
            return
        service.jobs.here.readers += 1
        watch = asyncio.ensure_future(self._watch())
        quiet_since = service.reactor.now()
        try:
            while not self._gone.is_set():
                if service.dispatcher.draining:
                    yield sse.comment("this gateway is shutting down; resume with starting_after")
                    return
                try:
                    job, events = await self._more()
                except RecordsElsewhere as error:
                    yield sse.comment(f"{error}; resume with starting_after")
                    return
                if events:
                    self._first += len(events)
                    yield b"".join(told(number, data) for number, data in events)
                    quiet_since = service.reactor.now()
                    continue
                if job is None or not job.is_open:
                    if job is not None:
                        yield last(job, self._first)
                    return
                if service.reactor.now() - quiet_since >= QUIET_S:
                    quiet_since = service.reactor.now()
                    yield sse.comment(f"{job.state}, {job.tokens} tokens")
                await self._pause()
        finally:
            watch.cancel()
            service.jobs.here.readers -= 1

    async def _more(self) -> tuple[Job | None, list[tuple[int, bytes]]]:
        """Return the job and its next events. Raises RecordsElsewhere where its node is gone."""
        job = self._job
        try:
            return await self._service.jobs.more(job.request, job.owner, self._first)
        except RecordsUnavailable:
            return job, []
        except RecordsElsewhere as error:
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


def check_readers(service: HttpService) -> None:
    """Raise HttpFaultRaised (429) where as many read the events of jobs as may."""
    if service.jobs.here.readers >= MOST_READERS:
        text = f"{service.jobs.here.readers} clients read the events of jobs here"
        raise HttpFaultRaised(HttpFault(429, "queue_full", text, retry_after_s=1.0))
