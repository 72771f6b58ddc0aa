"""Decides where a collective test (of the communication between ranks) runs, or why it is refused,
and when the test has ended.

Pure. A test is an instance without a model: its ranks are placed, started and watched like those of
any group, and its memory counts like that of a loading model. Sizes that exceed the smallest rank's
memory are skipped on all ranks. Only one test runs at a time. It has one generation: if one rank's
process ends, the whole test ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations

from bus.hardware.collective_test import ARRAYS, ELEMENT_BYTES, SIZES, order_of
from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.collectives import TEST_MODEL, Backend
from bus.wire.messages.commands import RunCollectiveTest
from bus.wire.messages.events import (
    EventBody,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    LoadRefused,
    RunnerEnded,
    RunnerUnloaded,
)
from bus.wire.topology import rdma_mesh
from master.decisions.observations import Observations
from master.placement import FIXED_BYTES, MAX_RANKS, NodeCapacity, at_home, gb

ENGINE = "mlx-"
LEAST_BYTES = ARRAYS * SIZES[0] * ELEMENT_BYTES
"""Minimum memory in bytes for the arrays of a rank; with less, nothing could be measured."""
FAILED_S = 60.0
"""A failed test is listed for this many seconds."""
STOPPED = 0
"""The exit code of a runner that ended as requested (`runner.lifecycle`)."""


def decide_test(
    command: RunCollectiveTest,
    nodes: Sequence[NodeCapacity],
    state: ClusterState,
    fresh: InstanceId,
) -> tuple[EventBody, ...] | Refusal:
    """Return the events that place the test, or a refusal. `nodes` are the nodes that take new
    work."""
    tests = [instance for instance in state.instances.values() if instance.test is not None]
    open_ones = [test.instance for test in tests if test.status != "failed"]
    if open_ones:
        text = f"the collective test {open_ones[0]} has not ended; only one can run at a time"
        return Refusal(reason="conflict", message=text, retry_after_s=10.0)
    chosen = _chosen(command, nodes, state)
    if isinstance(chosen, Refusal):
        return chosen
    backend = _backend(command, chosen)
    if isinstance(backend, Refusal):
        return backend
    room = _room(command, chosen)
    if isinstance(room, Refusal):
        return room
    swept = [InstanceRemoved(instance=test.instance, why="tested again") for test in tests]
    instance = _instance(command, chosen, backend, room, _beside(chosen, state), fresh)
    return (*swept, InstancePlaced(instance=instance))


def follow_test(
    before: Instance, news: RunnerEnded | LoadRefused | RunnerUnloaded
) -> list[EventBody]:
    """Return the events that follow when a rank of a collective test or of a quantization has
    ended. After a normal end, the instance drains. Otherwise it fails, because tests and
    quantizations are tried only once. No event follows if the instance is already draining or
    failed."""
    if isinstance(news, RunnerEnded) and news.exit_code == STOPPED:
        why = "the test finished" if before.quantizes is None else "the quantized model is complete"
        return [InstanceDraining(instance=before.instance, deadline_s=0.0, why=why)]
    match news:
        case RunnerEnded(message=message):
            reason = message
        case LoadRefused(refusal=refusal):
            reason = refusal.message
        case RunnerUnloaded():
            reason = "was unloaded"
    why = reason if before.test is None else f"rank {news.rank} on node {news.node}: {reason}"
    return [InstanceFailed(instance=before.instance, why=why)]


def expire_tests(
    state: ClusterState, observed: Observations, failed_at: Mapping[InstanceId, float], now: float
) -> list[EventBody]:
    """Return the events that drain finished tests or remove failed tests and quantizations. These
    are removed `FAILED_S` after their failure. `failed_at`: when each instance failed, by the
    leader's clock."""
    events: list[EventBody] = []
    for instance in state.instances.values():
        if instance.serves:
            continue
        name = instance.instance
        if instance.status in ("placed", "ready") and observed.has_done(name, len(instance.shards)):
            events.append(InstanceDraining(instance=name, deadline_s=0.0, why="the test finished"))
        if instance.status == "failed" and now - failed_at.get(name, now) >= FAILED_S:
            events.append(InstanceRemoved(instance=name, why=instance.why))
    return events


