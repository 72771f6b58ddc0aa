"""How long the parts of one kept trace took, each part's spans together.

Pure. Parts have the names of the trace's `sums`: `gateway.read`, `lead.prefill` (of the first
choice), `rank0.compute`, and their seconds add up to the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.requests.tracing.rounding import rounded

Told = Mapping[str, Any]


def trace_parts(told: Told) -> dict[str, dict[str, Any]]:
    """Return of each part of a trace its spans' number, their seconds together, the shortest, the
    longest and their mean, and its share of the request's seconds (null for a request of none)."""
    spans: dict[str, list[float]] = {}
    for name, seconds in _spans(told):
        spans.setdefault(name, []).append(seconds)
    return {name: _measured(found, told["seconds"]) for name, found in spans.items()}


def _spans(told: Told) -> Iterator[tuple[str, float]]:
    for one in told["gateway"]:
        yield f"gateway.{one['name']}", one["ended_s"] - one["began_s"]
    for one in (told["lead"] or {"spans": ()})["spans"]:
        if one["choice"] == 0:
            yield f"lead.{one['name']}", one["ended_s"] - one["began_s"]
    for rank in told.get("ranks", ()):  # not in a trace of an earlier build
        for turn in rank.get("turns", ()):
            for name, seconds in turn["seconds"].items():
                yield f"rank{rank['rank']}.{name}", seconds


def _measured(found: list[float], whole_s: float) -> dict[str, Any]:
    seconds = sum(found)
    return {
        "count": len(found),
        "seconds": rounded(seconds),
        "least_s": rounded(min(found)),
        "most_s": rounded(max(found)),
        "mean_s": rounded(seconds / len(found)),
        "share": round(seconds / whole_s, 4) if whole_s > 0 else None,
    }
