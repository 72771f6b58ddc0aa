"""A holder, a worker and runner slots in one thread, over a network that loses and delays.

Real parts: sequencer, follow-ups, breaker, `apply`, outbox, slot table, reconcile. Simulated:
time, supervisord (a table of processes), the runners' own lives and the wires. Everything
happens in the order of a seeded queue, so a seed is a story that can be told again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.replica.outbox import Outbox
from bus.replica.state import ClusterState, apply
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankSeat, Shard
from bus.wire.messages.control import SlotHello, TellFact
from bus.wire.messages.events import (
    EventBody,
    InstanceDraining,
    InstancePlaced,
    LoadRefused,
    RankSeated,
    RunnerEnded,
    RunnerUnloaded,
)
from master.decisions.crash_loop import CrashLoops
from master.decisions.planner import follow_up, repairs
from master.log.sequencer import judge
from tests.harness.drafts import fact_event, next_event
from worker.slots.actions import (
    Action,
    AssignSlot,
    DrainSlot,
    GiveSpec,
    KillSlot,
    RefuseSlot,
    SeatRank,
    StartSlot,
    StopSlot,
    Task,
    Tell,
)
from worker.slots.admission import USUAL, NodeInventory
from worker.slots.facts import Reported, exit_fact
from worker.slots.reconcile import is_settled, reconcile, silent_ones
from worker.slots.table import Gone, Seen, SlotTable

NODE = NodeId("n1")
MODEL = ModelId("m")
GB = 10**9


@dataclass
class Process:
    """A runner's process in a slot: what supervisord and the runner itself know."""

    slot: str
    pid: int
    phase: str = "idle"
    task: Task | None = None
    frozen: bool = False
    alive: bool = True
    exit_code: int | None = None
    stops_at: float | None = None
    work_s: float = 0.0

    @property
    def boot(self) -> Boot:
        return Boot(f"boot{self.pid}")


@dataclass
class Chances:
    """How bad the world is. `loss` of every message, `delay_s` at most."""

    loss: float = 0.0
    delay_s: float = 0.05
    crash_per_s: float = 0.0
    freeze_per_s: float = 0.0
    worker_restart_per_s: float = 0.0
    holder_restart_per_s: float = 0.0
    load_s: float = 1.0


@dataclass
class Worker:
    """One life of the worker."""

    outbox: Outbox
    began_at: float
    table: SlotTable = field(default_factory=SlotTable)
    reported: Reported = field(default_factory=Reported)
    settled: bool = False


