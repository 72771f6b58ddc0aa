"""Record what one rank of a group does while traced requests have rows in it.

Pure: the clock is an argument. The engine's thread reports each part of its work, so that parts
follow each other without gaps; the parts between two plans are a turn. The first turns of a request
are reported in full, later ones as sums, merged if there are many: an answer of any length costs
the same. While no request is traced, nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from bus.wire.messages.traces import (
    RANK_PARTS,
    Crosses,
    RankCrossing,
    RankPart,
    RankPartName,
    RankSpans,
    RankTotal,
    RankTurn,
    RankTurnName,
)
from runner.engine import RowId, StepPlan

MOST_TRACED = 8
"""The most requests that a rank records at a time; it reports nothing about further requests."""
DETAILED = 32
"""The number of steps of a request that are reported in full, from the step with its first row."""
MOST_PARTS = 512
"""Maximum parts, and maximum transfers between ranks (crossings), that are reported per request."""
MOST_TURNS = 64
"""Maximum number of merged turns that are reported in addition to the turns reported in full. A
turn is the engine's work between two plans."""

_PLACES = {name: place for place, name in enumerate(RANK_PARTS)}


@dataclass(slots=True)
class OpenTurn:
    """A turn in progress, which is the engine's work between two plans. It has parts and transfers
    between ranks (crossings), in order, by the rank's clock."""

    step: int
    began_at: float
    parts: list[tuple[RankPartName, float, float]] = field(
        default_factory=list[tuple[RankPartName, float, float]]
    )
    crossings: list[RankCrossing] = field(default_factory=list[RankCrossing])

    def sums(self, name: RankTurnName, tokens: int) -> RankTurn | None:
        """Return the turn with the seconds of each kind of part, up to the end of its last part;
        None if no part has ended."""
        if not self.parts:
            return None
        seconds = [0.0] * len(RANK_PARTS)
        for part, began_at, ended_at in self.parts:
            seconds[_PLACES[part]] += ended_at - began_at
        ended_at = self.parts[-1][2]
        return RankTurn(name, self.step, 1, self.began_at, ended_at, tokens, tuple(seconds))


class RequestSpans:
    """The record of one traced request, which began at `began_at`; `first_step` is the step that
    admitted its first row."""

    def __init__(self, first_step: int, began_at: float) -> None:
        self.began_at = began_at
        self.rows: set[RowId] = set()
        self._first_step = first_step
        self._turns: list[RankTurn] = []
        self._later: list[RankTurn] = []
        self._steps_each = 1
        self._parts: list[RankPart] = []
        self._crossings: list[RankCrossing] = []
        self._totals: dict[tuple[Crosses, int, bool], tuple[int, int]] = {}
        self._of: tuple[RankTurnName, int] = ("other", 0)

    def queued(self, until: float) -> None:
        """Record that the request's first plan waited for the engine until the instant `until`."""
        if until > self.began_at:
            seconds = (until - self.began_at, *(0.0,) * (len(RANK_PARTS) - 1))
            turn = RankTurn("queued", self._first_step, 0, self.began_at, until, 0, seconds)
            self._turns.append(turn)
            self._parts.append(RankPart("queued", self.began_at, until))

    def planned(self, plan: StepPlan) -> None:
        """Record what the current plan computes for this request: prompt tokens, output tokens or
        neither."""
        rows = self.rows
        read = sum(
            chunk.stop - chunk.start
            for group in plan.prefill
            for chunk in group
            if chunk.row in rows
        )
        made = sum(row in rows for row in plan.decode)
        self._of = ("prefill", read) if read else ("decode", made) if made else ("other", 0)

    def took(self, turn: OpenTurn) -> None:
        """Add an ended turn (the engine's work between two plans) to the request's record."""
        sums = turn.sums(*self._of)
        if sums is None:
            return
        for crossing in turn.crossings:
            key = (crossing.what, crossing.peer, crossing.sent)
            count, bytes_ = self._totals.get(key, (0, 0))
            self._totals[key] = (count + 1, bytes_ + crossing.bytes_)
        full = turn.step - self._first_step < DETAILED and not self._later
        if full and len(self._parts) + len(turn.parts) <= MOST_PARTS:
            self._turns.append(sums)
            self._parts += [RankPart(*part) for part in turn.parts]
            room = MOST_PARTS - len(self._crossings)
            self._crossings += turn.crossings[:room]
        else:
            self._join(sums)

    def spans(self) -> RankSpans:
        """Return everything that was recorded for the request."""
        zero = self.began_at
        turns = [*self._turns, *self._later]
        return RankSpans(
            zero,
            (turns[-1].ended_s if turns else zero) - zero,
            tuple(_turn_since(zero, turn) for turn in turns),
            tuple(_part_since(zero, part) for part in self._parts),
            tuple(_crossing_since(zero, crossing) for crossing in self._crossings),
            tuple(RankTotal(*key, *sums) for key, sums in self._totals.items()),
        )

    def _join(self, turn: RankTurn) -> None:
        later = self._later
        if later and later[-1].steps + 1 <= self._steps_each:
            later[-1] = _joined(later[-1], turn)
            return
        later.append(turn)
        if len(later) > MOST_TURNS:
            self._steps_each *= 2
            pairs = [later[at : at + 2] for at in range(0, len(later), 2)]
            self._later = [_joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]


