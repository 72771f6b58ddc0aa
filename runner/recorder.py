"""The flight recorder: what a runner did last, for finding out why it ended; and sums.

Pure: instants are given. It keeps the last 128 entries, in order, of the phases below; it holds
ids, counts and texts of our own, never a word of a prompt or an answer.
"""

from __future__ import annotations

from collections import deque
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
    "kv_cache_lookup",
    "prefill",
    "decode_wait_first_token",
    "decode_stream",
    "parser",
    "cancel_requested",
    "cancel_observed",
    "completion",
    "error",
    "shutdown_cleanup",
]
KEPT = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened at `at_s` (wall clock)."""

    at_s: float
    phase: RecorderPhase
    request_id: str | None
    facts: tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class FlightRecorder:
    """The last `KEPT` entries; `count` says how many there ever were."""

    count: int = 0
    _entries: deque[Entry] = field(default_factory=lambda: deque[Entry](maxlen=KEPT))

    def note(
        self, at_s: float, phase: RecorderPhase, request_id: str | None = None, **facts: Any
    ) -> None:
        """Keep one entry; the oldest goes where there are `KEPT`."""
        self.count += 1
        self._entries.append(Entry(at_s, phase, request_id, tuple(facts.items())))

    def report(self) -> tuple[dict[str, Any], ...]:
        """Return the entries as plain data, the oldest first."""
        return tuple(
            {"at_s": entry.at_s, "phase": entry.phase}
            | ({"request_id": entry.request_id} if entry.request_id else {})
            | dict(entry.facts)
            for entry in self._entries
        )


@dataclass(slots=True)
class ServedTotals:
    """Sums since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    generated_tokens: int = 0
    used_at: float = 0.0
