"""What one snapshot adds to the history: the figures that the page draws, as plain values.

Pure. Means are of what was counted since the point before; counts that went back began anew, and
say nothing of that time. What is not known is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUIET_S = 2.4
"""A node that was not heard of for so long is silent: what it told last is not what it does."""
RATES = {
    "generated": "generation_tokens_per_s",
    "prompts": "prompt_tokens_per_s",
    "running": "running",
    "waiting": "waiting",
    "kv": "kv_bytes",
}
"""A point's figures, and which of a snapshot's each is."""


def point_of(snapshot: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the point of a snapshot, where `before` is the snapshot of the point before it."""
    now = snapshot["counters"]
    then = None if before is None else before["counters"]
    return {
        "at_s": round(snapshot["at_s"], 1),
        **{name: snapshot[told] for name, told in RATES.items()},
        "ttft": None if then is None else _mean(now["ttft_s"], then["ttft_s"]),
        "itl": None if then is None else _mean(now["itl_s"], then["itl_s"]),
        "errors": None if then is None else max(0, now["http_errors"] - then["http_errors"]),
        "nodes": {node["node"]: _node(node) for node in snapshot["nodes"]},
    }


def _mean(now: Mapping[str, Any], then: Mapping[str, Any]) -> float | None:
    count = sum(now["counts"]) - sum(then["counts"])
    return (now["sum"] - then["sum"]) / count if count > 0 else None


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    total, available = node["memory_total_bytes"], node["memory_available_bytes"]
    is_silent = node["silent_s"] is None or node["silent_s"] >= QUIET_S
    if is_silent or total is None or available is None:
        return {"cpu": None, "memory": None}
    return {"cpu": node["cpu_ratio"], "memory": total - available}