class NodeInMemory:
    """One node. `run` advances time; invariants are checked at each step."""

    def __init__(self, seed: int, *, slots: int = 3, node: NodeId = NODE) -> None:
        self.node = node
        self.chance = random.Random(seed)
        self.world = Chances()
        self.now = 0.0
        self.state = ClusterState()
        self.mirror = self.state
        self.breaker = CrashLoops()
        self.processes: dict[str, Process | None] = {f"{n:02d}": None for n in range(slots)}
        self.pids = 100
        self.boots = 0
        self.free_bytes: int = 10 * GB
        self.spare = False
        self.on_disk = {str(MODEL)}
        self.story: list[str] = []
        self.started: dict[tuple[Boot, Task], int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.worker = self.new_worker()

    # --- what tests do ---

    def place(self, name: str, *, bytes_reserved: int = GB) -> InstanceId:
        """The holder places an instance here."""
        shard = Shard(
            rank=0, node=self.node, first_layer=0, last_layer=2, bytes_reserved=bytes_reserved
        )
        instance = Instance(
            instance=InstanceId(name), model=MODEL, shards=(shard,), context_tokens=64,
            keep_alive_s=-1.0,
        )  # fmt: skip
        self.index(InstancePlaced(instance=instance))
        return instance.instance

    def delete(self, instance: InstanceId, deadline_s: float = 0.0) -> None:
        """The holder has it drained."""
        self.index(
            InstanceDraining(
                instance=instance, deadline_s=deadline_s, why="unloading was requested"
            )
        )

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Advance; stops early when `until` is true. Whether it was."""
        end = self.now + seconds
        next_tick = self.now
        while self.now < end:
            while self._queue and self._queue[0][0] <= next_tick:
                self.now, _, action = heapq.heappop(self._queue)
                action()
            self.now = next_tick
            self._tick()
            self._check()
            if until is not None and until():
                return True
            next_tick = self.now + 0.25
        return until is None or until()

    def ready(self, instance: InstanceId) -> bool:
        """Ready in the state, and its announced process really is that, alive."""
        known = self.state.instances.get(instance)
        if known is None or known.lead is None or known.status != "ready":
            return False
        process = self.process_of(Task(instance, known.generation, 0))
        return process is not None and process.pid == known.lead.pid

    def process_of(self, task: Task) -> Process | None:
        """The living process that is this task."""
        mine = (p for p in self.processes.values() if p is not None and p.task == task)
        return next((p for p in mine if p.alive), None)

    def spares(self) -> list[Process]:
        """The runners that are no task, nor were given one."""
        held = {slot.pid for slot in self.worker.table.slots.values() if slot.task is not None}
        return [process for process in self.living() if not {process.pid} & held]

    def living(self) -> list[Process]:
        """Every living runner process."""
        return [p for p in self.processes.values() if p is not None and p.alive]

    def crash(self, process: Process, exit_code: int = -1) -> None:
        """The process is gone at once."""
        process.alive, process.exit_code = False, exit_code

    def new_worker(self) -> Worker:
        """A worker starts from nothing but the mirror."""
        self.boots += 1
        boot = Boot(f"worker{self.boots}")
        self.worker = Worker(Outbox(self.node, "worker", boot), self.now)
        self.story.append(f"{self.now:.2f} worker starts")
        return self.worker

    def restart_holder(self) -> None:
        """The holder comes back from its journal: the same state, no memory of failures."""
        self.breaker = CrashLoops()
        self.story.append(f"{self.now:.2f} holder restarts")
        for body in repairs(self.state, self.breaker, self.now):
            self.index(body)

    # --- the holder ---

    def index(self, body: EventBody) -> None:
        self._append(next_event(self.state, body, term=1, at_s=self.now))

    def _append(self, event: object) -> None:
        before = self.state
        self.state = apply(before, event)  # type: ignore[arg-type]
        body = event.body  # type: ignore[attr-defined]
        self.story.append(f"{self.now:.2f} {body.kind} {getattr(body, 'generation', '')}")
        if isinstance(body, RunnerEnded | LoadRefused | RunnerUnloaded):
            known = before.instances.get(body.instance)
            for more in follow_up(known, body, self.breaker, self.now):
                self.index(more)

    def _told(self, told: TellFact) -> None:
        if judge(self.state, told) == "next":
            self._append(fact_event(self.state, told, term=1, at_s=self.now))

    # --- the wires ---

    def _send(self, action: Callable[[], None]) -> None:
        if self.chance.random() < self.world.loss:
            return
        self._count += 1
        at = self.now + self.chance.random() * self.world.delay_s
        heapq.heappush(self._queue, (at, self._count, action))

    # --- time ---

    def _tick(self) -> None:
        world, chance = self.world, self.chance
        if chance.random() < world.worker_restart_per_s * 0.25:
            self.new_worker()
        if chance.random() < world.holder_restart_per_s * 0.25:
            self.restart_holder()
        for process in self.living():
            if chance.random() < world.crash_per_s * 0.25:
                self.crash(process, chance.choice((-1, 1, 71)))
            elif chance.random() < world.freeze_per_s * 0.25:
                process.frozen = True
            self._live(process)
        worker = self.worker
        for fact in worker.outbox.due(self.now):
            self._send(lambda fact=fact: self._told(fact))
        self._send(self._sync)
        self._list(worker)
        self._reconcile(worker)

    def _sync(self) -> None:
        self.mirror = self.state
        self.worker.outbox.seen(self.mirror)
        self._reconcile(self.worker)

    def _live(self, process: Process) -> None:
        """A quarter of a second of a runner's life."""
        if process.stops_at is not None and self.now >= process.stops_at:
            self.crash(process, -1)
            return
        if process.frozen:
            return
        if process.phase == "loading":
            process.work_s += 0.25
            if process.work_s >= self.world.load_s:
                process.phase = "ready"
        if process.phase == "draining" and process.stops_at is None:
            process.stops_at = self.now + 0.5
        hello = SlotHello(
            slot=process.slot, pid=process.pid, boot=process.boot, protocol_min=1, protocol_max=1,
            phase=process.phase,  # type: ignore[arg-type]
            instance=process.task.instance if process.task else None,
            generation=process.task.generation if process.task else 0,
            rank=process.task.rank if process.task else 0,
            addresses=(f"ipc://{process.pid}",) if process.phase == "ready" else (),
        )  # fmt: skip
        self._send(lambda: self._hello(hello))

    def _hello(self, hello: SlotHello) -> None:
        process = self.processes[hello.slot]
        if process is None or process.boot != hello.boot or not process.alive:
            return
        worker = self.worker
        gone = worker.table.take_hello(hello, self.now)
        if gone is not None:
            self._left(worker, gone)
        self._reconcile(worker)

    # --- the worker's shell ---

    def _inventory(self, worker: Worker) -> NodeInventory:
        return NodeInventory(
            node=self.node, settled=worker.settled, free_bytes=self.free_bytes,
            paths=frozenset(self.on_disk), load_deadline_s=30.0, now=self.now,
            spare=self.spare,
        )  # fmt: skip

    def _list(self, worker: Worker) -> None:
        seen = [
            Seen(name, p is not None and p.alive, p.pid if p and p.alive else 0, None)
            if p is None or p.alive
            else Seen(name, False, 0, p.exit_code)
            for name, p in self.processes.items()
        ]
        for gone in worker.table.listed(seen, self.now):
            self._left(worker, gone)

    def _left(self, worker: Worker, gone: Gone) -> None:
        worker.reported.note_gone(gone, self.now)
        for action in exit_fact(gone, self.mirror, self.node, worker.reported, ""):
            self._do(worker, action)

    def _reconcile(self, worker: Worker) -> None:
        if not worker.settled and is_settled(worker.table, worker.began_at, self.now, USUAL):
            worker.settled = True
            for action in silent_ones(worker.table):
                self._do(worker, action)
        worker.reported.prune(self.mirror.instances)
        inventory = self._inventory(worker)
        for action in reconcile(self.mirror, worker.table, inventory, worker.reported):
            self._do(worker, action)

    def _do(self, worker: Worker, action: Action) -> None:
        if not isinstance(action, Tell):
            what = getattr(action, "slot", "") or getattr(action, "task", "")
            self.story.append(f"{self.now:.2f} {type(action).__name__} {what}")
        match action:
            case AssignSlot():
                pass
            case StartSlot(slot=slot, task=task):
                self._start(worker, slot, task)
            case GiveSpec(slot=slot, task=task):
                boot = worker.table.slots[slot].boot
                self._send(lambda: self._spec(slot, boot, task))
            case DrainSlot(slot=slot):
                boot = worker.table.slots[slot].boot
                self._send(lambda: self._drain(slot, boot))
            case RefuseSlot(slot=slot):
                boot = worker.table.slots[slot].boot
                self._send(lambda: self._exit(slot, boot))
            case StopSlot(slot=slot):
                process = self.processes[slot]
                if process is not None and process.alive:
                    patience_s = 5.0 if process.frozen else 0.3
                    process.stops_at = min(process.stops_at or 1e9, self.now + patience_s)
            case KillSlot(slot=slot):
                process = self.processes[slot]
                if process is not None:
                    self.crash(process)
            case SeatRank(task=task, shard=shard):
                worker.outbox.add(self._seat(task, shard))
            case Tell(fact=fact):
                worker.outbox.add(fact)
            case _:
                raise AssertionError(f"no model of {action}")
        if isinstance(action, SeatRank | Tell):
            worker.reported.note(action, self.now)
        else:
            worker.table.note(action, self.now)

    def _start(self, worker: Worker, slot: str, task: Task | None) -> None:
        old = self.processes[slot]
        assert old is None or not old.alive
        self.pids += 1
        self.processes[slot] = Process(slot, self.pids)
        if task is not None:
            start = (worker.outbox.boot, task)
            self.started[start] = self.started.get(start, 0) + 1

    def _seat(self, task: Task, shard: Shard) -> RankSeated:
        self.pids += 1
        seat = RankSeat(
            rank=task.rank,
            node=self.node,
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
            ring=(f"{self.node}:{self.pids}",),
        )
        return RankSeated(instance=task.instance, generation=task.generation, seat=seat)

    def _listener(self, slot: str, boot: Boot | None) -> Process | None:
        """Who hears a message to this slot: the process that it was meant for, if it can."""
        process = self.processes[slot]
        hears = process is not None and process.alive and not process.frozen
        return process if hears and process is not None and process.boot == boot else None

    def _spec(self, slot: str, boot: Boot | None, task: Task) -> None:
        process = self._listener(slot, boot)
        if process is not None and process.task is None:
            process.task, process.phase = task, "loading"

    def _drain(self, slot: str, boot: Boot | None) -> None:
        process = self._listener(slot, boot)
        if process is not None:
            process.phase = "draining"

    def _exit(self, slot: str, boot: Boot | None) -> None:
        process = self._listener(slot, boot)
        if process is not None:
            self.crash(process, 74)

    # --- what must always hold ---

    def _check(self) -> None:
        tasks = [p.task for p in self.living() if p.task is not None]
        assert len(tasks) == len(set(tasks)), self._tell("two runners of one task")
        for task, count in self.started.items():
            assert count == 1, self._tell(f"{task} was started {count} times by one worker")

    def _tell(self, what: str) -> str:
        return what + "\n" + "\n".join(self.story[-60:])
