"""Talks to the records file, in its thread: the jobs of this node, whichever HTTP process asks.

Every method is one transaction or two, and raises RecordsUnavailable while the file cannot be used.
A job that was submitted outlives the power; so do its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.process.clock import now, wall
from bus.wire.ids import RequestId
from gateway.records import age
from gateway.records.file import RecordsFile
from gateway.records.jobs import table
from gateway.records.jobs.events import Ending
from gateway.records.jobs.job import Job, NewJob
from gateway.records.jobs.table import JobBounds, JobPlace, RunName
from gateway.records.node_records import NodeRecords
from gateway.records.statements import Statement

READ_BYTES = 1 << 20
"""Events that are read at a time."""


@dataclass(frozen=True, slots=True)
class JobsFull:
    """No room for a job, and how much there is of what is full."""

    open_of_client: int
    kept: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What a run has said since it was written last, and how far it is. `first` numbers the first
    of its events here."""

    name: RunName
    first: int
    events: Sequence[bytes]
    tokens: int
    begun: bool


class JobRecords:
    """The jobs of a node, as one HTTP process has them."""

    def __init__(
        self, records: NodeRecords, bounds: JobBounds, *, wall_s: Callable[[], float] = wall
    ) -> None:
        self.bounds = bounds
        self.readers = 0
        """Clients that read the events of jobs here."""
        self._records = records
        self._wall_s = wall_s

    # --- for clients -----------------------------------------------------------------------------

    async def submit(self, new: NewJob) -> Job | JobsFull:
        """Add a job, durably; or say what is full."""

        def ask(file: RecordsFile) -> Job | JobsFull:
            """Add it, and look whether it is there."""
            file.write([table.added(new, self.bounds)], durable=True)
            rows, [counts] = file.read([table.found(new.request, new.owner), table.room(new)])
            return table.row(rows[0]) if rows else JobsFull(*counts)

        return await self._records.ask(ask)

    async def find(self, request: RequestId, owner: str | None) -> Job | None:
        """Return a job of this owner's (None: of anybody's); None where there is none."""
        rows = await self._rows(table.found(request, owner))
        return table.row(rows[0]) if rows else None

    async def body(self, request: RequestId, owner: str) -> bytes | None:
        """Return the body of a job of this owner's; None where there is none."""
        rows = await self._rows(table.body_of(request, owner))
        return rows[0][0] if rows else None

    async def position(self, job: Job) -> int | None:
        """Return how many jobs are before a queued one; None of any other."""
        if job.state != "queued":
            return None
        [[count]] = await self._rows(table.before(job))
        return count

    async def listed(self, owner: str | None, limit: int, before: JobPlace | None) -> list[Job]:
        """Return the latest jobs of this owner's (None: of all), those before a place in the
        list."""
        return [table.row(row) for row in await self._rows(table.listed(owner, limit, before))]

    async def more(
        self, request: RequestId, owner: str, first: int
    ) -> tuple[Job | None, list[tuple[int, bytes]]]:
        """Return a job as it is, and some of its events with their numbers, from `first` on. What
        is told of an answer with a name that is being made is noted before, for another run of it
        would not say the same."""

        def ask(file: RecordsFile) -> tuple[Job | None, list[tuple[int, bytes]]]:
            """Read them; where that is to be noted, whether they are still there when it is."""
            [rows] = file.read([table.found(request, owner)])
            job = table.row(rows[0]) if rows else None
            if job is None or job.events <= first:
                return job, []
            [found] = file.read([table.events_from(job.number, first, READ_BYTES)])
            if found and job.kind == "response" and job.is_open and not job.told:
                file.write([table.told(job.number, first + len(found))])
                [rows] = file.read([table.found(request, owner)])
                again = table.row(rows[0]) if rows else None
                if again is None or again.attempts != job.attempts or again.events < job.events:
                    return again, []
            return job, [(number, data) for number, data in found]

        return await self._records.ask(ask)

    async def stop(self, request: RequestId, owner: str) -> None:
        """Ask for the end of a job of this owner's; one that is queued has ended when this
        returns."""
        await self._write(*table.stopped(request, owner, self._wall_s()), durable=True)

    async def remove(self, request: RequestId, owner: str) -> None:
        """Remove a job of this owner's that has ended."""
        await self._write(table.removed(request, owner), durable=True)

    # --- for who runs them -----------------------------------------------------------------------

    async def claim(self, runner: str) -> None:
        """Give the next queued job to a runner, where one may run."""
        await self._write(table.claimed(runner, self.bounds.running, self._wall_s()))

    async def held(self, runner: str) -> list[tuple[Job, bytes]]:
        """Return the jobs that a runner has, with their bodies."""
        found = await self._rows(table.held_by(runner))
        return [(table.row(one[:-1]), one[-1]) for one in found]

    async def is_waiting(self) -> bool:
        """Return whether any job is queued."""
        [[is_waiting]] = await self._rows(table.WAITING)
        return bool(is_waiting)

    async def advance(
        self, runner: str, runs: Sequence[RunProgress]
    ) -> dict[tuple[RequestId, int], bool]:
        """Write what runs have said, and that their runner lives; return of those that are still
        its own, by job and attempt, whether they are to be stopped."""
        statements = [table.beaten(runner)]
        for run in runs:
            statements += table.progressed(
                run.name, run.first, run.events, run.tokens, begun=run.begun
            )

        def ask(file: RecordsFile) -> dict[tuple[RequestId, int], bool]:
            """Write, and look which are left."""
            file.write(statements)
            [rows] = file.read([table.mine(runner)])
            return {(request, attempt): bool(stop) for request, attempt, stop in rows}

        return await self._records.ask(ask)

    async def end(
        self, last: RunProgress, ending: Ending, status: int | None, content_type: str
    ) -> None:
        """Write the last that a run has said, and its end."""
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
        """Put a run's job back into the queue, to be begun anew after `wait_s`."""
        now_s = self._wall_s()
        await self._write(*table.again(name, now_s + wait_s, now_s), durable=True)

    async def held_now(self) -> list[tuple[str, int]]:
        """Return who runs jobs on this node, with its beats, a row for each job."""
        return [(runner, beat) for _, runner, beat in await self._rows(table.HELD_NOW)]

    async def take_from(self, runner: str) -> None:
        """Queue the jobs of a runner that has died, or end them where they are not begun anew."""
        await self._write(*table.taken_from(runner, self._wall_s()), durable=True)

    async def prune(self) -> None:
        """Remove jobs that ended long enough ago."""
        now_s = self._wall_s()
        await self._write(age.followed(now_s, now()), table.pruned(now_s))

    # --- below -----------------------------------------------------------------------------------

    async def _rows(self, question: Statement) -> list[Sequence[Any]]:
        def ask(file: RecordsFile) -> list[Sequence[Any]]:
            """Read them."""
            [rows] = file.read([question])
            return rows

        return await self._records.ask(ask)

    async def _write(self, *statements: Statement, durable: bool = False) -> None:
        await self._records.ask(lambda file: file.write(statements, durable=durable))
