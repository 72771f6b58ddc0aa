"""What a step will take: the seconds of a decode by rows, of a prefill group by size and depth.

Pure. Learned from measured steps, with priors until then. A group's cost is a curve over its
tokens, padding included, times 1 + slope x depth: attention costs more the more tokens are
behind a chunk. The curve is learned from shallow groups and from sizes never seen, the slope
from deep ones.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

DECODE_PRIOR_S = 0.02
PREFILL_PRIOR_S = 0.001
SLOPE_PRIOR = 1 / 1000
"""A chunk behind so many tokens is believed to cost twice a first one."""
MOST_SLOPE = 1 / 50
SHALLOW = 256
"""Groups with fewer tokens behind them teach the curve, others the slope."""
MEMORY = 0.3
"""Weight of the newest measurement."""
OUTLIER = 3.0
"""A measurement counts as at most this many times what was expected, or so small a part."""
CHUNK_STEP = 8
"""Chunks are multiples of this many tokens, the last of a prompt excepted."""


@dataclass(frozen=True, slots=True)
class GroupSize:
    """A prefill group: its `tokens`, padding included, and the most tokens behind a chunk of it."""

    tokens: int
    depth: int = 0


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
    """See the module's law."""

    slope: float = SLOPE_PRIOR

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

    def prefill_s(self, group: GroupSize) -> float:
        """Expected seconds of one prefill group."""
        return self._shallow_s(group.tokens) * (1 + self.slope * group.depth)

    def _shallow_s(self, tokens: int) -> float:
        if tokens <= 0:
            return 0.0
        curve = self._curve
        if not curve:
            return tokens * PREFILL_PRIOR_S
        at = bisect_left(curve, (float(tokens), 0.0))
        if at == 0:
            size, cost = curve[0]
            return cost * (0.2 + 0.8 * tokens / size)
        if at == len(curve):
            size, cost = curve[-1]
            return cost * tokens / size
        (size, cost), (next_size, next_cost) = curve[at - 1], curve[at]
        return cost + (next_cost - cost) * (tokens - size) / (next_size - size)

    def tokens_within(self, limit_s: float, *, least: int, most: int, depth: int = 0) -> int:
        """The largest chunk at `depth`, in whole `CHUNK_STEP`s, expected to take at most
        `limit_s`; never fewer than `least` tokens."""
        low, high = max(least // CHUNK_STEP, 1), max(most // CHUNK_STEP, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.prefill_s(GroupSize(middle * CHUNK_STEP, depth)) <= limit_s:
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

    def learn_prefill(self, group: GroupSize, measured_s: float) -> None:
        """A group took so long: a deep one of a known size teaches the slope, any other the
        curve."""
        tokens, size_class = group.tokens, _size_class(group.tokens)
        known = self._prefill.get(size_class)
        if group.depth >= SHALLOW and known is not None:
            likely_s = _blend(self.prefill_s(group), measured_s)
            slope = (likely_s / self._shallow_s(tokens) - 1) / group.depth
            self.slope = min(max(slope, 0.0), MOST_SLOPE)
            return
        shallow_s = measured_s / (1 + self.slope * group.depth)
        if known is None:
            point = (float(tokens), shallow_s)
        else:
            size, cost = known
            now_size = _blend(size, tokens)
            point = (now_size, _blend(cost * now_size / size, shallow_s * now_size / tokens))
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
