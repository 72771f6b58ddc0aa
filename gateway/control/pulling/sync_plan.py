"""Plans copies so that some nodes have some models, or says why they cannot.

Pure. A node that has the model needs no copy. The plan is refused, before any byte moves, for three
reasons. A node may have other content under the same name, no node may be able to send the model,
or a disk may lack room.
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
    """A model and a node: the model is to be copied to the node, or is already on its disk."""

    model: ModelId
    node: NodeId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The copies to make, sorted by node, and the models that their nodes already have."""

    wanted: tuple[CopyAt, ...] = ()
    there: tuple[CopyAt, ...] = ()


def sync_plan(
    models: Sequence[ModelId],
    targets: Sequence[NodeId],
    cards: Sequence[NodeCard],
    free_bytes: Mapping[NodeId, int],
) -> SyncPlan | Refusal:
    """Plan the copies after which each of the `targets` has each of the `models`, or return why
    that cannot be done.

    Each model is on the disk of some node. `free_bytes` has the free space of each disk for which
    it is known.
    """
    by_node = {card.node: card for card in cards}
    wanted: list[CopyAt] = []
    there: list[CopyAt] = []
    for model in dict.fromkeys(models):
        having = {card.node: copy for card in cards if (copy := _copy_of(card, model)) is not None}
        size_bytes = max(copy.size_bytes for copy in having.values())
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
    wanted.sort(key=lambda copy: targets.index(copy.node))
    return _no_room(wanted, by_node, free_bytes) or SyncPlan(tuple(wanted), tuple(there))


def _copy_of(card: NodeCard, model: ModelId) -> ModelCard | None:
    return next((entry for entry in card.models if entry.model == model), None)


def _not_given(
    model: ModelId, having: Mapping[NodeId, ModelCard], by_node: Mapping[NodeId, NodeCard]
) -> Refusal | None:
    """Return a refusal if no node can send the model."""
    if any(by_node[node].weights_addresses for node in having):
        return None
    names = ", ".join(sorted(by_node[node].name for node in having))
    text = (
        f"only {names} has {model}, but cannot send it to other nodes, because it listens only on "
        "its own machine; set cluster.listen there"
    )
    return Refusal(reason="weights_unavailable", message=text)


def _other_content(
    model: ModelId,
    targets: Sequence[NodeId],
    having: Mapping[NodeId, ModelCard],
    by_node: Mapping[NodeId, NodeCard],
) -> Refusal | None:
    """Return a refusal if a target has other content under the model's name."""
    for node in targets:
        mine = having[node].digest if node in having else ""
        others = {copy.digest for at, copy in having.items() if at != node}
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
    """Return a refusal if a disk has too little free space for its copies."""
    for node in dict.fromkeys(copy.node for copy in wanted):
        need = sum(copy.size_bytes for copy in wanted if copy.node == node) + DISK_MARGIN_BYTES
        free = free_bytes.get(node)
        if free is not None and need > free:
            count = sum(copy.node == node for copy in wanted)
            text = (
                f"{by_node[node].name} has {free / 1e9:,.1f} GB of free disk space; {count} "
                f"{'model needs' if count == 1 else 'models need'} {need / 1e9:,.1f} GB, with "
                f"{DISK_MARGIN_BYTES / 1e9:.1f} GB that must stay free; copy fewer models, or "
                "delete some on that node (`shoal rm`)"
            )
            facts = {"need_bytes": need, "free_bytes": free}
            return Refusal(reason="disk_full", message=text, facts=facts)
    return None
