"""How far another process's clock is from ours, by messages that went there and back.

Pure. An answer says when the other had our message and when it sent the answer. No message arrives
before it was sent, so each way bounds the difference from one side, however unlike the two ways
are: the middle is the estimate (NTP's, RFC 5905), half of what the way there and back took is its
error. Clocks differ in pace by at most `DRIFT`: away from the instant at which it was measured a
bound is wider by so much. All bounds together hold the truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

DRIFT = 1e-4
"""By how much two clocks may differ in their pace: 100 parts of a million."""
KEPT = 32


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One way there and back: sent and answered by our clock, had and answered by the other's."""

    sent_at: float
    had_at: float
    replied_at: float
    answered_at: float

    def bounds(self, began_at: float, ended_at: float) -> tuple[float, float]:
        """Return between which two numbers their clock less ours is, at all instants of ours
        from the one to the other."""
        away_s = max(abs(ended_at - self.sent_at), abs(self.answered_at - began_at))
        slack_s = DRIFT * away_s
        least, most = self.replied_at - self.answered_at, self.had_at - self.sent_at
        return least - slack_s, most + slack_s


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """What is to be taken from an instant of the other's clock to have one of ours, and by how much
    that may be wrong."""

    offset_s: float
    error_s: float


class ClockOffsets:
    """What is known of one other process's clock, from the last answers."""

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=KEPT)

    def add(self, sample: ClockSample) -> None:
        """Take the times of an answer."""
        self._samples.append(sample)

    def estimate(self, began_at: float, ended_at: float) -> ClockEstimate | None:
        """Return what holds from the one instant of ours to the other; None before an answer."""
        if not self._samples:
            return None
        pairs = [sample.bounds(began_at, ended_at) for sample in self._samples]
        least, most = _common(pairs)
        if most < least:  # a clock was set anew: what was measured before it counts no more
            least, most = pairs[-1]
        return ClockEstimate((least + most) / 2, max(most - least, 0.0) / 2)


def _common(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the greatest lower bound and the least upper one."""
    lower, upper = zip(*pairs, strict=True)
    return max(lower), min(upper)
