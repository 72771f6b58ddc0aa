"""Talks to the engine and the system: compares this rank's memory with its limit, every 16 steps.

A rank may use its reserved memory plus a sixteenth, because slabs (the KV arrays of decoding rows)
can be a sixteenth larger than placement computed. It may also use seven eighths of what the system
grants its process: a growing batch is copied layer by layer, and a process that exceeds the grant
is killed. First unused memory is freed, which costs no row; only a remaining excess is reported.
`ProcessMemory` covers the rest of the process: tokenizers, templates, texts (decision 0080).
"""

from __future__ import annotations

from collections.abc import Callable

from bus.process.memory import DataGrant, granted_data, own_bytes
from bus.wire.instances import Phase
from runner.engine import MemoryLook, StepEngine

LOOK_STEPS = 16
"""Steps between two measurements; each step adds one token to a row. A step that reads a prompt is
always measured."""
PROMISED_SHARE, GRANTED_SHARE = 17 / 16, 7 / 8
BESIDE_BYTES, BESIDE_SHARE = 3 << 30, 1 / 8
"""Limit for the memory of a process outside its engine: a fixed part, and a share of its reserved
memory. The largest tokenizers need 1 GB to open, and a prompt of a million tokens a quarter of
that."""
LOOKS_OVER = 3
"""Consecutive measurements above the limit, one second apart, before the process ends."""
JUDGED: tuple[Phase, ...] = ("warming", "ready", "draining")


class MemoryWatch:
    """Measures one rank. `granted` returns the memory that its process uses and may use; None: no
    limit. Called from the engine's thread."""

    def __init__(
        self, promised_bytes: int, granted: Callable[[], DataGrant | None] = granted_data
    ) -> None:
        self._may_bytes = int(promised_bytes * PROMISED_SHARE)
        self._granted = granted
        self._looks: int = 0
        self.reads_prompt = False
        """A step that reads a prompt was issued since the last measurement; the caller says so."""

    def look(self, engine: StepEngine, steps_done: int) -> MemoryLook | None:
        """Return a measurement of memory after `steps_done` steps; None if none is due."""
        looks = steps_done // LOOK_STEPS
        if looks == self._looks and not self.reads_prompt:
            return None
        self._looks, self.reads_prompt = looks, False
        look = self._measured(engine, steps_done)
        if look.is_over:
            engine.ease()
            look = self._measured(engine, steps_done)
        return look

    def _measured(self, engine: StepEngine, step: int) -> MemoryLook:
        """Return the measurement of MLX's memory, or that of the whole process if the process is
        closer to its limit or further above it."""
        memory = engine.memory()
        own = MemoryLook(step, memory.active_bytes + memory.cache_bytes, self._may_bytes)
        granted = self._granted()
        if granted is None:
            return own
        process = MemoryLook(step, granted.used_bytes, int(granted.limit_bytes * GRANTED_SHARE))
        return max(own, process, key=lambda look: look.used_bytes / max(1, look.limit_bytes))


class ProcessMemory:
    """Watches the memory that a runner's process uses outside its engine. `used_bytes` includes the
    engine.

    `engine` returns MLX's peak memory, or None if unknown. The peak is subtracted, because memory
    that MLX freed may still belong to the process. Called from the main thread each second. Without
    `own` nothing is checked.
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
        """Measure the process's memory. Return why the process must end, or an empty text. Loading
        passes files through memory, so only later phases are checked."""
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
            f"the runner used {beside_bytes / 1e9:.1f} GB beside the model; the "
            f"limit is {may_bytes / 1e9:.1f} GB: the tokenizer or a text needs far "
            "too much memory"
        )
