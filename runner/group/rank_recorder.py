"""What one rank of a group does when, while requests that are traced have rows in it.

Pure: the clock is given. The engine's thread tells what it is at, part after part, so that parts
follow each other without gaps: those between two plans are a turn. The first turns of a request
are told in full, later ones in sums, neighbours as one where there are many: an answer of any
length costs the same. While no request is traced nothing is noted, and nothing is made.
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
"""Requests that are noted at a time; what more there are, this rank tells nothing of."""
DETAILED = 32
"""Steps of a request that are told in full, from the one on that has its first row."""
MOST_PARTS = 512
"""Parts, and crossings, that are told of a request."""
MOST_TURNS = 64
"""Turns that are told beside those in full."""

_PLACES = {name: place for place, name in enumerate(RANK_PARTS)}


@dataclass(slots=True)
class OpenTurn:
    """A turn that is going on: its parts and what crosses in it, in order, by the rank's clock."""

    step: int
    began_at: float
    parts: list[tuple[RankPartName, float, float]] = field(
        default_factory=list[tuple[RankPartName, float, float]]
    )
    crossings: list[RankCrossing] = field(default_factory=list[RankCrossing])

    def told(self, name: RankTurnName, tokens: int) -> RankTurn | None:
        """Return its sums up to the end of its last part; None while none has ended."""
        if not self.parts:
            return None
        seconds = [0.0] * len(RANK_PARTS)
        for part, began_at, ended_at in self.parts:
            seconds[_PLACES[part]] += ended_at - began_at
        ended_at = self.parts[-1][2]
        return RankTurn(name, self.step, 1, self.began_at, ended_at, tokens, tuple(seconds))


class RequestSpans:
    """What is noted of one request from `began_at` on; `first_step` is that of its first row."""

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
        """Note that its first plan waited so long for the engine."""
        if until > self.began_at:
            seconds = (until - self.began_at, *(0.0,) * (len(RANK_PARTS) - 1))
            turn = RankTurn("queued", self._first_step, 0, self.began_at, until, 0, seconds)
            self._turns.append(turn)
            self._parts.append(RankPart("queued", self.began_at, until))

    def planned(self, plan: StepPlan) -> None:
        """Note what the turn that begins does for it."""
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
        """Take a turn, all of which has ended."""
        told = turn.told(*self._of)
        if told is None:
            return
        for one in turn.crossings:
            key = (one.what, one.peer, one.sent)
            count, bytes_ = self._totals.get(key, (0, 0))
            self._totals[key] = (count + 1, bytes_ + one.bytes_)
        full = turn.step - self._first_step < DETAILED and not self._later
        if full and len(self._parts) + len(turn.parts) <= MOST_PARTS:
            self._turns.append(told)
            self._parts += [RankPart(*part) for part in turn.parts]
            room = MOST_PARTS - len(self._crossings)
            self._crossings += turn.crossings[:room]
        else:
            self._join(told)

    def told(self) -> RankSpans:
        """Return all of it."""
        zero = self.began_at
        turns = [*self._turns, *self._later]
        return RankSpans(
            zero,
            (turns[-1].ended_s if turns else zero) - zero,
            tuple(_turn_since(zero, turn) for turn in turns),
            tuple(_part_since(zero, part) for part in self._parts),
            tuple(_crossing_since(zero, one) for one in self._crossings),
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
    """The notes of one rank. `begin`, `enter` and what crosses are told by the engine's thread,
    `came` and `take` by the main one; `lock` keeps the two apart. Outside of it the engine's
    thread reads `_turn` once into a local name, for `take` sets it to None."""

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
        """Return whether anything is noted."""
        return bool(self._requests)

    @property
    def part(self) -> RankPartName:
        """Return what the engine is at, noted or not. Any thread may ask."""
        return self._part

    # --- the main thread -------------------------------------------------------------------

    def came(self, plan: StepPlan) -> None:
        """Note that a plan has come, and now waits for the engine's thread."""
        if self._requests or any(spec.traced for spec in plan.admit):
            self._came[plan.step] = self._clock()

    def take(self, request: str) -> RankSpans | None:
        """Return what was noted of a request, and note no more of it; None where nothing was."""
        if request not in self._requests:
            return None
        with self._lock:
            spans, turn = self._requests.pop(request), self._turn
            if turn is not None:
                parts, crossings = list(turn.parts), list(turn.crossings)
                spans.took(OpenTurn(turn.step, turn.began_at, parts, crossings))
            if not self._requests:
                self._turn = None
        return spans.told()

    # --- the engine's thread ---------------------------------------------------------------

    def begin(self, plan: StepPlan) -> None:
        """Take up a plan: a turn ends, and the next one begins."""
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
        """Note what the engine is at from now on; return the instant, 0 while nothing is noted."""
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
        """Return the step that is being built, and which of its crossings of this kind comes
        next."""
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
        """Note what was sent from `at` on, or had by then; `numbered` when it was built, else
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


def _joined(one: RankTurn, other: RankTurn) -> RankTurn:
    return RankTurn(
        one.name if one.name == other.name else "other",
        one.step,
        one.steps + other.steps,
        one.began_s,
        other.ended_s,
        one.tokens + other.tokens,
        _added(one.seconds, other.seconds),
    )


def _added(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(first + second for first, second in zip(one, other, strict=True))


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


def _crossing_since(zero: float, one: RankCrossing) -> RankCrossing:
    return RankCrossing(
        one.what, one.step, one.number, one.peer, one.sent, one.bytes_, one.at_s - zero
    )
