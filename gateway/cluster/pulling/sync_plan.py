"""What is to be copied where for nodes to have some models, and why that cannot be.

Pure. Where a model of that name lies it is not copied: another content under its name is refused,
and so is what no node gives, or what a disk has no room for, before any byte moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import DISK_MARGIN_BYTES


@dataclass(frozen=True, slots=True)
class CopyAt:
    """A model at a node, to which it is to come, or where it lies already."""

    model: ModelId
    node: NodeId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What is to come, by node, and what is there already."""

    wanted: tuple[CopyAt, ...] = ()
    there: tuple[CopyAt, ...] = ()


def sync_plan(
    models: Sequence[ModelId],
    targets: Sequence[NodeId],
    cards: Sequence[NodeCard],
    free_bytes: Mapping[NodeId, int],
) -> SyncPlan | Refusal:
    """Return what is to be copied for each of the `targets` to have each of the `models`, or why
    not. Each model lies on the disk of some node; `free_bytes` are of the disks that are known."""
    by_node = {card.node: card for card in cards}
    wanted: list[CopyAt] = []
    there: list[CopyAt] = []
    for model in dict.fromkeys(models):
        having = {card.node: one for card in cards if (one := _copy_of(card, model)) is not None}
        size_bytes = max(one.size_bytes for one in having.values())
        lacking = [node for node in targets if node not in having]
        there += [
            CopyAt(model, node, having[node].size_bytes) for node in targets if node in having
        ]
        wanted += [CopyAt(model, node, size_bytes) for node in lacking]
        refusal = _other_content(model, targets, having, by_node) or (
            _not_given(model, having, by_node) if lacking else None
        )
        if refusal is not None:
            return refusal
    wanted.sort(key=lambda one: targets.index(one.node))
    return _no_room(wanted, by_node, free_bytes) or SyncPlan(tuple(wanted), tuple(there))


def _copy_of(card: NodeCard, model: ModelId) -> ModelCard | None:
    return next((one for one in card.models if one.model == model), None)


def _not_given(
    model: ModelId, having: Mapping[NodeId, ModelCard], by_node: Mapping[NodeId, NodeCard]
) -> Refusal | None:
    """Return why no node gives a model; None where one does."""
    if any(by_node[node].weights_addresses for node in having):
        return None
    names = ", ".join(sorted(by_node[node].name for node in having))
    text = (
        f"only {names} has {model}, but it sends no models to other nodes: "
        "it listens only on its own machine; set cluster.listen there"
    )
    return Refusal(reason="weights_unavailable", message=text)


def _other_content(
    model: ModelId,
    targets: Sequence[NodeId],
    having: Mapping[NodeId, ModelCard],
    by_node: Mapping[NodeId, NodeCard],
) -> Refusal | None:
    """Return why a target cannot have what the others have under that name; None where it can."""
    for node in targets:
        mine = having[node].digest if node in having else ""
        others = {one.digest for at, one in having.items() if at != node}
        if mine and others and mine not in others and "" not in others:
            text = (
                f"{by_node[node].name} has different content under the name {model}; "
                f"delete it there first (`shoal rm {model}` on that node)"
            )
            return Refusal(reason="conflict", message=text)
    return None


def _no_room(
    wanted: Sequence[CopyAt], by_node: Mapping[NodeId, NodeCard], free_bytes: Mapping[NodeId, int]
) -> Refusal | None:
    """Return why a disk does not take all that is to come to it; None where each does."""
    for node in dict.fromkeys(one.node for one in wanted):
        need = sum(one.size_bytes for one in wanted if one.node == node) + DISK_MARGIN_BYTES
        free = free_bytes.get(node)
        if free is not None and need > free:
            count = sum(one.node == node for one in wanted)
            text = (
                f"{by_node[node].name} has {free / 1e9:,.1f} GB of disk free, and {count} "
                f"{'model' if count == 1 else 'models'} need {need / 1e9:,.1f} GB, and "
                f"{DISK_MARGIN_BYTES / 1e9:.1f} stay free; name fewer, or `shoal rm` some there"
            )
            facts = {"need_bytes": need, "free_bytes": free}
            return Refusal(reason="disk_full", message=text, facts=facts)
    return None
