"""Instances that are given up: those on silent nodes after a grace period, and failed ones of
deleted models.

Pure. A node is silent while this leader receives neither its card nor its readings. The grace
period restarts with each term, because a new leader has not received any message yet. A pinned
instance that was given up is placed elsewhere when there is room, under its logged conditions.
Other models are placed when they are requested again. (Within the grace period,
`master.decisions.stand_ins` places the instance on another node that has enough memory.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.events import InstanceFailed, InstanceRemoved
from master.decisions.decide import Scene
from master.decisions.pool_view import living
from master.pool import pinned_by

SETTLE_GRACE_S = 60.0
DELETED_S = 30.0
"""Time that a failed instance of a deleted model is still shown, with the reason."""


@dataclass(slots=True)
class SilenceWatch:
    """Watches for silent nodes during this leader's term, which began at `began_at`: no grace
    period begins before that."""

    grace_s: float = SETTLE_GRACE_S
    began_at: float = 0.0

    def begin(self, now: float) -> None:
        """Begin a term: every node gets the whole grace period."""
        self.began_at = now


def remove_silent(scene: Scene, watch: SilenceWatch) -> list[InstanceRemoved | InstanceFailed]:
    """Return the events that give up instances on nodes that were silent for the whole grace
    period."""
    events: list[InstanceRemoved | InstanceFailed] = []
    for instance in scene.state.instances.values():
        nodes = sorted({shard.node for shard in instance.shards})
        gone = [node for node in nodes if _is_gone(node, scene, watch)]
        if not gone:
            continue
        name, why = instance.instance, f"no message from {', '.join(gone)} for"
        why = f"{why} {watch.grace_s:g} s"
        others = [other for other in living(scene.state, instance.model) if other.instance != name]
        is_pinned = pinned_by(instance, scene.state) is not None
        if not is_pinned or others or instance.status == "draining":
            events.append(InstanceRemoved(instance=name, why=why))
        elif instance.place_again is None:
            why = f"{why}, and no other node has room for it yet"
            again = instance.conditions
            events.append(InstanceFailed(instance=name, why=why, place_again=again))
    return events


def remove_deleted(scene: Scene, failed_at: Mapping[InstanceId, float]) -> list[InstanceRemoved]:
    """Return the events that remove failed instances of models that no node has any more. Nothing
    is removed while the card of a node is unknown, because that node may have the model."""
    observed, now = scene.observed, scene.now
    cards = [*observed.living_cards(now).values(), *observed.unheard_cards(now)]
    nodes = scene.state.nodes.keys() - observed.left_nodes(now)
    if not cards or nodes - {card.node for card in cards}:
        return []
    existing = {model.model for card in cards for model in (*card.models, *card.parts)}
    return [
        InstanceRemoved(instance=instance.instance, why="no node has the model any more")
        for instance in scene.state.instances.values()
        if instance.status == "failed"
        and instance.serves
        and instance.model not in existing
        and pinned_by(instance, scene.state) is None
        and now - failed_at.get(instance.instance, now) >= DELETED_S
    ]


def _is_gone(node: NodeId, scene: Scene, watch: SilenceWatch) -> bool:
    heard_at = max(scene.observed.last_heard_at(node) or watch.began_at, watch.began_at)
    return scene.now - heard_at >= watch.grace_s
