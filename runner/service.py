"""Talks to the worker and the clock: the shell of a runner, from an empty slot to its exit code.

The main thread gets a spec from its worker and runs the role that the spec describes
(`runner.roles`). It reports to the worker each second, and watches the role's threads. It blocks
only while it imports libraries before it has a spec, and while a group forms. Every exit goes
through `leave`: it ends open requests and tells the worker the exit code.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bus.client import BusClient
from bus.links.cluster_key import KeyFiles
from bus.links.transport import Change, Link
from bus.patience import OwedTime
from bus.process.clock import CoreWaits, wall, working_tasks
from bus.process.endpoints import Endpoints
from bus.process.flight import FlightFile
from bus.process.logs import LevelSource
from bus.service import Shell, own_stacks_content, run_service
from bus.wire.codec import decode
from bus.wire.errors import BadMessage, FailReason
from bus.wire.ids import NodeId, RequestId
from bus.wire.kv import RunSought
from bus.wire.messages.control import (
    FAST_SYNCH,
    AskRunner,
    Phase,
    ProposerPlace,
    RunnerReport,
    RunnerSpec,
    SlotDrain,
    SlotEnded,
    SlotHello,
    SlotRefused,
)
from bus.wire.messages.gateways import CancelRow, RowCancelled
from bus.wire.messages.readings import RunnerReading, TokenTap
from bus.wire.messages.tokens import Entry, TokenDelta
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message
from bus.wire.topics import reading_topic
from runner import lifecycle
from runner.engine import EngineStatus
from runner.group.group_config import CannotForm
from runner.lead import ProcessMemory
from runner.recorder import KEPT, FlightRecorder
from runner.roles.choose import role_for
from runner.roles.role import ENGINE_THREAD, TEXT_THREAD, Factories, Role, RoleParts, ServingRole

BEAT_S = 1.0
WATCH_S = 0.25
RESTS_S = 0.6
"""Delay of a report after the last request ended. It is longer than two checks, so that a client's
immediate next request has arrived."""
CANCELS_KEPT = 64
LAST_WORDS_S = 0.2
"""Seconds between the last messages and the exit, so that the messages are sent."""


class RunnerService:
    """Serves one slot of a worker. The process will exit with `exit_code`."""

    def __init__(self, shell: Shell, *, slot: str, factories: Factories) -> None:
        self.exit_code = lifecycle.STOPPED
        self.phase: Phase = "idle"
        self._shell = shell
        self._slot = slot
        self._reactor = shell.reactor
        self._log = shell.log
        self._factories = factories
        self._message = ""
        self._spec: RunnerSpec | None = None
        self._role: Role | None = None
        self._drain: tuple[float, str] | None = None
        self._since = self._reactor.now()
        self._lost_at: float | None = self._since  # since when there is no worker
        self._memory = ProcessMemory(factories.engine_bytes)
        self._prepared = False
        self._busy_at: float | None = None
        self._skips = False
        self._loading = OwedTime(CoreWaits(working_tasks(ENGINE_THREAD, TEXT_THREAD)))
        self._cancelled = deque[RequestId](maxlen=CANCELS_KEPT)
        speaker = shell.speaker
        self._flight = FlightFile(Path(shell.endpoints.folder), speaker.process, KEPT)
        self._recorder = FlightRecorder(self._flight.add)
        self._recorder.note(wall(), "created", slot=slot)
        self._client = BusClient(
            shell.speaker, shell.endpoints, shell.reactor, shell.log, follow=False
        )
        self._worker = Link("dealer", identity=f"{speaker.process}/{speaker.boot}")
        self._reactor.watch_changes(self._worker, self._connection)
        self._worker.connect(shell.endpoints.worker)
        self._reactor.watch(self._worker, self._take_order)
        self._reactor.every(BEAT_S, self._beat)
        self._reactor.every(WATCH_S, self._watch)
        self._say_hello()

    def terminate(self) -> None:
        """End the runner normally and immediately. Called on SIGTERM."""
        self.leave(lifecycle.STOPPED, "model_unavailable", "the runner was asked to stop")

    def close(self) -> None:
        """Let the engine finish its step, then close all connections; the loop has ended."""
        if self._role is not None:
            self._role.stop(1.0)
        self._reactor.unwatch(self._worker)
        self._worker.close()
        self._client.close()
        self._recorder.keep = None
        self._flight.close()

    # --- the worker's word ----------------------------------------------------------------

    def _take_order(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[-1]).message
        except BadMessage as error:
            self._log.warning("dropped a message", error=str(error)[:200])
            return
        match message:
            case RunnerSpec():
                self._become(message)
            case SlotDrain():
                self._start_drain(message)
            case SlotRefused():
                self._log.error("the worker refused this runner", why=message.message)
                self.leave(lifecycle.SLOT_REFUSED, "model_unavailable", message.message)
            case AskRunner():
                self.tell(self._report())
            case CancelRow():
                self._cancel(message)
            case RunSought() if isinstance(self._role, ServingRole):
                self._role.sought(message)
            case ProposerPlace():
                if isinstance(self._role, ServingRole) and self.phase != "ended":
                    self._role.go_to_proposer(message)
            case _:
                self._log.warning(
                    "ignored an unknown message from the worker", kind=type(message).__name__
                )

    def _cancel(self, command: CancelRow) -> None:
        """End a request; a repeated call gets the first answer."""
        if isinstance(self._role, ServingRole) and self._role.cancel(command.request):
            self._cancelled.append(command.request)
        is_repeat = command.request in self._cancelled
        self._log.info(
            "ending a request at the worker's request", request=command.request, found=is_repeat
        )
        self.tell(RowCancelled(slot=command.slot, request=command.request, found=is_repeat))

    def _become(self, spec: RunnerSpec) -> None:
        if self._spec is not None:
            if (spec.instance, spec.generation) != (self._spec.instance, self._spec.generation):
                self._log.warning("ignored a second spec", instance=spec.instance)
            return
        self._spec = spec
        self._since = self._reactor.now()
        self._log = self._log.bind(instance=spec.instance, generation=spec.generation)
        if spec.test is None:
            # MLX reads it once: nothing of a runner imports MLX before it has a spec
            os.environ[FAST_SYNCH] = "1" if spec.metal_fast_synch else "0"
        self._log.info("received a spec", model=spec.model, metal_fast_synch=spec.metal_fast_synch)
        try:
            self._role = self._make_role(spec)
        except CannotForm as error:
            self.leave(lifecycle.GROUP_LOST, "model_unavailable", str(error))
            return
        self.signal("spec")
        self._role.begin()

    def _make_role(self, spec: RunnerSpec) -> Role:
        shell = replace(self._shell, log=self._log)
        tap = self._tap, self._client.wanted
        return role_for(RoleParts(spec, self, shell, self._factories, self._recorder, *tap))

    def _start_drain(self, drain: SlotDrain) -> None:
        spec = self._spec
        if spec is None or (drain.instance, drain.generation) != (spec.instance, spec.generation):
            self._log.warning("ignored a drain for another generation")
            return
        self._drain = (self._reactor.now() + drain.deadline_s, drain.why)
        self.signal("drain")
        if self.phase == "ended":
            self.leave(lifecycle.STOPPED, "model_unavailable", drain.why)
        self._watch()

    # --- the clock's word ----------------------------------------------------------------

    def _watch(self) -> None:
        now = self._reactor.now()
        if self.phase == "ended":
            return
        spec, role = self._spec, self._role
        if spec is None or role is None:
            self._wait(now)
            return
        role.watch(now)
        self._tell_rest(role, now)
        since = self._since if self.phase in ("loading", "warming") else None
        if self._loading.spent_s(now, since) > spec.load_deadline_s:
            what = f"not ready within {spec.load_deadline_s:g} s"
            self.tell(self._report(hangs=what))
            self.leave(lifecycle.LOAD_FAILED, "model_unavailable", what)
            return
        if self.phase == "draining" and self._drain is not None:
            deadline_at, why = self._drain
            if role.is_empty or now >= deadline_at:
                self.signal("empty")
                self.leave(lifecycle.STOPPED, "model_unavailable", why)

    def _tell_rest(self, role: Role, now: float) -> None:
        """Report to the worker soon after the last request ended, so that a load that waits for
        memory need not wait for the next reading."""
        if role.open_requests:
            self._busy_at = now
        elif self._busy_at is not None and now - self._busy_at >= RESTS_S:
            self._busy_at = None
            self._tell_reading()

    def _beat(self) -> None:
        spec = self._spec
        serves = spec is not None and spec.test is None and spec.quantizes is None
        promised_bytes = 0 if spec is None else spec.memory_limit_bytes
        if why := self._memory.look(self.phase if serves else "loading", promised_bytes):
            self.leave(lifecycle.OVER_MEMORY, "runner_lost", why)
        self._say_hello()
        self._skips = self.phase == "ready" and self._busy_at is None and not self._skips
        if not self._skips:
            self._tell_reading()

    def _tell_reading(self) -> None:
        if self._role is None or self.phase == "ended":
            return
        reading = self._role.reading(self._reactor.now())
        if reading is not None:
            speaker, kind = self._shell.speaker, "collective"
            if isinstance(reading, RunnerReading):
                used_bytes = self._memory.used_bytes + reading.process_bytes
                kind, reading = "runner", reading.model_copy(update={"process_bytes": used_bytes})
            self._client.publish(reading_topic(kind, speaker.node, speaker.process), reading)

    def _wait(self, now: float) -> None:
        """Wait for a spec while a worker is connected; meanwhile import the common libraries."""
        if self._lost_at is not None and now - self._lost_at > lifecycle.SPEC_DEADLINE_S:
            self.leave(lifecycle.NO_SPEC, "model_unavailable", "no worker sent a spec")
        elif not self._prepared and now - self._since > lifecycle.PREPARES_AFTER_S:
            self._prepared = True
            self._factories.prepare()

    def _connection(self, change: Change) -> None:
        self._lost_at = None if change == "connected" else self._lost_at or self._reactor.now()

    # --- what is told ----------------------------------------------------------------------

    def leave(self, code: int, reason: FailReason, message: str) -> None:
        """End the process after its last messages are sent; the first call decides the code."""
        if self.exit_code or self._message:
            return
        if code in lifecycle.TELL_STACKS:
            self.tell(self._report(hangs=message))
        self.exit_code, self._message = code, message
        self.phase = "ended"
        self._recorder.note(wall(), "shutdown_cleanup", exit_code=code, message=message)
        self._log.info("leaving", exit_code=code, meaning=lifecycle.EXIT_CODES[code], why=message)
        spec, speaker = self._spec, self._shell.speaker
        if self._role is not None:
            self._role.entered("ended")
            self._role.fail_all(reason, message)
        self._say_hello()
        self.tell(
            SlotEnded(
                slot=self._slot,
                boot=speaker.boot,
                instance=spec.instance if spec else None,
                generation=spec.generation if spec else 0,
                rank=spec.rank if spec else 0,
                exit_code=code,
                message=message,
            )
        )
        if self._role is not None:
            self._reactor.later(LAST_WORDS_S / 2, partial(self._role.say_goodbye, message))
        self._reactor.later(LAST_WORDS_S, self._reactor.stop)

    def signal(self, signal: lifecycle.Signal) -> None:
        """Apply a signal to the phase, and report a change."""
        phase = lifecycle.signalled(self.phase, signal)
        if phase != self.phase:
            self.phase = phase
            if self._role is not None:
                self._role.entered(phase)
            self._say_hello()

    def tell(self, message: Message) -> None:
        self._worker.send(self._client.write(message))

    def _say_hello(self) -> None:
        spec, role, speaker = self._spec, self._role, self._shell.speaker
        status = role.status if role else EngineStatus()
        progress = status.progress
        self.tell(
            SlotHello(
                slot=self._slot,
                pid=os.getpid(),
                boot=speaker.boot,
                protocol_min=PROTOCOL_MIN,
                protocol_max=PROTOCOL_MAX,
                phase=self.phase,
                instance=spec.instance if spec else None,
                generation=spec.generation if spec else 0,
                rank=spec.rank if spec else 0,
                addresses=role.addresses if role else (),
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                open_requests=role.open_requests if role else 0,
                step=status.steps_done,
                message=self._message,
            )
        )

    def _report(self, *, hangs: str = "") -> RunnerReport:
        """Return a diagnosis for the worker: the last events, the memory, and the facts of the
        model. If something `hangs`, also the stacks of all threads."""
        spec, role, process = self._spec, self._role, self._shell.speaker.process
        return RunnerReport(
            slot=self._slot,
            pid=os.getpid(),
            instance=spec.instance if spec else None,
            generation=spec.generation if spec else 0,
            rank=spec.rank if spec else 0,
            step=role.status.steps_done if role else 0,
            phase=self.phase,
            recorder=self._recorder.report(),
            memory=asdict(role.status.memory) if role else {},
            facts=dict(role.described) if role else {},
            stacks=own_stacks_content(process, f"at the runner's end: {hangs}") if hangs else b"",
        )

    def _tap(self, step: int, entries: Sequence[Entry]) -> None:
        spec = self._spec
        if spec is None:
            return
        for entry in entries:
            if isinstance(entry, TokenDelta):
                tapped = TokenTap(
                    instance=spec.instance,
                    request_id=entry.request_id,
                    choice=entry.choice,
                    channel=entry.channel,
                    text=entry.text,
                    step=step,
                )
                self._client.publish(f"token.{spec.instance}", tapped)


def run_slot(
    slot: str,
    *,
    node: NodeId,
    endpoints: Endpoints,
    log_level: str,
    factories: Factories,
    keys: KeyFiles | None = None,
    trouble: str = "",
    levels: LevelSource | None = None,
) -> int:
    """Serve one slot; return an exit code of `runner.lifecycle`.

    `keys` are the cluster's, for gateways and ranks on other nodes. `trouble` is the fault of the
    settings file, which is logged; `levels` is the source of the log level.
    """
    services: list[RunnerService] = []

    def build(shell: Shell) -> RunnerService:
        """Make the service and install its signal handlers, in its own event loop."""
        service = RunnerService(shell, slot=slot, factories=factories)
        services.append(service)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _n, _f: shell.reactor.call(service.terminate))
        return service

    code = run_service(
        f"runner:{slot}",
        node=node,
        endpoints=endpoints,
        log_level=log_level,
        build=build,
        keys=keys,
        trouble=trouble,
        levels=levels,
    )
    return code or (services[0].exit_code if services else 0)
