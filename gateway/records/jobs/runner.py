"""Talks to the application, without a connection: runs the jobs that this HTTP process has claimed.

At regular intervals (rounds), the runner writes the output of all its runs and reads which of them
must stop. In the same round, it takes over the jobs of dead processes and claims new jobs. The ASGI
application handles a run like a client's request, so all dialects, fair shares and logs apply to
runs. If another process has taken over a run, this process stops it and writes nothing more for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from bus.process.clock import now
from bus.process.logs import Log, story_of
from bus.wire.ids import RequestId
from gateway.records.jobs.events import Ending, EventCutter, ending_of, is_end_mark
from gateway.records.jobs.job import Job, error_text, run_id
from gateway.records.jobs.leases import LeaseWatch
from gateway.records.jobs.records import JobRecords, RunProgress
from gateway.records.jobs.run_scope import JobRun, run_of, scope_of
from gateway.records.jobs.table import RunName
from gateway.records.statements import RecordsUnavailable

ROUND_S = 0.25
"""Time between two rounds while jobs run."""
IDLE_S = 1.0
"""Time between two rounds while no job runs."""
PRUNE_S = 30.0
FAILED_S = 2.0
"""Pause after a round in which the records file could not be used."""
AGAIN_S = 2.0
"""Time before a failed job is run again."""
MOST_TRIES = 3
"""Attempts of a job before it fails. A full queue (429) is retried without limit."""
RESULT_BYTES = 8 << 20
"""Limit of a job's output."""
UNWRITTEN_BYTES = 1 << 20
"""A run that has more unwritten output than this is paused until the output is written."""
STOPPED_S = 3.0
"""At shutdown, this process waits at most this long until its jobs are queued again."""

Application = Callable[[dict[str, Any], Any, Any, JobRun], Awaitable[None]]
"""An ASGI application whose last argument is the job's run that sends the request."""


