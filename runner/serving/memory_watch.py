"""Talks to the engine and the system: what this rank takes, every 16 tokens, beside what it may.

A rank may take what it was promised and a sixteenth more, for slabs hold up to a sixteenth of KV
beyond the bill; and of what the system grants its process seven eighths: a batch that grows is
copied layer by layer, and a process that asks for more than is granted ends.
What is over is eased first, which costs no row anything; only what is over then is told.

`ProcessMemory` looks after the rest of the process: tokenizers, templates, texts (decision 0080).
"""

from __future__ import annotations

from collections.abc import Callable

from bus.process.memory import DataGrant, granted_data, own_bytes
from bus.wire.messages.control import Phase
from runner.engine import MemoryLook, StepEngine, StepPlan

LOOK_STEPS = 16
"""A row makes a token a step; a step that reads a prompt takes in more, and is looked at itself."""
PROMISED_SHARE, GRANTED_SHARE = 17 / 16, 7 / 8
BESIDE_BYTES, BESIDE_SHARE = 3 << 30, 1 / 8
"""What a process may take beside its engine: so much, and a share of what it was promised. The
largest tokenizers take one GB as they open, and a prompt of a million tokens a quarter of that."""
LOOKS_OVER = 3
"""Looks in a row, a second apart: what is over for a moment ends nothing."""
JUDGED: tuple[Phase, ...] = ("warming", "ready", "draining")


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


class ProcessMemory:
    """What a runner's process takes beside its engine. `used_bytes` is what it takes with it.

    `engine` tells what MLX has taken at most, None while it is not known: what MLX has freed may
    still be the process's, so all that it ever had is left out. Called from the main thread, each
    second. Without `own` nothing is judged.
    """

    def __init__(
        self, engine: Callable[[], int | None], own: Callable[[], int | None] = own_bytes
    ) -> None:
        self.used_bytes = 0
        self._engine = engine
        self._own = own
        self._engine_bytes = 0
        self._looks_over = 0

    def look(self, phase: Phase, promised_bytes: int) -> str:
        """Measure; return why this process has to end, empty while there is no reason. A model that
        loads passes its files through memory too, so only later phases are judged."""
        self.used_bytes = self._own() or 0
        engine_bytes = self._engine()
        if engine_bytes is None or phase not in JUDGED:
            self._looks_over = 0
            return ""
        self._engine_bytes = max(self._engine_bytes, engine_bytes)
        may_bytes = BESIDE_BYTES + int(promised_bytes * BESIDE_SHARE)
        beside_bytes = self.used_bytes - self._engine_bytes
        self._looks_over = self._looks_over + 1 if beside_bytes > may_bytes else 0
        if self._looks_over < LOOKS_OVER:
            return ""
        return (
            f"its process took {beside_bytes / 1e9:.1f} GB beside the model, of at most "
            f"{may_bytes / 1e9:.1f} GB: its tokenizer or a text takes far more than it should"
        )
