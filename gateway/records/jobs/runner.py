"""Talks to the application, in process: runs the jobs that this HTTP process has taken.

A round writes what all runs have said, hears which are to be stopped or are lost, takes over from
processes that have died, and takes new ones. A run is a request like any client's, so that every
dialect, share and log knows it. Who has lost a run stops it and writes nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from bus.process.clock import now
from bus.process.logs import Log, story_of
from bus.wire.ids import RequestId
from gateway.records.file import RecordsUnavailable
from gateway.records.jobs.events import Ending, EventCutter, ending_of, is_end_mark
from gateway.records.jobs.job import Job, error_text, run_id
from gateway.records.jobs.leases import LeaseWatch
from gateway.records.jobs.records import JobRecords, RunProgress
from gateway.records.jobs.run_scope import mark_of, scope_of
from gateway.records.jobs.table import RunName

ROUND_S = 0.25
"""Between two rounds while anything runs."""
IDLE_S = 1.0
"""Between two rounds while nothing does."""
PRUNE_S = 30.0
FAILED_S = 2.0
"""After a round that the file refused."""
AGAIN_S = 2.0
"""A job that was told to come again does so after this."""
MOST_TRIES = 3
"""A job that was told to come again so often, for any reason but a full queue, has failed."""
RESULT_BYTES = 8 << 20
"""The most that a job may say."""
UNWRITTEN_BYTES = 1 << 20
"""A run that has so much to be written waits."""
STOPPED_S = 3.0
"""How long the end of this process waits until its jobs are in the queue again."""

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class OpenRequests(Protocol):
    """The requests of this process, which its runs are among."""

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request, so that it ends in order; False where none is open under that id."""
        ...


