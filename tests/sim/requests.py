"""Requests while a simulated cluster churns: a gateway on each machine, and runners that answer.

Real: the mirror that a gateway routes by, its liveness of runners, and the runners' lives. Only
the data plane's wire is modelled: a connection that breaks when either end is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.wire.ids import InstanceId
from bus.wire.instances import Instance
from gateway.runners.connection import BUSY_ANSWER_S
from gateway.runners.liveness import Liveness
from tests.harness.node_in_memory import Process

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.machine import Machine

LOOK_S = 0.25
PING_S = 1.0
UNPINGED_S = 3.0
WAITS_S = 20.0
LONGEST_S = 6.0


@dataclass
class Request:
    """`gateway` is the machine and the life of it that was asked; `at` the instance, generation
    and process that it was given to, None while it waits; `ends` its terminals."""

    number: int
    gateway: tuple[Machine, int]
    asked_at: float
    work_s: float
    at: tuple[InstanceId, int, int] | None = None
    given_at: float = 0.0
    accepted: bool = False
    refusals: int = 0
    life: Liveness | None = None
    pinged_at: float = 0.0
    ends: list[str] = field(default_factory=list[str])


@dataclass
class Work:
    """A request as its runner has it."""

    ends_at: float
    pinged_at: float


class Requests:
    """All requests of a cluster. `working` is what each runner process has, by its boot."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.all: list[Request] = []
        self.working: dict[str, dict[int, Work]] = {}
        self._look()

    def ask(self, machine: Machine) -> None:
        """A client asks this machine's gateway."""
        work_s = LONGEST_S * self.world.chance.random()
        number = len(self.all)
        self.all.append(Request(number, (machine, machine.life), self.world.now, work_s))

    def open(self) -> list[Request]:
        """Those that have not ended."""
        return [request for request in self.all if not request.ends]

    def idle(self) -> bool:
        """Nothing is asked, and no runner works for nobody."""
        return not self.open() and not any(self.working.values())

    # --- inside ---

    def _look(self) -> None:
        self.world.later(LOOK_S, self._look)
        for machine in self.cluster.machines:
            if machine.worker is not None:
                for process in machine.worker.living():
                    self._serve(machine, process)
        living = {str(p.boot) + str(m.node) for m, p in self._processes()}
        for boot in [boot for boot in self.working if boot not in living]:
            del self.working[boot]
        for request in self.open():
            self._watch(request)

    def _processes(self) -> list[tuple[Machine, Process]]:
        workers = [(m, m.worker) for m in self.cluster.machines if m.worker is not None]
        return [(machine, process) for machine, k in workers for process in k.living()]

    def _end(self, request: Request, why: str) -> None:
        request.ends.append(why)
        if len(request.ends) > 1:
            self.cluster.fail(f"request {request.number} ends {len(request.ends)} times")

    def _watch(self, request: Request) -> None:
        """A quarter of a second of one request at its gateway."""
        machine, life = request.gateway
        if machine.life != life:
            self._end(request, "its gateway is gone")
            return
        if machine.paused is not None:
            return
        if request.at is None:
            self._submit(machine, request)
            return
        instance = machine.mirror.state.instances.get(request.at[0])
        if instance is None or (instance.generation, _pid(instance)) != request.at[1:]:
            self._end(request, "runner_lost")
            return
        assert request.life is not None
        if not request.accepted and self.world.now - request.given_at >= BUSY_ANSWER_S:
            self._give_back(machine, request, instance)
            return
        if self.world.now - request.pinged_at >= PING_S:
            request.pinged_at = self.world.now
            self._ping(machine, request)
            if request.life.tick(owed=True, now=machine.now) == "lost":
                self._end(request, "runner_lost")

    def _submit(self, machine: Machine, request: Request) -> None:
        ready = [i for i in machine.mirror.state.instances.values() if i.status == "ready"]
        if not ready:
            if self.world.now - request.asked_at > WAITS_S:
                self._end(request, "model_unavailable")
            return
        chosen = ready[request.number % len(ready)]
        request.at = (chosen.instance, chosen.generation, _pid(chosen))
        request.life = Liveness(machine.now, machine.now, machine.now)
        request.pinged_at = request.given_at = self.world.now
        request.accepted = False
        self._post(machine, chosen, lambda there, p: self._arrive(machine, request, there, p))

    def _ping(self, machine: Machine, request: Request) -> None:
        assert request.at is not None
        instance = machine.mirror.state.instances[request.at[0]]

        def pinged(there: Machine, process: Process | None) -> None:
            work = None if process is None else self._of(there, process).get(request.number)
            if work is not None:
                work.pinged_at = self.world.now
            self._answer(there, machine, lambda: self._pong(request, alive=process is not None))

        self._post(machine, instance, pinged)

    def _pong(self, request: Request, *, alive: bool) -> None:
        if request.ends or request.life is None:
            return
        if alive:
            request.life.pong(step=request.life.step + 1, now=request.gateway[0].now)
        else:
            self._end(request, "runner_lost")

    def _post(self, machine: Machine, instance: Instance, act: object) -> None:
        """To the process that leads an instance, or to where it was."""
        lead = instance.lead
        there = None if lead is None else self.cluster.at(lead.node)
        if lead is None or there is None or there.worker is None:
            return
        worker, pid = there.worker, lead.pid

        def arrive() -> None:
            found = next((p for p in worker.living() if p.pid == pid and not p.frozen), None)
            act(there, found)  # type: ignore[operator]

        self.world.post(machine.name, there.name, there.receive(arrive))

    def _answer(self, there: Machine, machine: Machine, act: object) -> None:
        self.world.post(there.name, machine.name, machine.receive(act))  # type: ignore[arg-type]

    def _arrive(
        self, machine: Machine, request: Request, there: Machine, process: Process | None
    ) -> None:
        if process is None or process.phase != "ready" or process.stops_at is not None:
            self._answer(there, machine, lambda: self._refused(request))
            return
        now = self.world.now
        for _, other in self._processes():
            if request.number in self.working.get(str(other.boot) + str(there.node), {}):
                self.cluster.fail(f"request {request.number} is worked on twice")
        self._of(there, process)[request.number] = Work(now + request.work_s, now)
        self._answer(there, machine, lambda: setattr(request, "accepted", True))

    def _give_back(self, machine: Machine, request: Request, instance: Instance) -> None:
        """The submission or its answer was lost: cancelled there, and asked elsewhere."""

        def cancelled(there: Machine, process: Process | None) -> None:
            if process is not None:
                self._of(there, process).pop(request.number, None)

        self._post(machine, instance, cancelled)
        self._refused(request)

    def _refused(self, request: Request) -> None:
        if request.ends:
            return
        request.refusals += 1
        request.at = None
        if request.refusals > 1:
            self._end(request, "overloaded")

    def _of(self, there: Machine, process: Process) -> dict[int, Work]:
        return self.working.setdefault(str(process.boot) + str(there.node), {})

    def _serve(self, there: Machine, process: Process) -> None:
        """A quarter of a second of a runner: what is done is said, what nobody asks after ends."""
        now, mine = self.world.now, self._of(there, process)
        for number, work in list(mine.items()):
            request = self.all[number]
            if now - work.pinged_at >= UNPINGED_S:
                del mine[number]
            elif now >= work.ends_at:
                del mine[number]
                machine = request.gateway[0]
                self._answer(there, machine, lambda request=request: self._finished(request))

    def _finished(self, request: Request) -> None:
        if not request.ends:
            self._end(request, "finished")


def _pid(instance: Instance) -> int:
    return instance.lead.pid if instance.lead is not None else 0
