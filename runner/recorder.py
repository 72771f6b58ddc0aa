"""The flight recorder: a runner's last events, which show why it ended, and their total number.

Pure: timestamps are arguments. The recorder keeps the last 128 entries in order; each belongs to
one of the phases below. Entries contain ids, counts and texts written by shoal, never words of a
prompt or an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bus.wire.messages.requests import (
    Drafter,
    DrafterCount,
    ProposalCost,
    sum_drafters,
)
from bus.wire.proposals import sum_proposals

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
    "decode_stream",
    "parser",
    "steps",
    "cancel_requested",
    "cancel_observed",
    "completion",
    "memory_short",
    "error",
    "shutdown_cleanup",
]
KEPT = 128
STEPS_S = 1.0
"""The least seconds between two entries about steps, so that they leave room for entries of other
kinds."""


@dataclass(slots=True)
class FlightRecorder:
    """The last `KEPT` entries; `count` is the total ever. `keep` receives each entry and whether it
    replaces the previous one, to store it where a crash does not reach. `memory` returns the memory
    facts of each entry."""

    keep: Callable[[dict[str, Any], bool], None] | None = None
    memory: Callable[[], Mapping[str, int]] = dict[str, int]
    count: int = 0
    _seen: tuple[Any, ...] = ()
    _steps_at_s: float = 0.0
    _entries: deque[dict[str, Any]] = field(
        default_factory=lambda: deque[dict[str, Any]](maxlen=KEPT)
    )

    def note(
        self, at_s: float, phase: RecorderPhase, request_id: str | None = None, **facts: Any
    ) -> None:
        """Add an entry at `at_s` (seconds of the wall clock), and drop the oldest entry if there
        are more than `KEPT`."""
        self.count += 1
        whose = {"request_id": request_id} if request_id else {}
        entry = {"at_s": at_s, "phase": phase, **whose, **facts}
        self._put(entry, renews=False)

    def stepped(self, at_s: float, step: int, **engine: Any) -> None:
        """Record that the engine finished `step`, with further facts. Consecutive calls share one
        entry: `since_s` is its beginning, `at_s` the last change."""
        seen = (step, *engine.values())
        if seen == self._seen or not (step or engine.get("begun")):
            return
        last = self._entries[-1] if self._entries else {}
        renews = last.get("phase") == "steps"
        if not renews and abs(at_s - self._steps_at_s) < STEPS_S:
            return
        self._seen = seen
        if not renews:
            self.count += 1
            self._steps_at_s = at_s
        since_s = last["since_s"] if renews else at_s
        entry = {"at_s": at_s, "phase": "steps", "since_s": since_s, "step": step, **engine}
        self._put(entry, renews=renews)

    def _put(self, entry: dict[str, Any], *, renews: bool) -> None:
        if memory := self.memory():
            entry["memory"] = dict(memory)
        if renews:
            self._entries[-1] = entry
        else:
            self._entries.append(entry)
        if self.keep is not None:
            self.keep(entry, renews)

    def report(self) -> tuple[dict[str, Any], ...]:
        """Return the entries as plain data, oldest first."""
        return tuple(self._entries)


@dataclass(slots=True)
class ServedTotals:
    """The number of requests and tokens that the runner has served since its start."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    generated_tokens: int = 0
    drafters: dict[Drafter, DrafterCount] = field(default_factory=dict[Drafter, DrafterCount])
    proposals: dict[Drafter, ProposalCost] = field(default_factory=dict[Drafter, ProposalCost])
    used_at: float = 0.0

    def note_drafts(
        self,
        drafters: Mapping[Drafter, DrafterCount],
        proposals: Mapping[Drafter, ProposalCost],
    ) -> None:
        """Count the drafts of a row that ended, and what they cost."""
        self.drafters = sum_drafters((self.drafters, drafters))
        self.proposals = sum_proposals((self.proposals, proposals))
