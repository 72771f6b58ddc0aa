"""Talks to the records file, in a separate thread: runs the writes and queries of one HTTP process.

The event loop never waits for the file. Log rows wait in a bounded queue and are written in
batches; if the queue is full, a row is dropped and counted. An acknowledged write is on the disk.
Writes that arrive during another write share a transaction. Queries return futures. While the file
cannot be written, rows wait in the queue until it is full. The failure and the recovery are logged
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from bus.process.clock import now, wall
from bus.process.logs import CountedWarning, Log, story_of
from gateway.records import kept_answers, request_log, traces
from gateway.records.condition import RecordsCondition
from gateway.records.file import RecordsFile
from gateway.records.request_log import LogBounds, RecentQuery, RequestRow
from gateway.records.statements import RecordsUnavailable, Statement, age_followed
from gateway.records.traces import TraceRow
from gateway.view.options import Options

MOST_ROWS_WAITING = 8192
"""The queue has at most this many rows: some seconds of a busy node, or a reserve while the disk is
full."""
MOST_BEFORE_A_TRACE = 512
"""If more rows than this wait, a trace is dropped, because a trace is about a hundred times as
large as a log row."""
MOST_QUESTIONS = 512
MOST_WRITES = 512
TOGETHER = 64
"""At most this many acknowledged writes share one transaction."""
BATCH_ROWS = 256
BATCH_S = 0.25
"""How long the first row of a batch waits for others."""
ANSWER_S = 15.0
WRITTEN_S = 6.0
"""A write is acknowledged, or reported as failed, within this time."""
MORE_S = 0.25
IDLE_LOOK_S = 60.0
"""Interval of checks for old rows while no row is written."""
CLOSE_S = 3.0
_T = TypeVar("_T")
Ask = Callable[[RecordsFile], Any]
Make = Callable[[], Sequence[Statement]]
"""Makes statements when it is called in the records thread, because their content may be large."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A coroutine that waits for a result of the records thread: its event loop, and the future
    that gets the result."""

    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]

    def say(self, value: Any, error: BaseException | None) -> None:
        """Deliver the result or the error to the event loop, unless the loop is closed or the
        caller was cancelled."""

        def deliver() -> None:
            if self.answer.done():
                return
            if error is None:
                self.answer.set_result(value)
            else:
                self.answer.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more


@dataclass(frozen=True, slots=True)
class _Question(_Waiting):
    ask: Ask


@dataclass(frozen=True, slots=True)
class _Write(_Waiting):
    make: Make


class NodeRecords:
    """Reads and writes the records of a node for one HTTP process.

    Without a `path`, or with a limit of 0 rows, nothing is logged. `upkeep` takes the wall-clock
    time and returns statements that delete records beyond the limits; they run with writes and from
    time to time. `retry_s` is the pause after a failure of the file.
    """

    def __init__(
        self,
        path: Path | None,
        bounds: LogBounds,
        log: Log,
        *,
        upkeep: Callable[[float], Sequence[Statement]] = lambda _now_s: (),
        retry_s: float = 5.0,
        wall_s: Callable[[], float] = wall,
        max_pages: int = 0,
    ) -> None:
        self._bounds = bounds
        self._log = log
        self._upkeep: Callable[[float], Sequence[Statement]] = lambda wall_s: [
            age_followed(wall_s, now()),
            *upkeep(wall_s),
        ]
        self._retry_s = retry_s
        self._wall_s = wall_s
        self._file = None if path is None else RecordsFile(path, log, max_pages=max_pages)
        self._rows: deque[RequestRow | TraceRow] = deque()
        self._questions: deque[_Question] = deque()
        self._writes: deque[_Write] = deque()
        self._dropped = CountedWarning(log, "a request was not logged or not traced: too many wait")
        self.condition = RecordsCondition(log)
        self._retry_at = 0.0
        self._looked_at = float("-inf")
        self._closing = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        if self._file is not None:
            self._thread = threading.Thread(target=self._run, name="records", daemon=True)
            self._thread.start()

    # --- in the event loop -----------------------------------------------------------------------

    @property
    def logs_requests(self) -> bool:
        """Return whether requests are logged."""
        return self._file is not None and self._bounds.rows > 0

    @property
    def dropped(self) -> int:
        """Return how many rows and traces of this process were dropped."""
        return self._dropped.count

    def log_request(self, row: RequestRow | TraceRow) -> None:
        """Queue a log row or a trace; drop and count it if too many wait."""
        if self._file is None or (isinstance(row, RequestRow) and not self.logs_requests):
            return
        with self._wake:
            most = MOST_BEFORE_A_TRACE if isinstance(row, TraceRow) else MOST_ROWS_WAITING
            full = len(self._rows) >= most
            if not full:
                self._rows.append(row)
                if len(self._rows) == 1:
                    self._wake.notify()
        if full:
            self._dropped.add()

    async def recent(self, query: RecentQuery) -> list[dict[str, Any]]:
        """Return the last requests, latest first. Raises RecordsUnavailable."""

        def ask(file: RecordsFile) -> list[dict[str, Any]]:
            (rows,) = file.read([request_log.recent(query)])
            return [request_log.shown(row) for row in rows]

        return await self.ask(ask)

    async def stats(self, window_s: float) -> request_log.StatsTold:
        """Return statistics of the requests that ended in the last `window_s`. Raises
        RecordsUnavailable."""
        question = request_log.stats(window_s, self._wall_s())

        def ask(file: RecordsFile) -> request_log.StatsTold:
            return request_log.stats_of(question, file.read(question.statements))

        return await self.ask(ask)

    async def ask(self, ask: Callable[[RecordsFile], _T]) -> _T:
        """Return the result of `ask`, run in the records thread. Raises RecordsUnavailable."""
        loop = asyncio.get_running_loop()
        question = _Question(loop, loop.create_future(), ask)
        return await self._waited(question, self._questions, MOST_QUESTIONS, ANSWER_S)

    async def write(self, statements: Sequence[Statement]) -> list[int]:
        """Run statements in one transaction, which is on the disk when this method returns. Return
        how many rows each changed. Raises RecordsUnavailable; even then they may have been
        written."""
        return await self.write_made(lambda: statements)

    async def write_made(self, make: Make) -> list[int]:
        """Call `make` in the records thread, and run its statements in one transaction. Return how
        many rows each changed. Raises RecordsUnavailable; even then they may have been written."""
        loop = asyncio.get_running_loop()
        write = _Write(loop, loop.create_future(), make)
        return await self._waited(write, self._writes, MOST_WRITES, WRITTEN_S)

    async def _waited(self, waiter: _Waiting, queue: deque[Any], most: int, seconds: float) -> Any:
        if self._file is None:
            raise RecordsUnavailable("this node stores no records")
        with self._wake:
            if self._closing or len(queue) >= most:
                raise RecordsUnavailable(
                    f"{len(queue)} requests already wait for the records, the limit"
                )
            queue.append(waiter)
            self._wake.notify()
        try:
            async with asyncio.timeout(seconds):
                return await waiter.answer
        except TimeoutError:
            raise RecordsUnavailable(f"no answer from the records within {seconds:g} s") from None

    def close(self) -> None:
        """Write queued rows for `CLOSE_S` at most, and close the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._file is not None
        while self._wait():
            self._commit(self._file)
            self._write(self._file)
            while self._questions:
                question = self._questions.popleft()
                self._commit(self._file)
                self._write(self._file)  # rows logged before the query
                _answer(self._file, question, self._log)
        self._retry_at = 0.0
        self._commit(self._file)
        self._write(self._file)
        if self._rows:
            self._log.error("requests are not logged: this process ended", requests=len(self._rows))
        while self._questions:
            self._questions.popleft().say(None, RecordsUnavailable("this process is ending"))
        self._file.close()

    def _wait(self) -> bool:
        """Wait until there is work; return False once the records close."""

        def due_at() -> float:
            """Return when the next write or check is due."""
            waits = self._rows or self.condition.is_ailing
            return max(self._retry_at, now() if waits else self._looked_at + IDLE_LOOK_S)

        with self._wake:
            while not self._is_called() and (left_s := due_at() - now()) > 0:
                # a new row changes the due time
                self._wake.wait(min(left_s, IDLE_LOOK_S))
            if not self._is_called() and len(self._rows) < BATCH_ROWS:
                self._wake.wait_for(self._is_called, BATCH_S)
            return not self._closing

    def _is_called(self) -> bool:
        return self._closing or bool(self._questions) or bool(self._writes)

    def _commit(self, file: RecordsFile) -> None:
        """Run all writes that wait for an acknowledgement, in groups."""
        while self._writes:
            with self._wake:
                some = [self._writes.popleft() for _ in range(min(TOGETHER, len(self._writes)))]
            if now() < self._retry_at:
                error = RecordsUnavailable("cannot write the records")
                for write in some:
                    write.say(None, error)
            elif not self._write_together(file, some):
                for write in some:  # one of them is faulty: it must not fail the others
                    self._write_together(file, [write])

    def _write_together(self, file: RecordsFile, some: Sequence[_Write]) -> bool:
        """Run some writes and the deletions in one transaction, and deliver the results. Return
        False if they must be retried one by one."""
        try:
            made = [write.make() for write in some]
            statements = [statement for each in made for statement in each]
            changed = file.write([*statements, *self._upkeep(self._wall_s())], durable=True)
        except RecordsUnavailable as error:
            self._failed(str(error))
            for write in some:
                write.say(None, error)
            return True
        except Exception as error:
            if len(some) > 1:
                return False
            self._log.error("storing a record failed", error=story_of(error))
            some[0].say(None, RecordsUnavailable("storing the record failed; see the log"))
            return True
        self._retry_at = 0.0
        self.condition.worked(self._dropped.count)
        left = iter(changed)
        for write, each in zip(some, made, strict=True):
            write.say(list(islice(left, len(each))), None)
        return True

    def _write(self, file: RecordsFile) -> None:
        """Write waiting rows, delete rows beyond the limits, and check the file if that is due.
        Failed writes are retried later."""
        at = now()
        looks = self.condition.is_ailing or at >= self._looked_at + IDLE_LOOK_S
        if at < self._retry_at or not (self._rows or looks):
            return
        try:
            waiting = len(self._rows)
            while True:
                waiting -= self._write_some(file)
                if waiting <= 0:
                    break
            if looks:
                self._looked_at = at
                file.write(self._upkeep(self._wall_s()))
                self._look(file)
        except RecordsUnavailable as error:
            self._failed(str(error))
        except Exception as error:  # the thread must continue: answers and jobs wait for it
            self._log.error("maintaining the records failed", error=story_of(error))
            self._failed("maintaining the records failed; see the log")
        else:
            self._retry_at = 0.0
            self.condition.worked(self._dropped.count)

    def _write_some(self, file: RecordsFile) -> int:
        """Write and delete some rows; return how many were written. Raises RecordsUnavailable."""
        with self._wake:
            rows = list(islice(self._rows, BATCH_ROWS))
        try:
            now_s = self._wall_s()
            removals: list[Statement] = [
                age_followed(now_s, now()),
                *request_log.pruned(self._bounds, now_s),
            ]
            if any(isinstance(row, TraceRow) for row in rows):
                removals += self._upkeep(now_s)
            file.write([*map(_inserted, rows), *removals])
        except RecordsUnavailable:
            raise
        except Exception as error:  # a row that cannot be written must not hold up all others
            lost = len(rows)
            self._log.error(
                "requests are not logged: internal error", error=story_of(error), rows=lost
            )
        for _ in rows:
            self._rows.popleft()
        return len(rows)

    def _look(self, file: RecordsFile) -> None:
        """Return unused pages to the disk, and check for rows dated in the future. If one pruning
        does not delete all surplus rows, the next check comes soon."""
        file.shrink()
        now_s = self._wall_s()
        [[(latest_s,)], [(is_beyond,)]] = file.read(
            [request_log.LATEST, request_log.beyond(self._bounds, now_s)]
        )
        if is_beyond:
            self._looked_at -= IDLE_LOOK_S - MORE_S
        ahead_s = 0.0 if latest_s is None else latest_s - now_s
        self.condition.latest(ahead_s)

    def _failed(self, why: str) -> None:
        self._retry_at = now() + self._retry_s
        self.condition.failed(why)


