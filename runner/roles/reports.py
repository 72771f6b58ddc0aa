"""What a runner says of itself: to its worker, to the readings, in diagnoses.

Pure: it reads what it is given and keeps only what rates are computed from.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.messages.control import RunnerReport, RunnerSpec, SlotHello
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN
from runner.engine import EngineStatus
from runner.recorder import FlightRecorder, ServedTotals
from runner.roles.role import Role, SlotIdentity
from runner.schedule import SchedulerLoad

NO_LOAD = SchedulerLoad(
    running=0,
    paused=0,
    waiting_rows=0,
    waiting_requests=0,
    best_waiting_priority=None,
    kv_bytes=0,
    kv_limit_bytes=0,
    prefix_bytes=0,
    prefix_entries=0,
    preemptions=0,
)


def slot_hello(
    identity: SlotIdentity, spec: RunnerSpec | None, role: Role | None, *, message: str
) -> SlotHello:
    """Return the beat for the worker; `message` says why the runner leaves, if it does."""
    status = role.status if role else None
    return SlotHello(
        slot=identity.slot,
        pid=identity.pid,
        boot=identity.boot,
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        phase=identity.phase,
        instance=spec.instance if spec else None,
        generation=spec.generation if spec else 0,
        rank=spec.rank if spec else 0,
        addresses=role.addresses if role else (),
        done_bytes=status.progress.done_bytes if status else 0,
        total_bytes=status.progress.total_bytes if status else 0,
        open_requests=role.open_requests if role else 0,
        step=status.steps_done if status else 0,
        message=message,
    )


def runner_report(
    identity: SlotIdentity,
    spec: RunnerSpec | None,
    role: Role | None,
    *,
    recorder: FlightRecorder,
) -> RunnerReport:
    """Return what a diagnosis shows of this runner: its last deeds, memory and model."""
    memory: dict[str, int] = {}
    facts = None
    if role is not None:
        now, facts = role.status.memory, role.facts
        memory = {
            "active_bytes": now.active_bytes,
            "kv_bytes": now.kv_bytes,
            "prefix_bytes": now.prefix_bytes,
            "peak_bytes": now.peak_bytes,
        }
    known = {} if facts is None else {**facts.extra, "context_tokens": facts.context_tokens}
    return RunnerReport(
        slot=identity.slot,
        pid=identity.pid,
        instance=spec.instance if spec else None,
        generation=spec.generation if spec else 0,
        phase=identity.phase,
        recorder=recorder.report(),
        memory=memory,
        facts=known,
    )


@dataclass(slots=True)
class RunnerMeter:
    """Makes a lead's readings; rates are over the time since the last one (`measured_at`)."""

    spec: RunnerSpec
    totals: ServedTotals
    measured_at: float
    _prompt_tokens: int = 0
    _generated_tokens: int = 0

    def reading(
        self,
        identity: SlotIdentity,
        status: EngineStatus,
        load: SchedulerLoad | None,
        open_requests: int,
        now: float,
    ) -> RunnerReading:
        """Return the reading of this instant. `load` is None before the model is loaded."""
        spec, totals = self.spec, self.totals
        load = load or NO_LOAD
        seconds = max(now - self.measured_at, 1e-3)
        prompts = totals.prompt_tokens - self._prompt_tokens
        made = totals.generated_tokens - self._generated_tokens
        self.measured_at = now
        self._prompt_tokens, self._generated_tokens = totals.prompt_tokens, totals.generated_tokens
        return RunnerReading(
            node=identity.node,
            process=identity.process,
            instance=spec.instance,
            model=spec.model,
            generation=spec.generation,
            phase=identity.phase,
            running=load.running,
            waiting=load.waiting_requests,
            max_running=spec.max_rows,
            max_waiting=spec.max_waiting,
            best_waiting_priority=load.best_waiting_priority,
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
            active_bytes=status.memory.active_bytes,
            peak_bytes=status.memory.peak_bytes,
            step=status.steps_done,
            step_ms=status.last_step_s * 1000,
            last_used_ago_s=0.0 if open_requests else now - totals.used_at,
            done_bytes=status.progress.done_bytes,
            total_bytes=status.progress.total_bytes,
        )
