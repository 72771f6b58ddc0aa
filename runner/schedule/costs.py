"""Predict how many seconds a step takes: its decode from the number of rows, its prefill groups
from their sizes and depths.

Pure. The costs are learned from measured steps. The cost of a decode is stored for each number of
rows. The cost of a group has three parts: a fixed part, a part for each token (padding included),
and a part for each pair of tokens (attention). They are fitted by least squares over relative
errors; older measurements count less. If the measurements cannot separate the parts, the parts get
their usual proportions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

DECODE_PRIOR_S = 0.02
PREFILL_PRIOR_S = 0.001
FIXED_TOKENS, DOUBLE_AT = 12.0, 1000.0
"""The usual proportions: a group's fixed part equals this many tokens, and a token with this many
tokens before it costs twice as much as a first one."""
LEAST_PARTS = (0.0, 0.2, 0.0)
"""The smallest value that the fit may give to each part, as a fraction of its usual value."""
MEMORY = 0.3
"""The weight of the newest measurement in the running average of a decode's cost."""
KEPT = 0.85
"""With each new measurement, the weight of all older ones in the fit is multiplied by this."""
USUAL = 0.005
"""Weight of the usual proportions in the fit."""
OUTLIER = 3.0
"""A measurement is clipped to at most this many times the expected value, and at least the expected
value divided by it."""
CHUNK_STEP = 8
"""Chunks are multiples of this many tokens, except the last of a prompt."""


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The size of a prefill group: its `tokens`, padding included, and the largest number of tokens
    that precede a chunk in its row."""

    tokens: int
    depth: int = 0


def _near(expected: float, measured: float) -> float:
    return min(max(measured, expected / OUTLIER), OUTLIER * expected)


def _blend(average: float, measured: float) -> float:
    return average + MEMORY * (_near(average, measured) - average)


def _neighbours(seconds: Mapping[int, float], size: int) -> tuple[int, int]:
    """Return the nearest measured numbers of rows below and above `size`; 0 if there is none."""
    below = max((other for other in seconds if other < size), default=0)
    return below, min((other for other in seconds if other > size), default=0)


def _between(seconds: Mapping[int, float], below: int, size: int, above: int) -> float:
    part = (size - below) / (above - below)
    return seconds[below] * (1 - part) + seconds[above] * part


def _parts(groups: Sequence[GroupSize]) -> NDArray[np.float64]:
    """Return the usual size of the three parts of a prefill step's cost (fixed, tokens, attention),
    as (3,) float64. The unit is the cost of one token without attention."""
    tokens = sum(group.tokens for group in groups)
    behind = sum(group.tokens * group.depth for group in groups)
    return np.array([FIXED_TOKENS * len(groups), tokens, behind / DOUBLE_AT])


@dataclass(slots=True)
class PrefillFit:
    """Cost model of prefill groups. `price_s` has, for each of the three parts of `_parts`, the
    seconds of one unit."""

    price_s: NDArray[np.float64] = field(default_factory=lambda: np.full(3, PREFILL_PRIOR_S))
    is_measured: bool = False
    _usual_s: float = PREFILL_PRIOR_S
    _gram: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 3)))
    _moment: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    def seconds(self, groups: Sequence[GroupSize]) -> float:
        """Return the expected total seconds of these groups."""
        return float(self.price_s @ _parts(groups))

    def learn(self, groups: Sequence[GroupSize], measured_s: float) -> None:
        """Learn from the total seconds of these groups."""
        parts = _parts(groups)
        expected_s = self.seconds(groups) if self.is_measured else measured_s
        measured_s = _near(expected_s, measured_s)
        usual_s = measured_s / float(parts.sum())
        self._usual_s = _blend(self._usual_s, usual_s) if self.is_measured else usual_s
        self.is_measured = True
        weight = expected_s**-2
        self._gram = KEPT * self._gram + weight * np.outer(parts, parts)
        self._moment = KEPT * self._moment + weight * measured_s * parts
        pull = USUAL * float(np.trace(self._gram)) / 3
        price_s = np.linalg.solve(
            self._gram + pull * np.eye(3), self._moment + pull * self._usual_s
        )
        self.price_s = np.maximum(price_s, np.array(LEAST_PARTS) * self._usual_s)


@dataclass(slots=True)
class CostModel:
    """Predicts the seconds of decodes and of prefill groups from measured steps."""

    prefill: PrefillFit = field(default_factory=PrefillFit)
    _decode_s: dict[int, float] = field(default_factory=dict[int, float])

    def decode_s(self, rows: int) -> float:
        """Return the expected seconds of one decode of `rows` rows."""
        if rows <= 0:
            return 0.0
        exact = self._decode_s.get(rows)
        if exact is not None:
            return exact
        below, above = _neighbours(self._decode_s, rows)
        if below and above:
            return _between(self._decode_s, below, rows, above)
        if below:
            return float(self._decode_s[below] * (rows / below) ** 0.5)
        return self._decode_s[above] if above else DECODE_PRIOR_S

    def prefill_s(self, *groups: GroupSize) -> float:
        return self.prefill.seconds(groups)

    def tokens_within(self, limit_s: float, *, least: int, most: int, depth: int = 0) -> int:
        """Return how many tokens a chunk of a prompt can have to take at most `limit_s`: a multiple
        of `CHUNK_STEP`, but at least `least`. `depth` tokens of the prompt are already in the KV
        cache."""
        fixed_s = self.prefill_s(GroupSize(0, depth))
        token_s = self.prefill_s(GroupSize(1, depth)) - fixed_s
        steps = int((limit_s - fixed_s) / token_s / CHUNK_STEP + 1e-9)
        return CHUNK_STEP * max(min(steps, most // CHUNK_STEP), least // CHUNK_STEP, 1)

    @property
    def row_s(self) -> float:
        """Return the measured seconds of one decode of one row; 0: not measured."""
        return self._decode_s.get(1, 0.0)

    @property
    def knows_decode(self) -> bool:
        return bool(self._decode_s)

    def forget(self) -> None:
        self.prefill = PrefillFit()
        self._decode_s.clear()

    def learn_decode(self, rows: int, measured_s: float) -> None:
        average_s = self._decode_s.get(rows)
        self._decode_s[rows] = measured_s if average_s is None else _blend(average_s, measured_s)

    def learn_prefill(self, groups: Sequence[GroupSize], measured_s: float) -> None:
        if groups and measured_s > 0.0:
            self.prefill.learn(groups, measured_s)
