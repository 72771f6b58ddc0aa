"""What must hold of replicas in a schedule of the pool: they come only where nothing has to leave,
while nothing waits, are never more than is set, and leave before the only copy of any model."""

from __future__ import annotations

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.events import InstanceDraining, InstancePlaced, InstanceYields
from master.decisions.observations import QUIET_S
from master.pool import replicas_in
from tests.sim.pool_world import TOLD_S, PoolWorld

NOTICED_S = 0.15
"""In the next step after that the holder has heard that a node is silent."""


class ReplicaWatch:
    """Looks at the replicas of a world. Each look returns what is wrong."""

    def __init__(self, world: PoolWorld) -> None:
        self.world = world
        self.came = self.displaced = 0

    @property
    def most(self) -> int:
        """How many replicas a model may have."""
        return self.world.policy.pool.replicas

    def replicas(self, state: ClusterState) -> set[InstanceId]:
        """The replicas that there are, where a node counts as lost once the holder can know it."""
        world = self.world
        lost = [node for node, at in world.lost.items() if world.now - at > QUIET_S + NOTICED_S]
        return set(replicas_in(state.instances.values(), lost))

    def comes(self, body: InstancePlaced, before: ClusterState) -> list[str]:
        """A replica was placed."""
        self.came += 1
        one, world, faults = body.instance, self.world, list[str]()
        (node,) = {shard.node for shard in one.shards}
        others = [
            other
            for other in before.instances.values()
            if other.model == one.model and other.status in ("placed", "ready")
        ]
        if not others or len(others) > self.most:
            faults.append(f"a replica of {one.model} comes beside {len(others)} copies")
        for held in world.held.values():
            if held.node != node or held.instance == one.instance:
                continue
            busy = [a for a in held.running if world.now - (a.began_at or 0.0) > TOLD_S + 0.2]
            if held.ready_at is None or busy or held.model == one.model:
                faults.append(f"a replica of {one.model} comes beside {held}")
        if world.state.nodes[node].draining:
            faults.append(f"a replica of {one.model} comes on {node}, which is drained")
        book = world.holder._book  # pyright: ignore[reportPrivateUsage]
        if waits := sorted({*book.plans, *book.refused}):
            faults.append(f"a replica of {one.model} comes while {waits} wait for memory")
        return faults

    def leaves(self, body: InstanceDraining | InstanceYields, before: ClusterState) -> list[str]:
        """A copy begins to leave. If it is for another, no replica could have made way instead."""
        model = (
            body.to if isinstance(body, InstanceYields) else body.why.removeprefix("evicted for ")
        )
        if not model or (isinstance(body, InstanceDraining) and model == body.why):
            return []
        faults: list[str] = []
        if any(
            one.model == model and one.status == "ready" and not one.yields_to
            for one in before.instances.values()
        ):
            faults.append(f"{body.instance} leaves for {model}, which has a copy")
        plan = self.world.holder._book.plans.get(model)  # type: ignore[call-overload]  # pyright: ignore
        replicas = self.replicas(before)
        if plan is None or body.instance in replicas:
            self.displaced += plan is not None
            return faults
        if before.instances[body.instance].yields_to == model:
            return faults  # that was decided when it was told to yield
        return faults + [
            f"{body.instance} leaves for {model}, and not the replica {name}"
            for name in replicas
            if self._would_do(name, max(plan.choice.needs.values()), before)
        ]

    def stand(self) -> list[str]:
        """After each step."""
        counted: dict[str, int] = {}
        for name in self.replicas(self.world.state):
            model = self.world.state.instances[name].model
            counted[model] = counted.get(model, 0) + 1
        return [f"{n} replicas of {model}" for model, n in counted.items() if n > self.most]

    def _would_do(self, name: InstanceId, need: int, state: ClusterState) -> bool:
        """Whether what waits would fit in the place of a replica that is there, takes requests, and
        is known to have been there when the plan was made. Where another copy loads beside it, of
        which it is not known how much it has taken, that cannot be said."""
        one, world = state.instances[name], self.world
        held = world.held.get(name)
        (node,) = {shard.node for shard in one.shards}
        loads = [h for h in world.held.values() if h.node == node and h.ready_at is None]
        claimed = {
            victim.copy.instance.instance
            for plan in world.holder._book.plans.values()  # pyright: ignore[reportPrivateUsage]
            for victim in plan.choice.victims
        }
        return (
            one.status == "ready" and not one.yields_to
            and name not in claimed and not loads
            and held is not None and held.ready_at is not None
            and world.now - held.ready_at > TOLD_S
            and NodeId(node) not in world.lost
            and not state.nodes[node].draining
            and need <= sum(shard.bytes_reserved for shard in one.shards)
        )  # fmt: skip
