"""Talks to the gateways of other nodes: finds, reads and stops the jobs of all nodes.

A job stays on the node that accepted it, and its name contains that node. So the job's owner can
ask any gateway for it, with the same calls as for a local job. A new job is always stored on the
node whose gateway accepts it. A list has the jobs of all nodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bus.calls import NodeCalls, table
from bus.wire.calls.jobs import (
    EventsRead,
    FindJob,
    FindPosition,
    JobBodyRead,
    JobFound,
    JobPosition,
    JobsFound,
    ListJobs,
    Noted,
    ReadEvents,
    ReadJobBody,
    RemoveJob,
    StopJob,
    StoredJob,
)
from bus.wire.ids import NodeId, RequestId, owner_of
from gateway.records.jobs.job import Job, job_of_run
from gateway.records.jobs.records import JobRecords
from gateway.records.jobs.table import place_of

Events = list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class ListedJobs:
    """The latest jobs of all nodes, and the nodes whose jobs are missing, each with a reason."""

    jobs: tuple[Job, ...]
    missing: tuple[str, ...]


class JobsAnywhere:
    """The jobs of every node, for one HTTP process of `node`. `here` has the jobs of this node.

    Methods raise RecordsUnavailable if this node's file cannot be used, and CallFailed if another
    node does not reply.
    """

    def __init__(self, here: JobRecords, calls: NodeCalls, node: NodeId) -> None:
        self.here = here
        self.node = node
        self._calls = calls
        calls.answer(table.FIND_JOB, self._find)
        calls.answer(table.READ_JOB_BODY, self._body)
        calls.answer(table.FIND_POSITION, self._position)
        calls.answer(table.READ_EVENTS, self._events)
        calls.answer(table.STOP_JOB, self._stop)
        calls.answer(table.REMOVE_JOB, self._remove)
        calls.answer(table.LIST_JOBS, self._list)

    def is_here(self, request: RequestId) -> bool:
        """Return whether a job belongs to this node."""
        home = owner_of(job_of_run(request))
        return home is not None and home[0] == self.node

    async def find(self, request: RequestId, owner: str | None) -> Job | None:
        """Return a job of this owner (None: of any owner). None if the job or its node does not
        exist."""
        find = FindJob(owner=owner, request=request)
        reply = await self._calls.ask_owner(job_of_run(request), table.FIND_JOB, find)
        return None if reply is None else _job(reply.job)

    async def body(self, request: RequestId, owner: str) -> bytes | None:
        """Return the body of this owner's job. None if the job or its node does not exist."""
        read = ReadJobBody(owner=owner, request=request)
        reply = await self._calls.ask_owner(job_of_run(request), table.READ_JOB_BODY, read)
        return None if reply is None else reply.body

    async def position(self, job: Job) -> int | None:
        """Return how many jobs are ahead of `job` in the queue; None if `job` is not queued."""
        find = FindPosition(owner=job.owner, request=job.request)
        reply = await self._calls.ask_owner(job_of_run(job.request), table.FIND_POSITION, find)
        return None if reply is None else reply.position

    async def more(self, request: RequestId, owner: str, first: int) -> tuple[Job | None, Events]:
        """Return a job, and its next events from number `first` on."""
        read = ReadEvents(owner=owner, request=request, first=first)
        reply = await self._calls.ask_owner(job_of_run(request), table.READ_EVENTS, read)
        return (None, []) if reply is None else (_job(reply.job), list(reply.events))

    async def listed(self, owner: str | None, limit: int, after: Job | None) -> ListedJobs:
        """Return the latest jobs of this owner (None: of all owners) on all nodes, at most `limit`,
        that were submitted before the job `after`."""
        place = None if after is None else place_of(after)
        question = ListJobs(owner=owner, limit=limit, after=place)
        gathered = await self._calls.ask_each(table.LIST_JOBS, question)
        rows = [row for reply in gathered.replies.values() for row in reply.jobs]
        jobs = [Job(**row.model_dump()) for row in rows]
        jobs.sort(key=place_of, reverse=True)
        return ListedJobs(tuple(jobs[:limit]), gathered.missing)

    async def stop(self, request: RequestId, owner: str) -> None:
        """Ask for this owner's job to be stopped."""
        stop = StopJob(owner=owner, request=request)
        await self._calls.ask_owner(job_of_run(request), table.STOP_JOB, stop)

    async def remove(self, request: RequestId, owner: str) -> None:
        """Delete this owner's ended job."""
        remove = RemoveJob(owner=owner, request=request)
        await self._calls.ask_owner(job_of_run(request), table.REMOVE_JOB, remove)

    # --- answers to the gateways of all nodes ----------------------------------------------------

    async def _find(self, call: FindJob) -> JobFound:
        return JobFound(job=_stored(await self.here.find(call.request, call.owner)))

    async def _body(self, call: ReadJobBody) -> JobBodyRead:
        return JobBodyRead(body=await self.here.body(call.request, call.owner))

    async def _position(self, call: FindPosition) -> JobPosition:
        job = await self.here.find(call.request, call.owner)
        return JobPosition(position=None if job is None else await self.here.position(job))

    async def _events(self, call: ReadEvents) -> EventsRead:
        job, events = await self.here.more(call.request, call.owner, call.first)
        return EventsRead(job=_stored(job), events=tuple(events))

    async def _list(self, call: ListJobs) -> JobsFound:
        jobs = await self.here.listed(call.owner, call.limit, call.after)
        return JobsFound(jobs=tuple(StoredJob(**asdict(job)) for job in jobs))

    async def _stop(self, call: StopJob) -> Noted:
        await self.here.stop(call.request, call.owner)
        return Noted()

    async def _remove(self, call: RemoveJob) -> Noted:
        await self.here.remove(call.request, call.owner)
        return Noted()


def _stored(job: Job | None) -> StoredJob | None:
    return None if job is None else StoredJob(**asdict(job))


def _job(stored: StoredJob | None) -> Job | None:
    return None if stored is None else Job(**stored.model_dump())
