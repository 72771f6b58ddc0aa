"""The order in which one rank of a group submits computation and exchanges to its device.

Pure. A *submission* is work that the device gets in one call: arrays, and the received array that
they need, if any (`arrival`). `NEXT` lists the states of a submission. Every rank runs the same
plans. If each rank keeps these rules, the exchanges between any two ranks match on both sides:

- Submissions reach the device in the order in which they were built, also if they were held.
- A due submission is the deferred receive of tokens from the lead. It reaches the device only when
the tokens are awaited. Due submissions keep the order in which they were deferred.
- Each submission is submitted once. Before its tokens are awaited, it is submitted.
- A call that would break a rule raises OutOfOrder and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

A = TypeVar("A")
"""The type of an array on the device. Arrays are compared by identity only."""
N = TypeVar("N")
"""The type of a note that the caller attaches to a submission."""
State = Literal["building", "held", "due", "submitted"]
Signal = Literal["submit", "hold", "defer", "flush", "await"]

NEXT: Mapping[State, Mapping[Signal, State]] = {
    "building": {"submit": "submitted", "hold": "held", "defer": "due"},
    "held": {"flush": "submitted"},
    "due": {"await": "submitted"},
    "submitted": {},
}
"""The next state of a submission for each signal. `held`: complete, but kept back until `flush`.
`due`: deferred until the tokens that it receives are awaited. `submitted`: given to the device."""


class OutOfOrder(Exception):
    """A call was refused, because it would make this rank exchange arrays in another order than its
    neighbours."""


@dataclass(slots=True, eq=False)
class Submission(Generic[A, N]):
    """Work that the device gets in one call. `arrival` is a received array that only `arrays` use,
    or None. `notes` are records that the caller attached while it built the submission."""

    arrays: Sequence[A]
    arrival: A | None = None
    notes: Sequence[N] = ()
    state: State = "building"

    def signal(self, signal: Signal) -> None:
        """Move to the next state in the table `NEXT`. Raises OutOfOrder if the table does not allow
        the signal."""
        after = NEXT[self.state].get(signal)
        if after is None:
            raise OutOfOrder(f"a submission in state {self.state!r} does not allow {signal!r}")
        self.state = after

    def holds(self, array: A) -> bool:
        """Return whether `array` is one of this submission's arrays."""
        return any(own is array for own in self.arrays)


class ExchangeOrder(Generic[A, N]):
    """Decides the order in which one rank submits work. Each submitting method returns the
    submissions that the device must get now, in order. `holds`: whether `submit_or_hold` keeps
    submissions until `flush`."""

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self._arrival: A | None = None
        self._notes: list[N] = []
        self._held: deque[Submission[A, N]] = deque()
        self._due: deque[Submission[A, N]] = deque()

    @property
    def arriving(self) -> list[A]:
        """Return a list with the received array (arrival) that the submission under construction
        uses. The list is empty if it uses none."""
        return [] if self._arrival is None else [self._arrival]

    def take_in(self, arrival: A) -> None:
        """Make the submission under construction use the received array `arrival`. Raises
        OutOfOrder if it already uses one, because the device may begin two receives of a submission
        in either order."""
        if self._arrival is not None:
            raise OutOfOrder("a second receive began before the first one's submission was built")
        self._arrival = arrival

    def note(self, what: N) -> None:
        """Attach a note to the submission that is finished or deferred next."""
        self._notes.append(what)

    def submit(self, arrays: Sequence[A]) -> list[Submission[A, N]]:
        """Finish the submission under construction. Return the held submissions and then this one.
        Deferred (due) submissions stay deferred."""
        return [*self.flush(), *self._built(arrays, "submit")]

    def submit_or_hold(self, arrays: Sequence[A]) -> list[Submission[A, N]]:
        """Finish the submission under construction. Return it for the device at once, or hold it
        (return nothing) if this rank holds submissions."""
        if not self.holds:
            return self.submit(arrays)
        self._held.extend(self._built(arrays, "hold"))
        return []

    def defer(self, tokens: A) -> None:
        """Defer the receive of `tokens`, which depends on no other array: it is due until the
        tokens are awaited, and then submitted. Raises OutOfOrder while a submission is being
        built."""
        self._expect_nothing_built()
        due = Submission([tokens], tokens, self._taken_notes())
        due.signal("defer")
        self._due.append(due)

    def flush(self) -> list[Submission[A, N]]:
        """Return the held submissions in their order. Afterwards no submission is held."""
        return _submitted(self._held, len(self._held), "flush")

    def awaited(self, tokens: A) -> list[Submission[A, N]]:
        """Return the deferred (due) submissions, from the oldest up to and including the one with
        `tokens`. Return nothing if that one was already submitted. Raises OutOfOrder if `tokens` is
        in a held submission, because waiting for it would never end."""
        if any(submission.holds(tokens) for submission in self._held):
            raise OutOfOrder("the awaited tokens are in a held submission: call flush first")
        count = next((at for at, due in enumerate(self._due, 1) if due.holds(tokens)), 0)
        return _submitted(self._due, count, "await")

    def settled(self) -> list[Submission[A, N]]:
        """Return all held and deferred submissions, which the device must get now. Raises
        OutOfOrder while a submission is being built."""
        self._expect_nothing_built()
        return [*self.flush(), *_submitted(self._due, len(self._due), "await")]

    def _built(self, arrays: Sequence[A], signal: Signal) -> list[Submission[A, N]]:
        if self._due:
            arrays = [array for array in arrays if not any(due.holds(array) for due in self._due)]
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
            raise OutOfOrder("the submission that uses a received array was not finished")


def _submitted(
    waiting: deque[Submission[A, N]], count: int, signal: Signal
) -> list[Submission[A, N]]:
    taken = [waiting.popleft() for _ in range(count)]
    for submission in taken:
        submission.signal(signal)
    return taken