class OpenRequests(Protocol):
    """The open requests of this process, including those of runs."""

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request so that its client gets an ordinary end. Return False if no request with
        this id is open."""
        ...


class RunUnderWay:
    """One run of a job, from its request to its end."""

    def __init__(self, job: Job, body: bytes, runner: str) -> None:
        self.job = job
        self.name = RunName(job.request, job.attempts, runner)
        self.status: int | None = None
        self.content_type = ""
        self.computing = run_of(job)
        self.stopped = False
        self.too_large = False
        self.lost = False
        self.last = b""
        """The last event other than the end mark of a stream."""
        self.gone = asyncio.Event()
        """When this event is set, the request sees that its client has disconnected."""
        self._body = body
        self._body_sent = False
        self._cutter = EventCutter("")
        self._waiting: list[bytes] = []
        self._whole = b""
        """The bytes of an answer that is no stream, so far."""
        self._waiting_bytes = self._output_bytes = 0
        self._written = job.events
        self._drained = asyncio.Event()
        if job.events:
            restarted = f'event: job.restarted\ndata: {{"attempt":{job.attempts}}}\n\n'
            self._waiting.append(restarted.encode())

    async def receive(self) -> dict[str, Any]:
        """ASGI `receive`: return the body; later, once `gone` is set, return the disconnect of the
        client."""
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: dict[str, Any]) -> None:
        """ASGI `send`: take a piece of the answer, and wait while too much output is unwritten."""
        if event["type"] == "http.response.start":
            self.status = int(event["status"])
            headers = {bytes(k).lower(): bytes(v) for k, v in event.get("headers", ())}
            self.content_type = headers.get(b"content-type", b"").decode("latin-1")
            self._cutter = EventCutter(self.content_type)
        elif event["type"] == "http.response.body":
            self._add_events(self._cutter.cut(event.get("body", b"")))
            if not event.get("more_body", False):
                self._whole = self._cutter.close()
                self.last = self._whole or self.last
            while self._waiting_bytes > UNWRITTEN_BYTES and not self.gone.is_set():
                self._drained.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._drained.wait()

    def _add_events(self, events: list[bytes]) -> None:
        size = sum(map(len, events))
        self._output_bytes += size
        if self._output_bytes > RESULT_BYTES:
            self.too_large = True
            self.gone.set()
            return
        self._waiting += events
        self._waiting_bytes += size
        self.last = next((event for event in reversed(events) if not is_end_mark(event)), self.last)

    def unwritten(self) -> RunProgress:
        """Return the output that is not yet in the records file."""
        events = tuple(self._waiting)
        return RunProgress(
            self.name, self._written, events, self.computing.tokens, self.computing.begun
        )

    def wrote(self, progress: RunProgress) -> None:
        """Record that `progress` has been written to the file."""
        count = len(progress.events)
        self._written = progress.first + count
        del self._waiting[:count]
        self._waiting_bytes = sum(map(len, self._waiting))
        self._drained.set()

    def ending(self) -> Ending:
        """Return how the run ended, once its request has ended. If the answer is no stream and
        succeeded, add it to the output as an event."""
        ending = self._ending()
        if ending.signal != "fail" and self.job.kind == "job" and self._whole:
            self._add_events([self._whole])
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
            lost=self.computing.lost,
        )


class JobRunner:
    """Runs jobs in one HTTP process; other processes know it as `name`."""

    def __init__(
        self,
        jobs: JobRecords,
        name: str,
        *,
        application: Application,
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
        """The runs by their request ids."""
        self._left: list[RunUnderWay] = []
        self._wake = asyncio.Event()
        self.is_stopping = False
        """Whether this process claims no more jobs."""
        self._ailing = False
        self._pruned_at = float("-inf")
        self._looked_at = float("-inf")
        self._task = asyncio.ensure_future(self._go_on())

    def wake(self) -> None:
        """Begin a round now, because a job was submitted or must be stopped."""
        self._wake.set()

    def leave(self) -> None:
        """Claim no more jobs, and cancel the running ones. Further output of their requests is
        ignored. Later, `stop` queues these jobs again."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self._task.cancel()
        for run, task in list(self._runs.values()):
            self._left.append(run)
            run.lost = True
            task.cancel()

    async def stop(self) -> None:
        """Queue again the jobs that run in this process; this takes at most `STOPPED_S`."""
        self.leave()
        left, self._left = self._left, []
        with contextlib.suppress(TimeoutError, RecordsUnavailable):
            async with asyncio.timeout(STOPPED_S):
                for run in left:
                    await self._jobs.again(run.name, 0.0)

    # --- rounds ----------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        while not self.is_stopping:
            wait_s = FAILED_S
            try:
                await self._round()
                wait_s = ROUND_S if self._runs else IDLE_S
                self._ailing = False
            except RecordsUnavailable as error:
                if not self._ailing:
                    self._log.warning("jobs wait: the records file is unavailable", why=str(error))
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
        may_wait = True
        if at >= self._looked_at + IDLE_S:
            self._looked_at = at
            look = await self._jobs.look()
            dead = self._watch.dead(look.beats, at)
            may_wait = look.is_waiting or bool(dead)
            for runner in dead:
                self._log.warning("taking over jobs of a process that ended", runner=runner)
                await self._jobs.take_from(runner)
        if at >= self._pruned_at + PRUNE_S:
            self._pruned_at = at
            await self._jobs.prune()
        if may_wait:
            await self._claim()

    async def _claim(self) -> None:
        """Claim queued jobs until none is left or the node runs the maximum number of jobs."""
        while not self.is_stopping and len(self._runs) < self._jobs.bounds.running:
            if not await self._jobs.is_waiting():
                return
            await self._jobs.claim(self._name)
            if not await self._start():
                return

    async def _start(self) -> bool:
        """Start the claimed jobs that do not run yet. Return whether any job was started."""
        own = await self._jobs.jobs_of(self._name)
        fresh = [(job, body) for job, body in own if job.run_id not in self._runs]
        if self.is_stopping:
            return False
        for job, body in fresh:
            run = RunUnderWay(job, body, self._name)
            self._runs[job.run_id] = run, asyncio.ensure_future(self._run(run, body))
        return bool(fresh)

    async def _advance(self) -> None:
        """Write the output of all runs. Stop the runs whose end is requested or that belong to
        another process now."""
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
        if any(run_id(*run_key) not in self._runs for run_key in left):
            await self._start()  # claimed while the file could not be read

    def _stop(self, run: RunUnderWay) -> None:
        if not run.stopped:
            run.stopped = True
            if not self._requests.cancel(run.job.run_id):
                run.gone.set()

    # --- one run ---------------------------------------------------------------------------------

    async def _run(self, run: RunUnderWay, body: bytes) -> None:
        try:
            scope = scope_of(run.job, body, self._port)
            await self._application(scope, run.receive, run.send, run.computing)
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
        """Write the end of a run, or queue its job again. Raises RecordsUnavailable."""
        ending = run.ending()
        is_full = run.status == 429
        if ending.retry and (is_full or run.job.attempts < MOST_TRIES):
            await self._jobs.again(run.name, AGAIN_S)
            return
        await self._jobs.end(run.unwritten(), ending, run.status, run.content_type)
