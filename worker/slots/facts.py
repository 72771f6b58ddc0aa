"""The facts that the worker reports about its runners, each once.

Pure. A runner that exits while its instance drains is reported as unloaded; any other exit is
reported as ended. The fact says how the runner ended: the worker's reason for ending it, the
runner's last message, or its exit code and the end of its log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.control import RunnerReport
from bus.wire.messages.events import LoadRefused, RunnerEnded, RunnerUnloaded
from worker.slots.actions import SeatRank, Task, Tell
from worker.slots.table import Gone, Slot


@dataclass(slots=True)
class Reported:
    """The reports that were already made about each task. `ready` has the boots of runners reported
    as ready. `left` has the time of tasks that ended, unloaded or were refused. `seated` has the
    ranks of groups whose address was announced.

    `spare_failed_at` is the last time that a spare runner ended by itself or could not be started.
    """

    ready: dict[Task, str] = field(default_factory=dict[Task, str])
    left: dict[Task, float] = field(default_factory=dict[Task, float])
    seated: set[Task] = field(default_factory=set[Task])
    spare_failed_at: float = -math.inf

    def note(self, action: SeatRank | Tell, now: float) -> None:
        """Record that the address of a rank was requested, or that a fact was reported."""
        if isinstance(action, SeatRank):
            self.seated.add(action.task)
        elif action.boot is not None:
            self.ready[action.task] = action.boot
        else:
            self.left[action.task] = now

    def note_gone(self, gone: Gone, now: float) -> None:
        """Record when a spare runner ended by itself; other ended processes change nothing."""
        if gone.slot.task is None and not gone.slot.doom:
            self.spare_failed_at = now

    def prune(self, instances: Iterable[str]) -> None:
        """Forget the reports about instances that no longer exist; `instances` are the existing
        ones."""
        living = set(instances)
        self.ready = {t: b for t, b in self.ready.items() if t.instance in living}
        self.seated = {t for t in self.seated if t.instance in living}
        self.left = {t: a for t, a in self.left.items() if t.instance in living}


def exit_fact(
    gone: Gone, state: ClusterState, node: NodeId, reported: Reported, words: str
) -> list[Tell]:
    """Return the facts to report when a slot's process has ended. `words` are the end of its log,
    if any.

    If the runner's instance drains, the fact is `runner_unloaded`; otherwise it is `runner_ended`.
    """
    task = gone.slot.task
    if task is None or task in reported.left:
        return []
    instance = state.instances.get(task.instance)
    if instance is None or instance.generation != task.generation:
        return []
    if instance.status == "draining":
        return [unloaded(task, node)]
    message, exit_code = _ending(gone, words)
    return [ended(task, node, message, exit_code)]


def slot_report(slot: Slot, state: ClusterState, now: float, stacks: bytes) -> RunnerReport:
    """Return the worker's own report about a runner, from what the worker knows without asking the
    runner. `stacks` are the runner's stack traces; empty: unknown."""
    task, hello = slot.task, slot.hello
    instance = state.instances.get(task.instance) if task is not None else None
    return RunnerReport(
        slot=slot.name,
        pid=slot.pid,
        instance=task.instance if task is not None else None,
        generation=task.generation if task is not None else 0,
        rank=task.rank if task is not None else 0,
        step=hello.step if hello is not None else 0,
        phase=hello.phase if hello is not None else "idle",
        silent_s=max(0.0, now - slot.heard_at),
        stacks=stacks,
        facts={} if instance is None else {"model": instance.model},
    )


def ended_report(
    last: RunnerReport, gone: Gone, recorder: tuple[dict[str, Any], ...], ended_at_s: float
) -> RunnerReport:
    """Return the report that is kept of an ended runner: its last report, how it ended, and its
    flight recorder."""
    slot, word = gone.slot, gone.slot.last_word
    return last.model_copy(
        update={
            "phase": "ended",
            "recorder": recorder,
            "ended_at_s": ended_at_s,
            "exit_code": gone.exit_code,
            "message": slot.doom or (word.message if word is not None else ""),
        }
    )


def unloaded(task: Task, node: NodeId) -> Tell:
    """Return the fact that a rank was unloaded as requested."""
    return Tell(RunnerUnloaded(**rank_fields(task, node)), task)


def ended(task: Task, node: NodeId, message: str, exit_code: int | None = None) -> Tell:
    """Return the fact that a rank's process ended or could not be started, and why."""
    return Tell(RunnerEnded(**rank_fields(task, node), exit_code=exit_code, message=message), task)


def found_gone(task: Task, node: NodeId) -> Tell:
    """Return the fact that a rank reported as ready had no process when its node's worker
    started."""
    message = "the runner no longer existed when the worker started"
    return Tell(RunnerEnded(**rank_fields(task, node), message=message, found_gone=True), task)


def refused(task: Task, node: NodeId, refusal: Refusal) -> Tell:
    """Return the fact that a rank is not loaded on this node, and why."""
    return Tell(LoadRefused(**rank_fields(task, node), refusal=refusal), task)


def rank_fields(task: Task, node: NodeId) -> dict[str, Any]:
    """Return the fields that identify the rank in every fact."""
    return {**asdict(task), "node": node}


def _ending(gone: Gone, words: str) -> tuple[str, int | None]:
    slot = gone.slot
    if slot.doom:
        return f"runner:{slot.name} {slot.doom}", gone.exit_code
    if slot.last_word is not None:
        return slot.last_word.message, slot.last_word.exit_code
    how = {None: "is gone", -1: "was killed by a signal"}.get(
        gone.exit_code, f"ended with exit code {gone.exit_code}"
    )
    tail = f"; its last line: {words}" if words else ""
    return f"runner:{slot.name} {how}{tail}", gone.exit_code
