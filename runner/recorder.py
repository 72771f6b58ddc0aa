"""The flight recorder: what a runner did last, for finding out why it ended; and sums.

Pure: instants are given. It keeps the last 128 entries, in order, of the phases below; it holds
ids, counts and texts of our own, never a word of a prompt or an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

RecorderPhase = Literal[
    "created",
    "idle",
    "connect_group",
    "load_model",
    "warmup",
    "task_submission",
    "prompt_build",
    "displaced",
    "kv_cache_lookup",
    "prefill",
    "decode_wait_first_token",
    "cancel_requested",
    "cancel_observed",
    "completion",
    "memory_short",
    "error",
    "shutdown_cleanup",
]
KEPT = 128


@dataclass(slots=True)
class FlightRecorder:
    """The last `KEPT` entries; `count` says how many there ever were. `keep` has each as it comes,
    to keep it where a crash does not reach."""

    keep: Callable[[dict[str, Any]], None] | None = None
    count: int = 0
    _entries: deque[dict[str, Any]] = field(
        default_factory=lambda: deque[dict[str, Any]](maxlen=KEPT)
    )

    def note(
        self, at_s: float, phase: RecorderPhase, request_id: str | None = None, **facts: Any
    ) -> None:
        """Keep one entry of `at_s` (wall clock); the oldest goes where there are `KEPT`."""
        self.count += 1
        whose = {"request_id": request_id} if request_id else {}
        entry = {"at_s": at_s, "phase": phase, **whose, **facts}
        self._entries.append(entry)
        if self.keep is not None:
            self.keep(entry)

    def report(self) -> tuple[dict[str, Any], ...]:
        """Return the entries as plain data, the oldest first."""
        return tuple(self._entries)


@dataclass(slots=True)
class ServedTotals:
    """Sums since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    generated_tokens: int = 0
    used_at: float = 0.0
