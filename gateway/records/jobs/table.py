"""The SQL statements and queries for the tables of jobs.

Pure. Each statement that changes a job has a condition on the job's current state; a change by a
run also has a condition on the run. So a process whose job was taken over can no longer change that
job. The statement that inserts a job also checks the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bus.wire.ids import RequestId
from gateway.records.jobs.job import HELD, MOST_CUTS, NEXT, OPEN, Job, NewJob, Signal, error_text
from gateway.records.statements import AGE_NOW, Statement
from gateway.view.options import Options

COLUMNS = tuple(field.name for field in fields(Job))
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM job"
_AHEAD_S = 60.0
"""If a job's next run is further in the future than this, the clock was set back, and the job
counts as due."""
PRUNED = 256

JobPlace = tuple[float, RequestId]
"""The time when a job was submitted, and its request id. Lists over all nodes are ordered by these
two values."""


@dataclass(frozen=True, slots=True)
class JobBounds:
    """Limits for the jobs of a node: open jobs of one client, stored jobs of all clients, bytes of
    all bodies and results, and running jobs. `ttl_s` is the maximum and the default storage time of
    a result."""

    per_client: int = 100
    stored: int = 10_000
    bytes: int = 256 << 20
    running: int = 4
    ttl_s: float = 86_400.0


def job_bounds(options: Options) -> JobBounds:
    """Return the limits from a node's settings."""
    return JobBounds(
        per_client=options.jobs_per_client,
        stored=options.job_rows,
        bytes=options.job_bytes,
        running=options.jobs_running,
        ttl_s=options.job_ttl_s,
    )


def _from(signal: Signal) -> str:
    """Return the SQL condition that a job is in a state that accepts `signal`."""
    return _among("state", [state for state, signals in NEXT.items() if signal in signals])


def _among(column: str, names: Iterable[str]) -> str:
    return f"{column} IN ({', '.join(repr(name) for name in names)})"


_HELD, _OPEN = _among("state", HELD), _among("state", OPEN)
_MINE = f"request = :request AND runner = :runner AND attempts = :attempt AND {_HELD}"
_OWNED = "(:owner IS NULL OR owner = :owner)"
_OF_CLIENT = f"owner = :owner AND client = :client AND address = :address AND {_OPEN}"


def row(values: Sequence[Any]) -> Job:
    return Job(*values)


# --- submitting and reading ----------------------------------------------------------------------


def added(new: NewJob, bounds: JobBounds) -> Statement:
    """Return the statement that inserts a job. At a limit it inserts nothing; `room` then tells the
    current counts."""
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
            "most_kept": bounds.stored,
            "most_bytes": bounds.bytes,
        },
    )


def room(new: NewJob) -> Statement:
    """Return the query for the three counts that are limited: the client's open jobs, all jobs, and
    the bytes of all jobs."""
    return Statement(
        f"SELECT (SELECT count(*) FROM job WHERE {_OF_CLIENT}), count(*), "
        "coalesce(sum(bytes), 0) FROM job",
        {"owner": new.owner, "client": new.client, "address": new.address},
    )


def find(request: RequestId, owner: str | None) -> Statement:
    """Return the query for a job of this owner; owner None: of any owner."""
    return Statement(
        f"{_SELECT} WHERE request = :request AND {_OWNED}", {"request": request, "owner": owner}
    )


def body_of(request: RequestId, owner: str) -> Statement:
    """Return the query for the body of this owner's job."""
    return Statement("SELECT body FROM job WHERE request = ? AND owner = ?", (request, owner))


def before(job: Job) -> Statement:
    """Return the query for the number of queued jobs that are ahead of this one."""
    return Statement(
        "SELECT count(*) FROM job WHERE state = 'queued' AND (priority, number) < (?, ?)",
        (job.priority, job.number),
    )


def listed(owner: str | None, limit: int, before: JobPlace | None) -> Statement:
    """Return the query for the jobs of an owner (None: of all owners), newest first. `before`: only
    jobs that were submitted before this place in the list."""
    at_s, request = (None, None) if before is None else before
    return Statement(
        f"{_SELECT} WHERE {_OWNED} AND "
        "(:at IS NULL OR (created_at_s, request) < (:at, :request)) "
        "ORDER BY created_at_s DESC, request DESC LIMIT :limit",
        {"owner": owner, "at": at_s, "request": request, "limit": limit},
    )


def place_of(job: Job) -> JobPlace:
    """Return a job's place in the list of all nodes' jobs."""
    return job.created_at_s, job.request


def events_from(job: int, first: int, limit_bytes: int) -> Statement:
    """Return the query for a job's events (number, data) from number `first` on. It yields about
    `limit_bytes`, but at least one event."""
    return Statement(
        "SELECT number, data FROM (SELECT number, data, sum(length(data)) OVER (ORDER BY number) "
        "- length(data) AS so_far FROM (SELECT number, data FROM job_event WHERE job = :job AND "
        "number >= :first ORDER BY number LIMIT 1024)) WHERE so_far < :bytes",
        {"job": job, "first": first, "bytes": limit_bytes},
    )


