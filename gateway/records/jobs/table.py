"""What is written and asked of the tables of jobs, as SQL.

Pure. Each change names the state that it is made from, and a change by a run the run, too: who has
lost a job changes nothing of it. Bounds are looked at in the statement that adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bus.wire.ids import RequestId
from gateway.cluster.options import Options
from gateway.records import age
from gateway.records.jobs.job import HELD, MOST_CUTS, NEXT, OPEN, Job, NewJob, Signal, error_text
from gateway.records.statements import Statement

COLUMNS = tuple(field.name for field in fields(Job))
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM job"
_AHEAD_S = 60.0
"""A time to come that is further ahead than this was said by a clock that has been set back."""
PRUNED = 256


JobPlace = tuple[float, RequestId]
"""When a job was submitted, and its request: the order of lists, whichever node it is of."""


@dataclass(frozen=True, slots=True)
class JobBounds:
    """The most that there may be: jobs of one client that are open, of all clients that are kept,
    bytes of all bodies and results, jobs that run at a time on the node, and seconds that a result
    is kept, which is also what a job gets that asks for none."""

    per_client: int = 100
    kept: int = 10_000
    bytes: int = 256 << 20
    running: int = 4
    ttl_s: float = 86_400.0


def job_bounds(options: Options) -> JobBounds:
    """Return the bounds that a node's settings set."""
    return JobBounds(
        per_client=options.jobs_per_client,
        kept=options.job_rows,
        bytes=options.job_bytes,
        running=options.jobs_running,
        ttl_s=options.job_ttl_s,
    )


def _from(signal: Signal) -> str:
    """Return the condition that a job may be told `signal`."""
    return _among("state", [state for state, signals in NEXT.items() if signal in signals])


def _among(column: str, names: Iterable[str]) -> str:
    return f"{column} IN ({', '.join(repr(name) for name in names)})"


_HELD, _OPEN = _among("state", HELD), _among("state", OPEN)
_MINE = f"request = :request AND runner = :runner AND attempts = :attempt AND {_HELD}"
_OWNED = "(:owner IS NULL OR owner = :owner)"
_OF_CLIENT = f"owner = :owner AND client = :client AND address = :address AND {_OPEN}"


def row(values: Sequence[Any]) -> Job:
    """Return a row of a question for jobs."""
    return Job(*values)


# --- submitting and asking -----------------------------------------------------------------------


def added(new: NewJob, bounds: JobBounds) -> Statement:
    """Return what adds a job; it adds none where a bound is reached (`room`)."""
    names = (*(field.name for field in fields(NewJob)), "state", "bytes")
    return Statement(
        f"INSERT INTO job ({', '.join(names)}) SELECT {', '.join(f':{name}' for name in names)} "
        f"WHERE (SELECT count(*) FROM job WHERE {_OF_CLIENT}) < :most_of_client "
        "AND (SELECT count(*) FROM job) < :most_kept "
        "AND (SELECT coalesce(sum(bytes), 0) FROM job) + :bytes <= :most_bytes",
        {
            **{field.name: getattr(new, field.name) for field in fields(NewJob)},
            "state": "queued",
            "bytes": len(new.body) + len(new.shown),
            "most_of_client": bounds.per_client,
            "most_kept": bounds.kept,
            "most_bytes": bounds.bytes,
        },
    )


def room(new: NewJob) -> Statement:
    """Return the question for what is there: open jobs of the client, all jobs, all bytes."""
    return Statement(
        f"SELECT (SELECT count(*) FROM job WHERE {_OF_CLIENT}), count(*), "
        "coalesce(sum(bytes), 0) FROM job",
        {"owner": new.owner, "client": new.client, "address": new.address},
    )


def found(request: RequestId, owner: str | None) -> Statement:
    """Return the question for a job of this owner's; None: of anybody's."""
    return Statement(
        f"{_SELECT} WHERE request = :request AND {_OWNED}", {"request": request, "owner": owner}
    )


def body_of(request: RequestId, owner: str) -> Statement:
    """Return the question for the body of a job of this owner's."""
    return Statement("SELECT body FROM job WHERE request = ? AND owner = ?", (request, owner))


def before(job: Job) -> Statement:
    """Return the question how many queued jobs are before one."""
    return Statement(
        "SELECT count(*) FROM job WHERE state = 'queued' AND (priority, number) < (?, ?)",
        (job.priority, job.number),
    )


def listed(owner: str | None, limit: int, before: JobPlace | None) -> Statement:
    """Return the question for the latest jobs of an owner's (None: of all), those before a place in
    the list."""
    at_s, request = (None, None) if before is None else before
    return Statement(
        f"{_SELECT} WHERE {_OWNED} AND "
        "(:at IS NULL OR (created_at_s, request) < (:at, :request)) "
        "ORDER BY created_at_s DESC, request DESC LIMIT :limit",
        {"owner": owner, "at": at_s, "request": request, "limit": limit},
    )


