"""The records' thread: what an event loop hands it, and what becomes of that."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bus.process.clock import now
from bus.process.logs import Log
from bus.wire.ids import RequestId
from gateway.dialects.dialect import KeptAnswer
from gateway.records import (
    LogBounds,
    NodeRecords,
    RecentQuery,
    RecordsFile,
    RecordsUnavailable,
    kept_answers,
)
from gateway.records.jobs import table
from gateway.records.kept_answers import AnswerBounds
from gateway.records.node_records import MOST_QUESTIONS, MOST_ROWS_WAITING
from gateway.records.statements import Statement, age_followed
from tests.harness.gateway_testbed import eventually
from tests.harness.records_writer import row

BOUNDS = LogBounds(rows=100_000, bytes=1 << 30, age_s=1e10)


class Process:
    """The records of one HTTP process, and what it logged."""

    def __init__(self, path: Path | None, bounds: LogBounds = BOUNDS, **more: Any) -> None:
        self.said = io.StringIO()
        log = Log(node="n1", process="gateway:0", stream=self.said)
        self.records = NodeRecords(path, bounds, log, retry_s=0.05, **more)

    def lines(self, level: str) -> list[str]:
        found = [json.loads(line) for line in self.said.getvalue().splitlines()]
        return [one["message"] for one in found if one["level"] == level]

    async def names(self) -> list[str]:
        rows = await self.records.recent(RecentQuery(limit=100_000))
        return [one["request"] for one in reversed(rows)]


def play(process: Process, trace: Callable[[Process], Awaitable[None]]) -> None:
    """Run a trace, and end the process as a gateway does."""
    try:
        asyncio.run(trace(process))  # type: ignore[arg-type]
    finally:
        process.records.close()


def test_a_question_finds_what_was_logged_before_it(tmp_path: Path) -> None:
    async def trace(process: Process) -> None:
        for count in range(1000):
            process.records.log_request(row(f"r{count}"))
        assert await process.names() == [f"r{count}" for count in range(1000)]

    play(Process(tmp_path / "records.sqlite"), trace)


def test_what_waits_is_written_when_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def log(process: Process) -> None:
        for count in range(700):
            process.records.log_request(row(f"r{count}"))

    async def look(process: Process) -> None:
        assert len(await process.names()) == 700

    play(Process(path), log)
    play(Process(path), look)


def test_two_processes_tell_of_each_others_requests(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    other = Process(path)

    async def trace(process: Process) -> None:
        process.records.log_request(row("ours"))
        other.records.log_request(row("theirs"))
        assert "ours" in await process.names()
        await other.names()
        assert set(await process.names()) == {"ours", "theirs"}

    try:
        play(Process(path), trace)
    finally:
        other.records.close()


def test_rows_wait_while_the_file_cannot_be_written_and_both_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "later" / "records.sqlite"

    async def trace(process: Process) -> None:
        process.records.log_request(row("a"))
        eventually(lambda: process.lines("critical"), 10, "it is said")
        with pytest.raises(RecordsUnavailable):
            await process.names()
        [said] = process.records.condition.problems
        assert "cannot write records" in said and "retrying" in said
        await asyncio.sleep(0.8)  # several tries
        process.records.log_request(row("b"))
        path.parent.mkdir()
        eventually(lambda: process.lines("info"), 10, "it is healed")
        assert await process.names() == ["a", "b"]
        assert process.lines("critical") == [
            "cannot write records; requests wait in memory to be logged, and answers are not stored"
        ]
        assert process.lines("info") == ["writing records again"]
        assert process.records.condition.problems == []

    play(Process(path), trace)


def test_a_file_is_tried_again_by_itself_where_nothing_waits_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "later" / "records.sqlite"

    async def trace(process: Process) -> None:
        eventually(lambda: process.lines("critical"), 10, "the first look found it missing")
        path.parent.mkdir()
        eventually(lambda: process.lines("info"), 10, "it is healed")
        assert process.records.condition.problems == []

    play(Process(path), trace)


def test_a_disk_that_is_full_is_still_read_and_healed_by_room(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def trace(process: Process) -> None:
        for count in range(400):
            process.records.log_request(row(f"r{count}", client="x" * 200))
        eventually(lambda: process.lines("critical"), 10, "it is said")
        assert await process.names() == []  # the batch was too much for it: all or none
        connection = sqlite3.connect(path)
        connection.execute("SELECT 1")
        connection.close()

    play(Process(path, max_pages=40), trace)

    async def with_room(process: Process) -> None:
        process.records.log_request(row("after"))
        assert await process.names() == ["after"]

    play(Process(path), with_room)


def test_a_row_without_room_is_dropped_at_once_and_counted(tmp_path: Path) -> None:
    async def trace(process: Process) -> None:
        process.records.log_request(row("first"))
        eventually(lambda: process.lines("critical"), 10, "nothing can be written")
        for _ in range(MOST_ROWS_WAITING + 24):
            process.records.log_request(row("r"))
        assert process.records.dropped == 25
        assert len(process.lines("warning")) == 2  # the 1st and the 10th

    play(Process(tmp_path / "nowhere" / "records.sqlite"), trace)


def test_the_loop_never_waits_for_a_file_that_another_holds(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def trace(process: Process) -> None:
        process.records.log_request(row("before"))
        await process.names()
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        asked = asyncio.ensure_future(process.names())
        longest_s = 0.0
        for count in range(100):
            began = now()
            process.records.log_request(row(f"r{count}"))
            longest_s = max(longest_s, now() - began)
            await asyncio.sleep(0.002)
        again = asyncio.ensure_future(process.names())
        await asyncio.sleep(0.01)
        assert not asked.done()
        holder.execute("COMMIT")
        holder.close()
        await asked
        assert len(await again) == 101
        assert longest_s < 0.1

    play(Process(path), trace)


def test_of_too_many_questions_some_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def trace(process: Process) -> None:
        await process.names()
        process.records.log_request(row("r"))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        asked = [asyncio.ensure_future(process.names()) for _ in range(MOST_QUESTIONS + 5)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert "requests already wait" in str(done.pop().exception())
        holder.execute("COMMIT")
        holder.close()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found.count(["r"]) >= MOST_QUESTIONS

    play(Process(path), trace)


def test_bounds_hold_after_each_writing(tmp_path: Path) -> None:
    async def trace(process: Process) -> None:
        for count in range(2000):
            process.records.log_request(row(f"r{count}"))
        assert await process.names() == [f"r{count}" for count in range(1900, 2000)]

    bounds = LogBounds(rows=100, bytes=1 << 30, age_s=1e10)
    play(Process(tmp_path / "records.sqlite", bounds), trace)


def test_rows_that_have_grown_old_go_at_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    bounds = LogBounds(rows=100, bytes=1 << 30, age_s=60.0)

    async def log(process: Process) -> None:
        process.records.log_request(row("r", ended_at_s=1000.0))
        assert await process.names() == ["r"]

    async def look(process: Process) -> None:
        assert await process.names() == []

    play(Process(path, bounds, wall_s=lambda: 1010.0), log)
    passes(path, 1100.0, 60.0)
    play(Process(path, bounds, wall_s=lambda: 1100.0), look)


def passes(path: Path, wall_s: float, seconds: float) -> None:
    """Some time passes while the node runs, and the wall clock shows this."""
    file = RecordsFile(path, Log(node="n1", process="t", stream=io.StringIO()))
    file.write([age_followed(wall_s, 1000.0), age_followed(wall_s, 1000.0 + seconds)])
    file.close()


def test_a_clock_that_jumps_ahead_and_back_deletes_nothing_and_what_is_old_goes(
    tmp_path: Path,
) -> None:
    path, day = tmp_path / "records.sqlite", 86_400.0
    today = 20_000 * day
    bounds = LogBounds(rows=100, bytes=1 << 30, age_s=14 * day)
    kept = AnswerBounds(rows=100, bytes=1 << 30, age_s=30 * day)

    def removals(now_s: float) -> list[Statement]:
        return [*kept_answers.pruned(kept, now_s), table.pruned(now_s)]

    def process(wall_s: float) -> Process:
        return Process(path, bounds, wall_s=lambda: wall_s, upkeep=removals)

    async def fill(process: Process) -> None:
        process.records.log_request(row("r", ended_at_s=today))
        answer = KeptAnswer(b"{}", (), b"", b"")
        await process.records.write(kept_answers.added("o", RequestId("a"), answer, today))
        assert await process.names() == ["r"]

    async def look(process: Process) -> None:
        await process.records.write([])
        assert await process.names() == ["r"]
        assert rows_of(path, "answer") == 1

    play(process(today), fill)
    for wall_s in (today + 400 * day, today, 0.0, today + 400 * day):
        play(process(wall_s), look)
        passes(path, wall_s, 60.0)

    async def gone(process: Process) -> None:
        await process.records.write([])
        assert await process.names() == []
        assert rows_of(path, "answer") == 0

    # 31 days pass: the clock of the file catches up with the wall's, which is right now
    file = RecordsFile(path, Log(node="n1", process="t", stream=io.StringIO()))
    file.write(
        [age_followed(today + 31 * day, 120.0 * count) for count in range(31 * 24 * 30 // 4 + 9)]
    )
    file.close()
    play(process(today + 31 * day), gone)


def test_a_bound_that_was_lowered_holds_soon_though_no_request_comes(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def log(process: Process) -> None:
        for count in range(2000):
            process.records.log_request(row(f"r{count}"))

    async def look(process: Process) -> None:
        eventually(lambda: rows_of(path) == 10, 20, "only the last ten are left")
        assert await process.names() == [f"r{count}" for count in range(1990, 2000)]

    play(Process(path), log)
    assert rows_of(path) == 2000
    play(Process(path, LogBounds(rows=10, bytes=1 << 30, age_s=1e10)), look)


def rows_of(path: Path, of: str = "request") -> int:
    """How many rows a file has, as another process sees it."""
    connection = sqlite3.connect(path)
    (found,) = connection.execute(f"SELECT count(*) FROM {of}").fetchone()
    connection.close()
    return found


def test_a_clock_that_was_set_back_is_said_and_served_on(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def ahead(process: Process) -> None:
        process.records.log_request(row("ahead", ended_at_s=1e9))
        assert await process.names() == ["ahead"]

    async def back(process: Process) -> None:
        process.records.log_request(row("back", ended_at_s=1000.0))
        assert await process.names() == ["ahead", "back"]
        assert (await process.records.stats(60.0))["requests"] == 1
        eventually(lambda: process.lines("warning"), 10, "it is said")
        [said] = process.records.condition.problems
        assert "the clock was set back" in said

    play(Process(path, wall_s=lambda: 1e9), ahead)
    play(Process(path, wall_s=lambda: 1000.0), back)


def test_without_rows_nothing_is_logged_and_what_was_goes(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    async def log(process: Process) -> None:
        process.records.log_request(row("r"))
        assert len(await process.names()) in (0, 1)

    async def look(process: Process) -> None:
        assert await process.names() == []

    play(Process(path), log)
    play(Process(path, LogBounds(rows=0, bytes=1 << 30, age_s=1e10)), log)
    play(Process(path), look)


def test_without_a_file_there_are_no_records(tmp_path: Path) -> None:
    async def trace(process: Process) -> None:
        process.records.log_request(row("r"))
        with pytest.raises(RecordsUnavailable, match="stores no records"):
            await process.names()

    play(Process(None), trace)
    assert not list(tmp_path.iterdir())


def test_a_row_that_cannot_be_written_holds_up_no_other_for_long(tmp_path: Path) -> None:
    async def trace(process: Process) -> None:
        process.records.log_request(row("bad", seconds=float("nan")))
        eventually(lambda: process.lines("error"), 10, "it is said")
        process.records.log_request(row("good"))
        assert await process.names() == ["good"]

    play(Process(tmp_path / "records.sqlite"), trace)


def test_questions_after_the_end_are_refused(tmp_path: Path) -> None:
    process = Process(tmp_path / "records.sqlite")
    process.records.close()
    with pytest.raises(RecordsUnavailable):
        asyncio.run(process.names())
