"""The order in which one rank of a group gives its device what it computes and exchanges.

Pure. A *submission* is what the device is given at once: arrays, and the exchange that they take
in, if any (`arrival`). `NEXT` is its life. Every rank runs the same plans, and the orders of all
ranks promise together that the exchanges between any two of them are the same on both sides:

- Submissions reach the device in the order in which they were built, held ones included.
- What is due (tokens that a stage takes from the lead's side) reaches it by itself, in the order
  in which it was deferred, no sooner than it is awaited.
- Each is submitted once. What is awaited has been submitted before, or is submitted now.
- A call that would break this raises OutOfOrder and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

A = TypeVar("A")
"""What the device computes. Compared by identity alone."""
N = TypeVar("N")
"""What a caller notes of a submission."""
State = Literal["building", "held", "due", "submitted"]
Signal = Literal["submit", "hold", "defer", "flush", "await"]

NEXT: Mapping[State, Mapping[Signal, State]] = {
    "building": {"submit": "submitted", "hold": "held", "defer": "due"},
    "held": {"flush": "submitted"},
    "due": {"await": "submitted"},
    "submitted": {},
}


class OutOfOrder(Exception):
    """The caller would have this rank exchange in another order than its neighbours."""


@dataclass(slots=True, eq=False)
class Submission(Generic[A, N]):
    """What the device is given at once. `arrival`, where it is not None, is taken in by `arrays`
    and by nothing else. `notes` are what the caller has noted of it while it was built."""

    arrays: Sequence[A]
    arrival: A | None = None
    notes: Sequence[N] = ()
    state: State = "building"

    def signal(self, signal: Signal) -> None:
        """Move on by the table. OutOfOrder where it has no such way."""
        after = NEXT[self.state].get(signal)
        if after is None:
            raise OutOfOrder(f"a submission that is {self.state} cannot take {signal!r}")
        self.state = after

    def holds(self, array: A) -> bool:
        """Return whether `array` is among its arrays."""
        return any(own is array for own in self.arrays)


class ExchangeOrder(Generic[A, N]):
    """One rank's order. Each call that submits returns what the device is to be given now, in
    order. `holds`: what `submit_or_hold` is given waits for a flush."""

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self._arrival: A | None = None
        self._notes: list[N] = []
        self._held: deque[Submission[A, N]] = deque()
        self._due: deque[Submission[A, N]] = deque()

    @property
    def arriving(self) -> list[A]:
        """Return the arrival that what is being built takes in; empty where there is none."""
        return [] if self._arrival is None else [self._arrival]

    def take_in(self, arrival: A) -> None:
        """Have what is being built take in `arrival`. OutOfOrder while an earlier one has not been
        submitted or held: the device may begin two in either order."""
        if self._arrival is not None:
            raise OutOfOrder("more arrives before what takes in the last was submitted")
        self._arrival = arrival

    def note(self, what: N) -> None:
        """Note something of what is being built, or is deferred next."""
        self._notes.append(what)

    def submit(self, arrays: Sequence[A]) -> list[Submission[A, N]]:
        """End what is being built. Return what is held, then it; what is due stays due."""
        return [*self.flush(), *self._built(arrays, "submit")]

    def submit_or_hold(self, arrays: Sequence[A]) -> list[Submission[A, N]]:
        """End what is being built, and hold it where this rank holds."""
        if not self.holds:
            return self.submit(arrays)
        self._held.extend(self._built(arrays, "hold"))
        return []

    def defer(self, told: A) -> None:
        """Let `told`, which takes in an exchange alone, be due: submitted once it is awaited.
        OutOfOrder while something is being built."""
        self._expect_nothing_built()
        due = Submission([told], told, self._taken_notes())
        due.signal("defer")
        self._due.append(due)

    def flush(self) -> list[Submission[A, N]]:
        """Return what is held, in order."""
        return _submitted(self._held, len(self._held), "flush")

    def awaited(self, told: A) -> list[Submission[A, N]]:
        """Return what is due up to `told`; nothing where `told` was submitted already. OutOfOrder
        where it is held: who waits for it would wait for ever."""
        if any(one.holds(told) for one in self._held):
            raise OutOfOrder("what is awaited is held: flush first")
        count = next((at for at, due in enumerate(self._due, 1) if due.holds(told)), 0)
        return _submitted(self._due, count, "await")

    def settled(self) -> list[Submission[A, N]]:
        """Return all that is held and due. OutOfOrder while something is being built."""
        self._expect_nothing_built()
        return [*self.flush(), *_submitted(self._due, len(self._due), "await")]

    def _built(self, arrays: Sequence[A], signal: Signal) -> list[Submission[A, N]]:
        if self._due:
            arrays = [one for one in arrays if not any(due.holds(one) for due in self._due)]
        if not arrays and self._arrival is None:
            return []
        built = Submission(arrays, self._arrival, self._taken_notes())
        built.signal(signal)
        self._arrival = None
        return [built]

    def _taken_notes(self) -> Sequence[N]:
        if not self._notes:
            return ()
        notes, self._notes = self._notes, []
        return notes

    def _expect_nothing_built(self) -> None:
        if self._arrival is not None:
            raise OutOfOrder("what takes in an arrival has not been submitted")


def _submitted(
    waiting: deque[Submission[A, N]], count: int, signal: Signal
) -> list[Submission[A, N]]:
    taken = [waiting.popleft() for _ in range(count)]
    for submission in taken:
        submission.signal(signal)
    return taken
