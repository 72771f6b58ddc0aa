"""Talks to the engine and the system: what this rank takes, every 16 tokens, beside what it may.

A rank may take what it was promised and a sixteenth more, for slabs hold up to a sixteenth of KV
beyond the bill; and of what the system grants its process seven eighths: a batch that grows is
copied layer by layer, and a process that asks for more than is granted ends.
What is over is eased first, which costs no row anything; only what is over then is told.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.process.memory import DataGrant, granted_data
from runner.engine import MemoryLook, StepEngine, StepPlan

LOOK_STEPS = 16
"""A row makes a token a step; a step that reads a prompt takes in more, and is looked at itself."""
PROMISED_SHARE, GRANTED_SHARE = 17 / 16, 7 / 8


class MemoryWatch:
    """The looks of one rank. `granted` tells what its process takes and is granted; None: no limit.
    Called from the engine's thread."""

    def __init__(
        self, promised_bytes: int, granted: Callable[[], DataGrant | None] = granted_data
    ) -> None:
        self._may_bytes = int(promised_bytes * PROMISED_SHARE)
        self._granted = granted
        self._looks: int = 0
        self._reads = False

    def issued(self, plan: StepPlan) -> None:
        """Note what the engine computes now."""
        self._reads = self._reads or bool(plan.prefill)

    def look(self, engine: StepEngine, steps_done: int) -> MemoryLook | None:
        """Return what is taken now that so many steps are done; None where that is not due."""
        looks = steps_done // LOOK_STEPS
        if looks == self._looks and not self._reads:
            return None
        self._looks, self._reads = looks, False
        look = self._measured(engine, steps_done)
        if look.is_over:
            engine.ease()
            look = self._measured(engine, steps_done)
        return look

    def _measured(self, engine: StepEngine, step: int) -> MemoryLook:
        """Return the one of both measures that is nearer to its limit, or further over it."""
        memory = engine.memory()
        own = MemoryLook(step, memory.active_bytes + memory.cache_bytes, self._may_bytes)
        granted = self._granted()
        if granted is None:
            return own
        process = MemoryLook(step, granted.used_bytes, int(granted.limit_bytes * GRANTED_SHARE))
        return max(own, process, key=lambda one: one.used_bytes / max(1, one.limit_bytes))
