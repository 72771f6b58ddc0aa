"""Talks to a collector, in a separate thread: sends traces some time after their requests have
ended.

No request waits for the export. Traces wait in a queue that is limited in bytes; if the queue is
full, a trace is dropped and counted. If the collector does not accept a batch, the batch is retried
for a while and then dropped. A collector that does not answer causes at most one log line per
minute.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from bus.process.clock import now
from bus.process.logs import Log, story_of
from gateway.tracing.otlp.collector import PASSING, CollectorAnswer, HttpCollector
from gateway.tracing.otlp.encoding import SpanEncoder, refused_of
from gateway.tracing.otlp.ended import Count, EndedTrace
from gateway.tracing.otlp.spans import Value, spans_of

MOST_WAITING_BYTES = 4 << 20
TOGETHER = 64
"""Maximum number of traces in one HTTP request to the collector."""


@dataclass(frozen=True, slots=True)
class ExportTiming:
    """Times of the export, in seconds. Traces that end within `gather_s` are sent together. The
    first retry comes after `again_s`; the pause doubles up to `rest_s`, for `keep_s` in all. A
    problem is logged at most once in `say_s`. When the process closes, sending may take `close_s`
    more."""

    gather_s: float = 1.0
    again_s: float = 1.0
    rest_s: float = 15.0
    keep_s: float = 60.0
    say_s: float = 60.0
    close_s: float = 2.0


class TraceExporter:
    """Sends the traces of one HTTP process. `count` is called once for every span, from any thread;
    `resource` identifies this process as their source."""

    def __init__(
        self,
        collector: HttpCollector,
        resource: Mapping[str, Value],
        log: Log,
        count: Count,
        timing: ExportTiming = ExportTiming(),
    ) -> None:
        self._collector = collector
        self._resource = resource
        self._log = log
        self._count = count
        self._timing = timing
        self._queue: deque[EndedTrace] = deque()
        self._queued_bytes = 0
        self._wake = threading.Condition()
        self._closing = False
        self._warned_at = float("-inf")
        self._is_amiss = False
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def offer(self, ended: EndedTrace) -> None:
        """Queue a trace; if too many bytes wait, drop and count it."""
        with self._wake:
            is_full = self._queued_bytes + len(ended.trace) > MOST_WAITING_BYTES
            if not (self._closing or is_full):
                self._queue.append(ended)
                self._queued_bytes += len(ended.trace)
                if len(self._queue) in (1, TOGETHER):
                    self._wake.notify()
                return
        self._count("dropped", ended.spans)

    def close(self) -> None:
        """Send queued traces within `close_s`; drop and count the rest. Blocks."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(self._timing.close_s)
        with self._wake:
            left, self._queue = self._queue, deque()
        if left:
            self._count("dropped", sum(trace.spans for trace in left))

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._deliver(batch)
            except Exception as error:  # a trace that cannot be sent must not hold up all others
                self._drop(batch, f"internal error: {story_of(error)}")

    def _next(self) -> list[EndedTrace]:
        """Wait for a trace, then briefly for more, and return them. The list is empty once the
        exporter closes and no trace is left."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._closing)
            self._wake.wait_for(
                lambda: len(self._queue) >= TOGETHER or self._closing,
                self._timing.gather_s,
            )
            batch = [self._queue.popleft() for _ in range(min(TOGETHER, len(self._queue)))]
            self._queued_bytes -= sum(len(trace.trace) for trace in batch)
            return batch

    def _deliver(self, batch: list[EndedTrace]) -> None:
        body, count = _encoded(self._resource, batch)
        give_up_at, pause_s = now() + self._timing.keep_s, self._timing.again_s
        while True:
            try:
                answer = self._collector.post(body)
            except OSError as error:
                answer, why = None, str(error) or type(error).__name__
            else:
                if answer.status not in PASSING:
                    self._took(answer, batch, count)
                    return
                why = f"the collector answers with {answer.status}"
            self._say(why)
            wanted_s = pause_s if answer is None else max(pause_s, answer.retry_after_s)
            if not self._paused(min(wanted_s, self._timing.rest_s), give_up_at):
                self._drop(batch, why)
                return
            pause_s *= 2

    def _took(self, answer: CollectorAnswer, batch: list[EndedTrace], count: int) -> None:
        if not 200 <= answer.status < 300:
            self._count("refused", count)
            self._say(f"the collector refuses traces with {answer.status}")
            return
        refused, why = refused_of(answer.body)
        self._count("sent", count - refused)
        if refused:
            self._count("refused", refused)
            self._say(f"the collector refuses {refused} spans: {why[:200]}")
        elif self._is_amiss:
            self._is_amiss = False
            self._log.info("exporting traces to the collector again", dropped_spans=self._lost)

    def _paused(self, seconds: float, give_up_at: float) -> bool:
        """Wait before a retry; return False if it is time to give up."""
        with self._wake:
            until = min(now() + seconds, give_up_at)
            self._wake.wait_for(lambda: self._closing, until - now())
            return not self._closing and now() < give_up_at

    def _drop(self, batch: list[EndedTrace], why: str) -> None:
        count = sum(trace.spans for trace in batch)
        self._lost += count
        self._count("dropped", count)
        self._say(why)

    def _say(self, why: str) -> None:
        if now() - self._warned_at >= self._timing.say_s:
            self._warned_at, self._is_amiss = now(), True
            self._log.warning(
                "cannot export traces to the collector",
                collector=self._collector.address,
                why=why,
                dropped_spans=self._lost,
            )


def _encoded(resource: Mapping[str, Value], batch: list[EndedTrace]) -> tuple[bytes, int]:
    """Return the body of the HTTP request that sends these traces, and the number of its spans."""
    encoder, count = SpanEncoder(resource), 0
    for ended in batch:
        trace: Mapping[str, Any] = orjson.loads(ended.trace)
        count += encoder.add(trace["trace_id"], spans_of(trace, ended.attributes))
        time.sleep(0)  # the event loop goes first
    return encoder.body(), count
