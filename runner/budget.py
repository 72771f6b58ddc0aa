"""How long a step will take, and how much of the time prefill may have.

Pure. `CostModel` learns from measured steps what a decode of b rows and a prefill of n tokens
cost here. `PrefillAccount` turns one setting, the prefill share s, into chunks: while rows
decode, prefill earns s / (1 - s) seconds for each second of decoding, and a chunk is run when
it is paid for. So ITL grows by 1 / (1 - s) and a prompt takes 1 / s of its time alone, whatever
the chunk. A single chunk is kept under a bound as well, so that the tail of the ITL follows its
mean: with it a mixed step stays under 1.35 / (1 - s) of a decode step. Chunked prefill mixed with
decodes is Sarathi-Serve's; the budget in seconds instead of tokens is ours.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

DECODE_PRIOR_S = 0.02
PREFILL_PRIOR_S = 0.001
MEMORY = 0.3
"""Weight of the newest measurement."""
OUTLIER = 3.0
"""A measurement counts as at most this many times what was expected, or so small a part."""
TAIL = 1.35
"""Bound of a mixed step, in units of the mean step 1 / (1 - s)."""
BOUT_CHUNKS = 4
"""Chunks are measured in bouts of so many."""
QUIET_EVERY = 96
"""After so many steps without an undisturbed decode, one is arranged."""
LEAST_CHUNK = 16
"""Smaller chunks cost hardly less; the account spaces them where they are dear."""
CHUNK_STEP = 8
"""Chunks are multiples of this many tokens, the last of a prompt excepted."""


def _blend(known: float, measured: float) -> float:
    return known + MEMORY * (min(max(measured, known / OUTLIER), OUTLIER * known) - known)


def _size_class(tokens: int) -> int:
    """Two classes for each doubling."""
    exponent = max(tokens, 1).bit_length() - 1
    return 2 * exponent + (1 if tokens >= 1.5 * (1 << exponent) else 0)


def _points() -> dict[int, tuple[float, float]]:
    return {}


@dataclass(slots=True)
class CostModel:
    """Seconds of a decode by rows, of a prefill group by padded tokens."""

    _decode_s: dict[int, float] = field(default_factory=dict[int, float])
    _prefill: dict[int, tuple[float, float]] = field(default_factory=_points)
    _curve: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def decode_s(self, rows: int) -> float:
        """Expected seconds of one decode of `rows` rows."""
        if rows <= 0:
            return 0.0
        exact = self._decode_s.get(rows)
        if exact is not None:
            return exact
        below = max((known for known in self._decode_s if known < rows), default=0)
        above = min((known for known in self._decode_s if known > rows), default=0)
        if below and above:
            part = (rows - below) / (above - below)
            return self._decode_s[below] * (1 - part) + self._decode_s[above] * part
        if below:
            return float(self._decode_s[below] * (rows / below) ** 0.5)
        return self._decode_s[above] if above else DECODE_PRIOR_S

    def prefill_s(self, tokens: int) -> float:
        """Expected seconds of one prefill group of `tokens`, padding included."""
        if tokens <= 0:
            return 0.0
        curve = self._curve
        if not curve:
            return tokens * PREFILL_PRIOR_S
        at = bisect_left(curve, (float(tokens), 0.0))
        if at == 0:
            size, cost = curve[0]
            return cost * (0.4 + 0.6 * tokens / size)
        if at == len(curve):
            size, cost = curve[-1]
            return cost * tokens / size
        (size, cost), (next_size, next_cost) = curve[at - 1], curve[at]
        return cost + (next_cost - cost) * (tokens - size) / (next_size - size)

    def tokens_within(self, limit_s: float, *, least: int, most: int) -> int:
        """The largest chunk, in whole `CHUNK_STEP`s, expected to take at most `limit_s`."""
        low, high = max(least // CHUNK_STEP, 1), max(most // CHUNK_STEP, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.prefill_s(middle * CHUNK_STEP) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return low * CHUNK_STEP

    @property
    def knows_prefill(self) -> bool:
        return bool(self._curve)

    @property
    def knows_decode(self) -> bool:
        return bool(self._decode_s)

    def learn_decode(self, rows: int, measured_s: float) -> None:
        known = self._decode_s.get(rows)
        self._decode_s[rows] = measured_s if known is None else _blend(known, measured_s)

    def learn_prefill(self, tokens: int, measured_s: float) -> None:
        size_class = _size_class(tokens)
        known = self._prefill.get(size_class)
        if known is None:
            point = (float(tokens), measured_s)
        else:
            size, cost = known
            now_size = _blend(size, tokens)
            point = (now_size, _blend(cost * now_size / size, measured_s * now_size / tokens))
        self._prefill[size_class] = point
        self._curve = _rising(sorted(self._prefill.values()), now_at=point)


def _rising(
    points: list[tuple[float, float]], now_at: tuple[float, float]
) -> list[tuple[float, float]]:
    """The points as a curve that never falls; the newest one overrules older neighbours."""
    size, cost = now_at
    curve: list[tuple[float, float]] = []
    for other_size, other_cost in points:
        if other_size < size:
            other_cost = min(other_cost, cost)
        elif other_size > size:
            other_cost = max(other_cost, cost)
        if curve and other_size <= curve[-1][0]:
            continue
        curve.append((other_size, max(other_cost, curve[-1][1]) if curve else other_cost))
    return curve


@dataclass(slots=True)
class PrefillAccount:
    """Seconds of prefill that decodes have paid for. `share` is s, 0 < s < 1."""

    share: float
    balance_s: float = 0.0

    def chunk_limit_s(self, decode_s: float) -> float:
        """The longest that one chunk beside a decode of `decode_s` may take."""
        return max(TAIL / (1.0 - self.share) - 1.0, self.rate) * decode_s

    @property
    def rate(self) -> float:
        """Seconds of prefill earned by a second of decoding."""
        return self.share / (1.0 - self.share)

    def earn(self, decode_s: float, *, chunk_s: float) -> None:
        """A decode step happens; savings never exceed one chunk of `chunk_s` beside it."""
        earned_s = self.rate * decode_s
        self.balance_s = min(self.balance_s + earned_s, chunk_s + earned_s)

    def affords(self, prefill_s: float) -> bool:
        return self.balance_s >= prefill_s * 0.999

    def spend(self, prefill_s: float) -> None:
        self.balance_s -= prefill_s

    def correct(self, prefill_s: float, *, debt_s: float) -> None:
        """What chunks took beyond what was booked (or less); a debt never exceeds `debt_s`."""
        self.balance_s = max(self.balance_s - prefill_s, -debt_s)

    def forgive(self) -> None:
        """Nothing decodes: nobody is owed."""
        self.balance_s = max(self.balance_s, 0.0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that was read: its decode rows, its prefill groups' sizes, what was booked for
    them, and the seconds that passed from the step before it to it."""

    decode_rows: int
    groups: tuple[int, ...]
    booked_s: float
    took_s: float


