"""Which events of llama-server are sent together."""

from __future__ import annotations

from collections.abc import Callable

from runner.llama.llama_responder import GATHER_S, StepGatherer


class Bench:
    """A gatherer with a clock by hand. `sent` counts messages."""

    def __init__(self) -> None:
        self.sent = 0
        self.timers: list[Callable[[], None]] = []
        self.gatherer = StepGatherer[str](self._send, self._later)

    def _send(self) -> None:
        self.sent += 1

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s == GATHER_S
        self.timers.append(action)

    def add(self, rows: str, running: str) -> int:
        """Add an event of each row; return how many messages were sent."""
        before = self.sent
        for row in rows:
            self.gatherer.add(row, set(running))
        return self.sent - before

    def wait(self) -> int:
        """Let the time of all timers pass; return how many messages were sent."""
        before, due = self.sent, tuple(self.timers)
        self.timers.clear()
        for action in due:
            action()
        return self.sent - before


def test_a_single_row_never_waits() -> None:
    bench = Bench()
    assert [bench.add("a", "a") for _ in range(3)] == [1, 1, 1]
    assert bench.timers == []


def test_the_events_of_a_step_are_one_message() -> None:
    bench = Bench()
    bench.add("abc", "abc")
    bench.wait()
    bench.add("abc", "abc")
    bench.wait()
    assert [bench.add("bca", "abc") for _ in range(4)] == [1, 1, 1, 1]


def test_a_row_that_ended_or_reads_its_prompt_keeps_nobody_waiting() -> None:
    bench = Bench()
    bench.add("ab", "ab")
    bench.wait()
    bench.add("ab", "ab")
    assert bench.add("b", "b") == 1, "a has ended"
    assert bench.add("b", "bc") == 1, "c has sent nothing yet"


def test_a_row_that_pauses_holds_up_one_step_for_the_longest_time_and_no_more() -> None:
    bench = Bench()
    bench.add("ab", "ab")
    bench.wait()
    assert bench.add("ab", "ab") == 1
    assert bench.add("a", "ab") == 0
    assert bench.wait() == 1
    assert bench.add("a", "ab") == 1, "b is not expected any more"
    assert bench.add("b", "ab") == 0 and bench.wait() == 1, "it takes part again"
