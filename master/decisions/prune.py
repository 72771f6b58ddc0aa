"""Instances of nodes that have fallen silent: kept for a grace, then removed (S05).

Pure. A node is silent while this holder hears neither its card nor its readings; the grace
begins anew with each term, for a new holder has not heard anybody yet and whoever runs must have
the time to be heard. What was removed so was wanted: a pinned copy is placed elsewhere at
once, others when they are asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import InstanceRemoved
from master.decisions.decide import Scene, living

SETTLE_GRACE_S = 60.0


@dataclass(slots=True)
class Watch:
    """`began_at`: when this holder's term began. `lost`: pinned copies that went with their
    nodes."""

    grace_s: float = SETTLE_GRACE_S
    began_at: float = 0.0
    lost: dict[ModelId, Instance] = field(default_factory=dict[ModelId, Instance])

    def begin(self, now: float) -> None:
        """A new term: everybody gets the whole grace."""
        self.began_at = now
        self.lost.clear()


def silent(scene: Scene, watch: Watch) -> list[InstanceRemoved]:
    """Instances to remove, for one of their nodes was silent for the whole grace."""
    found: list[InstanceRemoved] = []
    for instance in scene.state.instances.values():
        nodes = sorted({shard.node for shard in instance.shards})
        gone = [node for node in nodes if _is_gone(node, scene, watch)]
        if not gone:
            continue
        if instance.pinned:
            watch.lost[instance.model] = instance
        why = f"nothing was heard of {', '.join(gone)} for {watch.grace_s:g} s"
        found.append(InstanceRemoved(instance=instance.instance, why=why))
    return found


def bereft(scene: Scene, watch: Watch) -> list[PlaceModel]:
    """Pinned copies that were lost with their nodes, to be placed where there is room."""
    for model in [model for model in watch.lost if living(scene.state, model)]:
        del watch.lost[model]
    return [
        PlaceModel(
            command_id=CommandId(f"bereft-{one.instance}"),
            model=model,
            context_tokens=one.context_tokens,
            pinned=True,
            priority=one.priority,
        )
        for model, one in watch.lost.items()
    ]


def _is_gone(node: NodeId, scene: Scene, watch: Watch) -> bool:
    heard_at = max(scene.view.heard_at(node) or watch.began_at, watch.began_at)
    return scene.now - heard_at >= watch.grace_s
