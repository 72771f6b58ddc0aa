"""What a runner says of itself: to its worker, to the readings, to whoever diagnoses it.

Pure: it reads what it is given and keeps only what rates are computed from.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import Phase, RunnerReport, RunnerSpec, SlotHello
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN
from runner.recorder import FlightRecorder
from runner.roles.role import Role
from runner.schedule.scheduler import SchedulerLoad
from runner.serving.engine_thread import EngineThread
from runner.serving.request_server import RequestServer

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


@dataclass(frozen=True, slots=True)
class SlotIdentity:
    """Who speaks, and where in its life it is."""

    node: NodeId
    process: str
    boot: Boot
    slot: str
    pid: int
    phase: Phase


def slot_hello(
    me: SlotIdentity, spec: RunnerSpec | None, role: Role | None, *, message: str
) -> SlotHello:
    works = role.works if role else None
    return SlotHello(
        slot=me.slot,
        pid=me.pid,
        boot=me.boot,
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        phase=me.phase,
        instance=spec.instance if spec else None,
        generation=spec.generation if spec else 0,
        rank=spec.rank if spec else 0,
        addresses=role.addresses if role else (),
        done_bytes=works.progress.done_bytes if works else 0,
        total_bytes=works.progress.total_bytes if works else 0,
        open_requests=role.open_requests if role else 0,
        step=works.steps_done if works else 0,
        message=message,
    )


def runner_report(
    me: SlotIdentity,
    spec: RunnerSpec | None,
    role: Role | None,
    *,
    recorder: FlightRecorder,
) -> RunnerReport:
    memory: dict[str, int] = {}
    facts = None
    if role is not None:
        now, facts = role.works.memory, role.facts
        memory = {
            "active_bytes": now.active_bytes,
            "kv_bytes": now.kv_bytes,
            "prefix_bytes": now.prefix_bytes,
            "peak_bytes": now.peak_bytes,
        }
    known = {} if facts is None else {**facts.extra, "context_tokens": facts.context_tokens}
    return RunnerReport(
        slot=me.slot,
        pid=me.pid,
        instance=spec.instance if spec else None,
        generation=spec.generation if spec else 0,
        phase=me.phase,
        recorder=recorder.report(),
        memory=memory,
        facts=known,
    )


@dataclass(slots=True)
class RunnerMeter:
    """Rates are over the time since the last reading."""

    measured_at: float
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def reading(
        self, me: SlotIdentity, serving: RequestServer, engine: EngineThread, now: float
    ) -> RunnerReading:
        spec, tally = serving.spec, serving.tally
        load = engine.load() or NO_LOAD
        seconds = max(now - self.measured_at, 1e-3)
        prompts = tally.prompt_tokens - self.prompt_tokens
        made = tally.generated_tokens - self.generated_tokens
        self.measured_at = now
        self.prompt_tokens, self.generated_tokens = tally.prompt_tokens, tally.generated_tokens
        return RunnerReading(
            node=me.node,
            process=me.process,
            instance=spec.instance,
            model=spec.model,
            generation=spec.generation,
            phase=me.phase,
            running=load.running,
            waiting=load.waiting_requests,
            max_running=spec.max_rows,
            max_waiting=spec.max_waiting,
            best_waiting_priority=load.best_waiting_priority,
            prompt_tokens=tally.prompt_tokens,
            generation_tokens=tally.generated_tokens,
            prompt_tokens_per_s=prompts / seconds,
            generation_tokens_per_s=made / seconds,
            kv_bytes=load.kv_bytes,
            kv_limit_bytes=load.kv_limit_bytes,
            prefix_bytes=load.prefix_bytes,
            prefix_hits=tally.prefix_hits,
            prefix_hit_tokens=tally.cached_tokens,
            preemptions=load.preemptions,
            active_bytes=engine.memory.active_bytes,
            peak_bytes=engine.memory.peak_bytes,
            step=engine.steps_done,
            step_ms=engine.last_step_s * 1000,
            last_used_ago_s=0.0 if serving.open_requests else now - tally.used_at,
            done_bytes=engine.progress.done_bytes,
            total_bytes=engine.progress.total_bytes,
        )
