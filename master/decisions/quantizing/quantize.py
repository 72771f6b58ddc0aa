"""Which node makes a model of another in fewer bits, with how much memory and disk; or why none.

Pure. It is an instance of the model that it makes: in a slot, billed, seen and deleted like a copy.
Weights are read, packed and written piece by piece, so the bill is not the model's: what a runner
takes anyway, the file that is being written, and the largest piece with what it becomes.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, is_model_id
from bus.wire.instances import Instance, Shard
from bus.wire.messages.commands import QuantizeModel
from bus.wire.messages.events import EventBody, InstancePlaced, InstanceRemoved
from bus.wire.messages.weights import DISK_MARGIN_BYTES, Bits, GroupSize
from master.placement import FIXED_BYTES, NodeCapacity, gb, resolve_backend

FILE_BYTES = 1 << 30
"""A file of weights is written whole, and is at most so large but for one tensor."""
SCALE_BYTES = 8
"""Of a group's scale and bias, where they are as wide as they can be."""
RETRY_S = 10.0


def decide_quantizing(
    command: QuantizeModel, nodes: Sequence[NodeCapacity], state: ClusterState, fresh: InstanceId
) -> tuple[EventBody, ...] | Refusal:
    """Return the events that begin it, or why it is not begun. `nodes` may be given new work."""
    refusal = _name_refusal(command, nodes, state)
    if refusal is not None:
        return refusal
    having = _having(command, nodes, state)
    if isinstance(having, Refusal):
        return having
    fitting = _fitting(command, having)
    if isinstance(fitting, Refusal):
        return fitting
    node, card = max(fitting, key=lambda one: one[0].usable_bytes)
    failed = (one for one in state.instances.values() if one.model == command.name)
    swept = [InstanceRemoved(instance=one.instance, why="asked for anew") for one in failed]
    return (*swept, InstancePlaced(instance=_instance(command, node, card, fresh)))


def memory_bytes(card: ModelCard, out_bytes: int) -> int:
    """Return the most memory that making a model of another takes."""
    piece = max((*card.layer_bytes, card.embedding_bytes, card.head_bytes), default=0)
    return FIXED_BYTES + min(FILE_BYTES, out_bytes) + 2 * (piece or card.weights_bytes)


def made_bytes(card: ModelCard, bits: Bits, group_size: GroupSize) -> int:
    """Return what the files of a model made of another take at most, beside those as large as
    before."""
    packed = card.parameters * bits // 8 + card.parameters * SCALE_BYTES // group_size
    return min(card.size_bytes, packed + packed // 20)


def _name_refusal(
    command: QuantizeModel, nodes: Sequence[NodeCapacity], state: ClusterState
) -> Refusal | None:
    name = command.name
    if not is_model_id(name) or name.endswith(":latest") or ":" in name:
        text = f"{name!r} cannot be the name of a model on a disk"
        return Refusal(reason="bad_request", message=text, field="name")
    holders = [node.name for node in nodes if node.card_of(name) or node.partial_of(name)]
    if holders:
        taken = f"a model on {', '.join(holders)}"
    elif any(one.name == name for one in state.derived.values()):
        taken = "a derived model"
    elif any(one.model == name and one.status != "failed" for one in state.instances.values()):
        taken = "a model in memory, or one that is being made"
    else:
        return None
    text = f"{name} is {taken}; give what is made another name (--name)"
    return Refusal(reason="conflict", message=text, field="name")


def _having(
    command: QuantizeModel, nodes: Sequence[NodeCapacity], state: ClusterState
) -> list[tuple[NodeCapacity, ModelCard]] | Refusal:
    """Return the nodes that may do it and have the model whole, each with its card."""
    source, wanted = command.quantizing.source, command.node
    found = [(node, card) for node in nodes if (card := node.card_of(source)) is not None]
    if not found:
        known = [node.name for node in nodes if node.partial_of(source)]
        part = f", which {', '.join(known)} has in part alone" if known else ""
        text = f"no node that may have new work has {source}{part}; get it: shoal pull {source}"
        return Refusal(reason="unknown_model", message=text, field="model")
    here = [one for one in found if wanted in (None, one[0].id)]
    if not here:
        known = state.nodes.get(wanted) if wanted else None
        there = ", ".join(node.name for node, _ in found)
        text = f"{source} is not on {known.name if known else wanted}; it is on {there}"
        return Refusal(reason="unknown_node", message=text, field="node")
    card = here[0][1]
    if card.makes != "text":
        text = f"{source} is an embedding model; models that make text are made smaller"
        return Refusal(reason="unsupported", message=text, field="model")
    if card.quantization != "none":
        what = f"{source} is {card.quantization} already"
        origin = f": take {card.made_from}" if card.made_from else ", if it is to be had"
        text = f"{what}; bits are taken off the weights that it was made from{origin}"
        return Refusal(reason="bad_request", message=text, field="model")
    return here


def _fitting(
    command: QuantizeModel, having: Sequence[tuple[NodeCapacity, ModelCard]]
) -> list[tuple[NodeCapacity, ModelCard]] | Refusal:
    """Return those with a slot, memory and disk for it; the last one's refusal where none has."""
    found: list[tuple[NodeCapacity, ModelCard]] = []
    refusal: Refusal | None = None
    for node, card in having:
        said = _no_room(command, node, card)
        if said is None:
            found.append((node, card))
        refusal = said or refusal
    assert found or refusal is not None, "some node has it"
    return found or refusal or []


def _no_room(command: QuantizeModel, node: NodeCapacity, card: ModelCard) -> Refusal | None:
    order = command.quantizing
    if node.card.cannot_run:
        text = f"{node.name} {node.card.cannot_run}"
        return Refusal(reason="not_ready", message=text, retry_after_s=RETRY_S)
    if node.reading is None or node.free_bytes is None:
        text = f"the memory of {node.name} is not measured yet"
        return Refusal(reason="pending", message=text, retry_after_s=2.0)
    if not node.has_slot:
        text = f"{node.name}: every runner slot is taken; unload a model"
        return Refusal(reason="no_capacity", message=text, retry_after_s=RETRY_S)
    made = made_bytes(card, order.bits, order.group_size)
    need = memory_bytes(card, made)
    if need > node.usable_bytes:
        text = (
            f"making {command.name} takes {gb(need)} GB of memory; {node.name} can give "
            f"{gb(node.usable_bytes)} GB: unload a model"
        )
        facts = {"need_bytes": need, "usable_bytes": node.usable_bytes}
        return Refusal(reason="insufficient_memory", message=text, facts=facts)
    free = node.reading.disk_free_bytes - DISK_MARGIN_BYTES
    if made > free:
        text = (
            f"{command.name} takes up to {gb(made)} GB on disk; {node.name} has {gb(max(0, free))} "
            f"GB beyond the {gb(DISK_MARGIN_BYTES)} GB that stay free: make room"
        )
        return Refusal(
            reason="disk_full", message=text, facts={"need_bytes": made, "free_bytes": free}
        )
    return None


def _instance(
    command: QuantizeModel, node: NodeCapacity, card: ModelCard, fresh: InstanceId
) -> Instance:
    order = command.quantizing
    backend = resolve_backend(card, node.card.backends) or ""
    shard = Shard(
        rank=0,
        node=node.id,
        first_layer=0,
        last_layer=card.layers,
        bytes_reserved=memory_bytes(card, made_bytes(card, order.bits, order.group_size)),
        backend=backend,
    )
    return Instance(
        instance=fresh,
        model=ModelId(command.name),
        shards=(shard,),
        backend=backend,
        context_tokens=0,
        keep_alive_s=-1.0,
        quantizes=order,
    )