def place_of(job: Job) -> JobPlace:
    """Return where a job stands in the list of all nodes' jobs."""
    return job.created_at_s, job.request


def events_from(job: int, first: int, limit_bytes: int) -> Statement:
    """Return the question for a job's events (number, data) from one on, at least one where there
    is one, else as many as are within `limit_bytes`."""
    return Statement(
        "SELECT number, data FROM (SELECT number, data, sum(length(data)) OVER (ORDER BY number) "
        "- length(data) AS so_far FROM (SELECT number, data FROM job_event WHERE job = :job AND "
        "number >= :first ORDER BY number LIMIT 1024)) WHERE so_far < :bytes",
        {"job": job, "first": first, "bytes": limit_bytes},
    )


def told(job: int, events: int) -> Statement:
    """Return what notes that a reader was told of so many events."""
    return Statement("UPDATE job SET told = max(told, ?) WHERE number = ?", (events, job))


def removed(request: RequestId, owner: str) -> Statement:
    """Return what removes a job of this owner's that has ended."""
    return Statement(
        f"DELETE FROM job WHERE request = ? AND owner = ? AND NOT {_OPEN}",
        (request, owner),
    )


def stopped(request: RequestId, owner: str, now_s: float) -> tuple[Statement, ...]:
    """Return what stops a job of this owner's: one that is queued at once, one that runs is told
    to its process."""
    values = {"request": request, "owner": owner, "now": now_s}
    return (
        Statement(
            "UPDATE job SET state = 'cancelled', cancelled = 1, ended_at_s = :now "
            "WHERE request = :request AND owner = :owner AND state = 'queued'",
            values,
        ),
        Statement(
            f"UPDATE job SET cancelled = 1 WHERE request = :request AND owner = :owner AND {_HELD}",
            values,
        ),
    )


# --- running -------------------------------------------------------------------------------------


def claimed(runner: str, running: int, now_s: float) -> Statement:
    """Return what gives the next queued job to a process, where fewer than `running` run on the
    node: of the client that has the fewest running, by priority, then by age."""
    return Statement(
        "UPDATE job SET state = 'loading', runner = :runner, attempts = attempts + 1, "
        "beat = 0, tokens = 0, started_at_s = coalesce(started_at_s, :now), "
        "status = NULL, content_type = '' "
        f"WHERE (SELECT count(*) FROM job WHERE {_HELD}) < :running AND {_from('claim')} "
        "AND number = (SELECT number FROM job AS mine WHERE state = 'queued' "
        f"AND (ready_at_s <= :now OR ready_at_s > :now + {_AHEAD_S}) ORDER BY "
        f"(SELECT count(*) FROM job AS other WHERE {_among('other.state', HELD)} AND "
        "other.owner = mine.owner AND other.client = mine.client AND "
        "other.address = mine.address), priority, number LIMIT 1)",
        {"runner": runner, "running": running, "now": now_s},
    )


def held_by(runner: str) -> Statement:
    """Return the question for all jobs that a process has, and their bodies in a last column."""
    return Statement(
        f"SELECT {', '.join(COLUMNS)}, body FROM job WHERE runner = ? AND {_HELD}",
        (runner,),
    )


HELD_NOW = Statement(f"SELECT number, runner, beat FROM job WHERE {_HELD} AND runner IS NOT NULL")
"""The question which jobs are run by which process, and how often that has beaten."""
WAITING = Statement("SELECT EXISTS (SELECT 1 FROM job WHERE state = 'queued')")


def beaten(runner: str) -> Statement:
    """Return what says that a process lives, of all jobs that it has."""
    return Statement(f"UPDATE job SET beat = beat + 1 WHERE runner = ? AND {_HELD}", (runner,))


def mine(runner: str) -> Statement:
    """Return the question for (request, attempts, cancelled) of the jobs that a process has."""
    return Statement(
        f"SELECT request, attempts, cancelled FROM job WHERE runner = ? AND {_HELD}",
        (runner,),
    )


@dataclass(frozen=True, slots=True)
class RunName:
    """A run: of which job, the how manieth attempt, in which process."""

    request: RequestId
    attempt: int
    runner: str

    def values(self, **more: Any) -> dict[str, Any]:
        """Return them as the values of a statement."""
        return {"request": self.request, "attempt": self.attempt, "runner": self.runner, **more}


