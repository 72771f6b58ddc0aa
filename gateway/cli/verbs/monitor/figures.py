"""Latencies and counts of the last minute, from a gateway's counters.

Pure. Counters only grow while a gateway lives. If a counter became smaller, the gateway has
restarted, and the minute starts again. Percentiles of a histogram are interpolated evenly within a
bucket, as in Prometheus.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Counters = Mapping[str, Any]
SPELL_S = 60.0
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Percentiles of latencies, in seconds. Infinity means above the last bound of the
    histogram."""

    count: int
    p50_s: float
    p95_s: float
    p99_s: float

    def plain(self) -> dict[str, float | None]:
        """Return the fields as JSON values; infinity becomes None."""
        values = {"p50_s": self.p50_s, "p95_s": self.p95_s, "p99_s": self.p99_s}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        return {"count": self.count, **finite}


@dataclass(frozen=True, slots=True)
class Spell:
    """Latencies and counts of the last `seconds` seconds, or if `seconds` is None, of the time
    since the gateway's start. `ttft` and `itl` are None if nothing was measured."""

    seconds: float | None
    ttft: LatencySpread | None
    itl: LatencySpread | None
    requests: Mapping[str, int]
    http_errors: int

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "seconds": self.seconds,
            "ttft": self.ttft and self.ttft.plain(),
            "itl": self.itl and self.itl.plain(),
            "requests": dict(self.requests),
            "http_errors": self.http_errors,
        }


class LastMinute:
    """Samples of a gateway's counters from the last minute, the oldest sample first."""

    def __init__(self, spell_s: float = SPELL_S) -> None:
        self._spell_s = spell_s
        self._held: deque[tuple[float, Counters]] = deque()

    def add(self, at_s: float, counters: Counters) -> Spell:
        """Add the current counters. Return the latencies and counts of the minute until now. Raises
        KeyError for a missing counter."""
        if self._held and _went_back(self._held[-1][1], counters):
            self._held.clear()
        self._held.append((at_s, counters))
        while len(self._held) > 2 and self._held[1][0] <= at_s - self._spell_s:
            self._held.popleft()
        first_at_s, first = self._held[0]
        if len(self._held) == 1:
            return _spell(None, None, counters)
        return _spell(at_s - first_at_s, first, counters)


def percentile(bounds: Sequence[float | None], counts: Sequence[int], ratio: float) -> float:
    """Return the value below which the share `ratio` of all values lies. `counts` has the number of
    values in each bucket; `bounds` has the upper bounds of the buckets, the last of which is None
    (infinity). NaN if there are no values."""
    total = sum(counts)
    if not total:
        return math.nan
    wanted, below, lower = ratio * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count and below + count >= wanted:
            if bound is None:
                return math.inf
            return lower + (bound - lower) * max(0.0, wanted - below) / count
        below += count
        lower = math.inf if bound is None else bound
    return math.inf


def _went_back(before: Counters, now: Counters) -> bool:
    counted = ("prompt_tokens", "generation_tokens", "http_errors")
    return any(now[name] < before[name] for name in counted) or any(
        _total(now[name]) < _total(before[name]) for name in ("ttft_s", "itl_s")
    )


def _total(histogram: Mapping[str, Any]) -> int:
    return sum(histogram["counts"])


def _spell(seconds: float | None, first: Counters | None, now: Counters) -> Spell:
    before: Mapping[str, int] = {} if first is None else first["requests"]
    requests = {name: count - before.get(name, 0) for name, count in now["requests"].items()}
    return Spell(
        seconds=seconds,
        ttft=_spread(None if first is None else first["ttft_s"], now["ttft_s"]),
        itl=_spread(None if first is None else first["itl_s"], now["itl_s"]),
        requests={name: count for name, count in requests.items() if count},
        http_errors=now["http_errors"] - (0 if first is None else first["http_errors"]),
    )


def _spread(first: Mapping[str, Any] | None, now: Mapping[str, Any]) -> LatencySpread | None:
    counts: list[int] = list(now["counts"])
    if first is not None and first["counts"]:  # a new gateway has no buckets
        counts = [count - before for count, before in zip(counts, first["counts"], strict=True)]
    if not sum(counts):
        return None
    p50, p95, p99 = (percentile(now["bounds"], counts, ratio) for ratio in QUANTILES)
    return LatencySpread(sum(counts), p50, p95, p99)
