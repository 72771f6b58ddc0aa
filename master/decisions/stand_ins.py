"""Copies whose node is lost: placed anew at once where the other nodes can hold them.

Pure. A node is lost some seconds after anything was heard of it, long before its grace is over.
A group that has lost a rank and does not serve gives way to a new copy on the nodes that are left.
A copy all of whose nodes are lost may still serve clients on their side of a cut: it stays for
the grace, and unless the model has a copy elsewhere, or had one that failed, another one *stands
in* for it, which leaves in good order when the first is back and ready. A group that is ready, and
of which some ranks are lost, is waited for: its other ranks say within seconds whether it is
broken. Where the other nodes cannot meet what was asked of the copy (a number of nodes, a kind of
sharding, a split by hand), it is placed without that, and says so (`unmet`). Nothing is done where
fewer than half of the nodes that have not said goodbye are heard: then it may be we who are cut
off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import EventBody, InstanceDraining, InstanceRemoved
from master.decisions.decide import Scene
from master.decisions.pool_view import LIVING, living, placement_again

BROKEN_S = 2.0
"""A group that says itself that it has lost a rank is believed so much sooner."""
STAND_DOWN_S = 600.0
"""The time for what a copy that stood in has open when the first is back."""


@dataclass(slots=True)
class StandIns:
    """Who stands in for whom, the first copy by the other's, as this holder has placed them."""

    of: dict[InstanceId, InstanceId] = field(default_factory=dict[InstanceId, InstanceId])


@dataclass(frozen=True, slots=True)
class Lost:
    """A copy to be placed anew by `command`, decided in `scene`; it is `removed` first where
    nothing of it can serve."""

    instance: Instance
    command: PlaceModel
    scene: Scene
    removed: tuple[InstanceRemoved, ...]


def lost_copies(scene: Scene) -> list[Lost]:
    """Return the copies that a lost node has taken away, for which none stands in yet."""
    lost = scene.observed.lost_nodes(scene.now)
    silent = scene.observed.lost_nodes(scene.now, BROKEN_S)
    present = scene.state.nodes.keys() - scene.observed.left_nodes(scene.now)
    if not silent or 2 * len(lost & present) > len(present):
        return []
    scene = replace(scene, relaxes=True)
    failed = {one.model for one in scene.state.instances.values() if one.status == "failed"}
    found: list[Lost] = []
    for instance in scene.state.instances.values():
        if instance.status not in LIVING or not instance.serves:
            continue
        nodes = frozenset(shard.node for shard in instance.shards)
        command = placement_again(instance, instance.conditions, "lost")
        command = command.model_copy(update={"if_absent": False})
        if nodes <= lost:
            if instance.model not in failed and not _has_other(instance, scene, lost):
                found.append(Lost(instance, command, scene, ()))
            continue
        gone = nodes & (silent if instance.generation > 1 else lost)
        if instance.status == "placed" and gone and gone != nodes:
            why = f"nothing is heard of {', '.join(sorted(gone))}"
            removed = InstanceRemoved(instance=instance.instance, why=why)
            found.append(Lost(instance, command, _without(instance, scene, gone), (removed,)))
    return found


def stood_down(scene: Scene, stand_ins: StandIns) -> list[EventBody]:
    """Return the draining of copies that stood in for one that is back and ready."""
    instances, lost = scene.state.instances, scene.observed.lost_nodes(scene.now)
    found: list[EventBody] = []
    for first, other in list(stand_ins.of.items()):
        original = instances.get(first)
        if original is None or other not in instances or original.status not in LIVING:
            del stand_ins.of[first]
        elif original.status == "ready" and not any(s.node in lost for s in original.shards):
            del stand_ins.of[first]
            why = f"{first} is back, for which it stood in"
            if instances[other].status in LIVING:
                body = InstanceDraining(instance=other, deadline_s=STAND_DOWN_S, why=why)
                found.append(body)
    return found


def _has_other(instance: Instance, scene: Scene, lost: frozenset[NodeId]) -> bool:
    """Return whether the model has a copy all of whose nodes are heard."""
    copies = living(scene.state, instance.model)
    return any(not lost & {shard.node for shard in copy.shards} for copy in copies)


def _without(instance: Instance, scene: Scene, gone: frozenset[NodeId]) -> Scene:
    rest = {name: one for name, one in scene.state.instances.items() if name != instance.instance}
    state = scene.state.model_copy(update={"instances": rest})
    return replace(scene, state=state, avoided=gone)
