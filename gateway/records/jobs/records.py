"""Talks to the records file, in the records thread: stores and changes the jobs of this node.

Every method runs one or two transactions, and raises RecordsUnavailable while the file cannot be
used. When `submit` or `end` returns, the job or its end survives a power failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.process.clock import now, wall
from bus.wire.ids import RequestId
from gateway.records.file import RecordsFile
from gateway.records.jobs import table
from gateway.records.jobs.events import Ending
from gateway.records.jobs.job import Job, NewJob
from gateway.records.jobs.table import JobBounds, JobPlace, RunName
from gateway.records.node_records import NodeRecords
from gateway.records.statements import Statement, age_followed

READ_BYTES = 1 << 20
"""At most this many bytes of events are read in one transaction."""


@dataclass(frozen=True, slots=True)
class JobsFull:
    """The counts that were compared with the limits when a job was refused."""

    open_of_client: int
    stored: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The output of a run since the last write, and the progress of the run. `first` is the number
    of the first event in this output."""

    name: RunName
    first: int
    events: Sequence[bytes]
    tokens: int
    begun: bool


@dataclass(frozen=True, slots=True)
class JobsLook:
    """The jobs of a node, as an idle runner of jobs checks them. `is_waiting`: a job is queued.
    `beats` has (runner, beat) of each running job."""

    is_waiting: bool
    beats: Sequence[tuple[str, int]]


