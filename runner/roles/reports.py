"""The readings of a rank.

Pure: readings are computed from the arguments. Only the counters that rates need are kept between
two readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.wire.instances import Phase
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.engine import EngineFacts, EngineStatus
from runner.recorder import ServedTotals
from runner.schedule import SchedulerLoad

if TYPE_CHECKING:
    from bus.client import Speaker


@dataclass(slots=True)
class RunnerMeter:
    """Computes a rank's readings for its worker. Rates cover the time since the previous reading
    (`measured_at`)."""

    spec: RunnerSpec
    speaker: Speaker
    totals: ServedTotals
    measured_at: float
    kv: str = ""
    """A text that says in which precision the layers of the loaded model hold KV."""
    facts_found: Mapping[str, str] = field(default_factory=dict[str, str])
    """Facts about the model's files, as text keyed by subject."""
    _prompt_tokens: int = 0
    _generated_tokens: int = 0

    def loaded(self, facts: EngineFacts) -> Mapping[str, str | int | float | bool]:
        """Store how the loaded model holds KV. Return the facts about the model that a diagnosis
        shows."""
        self.kv = str(facts.extra.get("kv", ""))
        return {**facts.extra, "context_tokens": facts.context_tokens}

    def reading(
        self,
        phase: Phase,
        status: EngineStatus,
        load: SchedulerLoad | None,
        open_requests: int,
        now: float,
    ) -> RunnerReading:
        """Return the reading (status and rates) at the instant `now`. `load` is None before the
        model is loaded, and for ranks without a scheduler."""
        spec, totals = self.spec, self.totals
        memory, progress = status.memory, status.progress
        load = load or SchedulerLoad()
        seconds = max(now - self.measured_at, 1e-3)
        prompts = totals.prompt_tokens - self._prompt_tokens
        made = totals.generated_tokens - self._generated_tokens
        self.measured_at = now
        self._prompt_tokens, self._generated_tokens = totals.prompt_tokens, totals.generated_tokens
        return RunnerReading(
            node=self.speaker.node,
            process=self.speaker.process,
            instance=spec.instance,
            model=spec.model,
            generation=spec.generation,
            phase=phase,
            running=load.running,
            waiting=load.waiting_requests,
            max_running=spec.max_rows,
            max_waiting=spec.max_waiting,
            best_waiting_priority=load.best_waiting_priority,
            best_running_priority=load.best_running_priority,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=totals.generated_tokens,
            prompt_tokens_per_s=prompts / seconds,
            generation_tokens_per_s=made / seconds,
            kv_bytes=load.kv_bytes,
            kv_limit_bytes=load.kv_limit_bytes,
            prefix_bytes=load.prefix_bytes,
            prefix_hits=totals.prefix_hits,
            prefix_hit_tokens=totals.cached_tokens,
            preemptions=load.preemptions,
            active_bytes=memory.active_bytes,
            peak_bytes=memory.peak_bytes,
            step=status.steps_done,
            step_ms=status.last_step_s * 1000,
            last_used_ago_s=0.0 if open_requests else now - totals.used_at,
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
            rank=spec.rank,
            kv=self.kv,
            cache_bytes=memory.cache_bytes,
            limit_bytes=spec.memory_limit_bytes,
            memory_ends=load.memory_ends,
            row_tokens_per_s=1.0 / load.row_s if load.row_s else 0.0,
            found=dict(self.facts_found),
            kv_disk_hits=load.disk.hits,
            kv_disk_hit_tokens=load.disk.hit_tokens,
            kv_disk_read_bytes=load.disk.read_bytes,
            kv_disk_written_bytes=load.disk.written_bytes,
            kv_moved_runs=load.disk.moves.runs,
            kv_moved_bytes=load.disk.moves.bytes,
            kv_moves_dearer=load.disk.moves.dearer,
            kv_moves_failed=load.disk.moves.failed,
            drafters=dict(totals.drafters),
            proposals=dict(totals.proposals),
        )
