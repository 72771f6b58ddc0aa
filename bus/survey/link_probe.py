"""One measurement of a link: a few small echoes for the latency, then growing bursts for the
bandwidth.

Pure: time arrives as `now`, at the node that asks. The first echo opens the connection and does not
count. Each burst is four times as large as the last one, and is answered when all of it has
arrived. It is sent only if, at the measured speed, it fits into the rest of `BUDGET_S` seconds and
of the allowed bytes, so a slow link carries little. Errors make speeds too low rather than too
high. (Slow start is TCP's, RFC 5681.)
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

ECHOES = 15
"""Number of echoes before bursts. A measurement without bursts sends only `SERIES` echoes."""
SERIES = 5
"""Echoes per series. The round-trip time is the smallest of the series' medians, because load
varies and only slows echoes."""
FIRST_BYTES = 16 << 10
GROWTH = 4
TRIES = 3
"""How often, at most, a burst of one size is sent if a larger burst does not fit into the
budget."""
BUDGET_S = 0.2
FRAME_BYTES = 32 << 10
MOST_BYTES = 8 << 20
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Burst:
    """The next message to send: frames of these sizes in bytes. The last frame has `serial` and
    asks for an answer."""

    serial: int
    frames: tuple[int, ...]

    @property
    def bytes_(self) -> int:
        return sum(self.frames)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a measurement. `bytes_per_s` None: no bursts were allowed."""

    round_trip_s: float
    bytes_per_s: float | None


class LinkProbe:
    """One measurement. `most_bytes` limits the total size of its bursts; 0: only a few echoes."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._echoes = ECHOES if most_bytes else SERIES
        self._trips: list[float] = []
        self._rates: list[tuple[int, float]] = []
        self._spent_s = 0.0
        self._out = Burst(0, (0,))
        self._sent_at = 0.0

    def start(self, now: float) -> Burst:
        """Return the first burst."""
        self._sent_at = now
        return self._out

    def answered(self, serial: int, now: float) -> Burst | ProbeResult | None:
        """Process the answer to a burst. Return the next burst, or the result at the end; None for
        an unexpected answer."""
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
        """Return the bytes of the next burst; 0 if no burst follows. A burst that can't grow is
        repeated, because load may have slowed it."""
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
        trip = min(median(trips) for trips in series)
        if not self._rates:
            return ProbeResult(trip, None)
        largest = max(size for size, _ in self._rates)
        return ProbeResult(
            trip, max(rate for size, rate in self._rates if GROWTH * size >= largest)
        )


def _frames(size: int) -> tuple[int, ...]:
    whole, rest = divmod(size, FRAME_BYTES)
    return (FRAME_BYTES,) * whole + ((rest,) if rest else ())