@dataclass(slots=True)
class Timekeeper:
    """Measured steps become costs, and settle the account.

    The engine is a step ahead, so a little of one step's time is often seen in its neighbour's.
    Decodes are therefore learned only between decodes, and chunks in bouts: all that a bout of
    steps took, less its decodes, is its chunks'. While every step has a chunk, prefill is held
    for a moment now and then (`wants_quiet`), so that decodes can be measured.
    """

    costs: CostModel
    account: PrefillAccount
    steps_since_quiet: int = 0
    _last: list[StepTime] = field(default_factory=list[StepTime])
    _bout: list[StepTime] = field(default_factory=list[StepTime])

    @property
    def wants_quiet(self) -> bool:
        return self.steps_since_quiet >= QUIET_EVERY

    def took(self, step: StepTime, *, idle_next: bool) -> None:
        """A step was read; `idle_next` when nothing else is under way."""
        self._last = [*self._last[-2:], step]
        quiet = len(self._last) == 3 and not any(one.groups for one in self._last)
        if quiet and self._last[1].decode_rows:
            self.costs.learn_decode(self._last[1].decode_rows, self._last[1].took_s)
            self.steps_since_quiet = 0
        elif step.decode_rows:
            self.steps_since_quiet += 1
        if step.groups or self._bout:
            self._bout.append(step)
            self._charge(step)
        chunks = sum(bool(one.groups) for one in self._bout)
        over = not step.groups and len(self._bout) > 1 and not self._bout[-2].groups
        if self._bout and (idle_next or over or chunks >= BOUT_CHUNKS):
            self._settle()
        if idle_next:
            self._last.clear()

    def _charge(self, step: StepTime) -> None:
        """What a step of a bout took beyond its decode is prefill's, at once: what leaks into a
        neighbour is charged there."""
        if step.decode_rows and self.costs.knows_decode:
            decode_s = self.costs.decode_s(step.decode_rows)
            debt_s = BOUT_CHUNKS * self.account.chunk_limit_s(decode_s)
            self.account.correct(step.took_s - decode_s - step.booked_s, debt_s=debt_s)

    def _settle(self) -> None:
        bout, self._bout = self._bout, []
        if not self.costs.knows_decode:
            bout = [step for step in bout if not step.decode_rows]
        sizes = [size for step in bout for size in step.groups]
        decodes_s = sum(self.costs.decode_s(step.decode_rows) for step in bout)
        chunks_s = max(sum(step.took_s for step in bout) - decodes_s, 0.0)
        expected_s = [self.costs.prefill_s(size) for size in sizes]
        for size, part_s in zip(sizes, expected_s, strict=True):
            if chunks_s > 0.0:
                self.costs.learn_prefill(size, chunks_s * part_s / sum(expected_s))