def note_read(job: int, events: int) -> Statement:
    """Return the statement that stores how many events of a job a reader has received."""
    return Statement("UPDATE job SET told = max(told, ?) WHERE number = ?", (events, job))


def removed(request: RequestId, owner: str) -> Statement:
    """Return the statement that deletes this owner's ended job."""
    return Statement(
        f"DELETE FROM job WHERE request = ? AND owner = ? AND NOT {_OPEN}",
        (request, owner),
    )


def stopped(request: RequestId, owner: str, now_s: float) -> tuple[Statement, ...]:
    """Return the statements that stop this owner's job. A queued job ends; a running job is marked,
    so that its process stops it."""
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
    """Return the statement that assigns the next queued job to a process, if fewer than `running`
    jobs run on the node. The next job is one of the client with the fewest running jobs; among
    these, priority decides, then age."""
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


def jobs_of(runner: str) -> Statement:
    """Return the query for all jobs that a process runs, each with its body in the last column."""
    return Statement(
        f"SELECT {', '.join(COLUMNS)}, body FROM job WHERE runner = ? AND {_HELD}",
        (runner,),
    )


BEATS = Statement(f"SELECT number, runner, beat FROM job WHERE {_HELD} AND runner IS NOT NULL")
"""The query for (number, runner, beat) of all running jobs."""
WAITING = Statement("SELECT EXISTS (SELECT 1 FROM job WHERE state = 'queued')")


def beaten(runner: str) -> Statement:
    """Return the statement that increments the beat (sign of life) of a process's jobs."""
    return Statement(f"UPDATE job SET beat = beat + 1 WHERE runner = ? AND {_HELD}", (runner,))


def mine(runner: str) -> Statement:
    """Return the query for (request, attempts, cancelled) of the jobs that a process runs."""
    return Statement(
        f"SELECT request, attempts, cancelled FROM job WHERE runner = ? AND {_HELD}",
        (runner,),
    )


@dataclass(frozen=True, slots=True)
class RunName:
    """Identifies a run: its job, the number of the attempt, and the process that runs it."""

    request: RequestId
    attempt: int
    runner: str

    def values(self, **more: Any) -> dict[str, Any]:
        return {"request": self.request, "attempt": self.attempt, "runner": self.runner, **more}


def progressed(
    run: RunName, first: int, data: Sequence[bytes], tokens: int, *, begun: bool
) -> list[Statement]:
    """Return the statements that add a run's events, the first numbered `first`, and update its
    progress."""
    statements = [
        Statement(
            "INSERT OR REPLACE INTO job_event SELECT number, :number, :data FROM job "
            f"WHERE {_MINE}",
            run.values(number=number, data=event),
        )
        for number, event in enumerate(data, first)
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
    """Return the statement that ends the job of a run. `shown` is the answer of a background
    answer."""
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
    """Return the statements that queue the job of a run again because its own process requested
    that. Such a run does not count as interrupted."""
    values = run.values(ready_at_s=ready_at_s, now=now_s, told=INTERRUPTED_TOLD)
    return (
        *_begun_anew(_MINE, values, "ended_at_s = :now"),
        Statement(
            "UPDATE job SET state = 'queued', runner = NULL, ready_at_s = :ready_at_s "
            f"WHERE {_MINE}",
            values,
        ),
    )


# --- dead processes ------------------------------------------------------------------------------

INTERRUPTED = error_text(
    "interrupted",
    "every process that ran this job ended before it finished; the job is not retried again",
    503,
)
INTERRUPTED_TOLD = error_text(
    "interrupted",
    "the process that ran this response ended before it finished; another run would differ "
    "from the text that a reader already has, so the response is not retried",
    503,
)


def _begun_anew(which: str, values: Mapping[str, Any], ends: str) -> tuple[Statement, ...]:
    """Return the statements that prepare jobs for another run. The events of a plain job are kept,
    and those of the next run follow them. A background answer must have the events of only one run.
    If a reader has already received some, the answer fails; otherwise its events are deleted.
    """
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


def take_over(runner: str, now_s: float) -> tuple[Statement, ...]:
    """Return the statements for the jobs of a dead process. A job ends as stopped if its stop was
    requested, and as failed after too many interrupted runs. Any other job is queued again."""
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
    """Return the statement that deletes jobs whose storage time is over. Each run deletes only some
    of them."""
    return Statement(
        f"DELETE FROM job WHERE number IN (SELECT number FROM job WHERE NOT {_OPEN} "
        f"AND ended_at_s + ttl_s < {AGE_NOW.format(now=':now')} LIMIT {PRUNED})",
        {"now": now_s},
    )
