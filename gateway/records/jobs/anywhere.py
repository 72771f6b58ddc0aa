"""Talks to the gateways of other nodes: the jobs of the cluster, as clients of any node ask.

A job stays on the node that took it, which its name says, and another's is asked for there, by the
same words as a job of our own. Submitting is of this node alone; a list is of all nodes.
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
    """The latest jobs of all nodes, and the nodes whose jobs are missing, with why."""

    jobs: tuple[Job, ...]
    missing: tuple[str, ...]


class JobsAnywhere:
    """The jobs of every node, as one HTTP process of `node` finds them. `here` are this node's.

    Every method raises RecordsUnavailable where our own file cannot be used, and RecordsElsewhere
    where another node does not tell."""

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
        """Return whether a job is one of our own node's."""
        home = owner_of(job_of_run(request))
        return home is not None and home[0] == self.node

    async def find(self, request: RequestId, owner: str | None) -> Job | None:
        """Return a job of this owner's (None: of anybody's); None where there is none, or no such
        node."""
        found = await self._asked(FIND, request, owner)
        return None if found is None else _job(found)

    async def body(self, request: RequestId, owner: str) -> bytes | None:
        """Return the body of a job of this owner's; None where there is none, or no such node."""
        return await self._asked(BODY, request, owner)

    async def position(self, job: Job) -> int | None:
        """Return how many jobs are before a queued one; None of any other."""
        return await self._asked(POSITION, job.request, job.owner)

    async def more(self, request: RequestId, owner: str, first: int) -> tuple[Job | None, Events]:
        """Return a job as it is, and its next events, from the one numbered `first` on."""
        found = await self._asked(MORE, request, owner, first)
        if found is None:
            return None, []
        job, events = cast(tuple[list[Any], list[tuple[int, bytes]]], found)
        return _job(job), [(number, data) for number, data in events]

    async def listed(self, owner: str | None, limit: int, after: Job | None) -> ListedJobs:
        """Return the latest jobs of this owner's (None: of all) on all nodes, those before
        `after`."""
        place = None if after is None else table.place_of(after)
        found = await self._far.ask(LIST, [owner, limit, place])
        jobs = [_job(one) for answer in found.answers for one in answer]
        jobs.sort(key=table.place_of, reverse=True)
        return ListedJobs(tuple(jobs[:limit]), found.missing)

    async def stop(self, request: RequestId, owner: str) -> None:
        """Ask for the end of a job of this owner's."""
        await self._asked(STOP, request, owner)

    async def remove(self, request: RequestId, owner: str) -> None:
        """Remove a job of this owner's that has ended."""
        await self._asked(REMOVE, request, owner)

    # --- below -----------------------------------------------------------------------------------

    async def _asked(self, verb: str, request: RequestId, *more: Any) -> Any:
        """Return what the node says that a job's name has; None where there is none."""
        name = job_of_run(request)
        return await ask_home(self._far.questions, name, verb, [request, *more])

    async def _find(self, asked: Sequence[Any]) -> Any:
        request, owner = asked
        job = await self.here.find(request, owner)
        return None if job is None else astuple(job)

    async def _body(self, asked: Sequence[Any]) -> Any:
        return await self.here.body(*asked)

    async def _position(self, asked: Sequence[Any]) -> Any:
        request, owner = asked
        job = await self.here.find(request, owner)
        return None if job is None else await self.here.position(job)

    async def _more(self, asked: Sequence[Any]) -> Any:
        request, owner, first = asked
        job, events = await self.here.more(request, owner, first)
        return None if job is None else [astuple(job), events]

    async def _list(self, asked: Sequence[Any]) -> Any:
        owner, limit, place = asked
        before = None if place is None else (float(place[0]), RequestId(place[1]))
        return [astuple(job) for job in await self.here.listed(owner, limit, before)]

    async def _stop(self, asked: Sequence[Any]) -> Any:
        await self.here.stop(*asked)

    async def _remove(self, asked: Sequence[Any]) -> Any:
        await self.here.remove(*asked)


def _job(values: Sequence[Any]) -> Job:
    return table.row(values)
