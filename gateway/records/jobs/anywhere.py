"""Talks to the gateways of other nodes: finds, reads and stops the jobs of all nodes.

A job stays on the node that accepted it, and its name contains that node. So its owner can ask any
gateway for it, with the same calls as for a local job. A new job is always stored on this node. A
list has the jobs of all nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, cast

from bus.wire.ids import NodeId, RequestId, owner_of
from gateway.cluster.record_lists import RecordLists
from gateway.cluster.record_questions import ask_home
from gateway.records.jobs import table
from gateway.records.jobs.job import Job, job_of_run
from gateway.records.jobs.records import JobRecords

Events = list[tuple[int, bytes]]
FIND, BODY, POSITION, MORE = "job.find", "job.body", "job.position", "job.more"
STOP, REMOVE, LIST = "job.stop", "job.remove", "job.list"


@dataclass(frozen=True, slots=True)
class ListedJobs:
    """The latest jobs of all nodes, and the nodes whose jobs are missing, each with a reason."""

    jobs: tuple[Job, ...]
    missing: tuple[str, ...]


class JobsAnywhere:
    """The jobs of every node, for one HTTP process of `node`. `here` holds this node's.

    Methods raise RecordsUnavailable if this node's file cannot be used, and RecordsElsewhere if
    another node does not reply.
    """

    def __init__(self, here: JobRecords, far: RecordLists, node: NodeId) -> None:
        self.here = here
        self.node = node
        self._far = far
        for verb, by in (
            (FIND, self._find),
            (BODY, self._body),
            (POSITION, self._position),
            (MORE, self._more),
            (STOP, self._stop),
            (REMOVE, self._remove),
            (LIST, self._list),
        ):
            far.questions.answer(verb, by)

    def is_here(self, request: RequestId) -> bool:
        """Return whether a job belongs to this node."""
        home = owner_of(job_of_run(request))
        return home is not None and home[0] == self.node

    async def find(self, request: RequestId, owner: str | None) -> Job | None:
        """Return a job of this owner (None: of any owner). None if the job or its node does not
        exist."""
        row = await self._ask_home(FIND, request, owner)
        return None if row is None else _job(row)

    async def body(self, request: RequestId, owner: str) -> bytes | None:
        """Return the body of this owner's job. None if the job or its node does not exist."""
        return await self._ask_home(BODY, request, owner)

    async def position(self, job: Job) -> int | None:
        """Return how many jobs are ahead of `job` in the queue; None if `job` is not queued."""
        return await self._ask_home(POSITION, job.request, job.owner)

    async def more(self, request: RequestId, owner: str, first: int) -> tuple[Job | None, Events]:
        """Return a job, and its next events from number `first` on."""
        reply = await self._ask_home(MORE, request, owner, first)
        if reply is None:
            return None, []
        job, events = cast(tuple[list[Any], list[tuple[int, bytes]]], reply)
        return _job(job), [(number, data) for number, data in events]

    async def listed(self, owner: str | None, limit: int, after: Job | None) -> ListedJobs:
        """Return the latest jobs of this owner (None: of all owners) on all nodes, at most `limit`,
        that were submitted before the job `after`."""
        place = None if after is None else table.place_of(after)
        replies = await self._far.ask(LIST, [owner, limit, place])
        jobs = [_job(row) for answer in replies.answers for row in answer]
        jobs.sort(key=table.place_of, reverse=True)
        return ListedJobs(tuple(jobs[:limit]), replies.missing)

    async def stop(self, request: RequestId, owner: str) -> None:
        """Request the end of this owner's job."""
        await self._ask_home(STOP, request, owner)

    async def remove(self, request: RequestId, owner: str) -> None:
        """Delete this owner's ended job."""
        await self._ask_home(REMOVE, request, owner)

    # --- internals -------------------------------------------------------------------------------

    async def _ask_home(self, verb: str, request: RequestId, *more: Any) -> Any:
        """Return the reply of the node that a job's name contains; None if the cluster has no such
        node."""
        name = job_of_run(request)
        return await ask_home(self._far.questions, name, verb, [request, *more])

    async def _find(self, arguments: Sequence[Any]) -> Any:
        request, owner = arguments
        job = await self.here.find(request, owner)
        return None if job is None else astuple(job)

    async def _body(self, arguments: Sequence[Any]) -> Any:
        return await self.here.body(*arguments)

    async def _position(self, arguments: Sequence[Any]) -> Any:
        request, owner = arguments
        job = await self.here.find(request, owner)
        return None if job is None else await self.here.position(job)

    async def _more(self, arguments: Sequence[Any]) -> Any:
        request, owner, first = arguments
        job, events = await self.here.more(request, owner, first)
        return None if job is None else [astuple(job), events]

    async def _list(self, arguments: Sequence[Any]) -> Any:
        owner, limit, place = arguments
        before = None if place is None else (float(place[0]), RequestId(place[1]))
        return [astuple(job) for job in await self.here.listed(owner, limit, before)]

    async def _stop(self, arguments: Sequence[Any]) -> Any:
        await self.here.stop(*arguments)

    async def _remove(self, arguments: Sequence[Any]) -> Any:
        await self.here.remove(*arguments)


def _job(values: Sequence[Any]) -> Job:
    return table.row(values)