def _inserted(row: RequestRow | TraceRow) -> Statement:
    return traces.inserted(row) if isinstance(row, TraceRow) else request_log.inserted(row)


def _answer(file: RecordsFile, question: _Question, log: Log) -> None:
    try:
        question.say(question.ask(file), None)
    except RecordsUnavailable as error:
        question.say(None, error)
    except Exception as error:
        log.error("a record request failed", error=story_of(error))
        question.say(None, RecordsUnavailable("the request failed; see the log"))


def open_records(options: Options, log: Log) -> NodeRecords:
    """Return the records of a node from its options; the file is opened in the thread."""
    bounds = LogBounds(
        rows=options.request_rows,
        bytes=options.request_bytes,
        age_s=options.request_days * 86_400,
    )
    path = Path(options.records_file) if options.records_file else None
    answers = kept_answers.answer_bounds(options)
    of_traces = LogBounds(
        rows=options.trace_rows, bytes=options.trace_bytes, age_s=options.trace_days * 86_400
    )

    def upkeep(now_s: float) -> Sequence[Statement]:
        """Return the statements that delete answers and traces beyond their limits."""
        return (*kept_answers.pruned(answers, now_s), *traces.pruned(of_traces, now_s))

    return NodeRecords(path, bounds, log, upkeep=upkeep)