def _chosen(
    command: RunCollectiveTest, nodes: Sequence[NodeCapacity], state: ClusterState
) -> list[NodeCapacity] | Refusal:
    by_name = {name: node for node in nodes for name in (node.id, node.name)}
    chosen = [by_name[name] for name in command.nodes if name in by_name] or list(nodes)
    absent = [name for name in command.nodes if name not in by_name]
    if absent:
        available = ", ".join(f"{node.name} ({node.id})" for node in nodes) or "none"
        drained = state.nodes.get(absent[0])
        what = (
            f"{drained.name} is drained" if drained is not None and drained.draining
            else f"no node {absent[0]!r} is available"
        )  # fmt: skip
        text = f"{what}; available nodes: {available}"
        return Refusal(reason="unknown_node", message=text, field="nodes")
    if len({node.id for node in chosen}) != len(chosen):
        text = "a node is named twice; name each node once"
        return Refusal(reason="bad_request", message=text, field="nodes")
    broken = [f"{node.name} {node.card.cannot_run}" for node in chosen if node.card.cannot_run]
    if broken:
        return Refusal(reason="not_ready", message="; ".join(broken), retry_after_s=30.0)
    if len(chosen) < 2:
        there = f"there is only {chosen[0].name}" if chosen else "no node has announced itself"
        return Refusal(
            reason="unsupported",
            message=f"a collective test needs at least two nodes; {there} (add one with "
            "`shoal up --peers HOST:PORT`)",
            field="nodes",
            facts={"nodes": len(chosen)},
        )
    if len(chosen) > MAX_RANKS:
        text = f"too many nodes: {len(chosen)}; a group has at most {MAX_RANKS} ranks"
        return Refusal(reason="unsupported", message=text, field="nodes")
    unable = [s.name for s in chosen if not _tag(s)]
    if unable:
        text = f"{', '.join(unable)}: MLX does not run there"
        return Refusal(reason="unsupported", message=text, field="nodes")
    full = [node.name for node in chosen if not node.has_slot]
    if full:
        text = f"{', '.join(full)}: no runner slot is free; unload a model"
        return Refusal(reason="no_capacity", message=text)
    return [at_home(node, _tag(node)) for node in chosen]


def _backend(command: RunCollectiveTest, chosen: Sequence[NodeCapacity]) -> Backend | Refusal:
    order, devices = [node.id for node in chosen], {node.id: node.card.rdma for node in chosen}
    if rdma_mesh(order, devices):
        return command.backend or "jaccl"
    if command.backend != "jaccl":
        return "ring"
    pairs = permutations(chosen, 2)
    node, other = next((a, b) for a, b in pairs if b.id not in a.card.rdma)
    down = ", ".join(port.device for port in node.card.rdma_ports if not port.active)
    ports = "RDMA ports lead elsewhere" if node.card.rdma_ports else "no RDMA port"
    ports = f"not PORT_ACTIVE: {down}" if down else ports
    return Refusal(
        reason="unsupported",
        message=(
            f"JACCL needs an active RDMA device from each node to every other; {node.name} has "
            f"none to {other.name} ({ports}; run `rdma_ctl status` and `ibv_devinfo` there)"
        ),
        field="backend",
    )


def _room(command: RunCollectiveTest, chosen: Sequence[NodeCapacity]) -> int | Refusal:
    """Return the bytes that each rank may use for its arrays, or a refusal. Nodes of one machine
    share its memory."""
    unmeasured = [node.name for node in chosen if node.free_bytes is None]
    if unmeasured:
        text = f"the memory of {', '.join(unmeasured)} is not measured yet"
        return Refusal(reason="pending", message=text, retry_after_s=2.0)
    crowd = Counter(node.machine_id for node in chosen)
    rooms = {n.id: n.usable_bytes // crowd[n.machine_id] - FIXED_BYTES for n in chosen}
    tightest = min(chosen, key=lambda node: rooms[node.id])
    if rooms[tightest.id] < LEAST_BYTES:
        need = FIXED_BYTES + LEAST_BYTES
        return Refusal(
            reason="insufficient_memory",
            message=(
                f"a rank needs at least {gb(need)} GB; {tightest.name} has "
                f"{gb(rooms[tightest.id] + FIXED_BYTES)} GB available"
            ),
            facts={"need_bytes": need, "usable_bytes": rooms[tightest.id] + FIXED_BYTES},
        )
    least = rooms[tightest.id]
    if command.memory_bytes is None:
        return least
    if command.memory_bytes - FIXED_BYTES < LEAST_BYTES:
        text = (
            f"memory_bytes is too small: a rank needs at least {gb(FIXED_BYTES + LEAST_BYTES)} GB"
        )
        return Refusal(reason="bad_request", message=text, field="memory_bytes")
    return min(least, command.memory_bytes - FIXED_BYTES)


def _beside(chosen: Sequence[NodeCapacity], state: ClusterState) -> tuple[str, ...]:
    here: set[NodeId] = {node.id for node in chosen}
    return tuple(
        sorted(
            f"{instance.model} ({instance.instance})"
            for instance in state.instances.values()
            if instance.status != "failed" and any(shard.node in here for shard in instance.shards)
        )
    )


def _instance(
    command: RunCollectiveTest,
    chosen: Sequence[NodeCapacity],
    backend: Backend,
    room_bytes: int,
    beside: tuple[str, ...],
    fresh: InstanceId,
) -> Instance:
    test = order_of(command.mode, room_bytes, beside)
    need = FIXED_BYTES + ARRAYS * test.cap_bytes
    shards = tuple(
        Shard(
            rank=rank,
            node=node.id,
            first_layer=0,
            last_layer=0,
            bytes_reserved=need,
            backend=_tag(node),
            devices=node.shares(need),
        )
        for rank, node in enumerate(chosen)
    )
    return Instance(
        instance=fresh,
        model=TEST_MODEL,
        shards=shards,
        sharding="tensor",
        collectives=backend,
        backend=shards[0].backend,
        context_tokens=0,
        keep_alive_s=-1.0,
        test=test,
    )


def _tag(node: NodeCapacity) -> str:
    return next((tag for tag in node.card.backends if tag.startswith(ENGINE)), "")
