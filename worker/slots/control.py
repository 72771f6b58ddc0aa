"""Talks to the slots, and through `executor` to supervisord: the shell around `reconcile`.

Only this module changes the slot table and the record of what was reported to the leader.
supervisord is polled twice a second while a slot changes. After each change of the state, after
each hello and twice a second, `reconcile` compares the slots with the state, and its actions are
done. Stopping a worker stops no runner: the next worker finds them by their hellos.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bus.links.transport import Change
from bus.process.clock import wall
from bus.wire.codec import decode
from bus.wire.errors import BadMessage
from bus.wire.ids import InstanceId
from bus.wire.messages.control import (
    AskEnded,
    AskRunner,
    DiagnosisRefused,
    RunnerReport,
    RunnersEnded,
    SlotEnded,
    SlotHello,
    SlotRefused,
)
from bus.wire.messages.gateways import CancelRow, RowCancelled
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message
from worker.machine.ability import Ability
from worker.slots.actions import Action, AssignSlot, SeatRank, StartSlot, StopSlot, Tell
from worker.slots.admission import NodeInventory, SlotTiming
from worker.slots.beside import SlotNotes
from worker.slots.diagnoses import OpenQuestions, SuspectStacks
from worker.slots.executor import Executor, identity_of
from worker.slots.facts import Reported, ended_report, exit_fact, slot_report
from worker.slots.processes import GROUP, RunnerWaits
from worker.slots.reconcile import WAITING, instance_slot, is_settled, reconcile, silent_ones
from worker.slots.table import Gone, Slot, SlotTable

REAPED_S, RESTLESS_S = 0.1, 2.0
STALL_S = 3.0
ENDED_KEPT = 8
"""The number of ended runners whose last reports are kept."""


@dataclass
class SlotControl:
    """This node's slots. `inventory` returns the `NodeInventory`; its arguments are whether every
    running slot has said hello, and the time. `notes` stores data that outlives runners. `others`
    maps the types of other messages at the slots' socket to functions that answer them, given the
    message and its sender."""

    executor: Executor
    inventory: Callable[[bool, float], NodeInventory]
    timing: SlotTiming
    notes: SlotNotes
    others: Mapping[type[Message], Callable[[Any, bytes], None]] = field(
        default_factory=dict[type[Message], Callable[[Any, bytes], None]]
    )

    def __post_init__(self) -> None:
        self.table = SlotTable()
        self.client = self.executor.client
        self.processes = self.executor.processes
        self.log = self.client.log
        self._reactor = self.client.reactor
        self._reported = Reported()
        self.ability = Ability()
        self._questions = OpenQuestions()
        self._stacks = SuspectStacks(self.client)
        self._ended = deque[RunnerReport](maxlen=ENDED_KEPT)
        self._began_at: float | None = None
        self._settled = False
        self._suspects: set[str] = set()
        self._waits = RunnerWaits()
        self._ticked_at = self._reactor.now()
        self._listed_at = self._lost_at = -self.timing.list_steady_s

    def forget_ready(self) -> None:
        """Clear the record of runners reported as ready, so that they are reported again."""
        self._reported.ready.clear()

    # --- what slots say ---

    def received(self, frames: list[bytes]) -> None:
        """Process a message of a slot's runner, or a question of another process about a slot."""
        if len(frames) != 2:
            return
        identity, payload = frames
        try:
            message = decode(payload).message
        except BadMessage as error:
            self.log.warning("dropped a message from a slot", error=str(error)[:200])
            return
        match message:
            case SlotHello():
                self._hello(message, identity)
            case SlotEnded():
                self.table.ended(message)
                self.log.info("a runner is leaving", slot=message.slot, why=message.message)
                self._reactor.later(0.05, self.list_slots)
            case RunnerReport():
                if message.stacks:
                    self._stacks.keep(GROUP + message.slot, message.pid, message.stacks)
                if message.instance is not None:
                    for asker in self._questions.answered(message.instance):
                        self.executor.send(asker, message)
            case AskEnded():
                answer = RunnersEnded(reports=tuple(self._ended), run=self._run())
                self.executor.send(identity, answer)
            case CancelRow():
                self._ask_to_cancel(message, identity)
            case RowCancelled(slot=slot, request=request):
                for asker in self._questions.answered(f"{slot} {request}"):
                    self.executor.send(asker, message)
            case AskRunner(instance=instance):
                self._ask_runner(instance, identity)
            case _ if type(message) in self.others:
                self.others[type(message)](message, identity)
            case _:
                self.log.warning(
                    "ignored an unknown message from a slot", kind=type(message).__name__
                )

    def _hello(self, hello: SlotHello, identity: bytes) -> None:
        if hello.protocol_max < PROTOCOL_MIN or hello.protocol_min > PROTOCOL_MAX:
            text = (
                f"the runner speaks protocol {hello.protocol_min} to "
                f"{hello.protocol_max}, this worker {PROTOCOL_MIN} to {PROTOCOL_MAX}; "
                "run `shoal restart` on this node"
            )
            self.log.error("refused a runner", slot=hello.slot, why=text)
            self.executor.send(identity, SlotRefused(message=text))
            return
        before, now = self.table.slots.get(hello.slot), self._reactor.now()
        gone = self.table.take_hello(hello, now)
        if gone is not None:
            self._left(gone)
        elif before is not None:
            self._note_load(before, self.table.slots[hello.slot], now)
        if before is None or before.hello != hello:
            self.reconcile()

    def _note_load(self, before: Slot, slot: Slot, now: float) -> None:
        """Record how long a model took to load, if its runner is ready now and holds the whole
        model."""
        if slot.task is None or (before.life, slot.life) != ("loading", "ready"):
            return
        instance = self.client.state.instances.get(slot.task.instance)
        self.ability.note_ready()
        if instance is not None and instance.serves and len(instance.shards) == 1:
            self.notes.loaded(instance.model, now - before.since_at)

    def _ask_runner(self, instance: InstanceId, asker: bytes) -> None:
        slot = instance_slot(self.table, instance)
        if slot is None or slot.boot is None:
            text = f"no runner of {instance} on this node"
            self.executor.send(asker, DiagnosisRefused(status=404, message=text))
            return
        self._questions.ask(instance, asker, self._reactor.now())
        self.executor.send(identity_of(slot.name, slot.boot), AskRunner(instance=instance))

    def _ask_to_cancel(self, command: CancelRow, asker: bytes) -> None:
        """Send a cancellation to the runner that schedules the request; refuse it if there is no
        such runner."""
        slot = self.table.slots.get(command.slot)
        task = None if slot is None else slot.task
        if slot is None or slot.boot is None or task is None:
            text = f"slot {command.slot} of this node has no runner with a model"
            self.executor.send(asker, DiagnosisRefused(status=404, message=text))
        elif task.rank:
            lead = self.client.state.instances.get(task.instance)
            where = lead.shards[0].node if lead is not None and lead.shards else "unknown"
            text = f"the runner here is rank {task.rank}; ask rank 0, on node {where}"
            self.executor.send(asker, DiagnosisRefused(status=409, message=text))
        else:
            question = f"{command.slot} {command.request}"
            self._questions.ask(question, asker, self._reactor.now())
            self.executor.send(identity_of(slot.name, slot.boot), command)

    def _run(self) -> tuple[RunnerReport, ...]:
        """Return the worker's report about each runner that has a task."""
        return tuple(
            slot_report(slot, self.client.state, self._reactor.now(), self._stacks.of(slot.pid))
            for slot in self.table.slots.values()
            if slot.life != "free" and slot.task is not None
        )

    def close(self) -> None:
        """Stop waiting for telemetry's answers about silent runners."""
        self._stacks.close()

    # --- what supervisord says ---

    def connection(self, change: Change) -> None:
        """Poll supervisord soon after a lost connection, which a dying runner causes. The first
        poll makes supervisord reap its children, the second reports it."""
        if change == "lost":
            self._lost_at = self._reactor.now()
            for delay_s in (0.0, REAPED_S):
                self._reactor.later(delay_s, self.list_slots)

    def list_if_due(self) -> None:
        """Ask supervisord for its list of slots if that is due. It is due often while a slot
        changes, after a lost connection, and while supervisord has trouble; otherwise rarely."""
        now = self._reactor.now()
        restless = self._began_at is None or self.processes.trouble or not self.table.is_steady
        steady_s = self.timing.list_steady_s
        if restless or now - self._lost_at < RESTLESS_S or now - self._listed_at >= steady_s:
            self.list_slots()

    def list_slots(self) -> None:
        """Read supervisord's list of slots, report the processes that have ended, and reconcile the
        slots with the state."""
        self._listed_at = self._reactor.now()
        seen = self.processes.listed()
        self.ability.note_supervisor(self.processes.trouble, self._listed_at)
        if seen is None:
            return
        now = self._reactor.now()
        if self._began_at is None:
            self._began_at = now
        for gone in self.table.listed(seen, now):
            self._left(gone)
        self.processes.sweep({slot.name for slot in seen if not slot.alive})
        self.reconcile()

    def _left(self, gone: Gone) -> None:
        slot = gone.slot
        words = ""
        if slot.last_word is None and not slot.doom and slot.task is not None:
            words = self.processes.last_words(slot.name)
        now, node = self._reactor.now(), self.client.speaker.node
        facts = exit_fact(gone, self.client.state, node, self._reported, words)
        self.log.info("a slot is free", slot=slot.name, pid=slot.pid, exit_code=gone.exit_code)
        for tell in facts:
            self._do(tell, now)
        word = slot.last_word
        exit_code = gone.exit_code if word is None else word.exit_code
        self.ability.note_ended(exit_code, "" if word is None else word.message, now)
        recorder = self.processes.take_flight(slot.name, slot.pid)
        self._reported.note_gone(gone, now)
        self.notes.sweep()
        stacks = self._stacks.forget(slot.pid)
        if slot.task is not None:
            last = slot_report(slot, self.client.state, now, stacks)
            self._ended.append(ended_report(last, gone, recorder, wall()))

    # --- what to do ---

    def tick(self, now: float) -> None:
        """Refuse questions that a runner has not answered in time, and have telemetry examine
        silent runners. Ignore the silence if this worker itself stood still."""
        self._forgive_if_away(now)
        for asker in self._questions.expired(now):
            text = "the runner did not answer in time"
            self.executor.send(asker, DiagnosisRefused(status=504, message=text))
        for name, lost_s in self._waits.lost(self.table.slots.values(), now):
            self.table.excuse(name, lost_s)
        silent = {
            name
            for name, slot in self.table.slots.items()
            if self.timing.is_suspect(slot.life, slot.silent_s(now))
        }
        for name in silent - self._suspects:
            self.log.warning("a runner is silent", slot=name)
            self._stacks.look(GROUP + name, self.table.slots[name].pid)
        self._suspects = silent
        self._stacks.tick(now)

    def _forgive_if_away(self, now: float) -> None:
        """Ignore the silence of runners in a period in which this worker itself stood still.
        Another event can arrive before the worker's next tick, so every function that judges
        silence calls this first."""
        if now - self._ticked_at > STALL_S:
            self.log.warning(
                "this worker stood still; ignoring the silence of its runners",
                seconds=round(now - self._ticked_at, 1),
            )
            self.table.forgive(now)
        self._ticked_at = now

    def reconcile(self) -> None:
        """Make the slots match the cluster's state, for example by starting or ending runners. Do
        nothing until that state and supervisord's list of processes are known."""
        if not self.client.mirror.live or self._began_at is None:
            return
        now, state = self._reactor.now(), self.client.state
        self._forgive_if_away(now)
        if not self._settled and is_settled(self.table, self._began_at, now, self.timing):
            self._settled = True
            self.log.info(
                "the running slots have reported, or had time to", slots=len(self.table.slots)
            )
            self.notes.sweep()
            for action in silent_ones(self.table):
                self._do(action, now)
        inventory = self.inventory(self._settled, now)
        self._reported.prune(state.instances)
        due = reconcile(state, self.table, inventory, self._reported)
        for action in due:
            self._do(action, now)
        if any(isinstance(action, AssignSlot) for action in due):
            self._reactor.later(0.0, self.reconcile)

    def stop_spares(self, why: str) -> None:
        """Stop runners that have no task, so that others start in their place."""
        for slot in list(self.table.slots.values()):
            if slot.life in WAITING and slot.task is None:
                self._do(StopSlot(slot.name, why), self._reactor.now())

    def _do(self, action: Action, now: float) -> None:
        noted = self.executor.do(action, self.table.slots, now)
        if isinstance(action, StartSlot) and action.task is None and not noted:
            self._reported.spare_failed_at = now
        for done in noted:
            if isinstance(done, SeatRank | Tell):
                self._reported.note(done, now)
            else:
                self.table.note(done, now)
