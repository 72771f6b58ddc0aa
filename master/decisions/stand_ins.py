"""Decides where to place an instance whose node is lost or has failed to run it. It is placed on
other nodes immediately, if they have enough memory.

Pure. A node counts as lost after some seconds of silence, long before its grace period ends. A
group that has lost a rank and does not serve is replaced by a new instance on the remaining nodes.
An instance whose nodes are all lost may still serve clients on its side of a network cut: it stays
for the grace period. Unless the model has or had another instance, a new instance *stands in* for
it and drains when the first is ready again. A ready group with lost ranks is left alone: its other
ranks report within seconds whether it is broken.

If the other nodes cannot meet the conditions (number of nodes, sharding, a split chosen by the
user), the instance is placed without them and names them in `unmet`. Nothing is done if more than
half of the nodes are silent (nodes that said goodbye do not count), because then this node itself
may be cut off. An instance that is given up or pauses on a node is placed on other nodes, with
evictions of idle models if needed. If a runner ends before it has loaded, the instance is placed at
once on another node that has the files, enough free memory and no failure of this model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import (
    EventBody,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstanceRemoved,
    RunnerEnded,
)
from master.decisions.crash_loop import GROUP_LOST, CrashLoops
from master.decisions.decide import Decision, Known, Scene
from master.decisions.pool_view import LIVING, living, placement_again

BROKEN_S = 2.0
"""If a group itself reports a lost rank, the rank's node counts as lost after this many seconds of
silence, instead of `LOST_S`."""
STAND_DOWN_S = 600.0
"""How long, in seconds, a stand-in's open requests may still run once the first instance is ready
again."""


@dataclass(slots=True)
class StandIns:
    """The stand-ins that this leader has placed: for each instance on a lost node, the instance
    that replaces it for now."""

    of: dict[InstanceId, InstanceId] = field(default_factory=dict[InstanceId, InstanceId])


@dataclass(frozen=True, slots=True)
class Lost:
    """An instance of a lost node, which is to be placed on other nodes. `command` places it, with
    `scene` as the state to decide by. If no rank of the instance can serve any more, the event in
    `removed` removes it first."""

    instance: Instance
    command: PlaceModel
    scene: Scene
    removed: tuple[InstanceRemoved, ...]


def lost_copies(scene: Scene) -> list[Lost]:
    """Return the instances that were on lost nodes and have no stand-in yet."""
    lost = scene.observed.lost_nodes(scene.now)
    silent = scene.observed.lost_nodes(scene.now, BROKEN_S)
    present = scene.state.nodes.keys() - scene.observed.left_nodes(scene.now)
    if not silent or 2 * len(lost & present) > len(present):
        return []
    scene = replace(scene, relaxes=True)
    failed = {
        instance.model for instance in scene.state.instances.values() if instance.status == "failed"
    }
    lost_found: list[Lost] = []
    for instance in scene.state.instances.values():
        if instance.status not in LIVING or not instance.serves:
            continue
        nodes = frozenset(shard.node for shard in instance.shards)
        command = placement_again(instance, instance.conditions, "lost")
        command = command.model_copy(update={"if_absent": False})
        if nodes <= lost:
            if instance.model not in failed and not _has_other(instance, scene, lost):
                lost_found.append(Lost(instance, command, scene, ()))
            continue
        gone = nodes & (silent if instance.generation > 1 else lost)
        if instance.status == "placed" and gone and gone != nodes:
            why = f"no message arrives from {', '.join(sorted(gone))}"
            removed = InstanceRemoved(instance=instance.instance, why=why)
            lost_found.append(Lost(instance, command, _without(instance, scene, gone), (removed,)))
    return lost_found


def stood_down(scene: Scene, stand_ins: StandIns) -> list[EventBody]:
    """Return the events that drain each stand-in whose original instance is ready again."""
    instances, lost = scene.state.instances, scene.observed.lost_nodes(scene.now)
    events: list[EventBody] = []
    for first, other in list(stand_ins.of.items()):
        original = instances.get(first)
        if original is None or other not in instances or original.status not in LIVING:
            del stand_ins.of[first]
        elif original.status == "ready" and not any(s.node in lost for s in original.shards):
            del stand_ins.of[first]
            why = f"the stand-in replaced {first}, which is ready again"
            if instances[other].status in LIVING:
                body = InstanceDraining(instance=other, deadline_s=STAND_DOWN_S, why=why)
                events.append(body)
    return events


def made_good(
    failed_copy: Instance,
    follows: EventBody,
    ended: RunnerEnded,
    scene: Scene,
    crash_loops: CrashLoops,
    decide: Callable[[PlaceModel, Scene], Decision],
) -> EventBody:
    """Return the event that follows the end of a runner. If another node can hold the instance,
    that event is the instance's failure, after which it is placed on that node. Otherwise return
    `follows` unchanged."""
    if isinstance(follows, InstanceFailed):
        return _moved(failed_copy, follows, scene, decide)
    failed_on = crash_loops.failed_on(failed_copy.model)
    is_loaded = ended.found_gone or ended.rank in {rank.rank for rank in failed_copy.ready}
    is_of_node = ended.node in failed_on and ended.exit_code != GROUP_LOST
    if is_loaded or not is_of_node or not isinstance(follows, GenerationOpened):
        return follows
    decision = _elsewhere(
        failed_copy, replace(scene, barred={failed_copy.model: failed_on}), decide
    )
    plan = decision.plan if isinstance(decision, Known) else None
    if failed_copy.conditions.layers or plan is None or plan.get("evicts") or plan["fetch_bytes"]:
        return follows
    crash_loops.bar(failed_copy.model, ended.node, scene.now)
    failed = InstanceFailed(instance=failed_copy.instance, why=ended.message)
    return _as_moved(failed, failed_copy, (ended.node,), scene)


def _moved(
    instance: Instance,
    failed: InstanceFailed,
    scene: Scene,
    decide: Callable[[PlaceModel, Scene], Decision],
) -> InstanceFailed:
    """Return the failure of an instance. If other nodes can hold the instance, it moves to them at
    once; otherwise the failure's reason also lists the model's failures on the other nodes."""
    barred = scene.barred.get(instance.model, {})
    if not barred or instance.conditions.layers:
        return failed
    seats = {shard.node for shard in instance.shards}
    if isinstance(_elsewhere(instance, scene, decide), Known):
        return _as_moved(failed, instance, seats & barred.keys(), scene)
    others = sorted(barred.keys() - seats)
    if not others:
        return failed
    here = ", ".join(_name(node, scene) for node in sorted(seats))
    words = [f"on {_name(node, scene)}: {barred[node].why}" for node in others]
    return failed.model_copy(update={"why": "; ".join([f"on {here}: {failed.why}", *words])})


def _elsewhere(
    moving: Instance, scene: Scene, decide: Callable[[PlaceModel, Scene], Decision]
) -> Decision:
    """Decide where the instance would be placed if it did not exist yet. Its present nodes may be
    chosen again."""
    rest = {
        name: instance
        for name, instance in scene.state.instances.items()
        if name != moving.instance
    }
    without = replace(scene, state=scene.state.model_copy(update={"instances": rest}))
    command = placement_again(moving, moving.conditions, "again")
    return decide(command.model_copy(update={"if_absent": False, "dry_run": True}), without)


def _as_moved(
    failed: InstanceFailed, instance: Instance, on: Collection[NodeId], scene: Scene
) -> InstanceFailed:
    there = ", ".join(_name(node, scene) for node in sorted(on))
    update = {
        "why": f"{failed.why}; it failed on {there} and is placed on other nodes",
        "place_again": instance.conditions,
        "elsewhere": True,
    }
    return failed.model_copy(update=update)


def _name(node: NodeId, scene: Scene) -> str:
    seat = scene.state.nodes.get(node)
    return node if seat is None else seat.name


def _has_other(instance: Instance, scene: Scene, lost: frozenset[NodeId]) -> bool:
    """Return whether the model has another instance whose nodes all report."""
    copies = living(scene.state, instance.model)
    return any(not lost & {shard.node for shard in copy.shards} for copy in copies)


def _without(instance: Instance, scene: Scene, gone: frozenset[NodeId]) -> Scene:
    rest = {
        name: other for name, other in scene.state.instances.items() if name != instance.instance
    }
    state = scene.state.model_copy(update={"instances": rest})
    return replace(scene, state=state, avoided=gone)
