"""The collective test, as every rank of a group runs it: the same exchanges in the same order.

Pure: the exchanges and the clock are given. What is done depends on the order alone (never on
what was measured or found wrong), so that ranks cannot fall out of step. A rank that finds wrong
elements says so and goes on.
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
"""Elements whose sums, gatherings and relays are checked: one, a few that nothing divides, and
from small messages to those that are cut into pieces."""


class Exchanges(Protocol):
    """One rank's end of a group that has formed. Each call is one exchange, or several in a
    fixed order; it returns when its result is in memory, and may raise RuntimeError when a
    peer is gone, after which there must be no other."""

    mlx_version: str
    device: str

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Return the most accelerator memory used so far."""
        ...

    def barrier(self) -> Check:
        """Wait until all ranks are here. Return whether they are as many as the group has."""
        ...

    def check_sum(self, elements: int) -> Check:
        """Sum a pattern that differs by rank; look at every element."""
        ...

    def check_gather(self, elements: int) -> Check:
        """Gather every rank's pattern of so many elements; look at all of them."""
        ...

    def check_relay(self, elements: int) -> Check:
        """Pass patterns on by send and receive, to the next rank all round and back again;
        look at every element received."""
        ...

    def prepare(self, elements: int) -> None:
        """Make what the rounds of one size sum. No exchange."""
        ...

    def sum_round(self) -> None:
        """Make one `all_sum` of what was prepared."""
        ...

    def check_round(self) -> Check:
        """Look at every element of the last round's result. No exchange."""
        ...

    def release(self) -> None:
        """Give the memory of this size back."""
        ...


@dataclass(frozen=True, slots=True)
class SuiteProgress:
    """How far a rank is: `done` of `rounds` exchanges, and what it has found so far."""

    phase: TestPhase
    done: int
    rounds: int
    finding: RankFinding


def check_sizes(test: CollectiveTest, ranks: int) -> tuple[int, ...]:
    """Return those of CHECK_SIZES whose gathering from all ranks stays under the cap, and at least
    the first."""
    fit = (n for n in CHECK_SIZES if n * ranks * ELEMENT_BYTES <= test.cap_bytes)
    return tuple(fit) or CHECK_SIZES[:1]


class Suite:
    """One run. `tell` is called after every exchange and must not wait."""

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
        """Make all exchanges and return what was found. Raises what an exchange raised."""
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
        found = self._timed(self._test.warm_ups, self._test.rounds)
        self._sizes.append(SizeFinding(elements=elements, timing=found))
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