def progressed(
    run: RunName, first: int, data: Sequence[bytes], tokens: int, *, begun: bool
) -> list[Statement]:
    """Return what adds events of a run, the first of them numbered `first`, and says how far it
    is."""
    statements = [
        Statement(
            "INSERT OR REPLACE INTO job_event SELECT number, :number, :data FROM job "
            f"WHERE {_MINE}",
            run.values(number=number, data=one),
        )
        for number, one in enumerate(data, first)
    ]
    signal = f"iif({_from('begin')} AND :begun, 'running', state)"
    statements.append(
        Statement(
            f"UPDATE job SET state = {signal}, tokens = :tokens, events = :events, "
            f"bytes = bytes + :more WHERE {_MINE}",
            run.values(
                begun=int(begun),
                tokens=tokens,
                events=first + len(data),
                more=sum(map(len, data)),
            ),
        )
    )
    return statements


def ended(
    run: RunName,
    signal: Signal,
    now_s: float,
    *,
    status: int | None,
    content_type: str,
    error: str | None,
    shown: bytes | None,
) -> Statement:
    """Return what ends a run's job. `shown` is its answer, where that has a name of its own."""
    return Statement(
        "UPDATE job SET state = :state, ended_at_s = :now, status = :status, "
        "content_type = :content_type, error = :error, runner = NULL, "
        f"shown = coalesce(:shown, shown) WHERE {_MINE}",
        run.values(
            state=NEXT["running"][signal],
            now=now_s,
            status=status,
            content_type=content_type,
            error=error,
            shown=shown,
        ),
    )


def again(run: RunName, ready_at_s: float, now_s: float) -> tuple[Statement, ...]:
    """Return what puts a run's job back into the queue, as its process asks: no cut."""
    values = run.values(ready_at_s=ready_at_s, now=now_s, told=INTERRUPTED_TOLD)
    return (
        *_begun_anew(_MINE, values, "ended_at_s = :now"),
        Statement(
            "UPDATE job SET state = 'queued', runner = NULL, ready_at_s = :ready_at_s "
            f"WHERE {_MINE}",
            values,
        ),
    )


# --- what died -----------------------------------------------------------------------------------

INTERRUPTED = error_text(
    "interrupted",
    "every process that ran this job ended before it finished; it is not retried again",
    503,
)
INTERRUPTED_TOLD = error_text(
    "interrupted",
    "the process that ran this ended before it finished; another run would differ "
    "from the text that "
    "a reader already has, so it is not retried",
    503,
)


def _begun_anew(which: str, values: Mapping[str, Any], ends: str) -> tuple[Statement, ...]:
    """Return what is done before jobs are run again. An answer with a name is told from its first
    event on: one of which a reader has been told fails, of others the events go. A job's stay, for
    those of the next run are told behind them."""
    return (
        Statement(
            f"UPDATE job SET state = 'failed', error = :told, runner = NULL, {ends} "
            f"WHERE {which} AND kind = 'response' AND told > 0",
            values,
        ),
        Statement(
            "DELETE FROM job_event WHERE job IN "
            f"(SELECT number FROM job WHERE {which} AND kind = 'response')",
            values,
        ),
        Statement(
            "UPDATE job SET events = 0, bytes = length(body) + length(shown) "
            f"WHERE {which} AND kind = 'response'",
            values,
        ),
    )


def taken_from(runner: str, now_s: float) -> tuple[Statement, ...]:
    """Return what is done with the jobs of a process that has died: stopped where that was asked
    for; failed where they were cut too often; else queued again."""
    held = f"runner = :runner AND {_HELD}"
    values = {"runner": runner, "now": now_s, "error": INTERRUPTED, "told": INTERRUPTED_TOLD}
    ends = "runner = NULL, cuts = cuts + 1, ended_at_s = :now"
    return (
        Statement(
            f"UPDATE job SET state = 'cancelled', {ends} WHERE {held} AND cancelled = 1", values
        ),
        *_begun_anew(held, values, "cuts = cuts + 1, ended_at_s = :now"),
        Statement(
            f"UPDATE job SET state = 'failed', error = :error, {ends} "
            f"WHERE {held} AND cuts + 1 >= {MOST_CUTS}",
            values,
        ),
        Statement(
            "UPDATE job SET state = 'queued', runner = NULL, cuts = cuts + 1, ready_at_s = 0 "
            f"WHERE {held}",
            values,
        ),
    )


def pruned(now_s: float) -> Statement:
    """Return what removes jobs that ended long enough ago, some at a time."""
    return Statement(
        f"DELETE FROM job WHERE number IN (SELECT number FROM job WHERE NOT {_OPEN} "
        f"AND ended_at_s + ttl_s < {age.NOW.format(now=':now')} LIMIT {PRUNED})",
        {"now": now_s},
    )
