"""Copies whose node is lost, or failed to run them: placed anew at once where other nodes can hold
them.

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
A copy that is given up on a node, or has to pause there, is placed on other nodes, whose idle
models are evicted where need be. One whose runner ends before it has loaded is placed at once on
another node that has the files and free memory, and where no runner of the model has failed.
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


def made_good(
    known: Instance,
    follows: EventBody,
    ended: RunnerEnded,
    scene: Scene,
    crash_loops: CrashLoops,
    decide: Callable[[PlaceModel, Scene], Decision],
) -> EventBody:
    """Return what follows from a runner's end: what it would without other nodes, or the failure of
    a copy that is placed on them."""
    if isinstance(follows, InstanceFailed):
        return _moved(known, follows, scene, decide)
    failed_on = crash_loops.failed_on(known.model)
    is_loaded = ended.found_gone or ended.rank in {rank.rank for rank in known.ready}
    is_of_node = ended.node in failed_on and ended.exit_code != GROUP_LOST
    if is_loaded or not is_of_node or not isinstance(follows, GenerationOpened):
        return follows
    decision = _elsewhere(known, replace(scene, barred={known.model: failed_on}), decide)
    plan = decision.plan if isinstance(decision, Known) else None
    if known.conditions.layers or plan is None or plan.get("evicts") or plan["fetch_bytes"]:
        return follows
    crash_loops.bar(known.model, ended.node, scene.now)
    failed = InstanceFailed(instance=known.instance, why=ended.message)
    return _as_moved(failed, known, (ended.node,), scene)


def _moved(
    known: Instance,
    failed: InstanceFailed,
    scene: Scene,
    decide: Callable[[PlaceModel, Scene], Decision],
) -> InstanceFailed:
    """Return the failure of a copy as one that is made good at once on other nodes, where they can
    hold it; as it is where they cannot, with what its model did on those that could."""
    barred = scene.barred.get(known.model, {})
    if not barred or known.conditions.layers:
        return failed
    seats = {shard.node for shard in known.shards}
    if isinstance(_elsewhere(known, scene, decide), Known):
        return _as_moved(failed, known, seats & barred.keys(), scene)
    others = sorted(barred.keys() - seats)
    if not others:
        return failed
    here = ", ".join(_name(node, scene) for node in sorted(seats))
    words = [f"on {_name(node, scene)}: {barred[node].why}" for node in others]
    return failed.model_copy(update={"why": "; ".join([f"on {here}: {failed.why}", *words])})


def _elsewhere(
    known: Instance, scene: Scene, decide: Callable[[PlaceModel, Scene], Decision]
) -> Decision:
    """Return where a copy would go if it were not there; none of its nodes is barred by that."""
    rest = {name: one for name, one in scene.state.instances.items() if name != known.instance}
    without = replace(scene, state=scene.state.model_copy(update={"instances": rest}))
    command = placement_again(known, known.conditions, "again")
    return decide(command.model_copy(update={"if_absent": False, "dry_run": True}), without)


def _as_moved(
    failed: InstanceFailed, known: Instance, on: Collection[NodeId], scene: Scene
) -> InstanceFailed:
    there = ", ".join(_name(node, scene) for node in sorted(on))
    update = {
        "why": f"{failed.why}; it failed on {there}, and is placed elsewhere",
        "place_again": known.conditions,
        "elsewhere": True,
    }
    return failed.model_copy(update=update)


def _name(node: NodeId, scene: Scene) -> str:
    seat = scene.state.nodes.get(node)
    return node if seat is None else seat.name


def _has_other(instance: Instance, scene: Scene, lost: frozenset[NodeId]) -> bool:
    """Return whether the model has a copy all of whose nodes are heard."""
    copies = living(scene.state, instance.model)
    return any(not lost & {shard.node for shard in copy.shards} for copy in copies)


def _without(instance: Instance, scene: Scene, gone: frozenset[NodeId]) -> Scene:
    rest = {name: one for name, one in scene.state.instances.items() if name != instance.instance}
    state = scene.state.model_copy(update={"instances": rest})
    return replace(scene, state=state, avoided=gone)
