from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, NodeId
from worker.slots.actions import Action, KillSlot, Task
from worker.slots.admission import USUAL, NodeInventory
from worker.slots.control import SlotControl
from worker.slots.table import Slot


class Node:
    """The parts of a worker that judge nothing, at `now`; `done` are the actions it was given."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, list[Action]()
        log = Log(node="n", process="worker", level="critical")
        mirror, reactor = SimpleNamespace(live=True), SimpleNamespace(now=lambda: self.now)
        client = SimpleNamespace(log=log, mirror=mirror, reactor=reactor, state=ClusterState())
        executor = SimpleNamespace(client=client, processes=None, do=self._do)
        notes = SimpleNamespace(sweep=lambda: None)
        self.control = SlotControl(cast(Any, executor), self._inventory, USUAL, cast(Any, notes))
        task = Task(InstanceId("i"), 1, 0)
        self.control.table.slots["00"] = Slot("00", life="ready", pid=7, task=task)
        self.control._began_at = 0.0

    def _do(self, action: Action, *_: object) -> list[Action]:
        self.done.append(action)
        return []

    def _inventory(self, settled: bool, now: float) -> NodeInventory:
        return NodeInventory(NodeId("n"), settled, None, frozenset(), 30.0, now)

    def killed(self) -> list[str]:
        return [one.why for one in self.done if isinstance(one, KillSlot)]


def test_what_wakes_a_worker_that_was_halted_finds_no_runner_silent() -> None:
    node = Node()
    node.now = 75.0  # no tick has come yet
    node.control.reconcile()
    assert node.killed() == []


def test_a_runner_that_a_listening_worker_does_not_hear_is_silent() -> None:
    node = Node()
    while node.now < USUAL.silent_s + 1.0:
        node.now += 0.5
        node.control.reconcile()
    assert node.killed()[:1] == [f"was silent for {USUAL.silent_s:g} s (frozen or stuck)"]
