"""Chooses the node that quantizes a model, with how much memory and disk; or refuses.

Pure. The work is done by an instance of the new model: it takes a runner slot and memory, and is
listed and deleted like any instance. Weights are read, quantized and written piece by piece. So it
needs less memory than the model: a runner's base memory, one output file, and the largest piece
with its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.models.gguf import DTYPE
from bus.models.tasks import COMMAND_DTYPE
from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, is_model_id
from bus.wire.instances import Instance, Shard
from bus.wire.messages.commands import QuantizeModel
from bus.wire.messages.events import EventBody, InstancePlaced, InstanceRemoved
from bus.wire.messages.weights import DISK_MARGIN_BYTES, Bits, GroupSize
from master.placement import FIXED_BYTES, NodeCapacity, at_home, gb, resolve_backend

FILE_BYTES = 1 << 30
"""The largest size of a file of weights, before its last tensor is added. A file is written in one
piece."""
SCALE_BYTES = 8
"""Bytes of the scale and the bias of one group, at their greatest width."""
RETRY_S = 10.0


def decide_quantizing(
    command: QuantizeModel, nodes: Sequence[NodeCapacity], state: ClusterState, fresh: InstanceId
) -> tuple[EventBody, ...] | Refusal:
    """Return the events that start the work, or a refusal. `nodes` are the nodes that take new
    work."""
    refusal = _name_refusal(command, nodes, state)
    if refusal is not None:
        return refusal
    having = _having(command, nodes, state)
    if isinstance(having, Refusal):
        return having
    fitting = _fitting(command, having)
    if isinstance(fitting, Refusal):
        return fitting
    node, card = max(fitting, key=lambda pair: pair[0].usable_bytes)
    failed = (instance for instance in state.instances.values() if instance.model == command.name)
    swept = [InstanceRemoved(instance=old.instance, why="requested again") for old in failed]
    return (*swept, InstancePlaced(instance=_instance(command, node, card, fresh)))


def memory_bytes(card: ModelCard, out_bytes: int) -> int:
    """Return the peak memory, in bytes, of quantizing a model."""
    piece = max((*card.layer_bytes, card.embedding_bytes, card.head_bytes), default=0)
    return FIXED_BYTES + min(FILE_BYTES, out_bytes) + 2 * (piece or card.weights_bytes)


def made_bytes(card: ModelCard, bits: Bits, group_size: GroupSize) -> int:
    """Return the maximum size of the new model's weight files."""
    packed = card.parameters * bits // 8 + card.parameters * SCALE_BYTES // group_size
    return min(card.size_bytes, packed + packed // 20)


def _name_refusal(
    command: QuantizeModel, nodes: Sequence[NodeCapacity], state: ClusterState
) -> Refusal | None:
    name = command.name
    if not is_model_id(name) or name.endswith(":latest") or ":" in name:
        text = f"{name!r} is not a valid name for a model on disk"
        return Refusal(reason="bad_request", message=text, field="name")
    holders = [node.name for node in nodes if node.card_of(name) or node.partial_of(name)]
    if holders:
        taken = f"a model on {', '.join(holders)}"
    elif any(derived.name == name for derived in state.derived.values()):
        taken = "a derived model"
    elif any(
        instance.model == name and instance.status != "failed"
        for instance in state.instances.values()
    ):
        taken = "a model in memory, or a model that is being made"
    else:
        return None
    text = f"{name} is {taken}; choose another name (--name)"
    return Refusal(reason="conflict", message=text, field="name")


def _having(
    command: QuantizeModel, nodes: Sequence[NodeCapacity], state: ClusterState
) -> list[tuple[NodeCapacity, ModelCard]] | Refusal:
    """Return the available nodes that have the whole model, each with its card."""
    source, wanted = command.quantizing.source, command.node
    holders = [
        (at_home(node, _backend(node, card)), card)
        for node in nodes
        if (card := node.card_of(source)) is not None
    ]
    if not holders:
        seat = [node.name for node in nodes if node.partial_of(source)]
        part = f" ({', '.join(seat)} has only a part)" if seat else ""
        text = f"no available node has {source}{part}; run `shoal pull {source}`"
        return Refusal(reason="unknown_model", message=text, field="model")
    here = [holder for holder in holders if wanted in (None, holder[0].id)]
    if not here:
        seat = state.nodes.get(wanted) if wanted else None
        there = ", ".join(node.name for node, _ in holders)
        text = f"{source} is not on {seat.name if seat else wanted}; it is on {there}"
        return Refusal(reason="unknown_node", message=text, field="node")
    card = here[0][1]
    if card.makes != "text":
        text = f"{source} is an embedding model; only text models can be quantized"
        return Refusal(reason="unsupported", message=text, field="model")
    if card.dtype == COMMAND_DTYPE:
        text = f"{source} is a program of engines.toml; only model files can be quantized"
        return Refusal(reason="unsupported", message=text, field="model")
    if card.dtype == DTYPE:
        text = f"{source} is a GGUF model; quantize the MLX version of it"
        return Refusal(reason="unsupported", message=text, field="model")
    if card.quantization != "none":
        what = f"{source} is already quantized to {card.quantization}"
        origin = f", {card.made_from}" if card.made_from else ""
        text = f"{what}; quantize the model that it was made from{origin}"
        return Refusal(reason="bad_request", message=text, field="model")
    return here


def _fitting(
    command: QuantizeModel, having: Sequence[tuple[NodeCapacity, ModelCard]]
) -> list[tuple[NodeCapacity, ModelCard]] | Refusal:
    """Return the nodes that have a free slot and enough memory and disk for the work. If there are
    none, return the reason against the last node."""
    fitting: list[tuple[NodeCapacity, ModelCard]] = []
    refusal: Refusal | None = None
    for node, card in having:
        reason = _no_room(command, node, card)
        if reason is None:
            fitting.append((node, card))
        refusal = reason or refusal
    assert fitting or refusal is not None, "no node has the model"
    return fitting or refusal or []


def _no_room(command: QuantizeModel, node: NodeCapacity, card: ModelCard) -> Refusal | None:
    order = command.quantizing
    if node.card.cannot_run:
        text = f"{node.name} {node.card.cannot_run}"
        return Refusal(reason="not_ready", message=text, retry_after_s=RETRY_S)
    if node.reading is None or node.free_bytes is None:
        text = f"the memory of {node.name} is not measured yet"
        return Refusal(reason="pending", message=text, retry_after_s=2.0)
    if not node.has_slot:
        text = f"{node.name}: no runner slot is free; unload a model"
        return Refusal(reason="no_capacity", message=text, retry_after_s=RETRY_S)
    made = made_bytes(card, order.bits, order.group_size)
    need = memory_bytes(card, made)
    if need > node.usable_bytes:
        text = (
            f"making {command.name} needs {gb(need)} GB of memory; {node.name} has "
            f"{gb(node.usable_bytes)} GB available; unload a model"
        )
        facts = {"need_bytes": need, "usable_bytes": node.usable_bytes}
        return Refusal(reason="insufficient_memory", message=text, facts=facts)
    free = node.reading.disk_free_bytes - DISK_MARGIN_BYTES
    if made > free:
        text = (
            f"{command.name} needs up to {gb(made)} GB of disk; {node.name} has {gb(max(0, free))} "
            f"GB beyond the {gb(DISK_MARGIN_BYTES)} GB that stay free; free disk space"
        )
        return Refusal(
            reason="disk_full", message=text, facts={"need_bytes": made, "free_bytes": free}
        )
    return None


def _instance(
    command: QuantizeModel, node: NodeCapacity, card: ModelCard, fresh: InstanceId
) -> Instance:
    order = command.quantizing
    backend = _backend(node, card)
    need = memory_bytes(card, made_bytes(card, order.bits, order.group_size))
    shard = Shard(
        rank=0,
        node=node.id,
        first_layer=0,
        last_layer=card.layers,
        bytes_reserved=need,
        backend=backend,
        devices=node.shares(need),
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


def _backend(node: NodeCapacity, card: ModelCard) -> str:
    return resolve_backend(card, node.card.backends) or ""
