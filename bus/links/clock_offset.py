"""The offset of another process's clock, from messages and their replies.

Pure. A reply has two times of the other process: when our message arrived, and when the reply left.
No message arrives before it was sent, so each direction bounds the offset from one side, however
different the two clocks are. The estimate is the middle of the bounds (NTP, RFC 5905); its error is
half the round trip. Clocks differ in pace by at most `DRIFT`, so a bound widens by that much away
from its measurement. The true offset is within all bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

DRIFT = 1e-4
"""The maximum difference in pace of two clocks: 100 parts per million."""
KEPT = 32


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The four times of one round trip: sent and answered by our clock, received and replied by the
    other process's clock."""

    sent_at: float
    had_at: float
    replied_at: float
    answered_at: float

    def bounds(self, began_at: float, ended_at: float) -> tuple[float, float]:
        """Return the least and the greatest possible offset of the other clock from ours, for the
        interval from `began_at` to `ended_at` of our clock."""
        away_s = max(abs(ended_at - self.sent_at), abs(self.answered_at - began_at))
        slack_s = DRIFT * away_s
        least, most = self.replied_at - self.answered_at, self.had_at - self.sent_at
        return least - slack_s, most + slack_s


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """`offset` is the number of seconds to subtract from the other process's clock to get ours;
    `error` is the greatest possible error of `offset`."""

    offset_s: float
    error_s: float


class ClockOffsets:
    """The bounds on the offset of one other process's clock, from its last replies."""

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=KEPT)

    def add(self, sample: ClockSample) -> None:
        """Add the times of a reply."""
        self._samples.append(sample)

    def estimate(self, began_at: float, ended_at: float) -> ClockEstimate | None:
        """Return the estimate for an interval of our clock; None before the first reply."""
        if not self._samples:
            return None
        pairs = [sample.bounds(began_at, ended_at) for sample in self._samples]
        least, most = _common(pairs)
        if most < least:  # a clock was set: only the last reply counts
            least, most = pairs[-1]
        return ClockEstimate((least + most) / 2, max(most - least, 0.0) / 2)


def _common(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the bounds that hold for all pairs: the greatest lower bound and the least upper
    bound."""
    lower, upper = zip(*pairs, strict=True)
    return max(lower), min(upper)