class RankRecorder:
    """Records when one rank did what. The engine's thread calls `begin`, `enter` and the methods
    that record data sent between ranks; the main thread calls `came` and `take`, under `lock`.
    Outside the lock, the engine's thread reads `_turn` once into a local name, because `take` sets
    it to None."""

    def __init__(self, clock: Callable[[], float], lock: AbstractContextManager[object]) -> None:
        self._clock = clock
        self._lock = lock
        self._requests: dict[str, RequestSpans] = {}
        self._came: dict[int, float] = {}
        self._turn: OpenTurn | None = None
        self._part: RankPartName = "host"
        self._since = 0.0
        self._numbers: dict[tuple[Crosses, int, bool], int] = {}

    @property
    def notes(self) -> bool:
        """Return whether any request is being recorded."""
        return bool(self._requests)

    @property
    def part(self) -> RankPartName:
        """Return the kind of work that the engine is doing, even if no request is recorded. Any
        thread may call it."""
        return self._part

    # --- the main thread -------------------------------------------------------------------

    def came(self, plan: StepPlan) -> None:
        """Record that a plan arrived and waits for the engine's thread."""
        if self._requests or any(spec.traced for spec in plan.admit):
            self._came[plan.step] = self._clock()

    def take(self, request: str) -> RankSpans | None:
        """Return the record of a request and stop recording it; None if there is none."""
        if request not in self._requests:
            return None
        with self._lock:
            spans, turn = self._requests.pop(request), self._turn
            if turn is not None:
                parts, crossings = list(turn.parts), list(turn.crossings)
                spans.took(OpenTurn(turn.step, turn.began_at, parts, crossings))
            if not self._requests:
                self._turn = None
        return spans.spans()

    # --- the engine's thread ---------------------------------------------------------------

    def begin(self, plan: StepPlan) -> None:
        """Begin to record the engine's work for `plan`, and end the record of its work for the
        previous plan."""
        came_at = self._came.pop(plan.step, None) if self._came else None
        if not self._requests and not any(spec.traced for spec in plan.admit):
            self._turn = None
            return
        with self._lock:
            now = self._clock()
            if self._turn is not None:
                self._split(self._turn, now)
                for spans in self._requests.values():
                    spans.took(self._turn)
            self._turn, self._part, self._since = OpenTurn(plan.step, now), "host", now
            self._numbers.clear()
            self._admit(plan, now if came_at is None else min(came_at, now), now)
            for spans in self._requests.values():
                spans.planned(plan)
        if came_at is not None:
            self.crossed("plan", 0, sent=False, bytes_=0, at=came_at)

    def enter(self, part: RankPartName) -> float:
        """Record that the engine begins work of the kind `part`. Return the instant; 0 if nothing
        is recorded."""
        turn = self._turn
        if turn is None:
            self._part = part
            return 0.0
        now = self._clock()
        if part != self._part:
            self._split(turn, now)
            self._part = part
        return now

    def numbered(self, what: Crosses, peer: int, *, sent: bool) -> tuple[int, int]:
        """Return the number of the current step, and the index of its next transfer of this
        kind."""
        key = (what, peer, sent)
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        turn = self._turn  # read once: the main thread's `take` may end it meanwhile
        return (0 if turn is None else turn.step), number

    def crossed(
        self,
        what: Crosses,
        peer: int,
        *,
        sent: bool,
        bytes_: int,
        at: float,
        numbered: tuple[int, int] | None = None,
    ) -> None:
        """Record a transfer that began at the instant `at`, or had arrived by then. `numbered` is
        its (step, index) if that was assigned when the transfer was built; otherwise it is assigned
        now."""
        turn = self._turn
        if turn is not None:
            step, number = numbered or self.numbered(what, peer, sent=sent)
            turn.crossings.append(RankCrossing(what, step, number, peer, sent, bytes_, at))

    def _split(self, turn: OpenTurn, now: float) -> None:
        if now > self._since:
            turn.parts.append((self._part, self._since, now))
            self._since = now

    def _admit(self, plan: StepPlan, came_at: float, now: float) -> None:
        for spec in plan.admit:
            if not spec.traced:
                continue
            spans = self._requests.get(spec.traced)
            if spans is None:
                if len(self._requests) == MOST_TRACED:
                    continue
                spans = self._requests[spec.traced] = RequestSpans(plan.step, came_at)
                spans.queued(now)
            spans.rows.add(spec.row)


def _joined(turn: RankTurn, other: RankTurn) -> RankTurn:
    return RankTurn(
        turn.name if turn.name == other.name else "other",
        turn.step,
        turn.steps + other.steps,
        turn.began_s,
        other.ended_s,
        turn.tokens + other.tokens,
        _added(turn.seconds, other.seconds),
    )


def _added(sums: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(first + second for first, second in zip(sums, other, strict=True))


def _turn_since(zero: float, turn: RankTurn) -> RankTurn:
    return RankTurn(
        turn.name,
        turn.step,
        turn.steps,
        turn.began_s - zero,
        turn.ended_s - zero,
        turn.tokens,
        turn.seconds,
    )


def _part_since(zero: float, part: RankPart) -> RankPart:
    return RankPart(part.name, part.began_s - zero, part.ended_s - zero)


def _crossing_since(zero: float, crossing: RankCrossing) -> RankCrossing:
    return RankCrossing(
        crossing.what,
        crossing.step,
        crossing.number,
        crossing.peer,
        crossing.sent,
        crossing.bytes_,
        crossing.at_s - zero,
    )
