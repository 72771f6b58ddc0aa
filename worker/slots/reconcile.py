"""Decide the next actions that make this node's slots match the state, and the facts to report.

Pure and level-based: it compares the current state with the current slots, so a lost, late or
repeated message delays one reconciliation and nothing else. Running runners are adopted, never
restarted. Nothing is started before the inventory is complete. A generation (attempt to load an
instance) is started once: when its runner ends, that is reported, and only the leader opens
another. A runner is stopped in steps: ask, wait, SIGTERM (supervisord sends SIGKILL after 5 s),
SIGKILL. Missing weights are fetched before anything is started, and no rank starts while another's
node lacks them; a failed fetch affects only the tasks that wait for it. With `spare`, one runner
waits without a task, so that the next task need not import libraries first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import DRAIN_S, Instance, Shard
from bus.wire.messages.events import RunnerReady
from worker.slots import actions
from worker.slots.actions import Action, KillSlot, StopSlot, Task, Tell
from worker.slots.admission import (
    SPARE_ROOM_BYTES,
    NodeInventory,
    SlotTiming,
    admitted,
    vanished,
)
from worker.slots.facts import Reported, found_gone, rank_fields, refused, unloaded
from worker.slots.table import Slot, SlotTable

Desired = Mapping[Task, tuple[Instance, Shard]]
WAITING = ("starting", "idle")
"""States of a slot whose runner has no spec yet."""


def is_settled(table: SlotTable, began_at: float, now: float, timing: SlotTiming) -> bool:
    """Return whether every running slot has said hello, or has had `inventory_s` to do so."""
    unheard = [s for s in table.slots.values() if s.life != "free" and s.hello is None]
    return not unheard or now - began_at >= timing.inventory_s


def silent_ones(table: SlotTable) -> list[KillSlot]:
    """Return actions that kill the processes which did not report to this new worker; their
    instance is unknown."""
    return [
        KillSlot(slot.name, "did not report to the new worker")
        for slot in table.slots.values()
        if slot.life == "starting" and slot.hello is None and slot.task is None
    ]


def reconcile(
    state: ClusterState, table: SlotTable, here: NodeInventory, reported: Reported
) -> list[Action]:
    """Return the next actions, in order. The caller does them and records the finished ones in
    `table` and `reported`; this function writes neither."""
    wanted, leaving = _desired(state, here.node)
    table = SlotTable(dict(table.slots))
    actions_now: list[Action] = [*_assign_waiting(wanted, table, here, reported)]
    spare = _spare_slot(table, here)
    for name in sorted(table.slots):
        slot = table.slots[name]
        if slot.life != "free" and name == spare:
            actions_now += _watched(slot, here)
        elif slot.life != "free":
            instance = state.instances.get(slot.task.instance) if slot.task else None
            actions_now += _watched(slot, here) or _guided(
                slot, instance, wanted, leaving, here, reported
            )
    for task in sorted(wanted):
        actions_now += _missing(task, *wanted[task], table, here, reported, actions_now)
    for task in leaving:
        if table.of(task) is None and here.settled:
            actions_now += _again(task, here, reported)
    left = {*reported.left, *(action.task for action in actions_now if isinstance(action, Tell))}
    return [
        *actions_now,
        *_unneeded(wanted, table, here, left),
        *_beforehand(table, here, reported, actions_now),
    ]


def _assign_waiting(
    wanted: Desired, table: SlotTable, here: NodeInventory, reported: Reported
) -> Iterator[actions.AssignSlot]:
    """Assign tasks to waiting runners without a task in the state (spares, or runners of an earlier
    worker). Only tasks that have no slot and may start are assigned. Notes each assignment in
    `table`, a copy for this call."""
    if not here.settled:
        return
    for slot in list(table.slots.values()):
        if slot.life not in WAITING or slot.task in wanted:
            continue
        task = min(
            (t for t in wanted if _may_start(t, wanted, table, here, reported)), default=None
        )
        if task != slot.task:
            assign = actions.AssignSlot(slot.name, task)
            table.note(assign, here.now)
            yield assign


def _may_start(
    task: Task, wanted: Desired, table: SlotTable, here: NodeInventory, reported: Reported
) -> bool:
    """Return whether a wanted task without a living slot may get one now."""
    instance, shard = wanted[task]
    if table.of(task) is not None or task in reported.left or _is_ready(task, instance):
        return False
    return not _elder_here(task, table) and admitted(instance, shard, table, here) is None


def _spare_slot(table: SlotTable, here: NodeInventory) -> str | None:
    """Return the slot of the spare runner, which keeps waiting for a task; None if there is none,
    or no spare is wanted."""
    spares = (n for n, s in table.slots.items() if s.life in WAITING and s.task is None)
    return min(spares, default=None) if here.spare and here.settled else None


def _beforehand(
    table: SlotTable, here: NodeInventory, reported: Reported, planned: list[Action]
) -> list[Action]:
    """Return the action that starts a spare runner, if one is wanted and no other action is
    planned."""
    timing, now = here.timing, here.now
    if not (here.spare and here.settled) or planned or not table.is_steady:
        return []
    idle = any(slot.life == "idle" for slot in table.slots.values())
    crowded = here.free_bytes is not None and here.free_bytes < SPARE_ROOM_BYTES
    changed_at = max((slot.since_at for slot in table.slots.values()), default=now)
    soon = (
        now - changed_at < timing.spare_s or now - reported.spare_failed_at < timing.spare_again_s
    )
    name = None if idle or crowded or soon else _free_slot(table, set())
    return [] if name is None else [actions.StartSlot(name, None)]


def _is_ready(task: Task, instance: Instance) -> bool:
    return any(rank.rank == task.rank for rank in instance.ready)


def _desired(state: ClusterState, node: NodeId) -> tuple[Desired, Desired]:
    """Return the tasks that must run on this node, and the tasks that must drain on it."""
    wanted: dict[Task, tuple[Instance, Shard]] = {}
    leaving: dict[Task, tuple[Instance, Shard]] = {}
    for instance in state.instances.values():
        for shard in instance.shards:
            task = Task(instance.instance, instance.generation, shard.rank)
            if shard.node != node:
                continue
            if instance.status in ("placed", "ready") and not instance.has_ended:
                wanted[task] = (instance, shard)
            elif instance.status == "draining":
                leaving[task] = (instance, shard)
    return wanted, leaving


# --- one slot ---


def _watched(slot: Slot, here: NodeInventory) -> list[Action]:
    """Return the actions that end a runner which has passed a deadline; empty if it has not."""
    age_s, silent_s = here.now - slot.since_at, slot.silent_s(here.now)
    timing = here.timing
    match slot.life:
        case "killed" | "stopping":
            limit_s = timing.term_s if slot.life == "stopping" else timing.repeat_kill_s
            return [KillSlot(slot.name, slot.doom)] if age_s >= limit_s else []
        case "starting" if silent_s >= timing.first_report_s:
            return [
                KillSlot(slot.name, f"sent nothing for {timing.first_report_s:g} s after its start")
            ]
        case "loading" if age_s - slot.lost_s >= here.load_deadline_s + timing.ask_s:
            return [KillSlot(slot.name, f"was not loaded within {here.load_deadline_s:g} s")]
        case "draining" if age_s >= (slot.drain_deadline_s or 0.0) + timing.ask_s:
            return [StopSlot(slot.name, slot.doom or "did not exit when it was asked to")]
        case _:
            limit_s = timing.silence_s(slot.life)
            if slot.life != "starting" and limit_s is not None and silent_s >= limit_s:
                return [KillSlot(slot.name, f"was silent for {limit_s:g} s (frozen or stuck)")]
            return []


def _guided(
    slot: Slot,
    known_instance: Instance | None,
    wanted: Desired,
    leaving: Desired,
    here: NodeInventory,
    reported: Reported,
) -> list[Action]:
    """Return the actions for a slot with a living runner; `known_instance` is its instance in the
    state."""
    if slot.life in ("stopping", "killed"):
        return []
    task = slot.task
    if task is not None and task in wanted and slot.life in ("starting", "idle"):
        seat = _seated(task, *wanted[task], reported)
        if seat:
            return seat
    if slot.life == "starting":
        return []
    if task is not None and task in leaving:
        instance, _ = leaving[task]
        return _drained(slot, task, instance.drain_deadline_s or 0.0, instance.why)
    if task is None or task not in wanted:
        return _unwanted(slot, known_instance, here)
    instance, shard = wanted[task]
    if _is_stray(slot, task, instance, here, reported):
        return [StopSlot(slot.name, "the cluster's log no longer has its address in the group")]
    if slot.life == "idle" or _missed_its_spec(slot, here):
        return _give_spec(slot, task, instance, shard, here, reported)
    if slot.life == "ready":
        return _announced(slot, task, instance, here, reported)
    return []


def _give_spec(
    slot: Slot,
    task: Task,
    instance: Instance,
    shard: Shard,
    here: NodeInventory,
    reported: Reported,
) -> list[Action]:
    """Return the action that gives a slot its spec, once every rank of its group has an address. If
    the model has vanished from the disk since the slot was started, return a refusal."""
    missing = _unseated(instance)
    if missing:
        waited_s, seat_s = here.now - slot.since_at, here.timing.seat_s
        where = ", ".join(f"rank {shard.rank} on {shard.node}" for shard in missing)
        text = (
            f"{where} reported no address within {seat_s:g} s; check that the worker of "
            "that node is running"
        )
        return [StopSlot(slot.name, text)] if waited_s >= seat_s else []
    refusal = vanished(instance, shard, here)
    if refusal is None:
        return [actions.GiveSpec(slot.name, task, instance, shard)]
    told_now = [] if task in reported.left else [refused(task, here.node, refusal)]
    return [actions.RefuseSlot(slot.name, refusal.message), *told_now]


def _seated(task: Task, instance: Instance, shard: Shard, reported: Reported) -> list[Action]:
    """Return the action that announces a rank's address (its seat) when the rank has a slot: all
    other ranks wait for the address."""
    if task in reported.seated or shard not in _unseated(instance):
        return []
    return [actions.SeatRank(task, instance, shard)]


def _unseated(instance: Instance) -> list[Shard]:
    """Return the ranks of a group whose address (seat) is unknown."""
    if len(instance.shards) == 1:
        return []
    seated = {seat.rank for seat in instance.seats}
    return [shard for shard in instance.shards if shard.rank not in seated]


def _is_stray(
    slot: Slot, task: Task, instance: Instance, here: NodeInventory, reported: Reported
) -> bool:
    """Return whether the seat (host and ports) of a running rank is neither reported by this worker
    nor in the state. Such a rank was started for an entry of a log that is lost, and other ranks
    never learn its ports. Ranks that are all ready have connected, and need no seats."""
    waits = instance.status == "placed" and slot.life in ("loading", "ready")
    if not waits or task in reported.seated or here.now - slot.since_at < here.timing.stray_s:
        return False
    return any(shard.rank == task.rank for shard in _unseated(instance))


def _missed_its_spec(slot: Slot, here: NodeInventory) -> bool:
    """Return whether a runner still reports idle because its spec was lost on the way."""
    idle = slot.hello is not None and slot.hello.phase == "idle"
    late = here.now - slot.since_at >= here.timing.repeat_s and slot.heard_at > slot.since_at
    return slot.life == "loading" and idle and late


def _unwanted(slot: Slot, known_instance: Instance | None, here: NodeInventory) -> list[Action]:
    """Return the actions that end a runner which the state does not require. If a later generation
    replaced it, it is ended immediately. If the state never had it or has dropped it (a replaced
    log, a node presumed dead), it is drained normally, because it may be answering requests."""
    if not here.settled:
        return []
    if slot.life == "idle":
        return [actions.RefuseSlot(slot.name, "there is nothing to load in this slot")]
    if slot.life == "draining":
        return []
    if slot.task is None:
        return [StopSlot(slot.name, "belongs to no instance")]
    if known_instance is None or known_instance.generation < slot.task.generation:
        return _drained(slot, slot.task, DRAIN_S, "the cluster's log no longer has this instance")
    return _drained(slot, slot.task, 0.0, "this attempt to load its instance has ended")


def _drained(slot: Slot, task: Task, deadline_s: float, why: str) -> list[Action]:
    """Return the action that asks the runner to drain and exit. Ask again only if the deadline was
    brought forward. A runner that is not ready has no requests to finish, and is stopped."""
    if slot.life in ("idle", "loading"):
        return [StopSlot(slot.name, why)]
    told_s = slot.drain_deadline_s
    if told_s is not None and told_s <= deadline_s:
        return []
    return [actions.DrainSlot(slot.name, task, deadline_s, why)]


def _announced(
    slot: Slot, task: Task, instance: Instance, here: NodeInventory, reported: Reported
) -> list[Action]:
    hello = slot.hello
    if hello is None or slot.boot is None or reported.ready.get(task) == slot.boot:
        return []
    ready = next((rank for rank in instance.ready if rank.rank == task.rank), None)
    if ready is not None and (ready.pid, ready.addresses) == (slot.pid, hello.addresses):
        return []
    fact = RunnerReady(
        **rank_fields(task, here.node),
        process=f"runner:{slot.name}",
        pid=slot.pid,
        addresses=hello.addresses,
    )
    return [Tell(fact, task, slot.boot)]


# --- one task ---


def _missing(
    task: Task,
    instance: Instance,
    shard: Shard,
    table: SlotTable,
    here: NodeInventory,
    reported: Reported,
    planned: list[Action],
) -> list[Action]:
    """Return the actions that start a slot for a task without a living slot, or report why not."""
    if table.of(task) is not None or not here.settled or task in reported.left:
        return []
    if _is_ready(task, instance):
        return [found_gone(task, here.node)]
    if _elder_here(task, table):
        return []
    verdict = admitted(instance, shard, table, here)
    if isinstance(verdict, Refusal):
        return [refused(task, here.node, verdict)]
    if verdict is not None:
        return [action for action in verdict if action not in planned]
    taken = {action.slot for action in planned if isinstance(action, actions.StartSlot)}
    name = _free_slot(table, taken)
    return [] if name is None else [actions.StartSlot(name, task)]


def _elder_here(task: Task, table: SlotTable) -> bool:
    """Return whether a rank of an earlier generation still exists on this node. If so, its memory
    is not free yet."""
    return any(
        slot.life != "free"
        and slot.task is not None
        and slot.task.instance == task.instance
        and slot.task.generation < task.generation
        for slot in table.slots.values()
    )


def _unneeded(
    wanted: Desired, table: SlotTable, here: NodeInventory, left: Set[Task]
) -> Iterable[actions.CancelFetch]:
    """Return a cancellation for each fetch for which no task waits any more."""
    if not here.settled:
        return []
    open_tasks = [task for task in wanted if table.of(task) is None and task not in left]
    needed = {wanted[task][0].model for task in open_tasks} | here.elsewhere.held
    return [actions.CancelFetch(model) for model in sorted(set(here.elsewhere.fetches) - needed)]


def _again(task: Task, here: NodeInventory, reported: Reported) -> list[Action]:
    """Report again that a draining task without a process has left, because the previous leader may
    have died before it wrote that to the log."""
    retell_s = here.timing.retell_s
    if here.now - reported.left.get(task, -retell_s) < retell_s:
        return []
    return [unloaded(task, here.node)]


def _free_slot(table: SlotTable, taken: set[str]) -> str | None:
    free = (n for n, s in table.slots.items() if s.life == "free" and n not in taken)
    return min(free, default=None)


def instance_slot(table: SlotTable, instance: InstanceId) -> Slot | None:
    """Return the slot of an instance's lowest rank here, in its latest generation (load attempt);
    None without one. Rank 0 schedules the requests, so it knows most about them."""
    living = [slot for slot in table.slots.values() if slot.life != "free"]
    tasks = {s.name: s.task for s in living if s.task and s.task.instance == instance}
    name = min(tasks, key=lambda name: (-tasks[name].generation, tasks[name].rank), default=None)
    return None if name is None else table.slots[name]
