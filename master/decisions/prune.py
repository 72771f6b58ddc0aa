"""Instances of nodes that have fallen silent: kept for a grace, then removed.

Pure. A node is silent while this holder hears neither its card nor its readings; the grace
begins anew with each term, for a new holder has heard no node yet and those that run must have
the time to be heard. A pinned copy that was removed is placed elsewhere at once, others when they
are asked for again.
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
class SilenceWatch:
    """The grace of this holder's term, which began at `began_at`, and the pinned copies that were
    `lost` with their nodes in it."""

    grace_s: float = SETTLE_GRACE_S
    began_at: float = 0.0
    lost: dict[ModelId, Instance] = field(default_factory=dict[ModelId, Instance])

    def begin(self, now: float) -> None:
        """Begin a term: every node gets the whole grace, and no copy counts as lost."""
        self.began_at = now
        self.lost.clear()


def remove_silent(scene: Scene, watch: SilenceWatch) -> list[InstanceRemoved]:
    """Return the removals of instances one of whose nodes was silent for the whole grace.

    Pinned ones are noted in `watch.lost`.
    """
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


def lost_models(scene: Scene, watch: SilenceWatch) -> list[PlaceModel]:
    """Return the commands that place pinned copies which were lost with their nodes anew."""
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


def _is_gone(node: NodeId, scene: Scene, watch: SilenceWatch) -> bool:
    heard_at = max(scene.observed.heard_at(node) or watch.began_at, watch.began_at)
    return scene.now - heard_at >= watch.grace_s
