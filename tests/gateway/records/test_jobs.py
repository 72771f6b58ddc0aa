"""Jobs in the file, and which processes are taken for dead: traces over a real file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bus.process.logs import Log
from bus.wire.ids import RequestId
from gateway.records.file import RecordsFile
from gateway.records.jobs import events, table
from gateway.records.jobs.job import HELD, MOST_CUTS, NEXT, OPEN, Job, NewJob, job_of_run, run_id
from gateway.records.jobs.leases import LEASE_S, LeaseWatch
from gateway.records.jobs.table import JobBounds, RunName

BOUNDS = JobBounds(per_client=3, stored=6, bytes=10_000, running=2)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RecordsFile]:
    log = Log(node="n1", process="gateway", stream=io.StringIO())
    made = RecordsFile(tmp_path / "records.sqlite", log)
    yield made
    made.close()


def new(name: str, **more: object) -> NewJob:
    job = NewJob(
        request=RequestId(f"req-n1-h0-b-{name}"),
        kind="job",
        path="/v1/chat/completions",
        body=b"{}",
        owner="",
        client="c",
        address="a",
        priority=50,
        created_at_s=10.0,
        ttl_s=100.0,
    )
    return replace(job, **more)  # type: ignore[arg-type]


def add(file: RecordsFile, *jobs: NewJob, bounds: JobBounds = BOUNDS) -> None:
    for one in jobs:
        file.write([table.added(one, bounds)])


def look(file: RecordsFile, job: NewJob) -> Job | None:
    [rows] = file.read([table.find(job.request, job.owner)])
    return table.row(rows[0]) if rows else None


def found(file: RecordsFile, job: NewJob) -> Job:
    there = look(file, job)
    assert there is not None
    return there


def claim(file: RecordsFile, runner: str, now_s: float = 20.0) -> list[Job]:
    """Take the next job; all that the runner has then, the latest taken last."""
    file.write([table.claimed(runner, BOUNDS.running, now_s)])
    [rows] = file.read([table.jobs_of(runner)])
    return [table.row(one[:-1]) for one in rows]


def run_of(job: Job) -> RunName:
    assert job.runner is not None
    return RunName(job.request, job.attempts, job.runner)


def says(file: RecordsFile, run: RunName, first: int, *data: bytes) -> None:
    file.write(table.progressed(run, first, data, tokens=first + len(data), begun=True))


def said(file: RecordsFile, job: Job) -> list[bytes]:
    [rows] = file.read([table.events_from(job.number, 0, 1 << 20)])
    return [data for _, data in rows]


def end(file: RecordsFile, run: RunName) -> None:
    file.write(
        [table.ended(run, "finish", 30.0, status=200, content_type="", error=None, shown=None)]
    )


def test_no_state_is_both_open_and_the_last() -> None:
    assert set(OPEN) | {"done", "failed", "cancelled"} == set(NEXT)
    assert set(HELD) < set(OPEN)
    for state in OPEN:
        assert NEXT[state]["fail"] == "failed" and NEXT[state]["stop"] == "cancelled"


def test_each_run_has_a_name_of_its_own_that_tells_the_jobs() -> None:
    request = RequestId("req-n1-h0-b-1f")
    names = [run_id(request, attempt) for attempt in (1, 2, 3)]
    assert names == [request, f"{request}.2", f"{request}.3"]
    assert {job_of_run(name) for name in names} == {request}
    assert job_of_run(RequestId("no.name")) == "no.name"


def test_bounds_are_held_for_a_client_and_for_all(file: RecordsFile) -> None:
    add(file, *(new(f"{n}") for n in range(5)))
    assert [look(file, new(f"{n}")) is not None for n in range(5)] == [True] * 3 + [False] * 2
    add(file, *(new(f"b{n}", client="other") for n in range(3)), new("c", client="third"))
    assert look(file, new("b2")) is not None and look(file, new("c")) is None
    [[counts]] = file.read([table.room(new("x"))])
    assert tuple(counts[:2]) == (3, 6)


def test_a_job_too_large_for_all_bytes_is_not_added(file: RecordsFile) -> None:
    add(file, new("a", body=b"x" * 6000), new("b", body=b"x" * 6000))
    assert look(file, new("a")) is not None and look(file, new("b")) is None


def test_jobs_are_taken_in_turn_of_their_clients_then_by_priority_then_by_age(
    file: RecordsFile,
) -> None:
    mine = [new("1"), new("2"), new("3", priority=10)]
    add(file, *mine, new("4", client="other", priority=90))
    taken = [claim(file, "h0-b")[-1].request for _ in range(2)]
    assert set(taken) == {mine[2].request, new("4").request}
    assert len(claim(file, "h1-c")) == 0, "two run on the node, as many as may"


def test_a_job_is_held_by_one_runner_and_ended_once(file: RecordsFile) -> None:
    job = new("1")
    add(file, job)
    [first] = claim(file, "h0-b")
    run = run_of(first)
    assert (first.state, first.attempts) == ("loading", 1)
    assert claim(file, "h1-c") == []
    says(file, run, 0, b"a", b"b")
    assert (found(file, job).state, found(file, job).events) == ("running", 2)
    file.write(table.take_over("h0-b", 21.0))
    assert (found(file, job).state, found(file, job).cuts) == ("queued", 1)
    [second] = claim(file, "h1-c")
    says(file, run, 2, b"stale")
    end(file, run)
    now = found(file, job)
    assert (now.state, now.attempts, now.events) == ("loading", 2, 2)
    assert said(file, now) == [b"a", b"b"]
    end(file, run_of(second))
    assert found(file, job).state == "done"
    end(file, run_of(second))
    file.write(table.take_over("h1-c", 40.0))
    assert (found(file, job).state, found(file, job).cuts) == ("done", 1)


def test_a_job_that_is_cut_too_often_fails(file: RecordsFile) -> None:
    job = new("1")
    add(file, job)
    for _ in range(MOST_CUTS):
        claim(file, "h0-b")
        file.write(table.take_over("h0-b", 21.0))
    now = found(file, job)
    assert (now.state, now.attempts, now.error) == ("failed", MOST_CUTS, table.INTERRUPTED)


def test_what_its_process_puts_back_is_no_cut_and_waits(file: RecordsFile) -> None:
    job = new("1")
    add(file, job)
    for _ in range(MOST_CUTS + 2):
        [held] = claim(file, "h0-b", now_s=30.0)
        file.write(table.again(run_of(held), 25.0, 22.0))
    assert (found(file, job).state, found(file, job).cuts) == ("queued", 0)
    assert claim(file, "h0-b", now_s=24.0) == []
    assert claim(file, "h0-b", now_s=-900.0), "the clock was set back: it does not wait for ever"


def test_an_answer_that_a_reader_has_begun_is_not_made_anew(file: RecordsFile) -> None:
    read, unread = new("1", kind="response"), new("2", kind="response")
    add(file, read, unread)
    for job in (read, unread):
        [held] = [one for one in claim(file, "h0-b") if one.request == job.request]
        says(file, run_of(held), 0, b"a")
    file.write([table.note_read(found(file, read).number, 1)])
    file.write(table.take_over("h0-b", 21.0))
    failed, queued = found(file, read), found(file, unread)
    assert (failed.state, failed.error) == ("failed", table.INTERRUPTED_TOLD)
    assert said(file, failed) == [b"a"]
    assert (queued.state, queued.events, said(file, queued)) == ("queued", 0, [])


def test_what_was_to_be_stopped_is_stopped_when_its_process_dies(file: RecordsFile) -> None:
    job = new("1")
    add(file, job)
    claim(file, "h0-b")
    file.write(table.stopped(job.request, job.owner, 21.0))
    assert (found(file, job).state, found(file, job).cancelled) == ("loading", 1)
    file.write(table.take_over("h0-b", 22.0))
    assert found(file, job).state == "cancelled"


def test_results_go_after_their_time_with_their_events_and_open_jobs_stay(
    file: RecordsFile,
) -> None:
    job, open_job = new("1"), new("2")
    add(file, job, open_job)
    [held] = claim(file, "h0-b")
    says(file, run_of(held), 0, b"a")
    end(file, run_of(held))
    number = found(file, job).number
    file.write([table.pruned(129.0)])
    assert look(file, job) is not None
    file.write([table.pruned(131.0)])
    assert look(file, job) is None and look(file, open_job) is not None
    [rows] = file.read([table.events_from(number, 0, 1 << 20)])
    assert rows == []


def test_events_come_in_pieces_of_some_bytes_and_one_at_least(file: RecordsFile) -> None:
    add(file, new("1"))
    [held] = claim(file, "h0-b")
    says(file, run_of(held), 0, b"x" * 100, b"y" * 100, b"z")
    for limit, count in ((50, 1), (101, 2), (1000, 3)):
        [rows] = file.read([table.events_from(held.number, 0, limit)])
        assert len(rows) == count


# --- who has died --------------------------------------------------------------------------------


def test_a_runner_that_does_not_beat_for_the_lease_has_died() -> None:
    watch = LeaseWatch("h0-a")
    assert watch.dead([("h1-b", 5), ("h2-c", 5)], 100.0) == []
    assert watch.dead([("h1-b", 5), ("h2-c", 6)], 100.0 + LEASE_S / 2) == []
    assert watch.dead([("h1-b", 5), ("h2-c", 6)], 100.0 + LEASE_S) == ["h1-b"]
    assert watch.dead([("h1-b", 7), ("h2-c", 6)], 101.0 + LEASE_S) == []


def test_an_earlier_process_of_the_own_number_has_died_at_once() -> None:
    watch = LeaseWatch("h0-a")
    assert watch.dead([("h0-old", 5), ("h0-a", 5), ("h01-x", 5)], 100.0) == ["h0-old"]


# --- what a run says -----------------------------------------------------------------------------


def test_events_are_cut_where_they_end_however_the_bytes_come() -> None:
    stream = b": hello\n\nevent: a\ndata: {}\n\ndata: [DONE]\n\n"
    for size in range(1, len(stream)):
        cutter = events.EventCutter("text/event-stream; charset=utf-8")
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        cut = [one for piece in pieces for one in cutter.cut(piece)]
        assert cut == [b"event: a\ndata: {}\n\n", b"data: [DONE]\n\n"]
        assert cutter.close() == b""
    whole = events.EventCutter("application/json")
    assert whole.cut(b'{"a":') == [] and whole.cut(b"1}") == [] and whole.close() == b'{"a":1}'


@pytest.mark.parametrize(
    ("status", "kind", "last", "stopped", "signal", "retry"),
    [
        (200, "application/json", b'{"a": 1}', False, "finish", False),
        (200, "application/json", b'{"a": 1}', True, "stop", False),
        (429, "application/json", b'{"error": {"code": "queue_full"}}', False, "fail", True),
        (429, "application/json", b'{"error": {"code": "queue_full"}}', True, "fail", False),
        (404, "application/json", b'{"error": "none"}', False, "fail", False),
        (499, "application/json", b'{"error": {}}', True, "stop", False),
        (None, "", b"", False, "fail", False),
        (None, "", b"", True, "stop", False),
        (200, "text/event-stream", b'data: {"error": {"code": "x"}}\n\n', False, "fail", False),
        (200, "application/x-ndjson", b'{"error": "x"}\n', False, "fail", False),
        (200, "application/x-ndjson", b'{"done": true}\n', False, "finish", False),
        (
            200,
            "text/event-stream",
            b'event: response.completed\ndata: {"type": "response.completed", '
            b'"response": {"status": "completed"}}\n\n',
            False,
            "finish",
            False,
        ),
        (
            200,
            "text/event-stream",
            b'event: x\ndata: {"type": "response.created", "response": {"status": "queued"}}\n\n',
            False,
            "fail",
            False,
        ),
    ],
)
def test_how_a_run_ended_is_read_from_its_last_event(
    status: int | None, kind: str, last: bytes, stopped: bool, signal: str, retry: bool
) -> None:
    ending = events.ending_of(status, kind, last, stopped=stopped)
    assert (ending.signal, ending.retry) == (signal, retry)
    lost = events.ending_of(status, kind, last, stopped=stopped, lost=True)
    assert lost.signal == signal and lost.retry == (signal == "fail" and not stopped)
    assert (ending.error is not None) == (signal == "fail")
