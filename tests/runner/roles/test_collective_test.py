"""The collective test on real rings: whole, and ended by a rank that dies or freezes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bus.hardware.collective_test import order_of, report_of
from bus.links.transport import Link
from bus.wire.codec import decode
from bus.wire.messages.collectives import CollectiveReading, CollectiveTest
from bus.wire.messages.control import SlotDrain
from runner.lifecycle import GROUP_LOST, STOPPED
from tests.harness.ranks import become, group_spec, started_ranks, until_ready
from tests.harness.slot import Slot
from tests.harness.variants import mostly_proof

NOWHERE = Path("/nonexistent")
ENDLESS = order_of("standard", 1 << 20).model_copy(update={"latency_rounds": 10**7})


class Tap:
    """What the ranks publish, each on the telemetry plane of its own node."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._links: list[Link] = []
        self.latest: dict[int, CollectiveReading] = {}
        for slot in slots:
            link = Link("sub")
            link.bind(slot.endpoints.plane_in("telemetry"))
            link.subscribe("reading.collective")
            self._links.append(link)

    def listen(self) -> None:
        for slot in self._slots:
            slot.listen()
        for link in self._links:
            while (frames := link.receive()) is not None:
                message = decode(frames[-1]).message
                assert isinstance(message, CollectiveReading)
                self.latest[message.rank] = message

    def until_phase(self, *phases: str, seconds: float = 90.0) -> list[CollectiveReading]:
        """Wait until every rank has said that it is in one of these."""
        end = time.monotonic() + seconds
        while True:
            self.listen()
            found = list(self.latest.values())
            if len(found) == len(self._slots) and all(one.phase in phases for one in found):
                return found
            assert time.monotonic() < end, [one.phase for one in found]
            assert all(slot.ended is None for slot in self._slots), [s.ended for s in self._slots]
            time.sleep(0.02)

    def close(self) -> None:
        for link in self._links:
            link.close()


@contextlib.contextmanager
def measured_ring(test: CollectiveTest, ranks: int) -> Iterator[tuple[list[Slot], Tap]]:
    group = group_spec("tensor", [(0, 0)] * ranks)
    fields = {"test": test, "memory_limit_bytes": 2 << 30}
    with started_ranks(NOWHERE, group, **fields) as slots:
        tap = Tap(slots)
        try:
            become(slots)
            until_ready(slots)
            yield slots, tap
        finally:
            tap.close()


@pytest.mark.parametrize("ranks", mostly_proof([2, 3], [2]))
def test_ranks_of_a_ring_find_every_element_right_and_leave_when_drained(ranks: int) -> None:
    with measured_ring(order_of("quick", 1 << 20), ranks) as (slots, tap):
        report = report_of(tap.until_phase("done"))
        assert report.passed, report.wrong
        assert report.backend == "ring"
        assert report.elements > ranks * 1_024
        assert [one.rank for one in report.ranks] == list(range(ranks))
        assert {one.pid for one in report.ranks} == {slot.process.pid for slot in slots}
        assert report.latency_s is not None
        measured = {one.elements for one in report.sizes if one.bytes_per_s}
        skipped = {one.elements for one in report.sizes if one.skipped}
        assert measured == {1_024, 65_536}
        assert skipped == {1_048_576, 16_777_216}
        for slot in slots:
            drain = SlotDrain(
                instance=slot.spec.instance, generation=1, deadline_s=0.0, why="the test finished"
            )
            slot.tell(drain)
        assert [slot.exit_code() for slot in slots] == [STOPPED] * ranks


@pytest.mark.slow
@pytest.mark.proof
def test_megabytes_cross_a_ring_of_two_unharmed() -> None:
    with measured_ring(order_of("quick", 256 << 20), 2) as (_, tap):
        report = report_of(tap.until_phase("done"))
        assert report.passed, report.wrong
        assert all(one.bytes_per_s for one in report.sizes), report.sizes
        assert max(one.peak_bytes for one in report.ranks) <= 256 << 20


KILLED, FROZEN = signal.SIGKILL, signal.SIGSTOP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "victim", "number"),
    [
        pytest.param(2, 0, KILLED, id="the lead killed"),
        pytest.param(3, 2, FROZEN, id="the last of three frozen", marks=pytest.mark.proof),
        pytest.param(2, 1, KILLED, id="a follower killed", marks=pytest.mark.proof),
        pytest.param(2, 0, FROZEN, id="the lead frozen", marks=pytest.mark.proof),
        pytest.param(3, 1, KILLED, id="the middle of three killed", marks=pytest.mark.proof),
        pytest.param(3, 2, KILLED, id="the last of three killed", marks=pytest.mark.proof),
    ],
)
def test_a_rank_that_is_gone_ends_the_test_and_is_named(
    ranks: int, victim: int, number: int
) -> None:
    with measured_ring(ENDLESS, ranks) as (slots, tap):
        tap.until_phase("latency")
        os.kill(slots[victim].process.pid, number)
        left = [slot for slot in slots if slot is not slots[victim]]
        assert [slot.exit_code(20.0) for slot in left] == [GROUP_LOST] * len(left)
        for slot in left:
            assert slot.ended is not None
            assert f"rank {victim} on node node-{victim}" in slot.ended.message


@pytest.mark.slow
def test_a_test_that_takes_too_long_says_how_far_it_came() -> None:
    with measured_ring(ENDLESS.model_copy(update={"deadline_s": 2.0}), 2) as (slots, _):
        slots[0].exit_code(20.0)
        assert slots[0].ended is not None
        assert "more than 2 s" in slots[0].ended.message


@pytest.mark.slow
@pytest.mark.proof
def test_stress_really_sums_half_a_gigabyte() -> None:
    test = order_of("stress", 3 << 29).model_copy(update={"rounds": 2, "warm_ups": 1})
    with measured_ring(test, 2) as (_, tap):
        report = report_of(tap.until_phase("done", seconds=600.0))
        assert report.passed, report.wrong
        assert report.sizes[-1].bytes == 512 << 20
        assert all(one.bytes_per_s and not one.skipped for one in report.sizes)
        assert max(one.peak_bytes for one in report.ranks) <= 3 << 29
