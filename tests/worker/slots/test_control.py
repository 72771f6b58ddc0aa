from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.control import SlotHello
from tests.recorded.specimens import least
from worker.slots.actions import Action, KillSlot, Task, Tell
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
        return [action] if isinstance(action, Tell) else []

    def _inventory(self, settled: bool, now: float) -> NodeInventory:
        return NodeInventory(NodeId("n"), settled, None, frozenset(), 30.0, now)

    def turn(self, state: ClusterState) -> int:
        """Reconcile with this state; return how many facts were reported."""
        self.done.clear()
        self.now += 0.5
        cast(Any, self.control.client).state = state
        self.control.reconcile()
        return sum(isinstance(one, Tell) for one in self.done)

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


def test_a_ready_runner_is_reported_once() -> None:
    node = Node()
    slot = node.control.table.slots["00"]
    hello = least(SlotHello).model_copy(update={"addresses": ("ipc://x",)})
    node.control.table.slots["00"] = replace(slot, hello=hello, boot=Boot("b"))
    shard = Shard(rank=0, node=NodeId("n"), first_layer=0, last_layer=1, bytes_reserved=1)
    copy = Instance(
        instance=InstanceId("i"), model=ModelId("m"), shards=(shard,), context_tokens=8,
        keep_alive_s=1.0, status="placed",
    )  # fmt: skip
    state = ClusterState(instances={copy.instance: copy})
    assert [node.turn(state) for _ in range(3)] == [1, 0, 0]


def test_a_refused_load_is_reported_once_and_again_when_it_comes_back_after_its_deletion() -> None:
    node = Node()
    node.control.table.slots["00"] = Slot("00")
    shard = Shard(rank=0, node=NodeId("n"), first_layer=0, last_layer=1, bytes_reserved=1)
    copy = Instance(
        instance=InstanceId("i"), model=ModelId("m"), shards=(shard,), context_tokens=8,
        keep_alive_s=1.0, status="placed",
    )  # fmt: skip
    placed, deleted = ClusterState(instances={copy.instance: copy}), ClusterState()
    told = [node.turn(state) for state in (placed, placed, deleted, placed)]
    assert told == [1, 0, 0, 1], "this node does not have the model"
