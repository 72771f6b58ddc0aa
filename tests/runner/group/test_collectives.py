"""The suite that every rank runs, with exchanges whose time and faults the test decides."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hardware.collective_test import ELEMENT_BYTES, is_skipped, order_of
from bus.wire.messages.collectives import Check, CollectiveTest
from runner.group.collectives import CHECK_SIZES, Suite, SuiteProgress, check_sizes


@dataclass
class Exchanges:
    """Each exchange takes as long as it has elements, in microseconds."""

    size: int = 2
    wrong_in: str = ""
    fails_at: int = 10**9
    mlx_version: str = "0"
    device: str = "none"
    now: float = 0.0
    held: int = 0
    log: list[str] = field(default_factory=list[str])

    @property
    def peak_bytes(self) -> int:
        return self.held

    def _done(self, name: str, elements: int) -> Check:
        if len(self.log) >= self.fails_at:
            raise RuntimeError("[ring] connection to a peer was lost")
        self.log.append(name)
        self.now += 1e-6 * elements
        wrong = 1 if name == self.wrong_in else 0
        return Check(name=name, elements=elements, wrong=wrong, first_wrong=0 if wrong else None)

    def barrier(self) -> Check:
        return self._done("barrier", 1)

    def check_sum(self, elements: int) -> Check:
        return self._done(f"sum {elements}", elements)

    def check_gather(self, elements: int) -> Check:
        return self._done(f"gather {elements}", elements * self.size)

    def check_relay(self, elements: int) -> Check:
        return self._done(f"relay {elements}", 2 * elements)

    def prepare(self, elements: int) -> None:
        self.held = elements

    def sum_round(self) -> None:
        self._done(f"round {self.held}", self.held)

    def check_round(self) -> Check:
        return Check(name=f"rounds of {self.held}", elements=self.held, wrong=0)

    def release(self) -> None:
        self.held = 0


def run(test: CollectiveTest, exchanges: Exchanges) -> tuple[list[SuiteProgress], Suite]:
    told: list[SuiteProgress] = []
    return told, Suite(test, exchanges, lambda: exchanges.now, told.append)


TESTS = st.builds(
    order_of, st.sampled_from(["quick", "standard", "stress"]), st.integers(0, 1 << 24)
)


@given(TESTS, st.integers(2, 5))
def test_progress_counts_up_to_exactly_what_was_promised(test: CollectiveTest, size: int) -> None:
    exchanges = Exchanges(size=size)
    told, suite = run(test, exchanges)
    finding = suite.run()
    assert told[-1].phase == "done" and told[-1].done == told[-1].rounds
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert len({one.rounds for one in told}) == 1
    assert [one.elements for one in finding.sizes] == list(test.sizes)
    assert [one.skipped for one in finding.sizes] == [is_skipped(test, s) for s in test.sizes]
    assert exchanges.held == 0


@given(TESTS, st.integers(2, 5))
def test_what_was_found_never_changes_what_is_exchanged(test: CollectiveTest, size: int) -> None:
    right, wrong = Exchanges(size=size), Exchanges(size=size, wrong_in="sum 1")
    run(test, right)[1].run()
    finding = run(test, wrong)[1].run()
    assert right.log == wrong.log
    assert sum(check.wrong for check in finding.checks) == 1


@given(TESTS, st.integers(2, 5))
def test_no_exchange_is_larger_than_the_cap(test: CollectiveTest, size: int) -> None:
    small = check_sizes(test, size)
    assert small[0] == CHECK_SIZES[0]
    assert all(n == 1 or n * size * ELEMENT_BYTES <= test.cap_bytes for n in small)
    exchanges = Exchanges(size=size)
    run(test, exchanges)[1].run()
    rounds = {int(name.split()[1]) for name in exchanges.log if name.startswith("round ")}
    assert all(n == 1 or n * ELEMENT_BYTES <= test.cap_bytes for n in rounds)


def test_rounds_are_timed_and_warm_ups_are_not() -> None:
    test = order_of("standard", 1 << 24)
    exchanges = Exchanges()
    finding = run(test, exchanges)[1].run()
    assert exchanges.log.count("round 1") == 5 + 50
    assert exchanges.log.count("round 1024") == 3 + 20
    assert finding.latency is not None and finding.latency.rounds == 50
    timing = finding.sizes[0].timing
    assert timing is not None
    assert (timing.rounds, timing.kept) == (20, 18)
    assert timing.mean_s == pytest.approx(1024e-6)


def test_an_exchange_that_fails_is_the_last() -> None:
    exchanges = Exchanges(fails_at=9)
    told, suite = run(order_of("quick", 1 << 24), exchanges)
    with pytest.raises(RuntimeError, match="connection to a peer"):
        suite.run()
    assert len(exchanges.log) == 9 and told[-1].done == 9
