"""One measurement of a link: a few small echoes, then bursts that grow while there is room.

Pure: time arrives as `now`, at the side that asks. The first echo opens the way and does not
count. Each burst is four times the one before, is answered when all of it has arrived, and is sent
only if, at the speed seen before, it fits into what is left of `BUDGET_S` seconds of sending and
of the bytes allowed: a slow link carries little. Speeds come out too low rather than too high.
(Slow start is TCP's, RFC 5681.)
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

ECHOES = 15
"""Before bursts; where there are none, one series."""
SERIES = 5
"""The round trip is the best median of a series of so many: load comes and goes, and only slows."""
FIRST_BYTES = 16 << 10
GROWTH = 4
TRIES = 3
"""Bursts of one size, where a larger one would not fit."""
BUDGET_S = 0.2
FRAME_BYTES = 32 << 10
MOST_BYTES = 8 << 20
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Burst:
    """Send frames of these many bytes, the last one with `serial` and to be answered."""

    serial: int
    frames: tuple[int, ...]

    @property
    def bytes_(self) -> int:
        """Return the bytes of all frames together."""
        return sum(self.frames)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was measured. `bytes_per_s` None: nothing was to be sent."""

    round_trip_s: float
    bytes_per_s: float | None


class LinkProbe:
    """One measurement; `most_bytes` is all that its bursts may send, 0 for a few echoes alone."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._echoes = ECHOES if most_bytes else SERIES
        self._trips: list[float] = []
        self._rates: list[tuple[int, float]] = []
        self._spent_s = 0.0
        self._out = Burst(0, (0,))
        self._sent_at = 0.0

    def start(self, now: float) -> Burst:
        """Return what to send first."""
        self._sent_at = now
        return self._out

    def answered(self, serial: int, now: float) -> Burst | ProbeResult | None:
        """Take the answer to a burst: return what to send next, or the result at the end; None for
        an answer that was not awaited."""
        if serial != self._out.serial:
            return None
        took_s = max(_LEAST_S, now - self._sent_at)
        if self._out.bytes_:
            self._count(took_s)
        elif serial:
            self._trips.append(took_s)
        if len(self._trips) < self._echoes:
            return self._send((0,), now)
        size = self._next_bytes()
        return self._send(_frames(size), now) if size else self._end()

    def _count(self, took_s: float) -> None:
        sending_s = max(_LEAST_S, took_s - min(self._trips))
        self._spent_s += sending_s
        self._rates.append((self._out.bytes_, self._out.bytes_ / max(sending_s, took_s / 2)))

    def _next_bytes(self) -> int:
        """Return the bytes of the next burst; 0 when there is to be none. What cannot grow is
        repeated, for it may have been load that made it slow."""
        if not self._rates:
            return min(FIRST_BYTES, self._left)
        before, _ = self._rates[-1]
        tries = [rate for size, rate in self._rates if size == before]
        room = (BUDGET_S - self._spent_s) * max(tries)
        for size in (min(GROWTH * before, self._left), min(before, self._left)):
            again = size <= before
            if 0 < size <= room and not (again and len(tries) >= TRIES):
                return size
        return 0

    def _send(self, frames: tuple[int, ...], now: float) -> Burst:
        self._out = Burst(self._out.serial + 1, frames)
        self._left -= self._out.bytes_
        self._sent_at = now
        return self._out

    def _end(self) -> ProbeResult:
        series = (self._trips[at : at + SERIES] for at in range(0, self._echoes, SERIES))
        trip = min(median(one) for one in series)
        if not self._rates:
            return ProbeResult(trip, None)
        largest = max(size for size, _ in self._rates)
        return ProbeResult(
            trip, max(rate for size, rate in self._rates if GROWTH * size >= largest)
        )


def _frames(size: int) -> tuple[int, ...]:
    whole, rest = divmod(size, FRAME_BYTES)
    return (FRAME_BYTES,) * whole + ((rest,) if rest else ())
