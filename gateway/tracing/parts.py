"""Computes how long each part of a stored trace took, over all spans of that part.

Pure. Parts have the names of the trace's `sums`: `gateway.read`, `lead.prefill` (of the first
choice), `rank0.compute`. Their seconds equal those sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.tracing.rounding import rounded

JsonObject = Mapping[str, Any]


def trace_parts(trace: JsonObject) -> dict[str, dict[str, Any]]:
    """Return the statistics of each part of a trace: number of spans, seconds in all, shortest,
    longest and mean. `share` is the part's share of the request's seconds; null if the request took
    no time."""
    spans: dict[str, list[float]] = {}
    for name, seconds in _spans(trace):
        spans.setdefault(name, []).append(seconds)
    return {name: _measured(times, trace["seconds"]) for name, times in spans.items()}


def _spans(trace: JsonObject) -> Iterator[tuple[str, float]]:
    for stage in trace["gateway"]:
        yield f"gateway.{stage['name']}", stage["ended_s"] - stage["began_s"]
    for span in (trace["lead"] or {"spans": ()})["spans"]:
        if span["choice"] == 0:
            yield f"lead.{span['name']}", span["ended_s"] - span["began_s"]
    for rank in trace.get("ranks", ()):  # absent in a trace of an earlier build
        for turn in rank.get("turns", ()):
            for name, seconds in turn["seconds"].items():
                yield f"rank{rank['rank']}.{name}", seconds


def _measured(times: list[float], whole_s: float) -> dict[str, Any]:
    seconds = sum(times)
    return {
        "count": len(times),
        "seconds": rounded(seconds),
        "least_s": rounded(min(times)),
        "most_s": rounded(max(times)),
        "mean_s": rounded(seconds / len(times)),
        "share": round(seconds / whole_s, 4) if whole_s > 0 else None,
    }