class JobRecords:
    """Reads and changes the jobs of a node, for one HTTP process."""

    def __init__(
        self, records: NodeRecords, bounds: JobBounds, *, wall_s: Callable[[], float] = wall
    ) -> None:
        self.bounds = bounds
        self.readers = 0
        """Clients that read events of jobs at this process."""
        self._records = records
        self._wall_s = wall_s

    # --- for clients -----------------------------------------------------------------------------

    async def submit(self, new: NewJob) -> Job | JobsFull:
        """Add a job durably, or return the counts that reached a limit."""

        def ask(file: RecordsFile) -> Job | JobsFull:
            """Insert the job, and check that it was inserted."""
            file.write([table.added(new, self.bounds)], durable=True)
            rows, [counts] = file.read([table.find(new.request, new.owner), table.room(new)])
            return table.row(rows[0]) if rows else JobsFull(*counts)

        return await self._records.ask(ask)

    async def find(self, request: RequestId, owner: str | None) -> Job | None:
        """Return a job of this owner (None: of any owner). None if no job matches."""
        rows = await self._rows(table.find(request, owner))
        return table.row(rows[0]) if rows else None

    async def body(self, request: RequestId, owner: str) -> bytes | None:
        """Return the JSON body of this owner's job; None if there is no such job."""
        rows = await self._rows(table.body_of(request, owner))
        return rows[0][0] if rows else None

    async def position(self, job: Job) -> int | None:
        """Return how many jobs are ahead of `job` in the queue; None if `job` is not queued."""
        if job.state != "queued":
            return None
        [[count]] = await self._rows(table.before(job))
        return count

    async def listed(self, owner: str | None, limit: int, before: JobPlace | None) -> list[Job]:
        """Return at most `limit` jobs of this owner (None: of all owners), newest first. `before`:
        only jobs that were submitted before this place in the list; None: from the newest on."""
        return [table.row(row) for row in await self._rows(table.listed(owner, limit, before))]

    async def more(
        self, request: RequestId, owner: str, first: int
    ) -> tuple[Job | None, list[tuple[int, bytes]]]:
        """Return a job, and some of its events with their numbers, from number `first` on. Events
        of an unfinished background answer are marked as read before they are returned. Such an
        answer is not run again, because a second run would give other events."""

        def ask(file: RecordsFile) -> tuple[Job | None, list[tuple[int, bytes]]]:
            """Read events. If they must be marked as read, check afterwards that they still
            exist."""
            [rows] = file.read([table.find(request, owner)])
            job = table.row(rows[0]) if rows else None
            if job is None or job.events <= first:
                return job, []
            [events] = file.read([table.events_from(job.number, first, READ_BYTES)])
            if events and job.kind == "response" and job.is_open and not job.told:
                file.write([table.note_read(job.number, first + len(events))])
                [rows] = file.read([table.find(request, owner)])
                again = table.row(rows[0]) if rows else None
                if again is None or again.attempts != job.attempts or again.events < job.events:
                    return again, []
            return job, [(number, data) for number, data in events]

        return await self._records.ask(ask)

    async def stop(self, request: RequestId, owner: str) -> None:
        """Request that this owner's job stops. A queued job has ended when this method returns."""
        await self._write(*table.stopped(request, owner, self._wall_s()), durable=True)

    async def remove(self, request: RequestId, owner: str) -> None:
        """Delete this owner's ended job."""
        await self._write(table.removed(request, owner), durable=True)

    # --- for the processes that run them ---------------------------------------------------------

    async def claim(self, runner: str) -> None:
        """Assign the next queued job to `runner`, unless the node already runs the maximum number
        of jobs."""
        await self._write(table.claimed(runner, self.bounds.running, self._wall_s()))

    async def jobs_of(self, runner: str) -> list[tuple[Job, bytes]]:
        """Return a runner's jobs with their bodies."""
        rows = await self._rows(table.jobs_of(runner))
        return [(table.row(row[:-1]), row[-1]) for row in rows]

    async def is_waiting(self) -> bool:
        """Return whether any job is queued."""
        [[is_waiting]] = await self._rows(table.WAITING)
        return bool(is_waiting)

    async def advance(
        self, runner: str, runs: Sequence[RunProgress]
    ) -> dict[tuple[RequestId, int], bool]:
        """Write the progress of runs, and increment the beat of their runner (the HTTP process that
        runs the jobs). Return the runs that still belong to this runner, as (request of the job,
        number of the attempt), each with whether it must be stopped."""
        statements = [table.beaten(runner)]
        for run in runs:
            statements += table.progressed(
                run.name, run.first, run.events, run.tokens, begun=run.begun
            )

        def ask(file: RecordsFile) -> dict[tuple[RequestId, int], bool]:
            """Write the progress. Return the runs (request, number of the run) that still belong to
            this job runner, each with whether it must stop."""
            file.write(statements)
            [rows] = file.read([table.mine(runner)])
            return {(request, attempt): bool(stop) for request, attempt, stop in rows}

        return await self._records.ask(ask)

    async def end(
        self, last: RunProgress, ending: Ending, status: int | None, content_type: str
    ) -> None:
        """Write the last output of a run, and its end."""
        await self._write(
            *table.progressed(last.name, last.first, last.events, last.tokens, begun=last.begun),
            table.ended(
                last.name,
                ending.signal,
                self._wall_s(),
                status=status,
                content_type=content_type,
                error=ending.error,
                shown=ending.answer,
            ),
            durable=True,
        )

    async def again(self, name: RunName, wait_s: float) -> None:
        """Queue the job of a run again; the next run begins after `wait_s` at the earliest."""
        now_s = self._wall_s()
        await self._write(*table.again(name, now_s + wait_s, now_s), durable=True)

    async def look(self) -> JobsLook:
        """Return whether jobs wait and which jobs run, with one question to the records thread."""

        def ask(file: RecordsFile) -> JobsLook:
            beats, [[is_waiting]] = file.read([table.BEATS, table.WAITING])
            return JobsLook(bool(is_waiting), [(runner, beat) for _, runner, beat in beats])

        return await self._records.ask(ask)

    async def take_from(self, runner: str) -> None:
        """Queue the jobs of a dead runner again. A job that was being stopped, or whose processes
        died too often, ends instead."""
        await self._write(*table.take_over(runner, self._wall_s()), durable=True)

    async def prune(self) -> None:
        """Delete ended jobs whose results have been stored long enough."""
        now_s = self._wall_s()
        await self._write(age_followed(now_s, now()), table.pruned(now_s))

    # --- internals -------------------------------------------------------------------------------

    async def _rows(self, question: Statement) -> list[Sequence[Any]]:
        def ask(file: RecordsFile) -> list[Sequence[Any]]:
            [rows] = file.read([question])
            return rows

        return await self._records.ask(ask)

    async def _write(self, *statements: Statement, durable: bool = False) -> None:
        await self._records.ask(lambda file: file.write(statements, durable=durable))
