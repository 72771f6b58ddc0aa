"""Traces on their way to a collector: bounded, sent again, counted, and never waited for."""

from __future__ import annotations

import io
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bus.process.logs import Log
from gateway.tracing.otlp.ended import EndedTrace, Outcome
from gateway.tracing.otlp.exporter import (
    MOST_WAITING_BYTES,
    TOGETHER,
    ExportTiming,
    TraceExporter,
)
from gateway.tracing.otlp.opening import trace_collector
from tests.gateway.tracing.test_otlp import TRACE, told
from tests.harness.collector import collecting
from tests.harness.gateway_testbed import eventually

SPANS = 4
ASKED = {"gen_ai.operation.name": "chat"}
QUICK = ExportTiming(gather_s=0.01, again_s=0.02, rest_s=0.05, keep_s=60.0, close_s=5.0)


def ended(number: int = 0) -> EndedTrace:
    trace = json.dumps(told(request=f"req-{number}", trace_id=f"{number + 1:032x}")).encode()
    return EndedTrace(trace, SPANS, ASKED)


class Exporting:
    """An exporter, its counts and its log."""

    def __init__(
        self, url: str, timing: ExportTiming = QUICK, headers: dict[str, str] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.stream = io.StringIO()
        collector = trace_collector(url, headers or {}, 5.0)
        log = Log(node="n1", process="test", stream=self.stream)
        self.exporter = TraceExporter(collector, {}, log, self._count, timing)

    def _count(self, outcome: Outcome, spans: int) -> None:
        self.counts[outcome] += spans

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@contextmanager
def exporting(url: str, timing: ExportTiming = QUICK) -> Iterator[Exporting]:
    made = Exporting(url, timing)
    try:
        yield made
    finally:
        made.exporter.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which nothing listens, though its port is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def sent(made: Exporting, traces: int) -> None:
    eventually(lambda: made.counts["sent"] >= traces * SPANS, 10, f"{traces} traces are sent")


def test_traces_arrive_together_with_their_headers() -> None:
    with collecting() as collector:
        made = Exporting(collector.url, replace(QUICK, gather_s=0.3), {"authorization": "Bearer x"})
        for number in range(3):
            made.exporter.offer(ended(number))
        sent(made, 3)
        made.exporter.close()
        (taken,) = collector.taken
        assert taken.path == "/v1/traces" and len(taken.spans) == 3 * SPANS
        assert taken.headers["content-type"] == "application/x-protobuf"
        assert taken.headers["authorization"] == "Bearer x"
        assert made.counts == {"sent": 3 * SPANS} and made.lines == []


@pytest.mark.parametrize("path", ["/", "/v1/traces", "/v1/traces/"])
def test_an_address_may_have_the_path_or_not(path: str) -> None:
    with collecting() as collector, exporting(collector.url + path) as made:
        made.exporter.offer(ended())
        sent(made, 1)
        assert collector.taken[0].path == "/v1/traces"


def test_what_was_not_taken_is_sent_again_and_said_once() -> None:
    with collecting() as collector, exporting(collector.url) as made:
        collector.answers += [503, 429, 503]
        made.exporter.offer(ended())
        sent(made, 1)
        assert len(collector.taken) == 1 and made.counts == {"sent": SPANS}
        eventually(lambda: len(made.lines) == 2, 5, "both lines are there")
        assert [one["level"] for one in made.lines] == ["warning", "info"]
        assert made.lines[0]["why"] == "the collector answers with 503"


@pytest.mark.parametrize("status", [400, 401, 302])
def test_what_is_refused_is_counted_and_not_sent_again(status: int) -> None:
    with collecting() as collector, exporting(collector.url) as made:
        collector.answers.append(status)
        made.exporter.offer(ended(1))
        eventually(lambda: made.counts["refused"] == SPANS, 10, "it is counted")
        made.exporter.offer(ended(2))
        sent(made, 1)
        assert {one.trace_id.hex() for one in collector.spans} == {f"{3:032x}"}
        assert str(status) in made.lines[0]["why"]


def test_spans_that_are_refused_among_others_are_counted() -> None:
    with collecting() as collector, exporting(collector.url) as made:
        collector.refuses = 3
        made.exporter.offer(ended())
        eventually(lambda: made.counts == {"sent": SPANS - 3, "refused": 3}, 10, "both are counted")
        assert "too many" in made.lines[0]["why"]


def test_a_collector_that_is_down_costs_a_counter_and_one_line(silent: str) -> None:
    timing = replace(QUICK, keep_s=0.2)
    with exporting(silent, timing) as made:
        for number in range(5):
            made.exporter.offer(ended(number))
            dropped = (number + 1) * SPANS
            eventually(
                lambda dropped=dropped: made.counts["dropped"] == dropped, 10, "it is given up"
            )
        assert made.counts == {"dropped": 5 * SPANS}
        assert [one["message"] for one in made.lines] == ["cannot export traces to the collector"]


def test_what_finds_no_room_is_dropped_at_once_and_what_did_is_sent() -> None:
    with collecting() as collector, exporting(collector.url) as made:
        collector.holds.clear()
        one = ended()
        fits = MOST_WAITING_BYTES // len(one.trace)
        for _ in range(fits + 3 * TOGETHER):
            made.exporter.offer(one)
        eventually(lambda: made.counts["dropped"] > 0, 5, "some find no room")
        offered = (fits + 3 * TOGETHER) * SPANS
        collector.holds.set()
        eventually(lambda: sum(made.counts.values()) == offered, 20, "each is counted once")
        assert len(collector.spans) == made.counts["sent"]
        assert made.counts["sent"] >= (fits - TOGETHER) * SPANS


def test_a_process_that_ends_sends_what_waits() -> None:
    with collecting() as collector:
        made = Exporting(collector.url, replace(QUICK, gather_s=60.0))
        made.exporter.offer(ended())
        made.exporter.close()
        assert made.counts == {"sent": SPANS} and len(collector.spans) == SPANS
        made.exporter.offer(ended())
        assert made.counts["dropped"] == SPANS


def test_a_process_that_ends_counts_what_nothing_takes(silent: str) -> None:
    made = Exporting(silent, replace(QUICK, gather_s=60.0))
    made.exporter.offer(ended())
    made.exporter.close()
    assert made.counts == {"dropped": SPANS}


def test_a_trace_that_cannot_be_read_does_not_hold_up_others() -> None:
    with collecting() as collector, exporting(collector.url) as made:
        made.exporter.offer(EndedTrace(b"{", SPANS, ASKED))
        eventually(lambda: made.counts["dropped"] == SPANS, 10, "it is dropped")
        made.exporter.offer(ended())
        sent(made, 1)
        assert collector.of_trace(f"{1:032x}") and not collector.of_trace(TRACE)
