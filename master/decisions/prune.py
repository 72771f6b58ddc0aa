"""Instances of nodes that have fallen silent: kept for a grace, then given up.

Pure. A node is silent while this holder hears neither its card nor its readings; the grace
begins anew with each term, for a new holder has heard no node yet and those that run must have
the time to be heard. A pinned copy is then placed elsewhere as soon as there is room, under the
conditions that the log keeps of it; others when they are asked for again. (What is done within the
grace where another node has room: `master.decisions.stand_ins`.)
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import NodeId
from bus.wire.messages.events import InstanceFailed, InstanceRemoved
from master.decisions.decide import Scene
from master.decisions.pool_view import living
from master.pool import pinned_by

SETTLE_GRACE_S = 60.0


@dataclass(slots=True)
class SilenceWatch:
    """The grace of this holder's term, which began at `began_at`."""

    grace_s: float = SETTLE_GRACE_S
    began_at: float = 0.0

    def begin(self, now: float) -> None:
        """Begin a term: every node gets the whole grace."""
        self.began_at = now


def remove_silent(scene: Scene, watch: SilenceWatch) -> list[InstanceRemoved | InstanceFailed]:
    """Return the ends of instances one of whose nodes was silent for the whole grace."""
    found: list[InstanceRemoved | InstanceFailed] = []
    for instance in scene.state.instances.values():
        nodes = sorted({shard.node for shard in instance.shards})
        gone = [node for node in nodes if _is_gone(node, scene, watch)]
        if not gone:
            continue
        name, why = instance.instance, f"nothing was heard of {', '.join(gone)} for"
        why = f"{why} {watch.grace_s:g} s"
        others = [one for one in living(scene.state, instance.model) if one.instance != name]
        is_pinned = pinned_by(instance, scene.state) is not None
        if not is_pinned or others or instance.status == "draining":
            found.append(InstanceRemoved(instance=name, why=why))
        elif instance.place_again is None:
            why = f"{why}, and it has no other place yet"
            again = instance.conditions
            found.append(InstanceFailed(instance=name, why=why, place_again=again))
    return found


def _is_gone(node: NodeId, scene: Scene, watch: SilenceWatch) -> bool:
    heard_at = max(scene.observed.heard_at(node) or watch.began_at, watch.began_at)
    return scene.now - heard_at >= watch.grace_s
