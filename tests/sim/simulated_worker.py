"""A machine's worker and runners: real slot table, reconcile and farewell on its mirror."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from bus.wire.messages.control import TellFact
from tests.harness.node_in_memory import NodeInMemory, Worker
from tests.sim.simulated_holder import GB, MEMORY_BYTES, MODEL
from worker.slots.actions import Task

if TYPE_CHECKING:
    from tests.sim.machine import Machine

STARTED = ("idle", "loading", "ready")
CRASH_PER_S = 0.01
STALL_S = 3.0


class SimulatedWorker(NodeInMemory):
    """The worker lives as long as its machine's processes; runners outlive it, but no power cut."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__(machine.world.chance.randrange(2**32), slots=6, node=machine.node)
        self.on_disk = {str(MODEL)}
        self.world.crash_per_s = CRASH_PER_S

    def begin(self) -> None:
        """A new worker: it knows nothing but what the mirror and its slots will say."""
        self.now = self.machine.now
        self.node = self.machine.node
        self.worker = Worker(self.machine.outbox, self.now)
        self._queue.clear()  # what the old one had sent went with its sockets

    def lose_power(self) -> None:
        """No process is left."""
        for name in self.processes:
            self.processes[name] = None
        self._queue.clear()

    def tick(self) -> None:
        """A quarter of a second of the worker and its runners."""
        if self.machine.now - self.now > STALL_S:
            self.worker.table.forgive(self.machine.now)
        self.now = self.machine.now
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
        alive = sum(process.task is not None for process in self.living())
        self.free_bytes = MEMORY_BYTES - 2 * GB - 2 * GB * alive
        self._tick()
        self._look()

    def follow(self) -> None:
        """The mirror may have moved."""
        self.now = self.machine.now
        self.mirror = self.machine.mirror.state
        self._reconcile(self.worker)

    def matches(self) -> bool:
        """What runs is what the state wants, all of it and nothing else."""
        state = self.machine.mirror.state
        mine = {
            Task(i.instance, i.generation, shard.rank)
            for i in state.instances.values()
            for shard in i.shards
            if shard.node == self.node and i.status == "ready"
        }
        there = [p.task for p in self.living() if p.task is not None]
        settled = all(i.status in ("ready", "failed") for i in state.instances.values())
        return settled and len(there) == len(mine) and set(there) == mine

    def _told(self, told: TellFact) -> None:
        self.machine.ask(told)

    def _sync(self) -> None:
        self.follow()

    def _reconcile(self, worker: Worker) -> None:
        if self.machine.mirror.live and worker.table.slots:
            super()._reconcile(worker)

    def _look(self) -> None:
        """One generation of an instance at a time, and each of its tasks once."""
        fail = self.machine.cluster.fail
        tasks = [p.task for p in self.living() if p.task is not None]
        if len(tasks) != len(set(tasks)):
            fail(f"two runners of one task on {self.node}")
        staying = [
            p.task.instance
            for p in self.living()
            if p.task is not None and p.phase in STARTED and p.stops_at is None
        ]
        if len(staying) != len(set(staying)):
            fail(f"two generations of one instance on {self.node}: {self.story[-8:]}")
