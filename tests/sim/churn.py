"""Rounds of churn in a simulated cluster, and what has to be true when they are over."""

from __future__ import annotations

from collections import Counter

from tests.sim.cluster import Cluster, Plan
from tests.sim.requests import Requests

LONGEST_S = 2.0
MOST_EVENTS = 5
"""Events that one act may cause, on average."""


class Churn:
    """A cluster, its requests, and how often what was done."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.cluster = Cluster(plan, seed)
        self.requests = Requests(self.cluster)
        self.did: Counter[str] = Counter()

    def round(self) -> None:
        """One random act, and a while to feel it."""
        cluster, chance = self.cluster, self.cluster.world.chance
        up = [machine for machine in cluster.machines if machine.up]
        down = [machine for machine in cluster.machines if not machine.up]
        act = chance.choice(
            ("request", "request", "request", "place", "delete", "kill", "power", "stop", "start",
             "start", "worker")
        )  # fmt: skip
        machine = chance.choice(up)
        if act == "request":
            self.requests.ask(machine)
        elif act in ("place", "delete"):
            command = cluster.wish(machine, act)
            if command is None:
                return
            machine.want(command)
        elif act == "start":
            if not down:
                return
            chance.choice(down).start()
        elif act == "worker":
            if machine.worker is not None and machine.worker.living():
                machine.worker.crash(chance.choice(machine.worker.living()))
        elif len(up) == 1:
            return
        else:
            cluster.faults += 1
            if act == "stop":
                machine.leave()
            else:
                machine.kill(power=act == "power")
        self.did["kill" if act == "power" else act] += 1
        cluster.world.run(cluster.world.now + LONGEST_S * chance.random())

    def end(self) -> None:
        """Everybody starts again: one holder, no runner too many, every request with its end, and
        a log that grew by no more than what was done."""
        cluster = self.cluster
        cluster.heal()
        cluster.settle()
        world, idle = cluster.world, self.requests.idle
        if not world.run(world.now + 30.0, idle):
            numbers = [request.number for request in self.requests.open()]
            cluster.fail(f"requests without an end: {numbers}, {self.requests.working}")
        index = cluster.machines[0].candidate.state.index
        if index > MOST_EVENTS * self.did.total():
            cluster.fail(f"{index} events after {self.did.total()} acts")


def run_churn(plan: Plan, seed: int, rounds: int) -> Churn:
    """A whole story. Raises Broken."""
    churn = Churn(plan, seed)
    churn.cluster.start()
    churn.cluster.world.run(6.0)
    while churn.did.total() < rounds:
        churn.round()
    churn.end()
    return churn