class RunUnderWay:
    """One run of a job, from its request to its end."""

    def __init__(self, job: Job, body: bytes, runner: str) -> None:
        self.job = job
        self.name = RunName(job.request, job.attempts, runner)
        self.status: int | None = None
        self.content_type = ""
        self.mark = mark_of(job)
        self.stopped = False
        self.too_large = False
        self.lost = False
        self.last = b""
        """The last event that says more than that the stream ends."""
        self.gone = asyncio.Event()
        """Set when the request is to see its client go away."""
        self._body = body
        self._asked = False
        self._cutter = EventCutter("")
        self._waiting: list[bytes] = []
        self._whole = b""
        """An answer that is no stream."""
        self._waiting_bytes = self._said_bytes = 0
        self._written = job.events
        self._drained = asyncio.Event()
        if job.events:
            restarted = f'event: job.restarted\ndata: {{"attempt":{job.attempts}}}\n\n'
            self._waiting.append(restarted.encode())

    async def receive(self) -> dict[str, Any]:
        """Give the body, and then the client's end where it is to be seen."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: dict[str, Any]) -> None:
        """Take a piece of the answer; wait while too much of it is not written yet."""
        if event["type"] == "http.response.start":
            self.status = int(event["status"])
            headers = {bytes(k).lower(): bytes(v) for k, v in event.get("headers", ())}
            self.content_type = headers.get(b"content-type", b"").decode("latin-1")
            self._cutter = EventCutter(self.content_type)
        elif event["type"] == "http.response.body":
            self._said(self._cutter.cut(event.get("body", b"")))
            if not event.get("more_body", False):
                self._whole = self._cutter.close()
                self.last = self._whole or self.last
            while self._waiting_bytes > UNWRITTEN_BYTES and not self.gone.is_set():
                self._drained.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._drained.wait()

    def _said(self, events: list[bytes]) -> None:
        size = sum(map(len, events))
        self._said_bytes += size
        if self._said_bytes > RESULT_BYTES:
            self.too_large = True
            self.gone.set()
            return
        self._waiting += events
        self._waiting_bytes += size
        self.last = next((event for event in reversed(events) if not is_end_mark(event)), self.last)

    def unwritten(self) -> RunProgress:
        """Return what is to be written."""
        events = tuple(self._waiting)
        return RunProgress(self.name, self._written, events, self.mark.tokens, self.mark.begun)

    def wrote(self, progress: RunProgress) -> None:
        """Note what has been written."""
        count = len(progress.events)
        self._written = progress.first + count
        del self._waiting[:count]
        self._waiting_bytes = sum(map(len, self._waiting))
        self._drained.set()

    def ending(self) -> Ending:
        """Return how the run ended, once its request has. A whole answer that is no failure is an
        event from then on."""
        ending = self._ending()
        if ending.signal != "fail" and self.job.kind == "job" and self._whole:
            self._said([self._whole])
            self._whole = b""
        return self._ending() if self.too_large else ending

    def _ending(self) -> Ending:
        if self.too_large:
            text = f"the result of the job is too large; the limit is {RESULT_BYTES} bytes"
            return Ending("fail", error_text("result_too_large", text, 413))
        return ending_of(
            self.status,
            self.content_type,
            self.last,
            stopped=self.stopped,
            lost=self.mark.lost,
        )


class JobRunner:
    """What runs jobs in one HTTP process, which is `name` to the others."""

    def __init__(
        self,
        jobs: JobRecords,
        name: str,
        *,
        application: Asgi,
        requests: OpenRequests,
        log: Log,
        port: int,
    ) -> None:
        self._jobs = jobs
        self._name = name
        self._application = application
        self._requests = requests
        self._log = log
        self._port = port
        self._watch = LeaseWatch(name)
        self._runs: dict[RequestId, tuple[RunUnderWay, asyncio.Task[None]]] = {}
        """By the id of the run's request."""
        self._left: list[RunUnderWay] = []
        self._wake = asyncio.Event()
        self._ending = False
        self._ailing = False
        self._pruned_at = float("-inf")
        self._looked_at = float("-inf")
        self._task = asyncio.ensure_future(self._go_on())

    def wake(self) -> None:
        """Look for jobs now: one was submitted or is to be stopped."""
        self._wake.set()

    def leave(self) -> None:
        """Take no more jobs, and cut those that run here: what their requests say from now on is
        not theirs. `stop` puts them back into the queue."""
        if self._ending:
            return
        self._ending = True
        self._task.cancel()
        for run, task in list(self._runs.values()):
            self._left.append(run)
            run.lost = True
            task.cancel()

    async def stop(self) -> None:
        """Put the jobs that run here back into the queue, for `STOPPED_S` at most."""
        self.leave()
        left, self._left = self._left, []
        with contextlib.suppress(TimeoutError, RecordsUnavailable):
            async with asyncio.timeout(STOPPED_S):
                for run in left:
                    await self._jobs.again(run.name, 0.0)

    # --- rounds ----------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        while not self._ending:
            wait_s = FAILED_S
            try:
                await self._round()
                wait_s = ROUND_S if self._runs else IDLE_S
                self._ailing = False
            except RecordsUnavailable as error:
                if not self._ailing:
                    self._log.warning("jobs wait: cannot use their file", why=str(error))
                self._ailing = True
            except Exception as error:
                self._log.error("a round of jobs failed", error=story_of(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _round(self) -> None:
        if self._runs:
            await self._advance()
        at = now()
        if at >= self._looked_at + IDLE_S:
            self._looked_at = at
            for runner in self._watch.dead(await self._jobs.held_now(), at):
                self._log.warning("taking over jobs of a process that ended", runner=runner)
                await self._jobs.take_from(runner)
        if at >= self._pruned_at + PRUNE_S:
            self._pruned_at = at
            await self._jobs.prune()
        await self._claim()

    async def _claim(self) -> None:
        """Take as many jobs as may run on the node and wait."""
        while not self._ending and len(self._runs) < self._jobs.bounds.running:
            if not await self._jobs.is_waiting():
                return
            await self._jobs.claim(self._name)
            if not await self._start():
                return

    async def _start(self) -> bool:
        """Run the jobs that are this process's and do not run; return whether there were any."""
        held = await self._jobs.held(self._name)
        fresh = [(job, body) for job, body in held if job.run_id not in self._runs]
        if self._ending:
            return False
        for job, body in fresh:
            run = RunUnderWay(job, body, self._name)
            self._runs[job.run_id] = run, asyncio.ensure_future(self._run(run, body))
        return bool(fresh)

    async def _advance(self) -> None:
        """Write what runs have said, and hear which are to be stopped or are lost."""
        runs = [run for run, _ in self._runs.values() if not run.lost]
        progress = [run.unwritten() for run in runs]
        left = await self._jobs.advance(self._name, progress)
        for run, written in zip(runs, progress, strict=True):
            run.wrote(written)
            stop = left.pop((run.name.request, run.name.attempt), None)
            if stop is None:
                run.lost = run.job.run_id in self._runs
                run.gone.set()
            elif stop:
                self._stop(run)
        if any(run_id(*one) not in self._runs for one in left):
            await self._start()  # taken while the file could not be read

    def _stop(self, run: RunUnderWay) -> None:
        if not run.stopped:
            run.stopped = True
            if not self._requests.cancel(run.job.run_id):
                run.gone.set()

    # --- one run ---------------------------------------------------------------------------------

    async def _run(self, run: RunUnderWay, body: bytes) -> None:
        try:
            scope = scope_of(run.job, run.mark, body, self._port)
            await self._application(scope, run.receive, run.send)
        except Exception as error:
            self._log.error("a job failed", job=run.job.request, error=story_of(error))
        finally:
            run.gone.set()
        try:
            while not run.lost:
                with contextlib.suppress(RecordsUnavailable):
                    await self._end(run)
                    break
                await asyncio.sleep(FAILED_S)
        finally:
            self._runs.pop(run.job.run_id, None)
            self._wake.set()

    async def _end(self, run: RunUnderWay) -> None:
        """Write a run's end, or that its job is to be begun anew. Raises RecordsUnavailable."""
        ending = run.ending()
        is_full = run.status == 429
        if ending.retry and (is_full or run.job.attempts < MOST_TRIES):
            await self._jobs.again(run.name, AGAIN_S)
            return
        await self._jobs.end(run.unwritten(), ending, run.status, run.content_type)
