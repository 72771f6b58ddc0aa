"""The collective test as every rank of a group runs it: the same exchanges in the same order.

Pure: exchanges and clock are arguments. The sequence never depends on measurements or findings, so
ranks cannot fall out of step. A rank that finds wrong elements reports them and continues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bus.hardware.collective_test import ELEMENT_BYTES, is_skipped, rounds_of, timing
from bus.wire.messages.collectives import (
    Check,
    CollectiveTest,
    RankFinding,
    SizeFinding,
    TestPhase,
    Timing,
)

CHECK_SIZES = (1, 7, 1_024, 65_536, 1_048_576)
"""Element counts with which sums, gathers and relays are checked: one, odd sizes, and sizes from
small messages to messages that are sent in pieces."""


class Exchanges(Protocol):
    """One rank's end of a group whose ranks are connected. Each method makes one exchange, or
    several in a fixed order, and returns when its result is in memory. A method may raise
    RuntimeError if a peer is lost; then no further call is allowed."""

    mlx_version: str
    device: str

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Return the peak accelerator memory so far."""
        ...

    def barrier(self) -> Check:
        """Wait until all ranks have called this. Return whether their number is the group's
        size."""
        ...

    def check_sum(self, elements: int) -> Check:
        """Sum arrays of `elements` numbers over all ranks. Return whether every element of the sum
        is right."""
        ...

    def check_gather(self, elements: int) -> Check:
        """Gather arrays of `elements` numbers from all ranks. Return whether every element is
        right."""
        ...

    def check_relay(self, elements: int) -> Check:
        """Pass arrays around the ring by send and receive, once in each direction. Return whether
        every received element is right."""
        ...

    def prepare(self, elements: int) -> None:
        """Allocate the operand of `elements` numbers for `sum_round`. No exchange."""
        ...

    def sum_round(self) -> None:
        """Run one `all_sum` of the prepared operand."""
        ...

    def check_round(self) -> Check:
        """Return whether every element of the last `sum_round` is right. No exchange."""
        ...

    def release(self) -> None:
        """Free the arrays that `prepare` and `sum_round` made."""
        ...


@dataclass(frozen=True, slots=True)
class SuiteProgress:
    """Progress of a rank in the collective test: `done` of `rounds` exchanges are finished;
    `finding` is the result so far."""

    phase: TestPhase
    done: int
    rounds: int
    finding: RankFinding


def check_sizes(test: CollectiveTest, ranks: int) -> tuple[int, ...]:
    """Return those of CHECK_SIZES whose gather from all ranks has at most `test.cap_bytes`; at
    least the first."""
    fit = (n for n in CHECK_SIZES if n * ranks * ELEMENT_BYTES <= test.cap_bytes)
    return tuple(fit) or CHECK_SIZES[:1]


class Suite:
    """One rank's part of the collective test. `tell` is called after every exchange and must not
    block."""

    def __init__(
        self,
        test: CollectiveTest,
        exchanges: Exchanges,
        clock: Callable[[], float],
        tell: Callable[[SuiteProgress], None],
    ) -> None:
        self._test = test
        self._with = exchanges
        self._clock = clock
        self._tell = tell
        self._phase: TestPhase = "correctness"
        self._done = 0
        self._checks: list[Check] = []
        self._latency: Timing | None = None
        self._sizes: list[SizeFinding] = []
        small = check_sizes(test, exchanges.size)
        large = sum(not is_skipped(test, size) for size in test.sizes)
        self._rounds = rounds_of(test, 1 + 3 * len(small) + large)
        self._small = small

    def run(self) -> RankFinding:
        """Run all exchanges and return the finding. Raises the errors of exchanges."""
        self._correctness()
        self._phase = "latency"
        self._with.prepare(1)
        self._latency = self._timed(self._test.latency_warm_ups, self._test.latency_rounds)
        self._with.release()
        self._phase = "bandwidth"
        for elements in self._test.sizes:
            self._bandwidth(elements)
        self._phase = "done"
        self._say()
        return self._finding()

    def _correctness(self) -> None:
        exchanges = self._with
        self._checked(exchanges.barrier())
        for check in (exchanges.check_sum, exchanges.check_gather, exchanges.check_relay):
            for elements in self._small:
                self._checked(check(elements))

    def _bandwidth(self, elements: int) -> None:
        if is_skipped(self._test, elements):
            self._sizes.append(SizeFinding(elements=elements, skipped=True))
            self._say()
            return
        self._with.prepare(elements)
        timings = self._timed(self._test.warm_ups, self._test.rounds)
        self._sizes.append(SizeFinding(elements=elements, timing=timings))
        self._checked(self._with.check_round())
        self._with.release()

    def _timed(self, warm_ups: int, rounds: int) -> Timing:
        for _ in range(warm_ups):
            self._with.sum_round()
            self._count()
        seconds: list[float] = []
        for _ in range(rounds):
            began = self._clock()
            self._with.sum_round()
            seconds.append(self._clock() - began)
            self._count()
        return timing(seconds)

    def _checked(self, check: Check) -> None:
        self._checks.append(check)
        self._count()

    def _count(self) -> None:
        self._done += 1
        self._say()

    def _say(self) -> None:
        self._tell(SuiteProgress(self._phase, self._done, self._rounds, self._finding()))

    def _finding(self) -> RankFinding:
        return RankFinding.model_construct(
            checks=tuple(self._checks),
            latency=self._latency,
            sizes=tuple(self._sizes),
            peak_bytes=self._with.peak_bytes,
        )
