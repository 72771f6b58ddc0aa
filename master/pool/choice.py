"""Chooses the nodes for a model together with the instances that are evicted for it (the victims),
by total cost.

Pure. A cost is in seconds: the time to reload the victims (less, the longer they were idle), the
time until they yield, and the slowdown from a split over nodes. On each node the cheapest
sufficient set is evicted, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from bus.wire.accelerators import DeviceShare
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from master.placement import (
    PENDING_RETRY_S,
    Crowded,
    Links,
    NodeCapacity,
    Placement,
    PlacementSpec,
    RunnerSizing,
    gb,
    place,
    single_costs,
)
from master.pool.ledger import without
from master.pool.turns import Copy, Yielding

UNTOLD_S = 600.0
"""Cost, in seconds, of waiting for an instance whose time of yielding is unknown."""
LOADING_S = 30.0
FORGOTTEN_S = 60.0
"""After this many idle seconds an instance counts as half as likely to be needed again."""
LEAST_S = 0.001
SPLIT_S, GROUP_S = 60.0, 5.0
"""Cost, in seconds, of a split over nodes: `SPLIT_S` times the relative slowdown of a token, plus
`GROUP_S`."""
ROOM_RETRY_S = 5.0
"""Retry time, in seconds, of a refusal for lack of memory."""
MOST_TRIED = 10
"""Maximum number of instances on a node that are considered for eviction, cheapest first."""


@dataclass(frozen=True, slots=True)
class Victim:
    """An instance that may be evicted, when, and at which cost. The cost is 0 if the instance is
    already being unloaded, or is a replica."""

    copy: Copy
    yielding: Yielding
    cost_s: float


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """Where a model goes, the bytes that it needs on each node, `devices`: how many of these are on
    which GPU, and the victims, cheapest first.
    `placement` is set if it fits now; otherwise `refusal` says what is missing. `load_s`: the
    expected load time."""

    needs: dict[NodeId, int]
    victims: tuple[Victim, ...] = ()
    placement: Placement | None = None
    refusal: Refusal | None = None
    cost_s: float = 0.0
    load_s: float = 0.0
    devices: Mapping[NodeId, tuple[DeviceShare, ...]] = field(
        default_factory=dict[NodeId, tuple[DeviceShare, ...]]
    )


@dataclass(frozen=True, slots=True)
class Hopeless:
    """The result if eviction cannot help: the memory that the model needs is occupied by pinned
    instances."""

    refusal: Refusal


def victim(copy: Copy, given: Yielding, now: float) -> Victim:
    """Return an instance with the cost of its eviction."""
    if given.leaves or (copy.replica and given.at <= now):
        return Victim(copy, given, 0.0)
    wait_s = max(0.0, given.at - now)
    if math.isinf(wait_s):
        wait_s = LOADING_S if copy.instance.status == "placed" else UNTOLD_S
    idle_s = copy.use.idle_s if copy.use is not None and given.idle else 0.0
    again_s = copy.load_s / (1.0 + idle_s / FORGOTTEN_S)
    return Victim(copy, given, max(LEAST_S, again_s + wait_s))


def choose(
    spec: PlacementSpec,
    nodes: Sequence[NodeCapacity],
    sizing: RunnerSizing,
    links: Links,
    candidates: Sequence[Victim],
    *,
    unpromised: Sequence[NodeCapacity] = (),
    everyone: Sequence[Victim] = (),
) -> PoolChoice | Refusal | Hopeless:
    """Return the nodes for a model and the instances that are evicted for it. Return a refusal if
    neither waiting nor more memory would help, or `Hopeless` if only pinned instances are in the
    way. `nodes` have the memory that is not reserved for other models; `candidates` are the
    instances that are not being evicted for others. `unpromised` and `everyone` are all nodes and
    instances, without these restrictions."""
    verdict = place(spec, nodes, sizing, links)
    if isinstance(verdict, Refusal):
        return verdict
    may_be_single = not spec.layers and spec.sharding is None and spec.min_nodes <= 1
    options: list[PoolChoice] = []
    if isinstance(verdict, Placement):
        choice = _as_placed(verdict)
        if len(choice.needs) == 1:
            return choice
        options.append(choice)
    if may_be_single:
        options += _singles(spec, nodes, sizing, links, candidates)
    if isinstance(verdict, Crowded):
        leaving = [victim for victim in candidates if victim.yielding.ever]
        emptied = [without(node, [c.copy.instance for c in leaving]) for node in nodes]
        roomy = place(spec, emptied, sizing, links)
        if isinstance(roomy, Placement) and (len(roomy.ranks) > 1 or not may_be_single):
            options += _group(roomy, nodes, leaving)
        options = [replace(option, refusal=verdict.refusal) for option in options]
        if not options:
            pinned = sorted({o.copy.instance.model for o in everyone if not o.yielding.ever})
            leaving = [victim for victim in everyone if victim.yielding.ever]
            emptied = [without(node, [c.copy.instance for c in leaving]) for node in unpromised]
            if pinned and not isinstance(place(spec, emptied, sizing, links), Placement):
                return _in_vain(verdict.refusal, pinned)
            return verdict.refusal
    options = _replicas_first(options)
    return min(options, key=lambda option: (option.cost_s, len(option.victims)))


def choose_room(
    size_bytes: int,
    nodes: Sequence[NodeCapacity],
    candidates: Sequence[Victim],
    *,
    unpromised: Sequence[NodeCapacity] = (),
    everyone: Sequence[Victim] = (),
) -> PoolChoice | Refusal | Hopeless:
    """Return the node for a lease of `size_bytes` and the instances that are evicted for it. If
    nothing needs to be evicted, it is the node with the most free memory. The other parameters are
    those of `choose`."""
    leaving = [victim for victim in candidates if victim.yielding.ever]
    options: list[PoolChoice] = []
    for node in nodes:
        chosen = cheapest(node, size_bytes, leaving, slots=0)
        if chosen is not None:
            cost_s = sum(victim.cost_s for victim in chosen)
            options.append(PoolChoice({node.id: size_bytes}, tuple(chosen), cost_s=cost_s))
    refusal = _no_room(size_bytes, nodes)
    if options:
        usable = {node.id: node.usable_bytes for node in nodes}

        def order(option: PoolChoice) -> tuple[float, int, int]:
            """Return the sort key of an option, by its cost."""
            return option.cost_s, len(option.victims), -usable[next(iter(option.needs))]

        best = min(_replicas_first(options), key=order)
        return replace(best, refusal=refusal if best.victims else None)
    if refusal.retry_after_s is None:
        return refusal
    pinned = sorted({victim.copy.instance.model for victim in everyone if not victim.yielding.ever})
    gone = [victim.copy.instance for victim in everyone if victim.yielding.ever]
    if pinned and all(without(node, gone).usable_bytes < size_bytes for node in unpromised):
        return _in_vain(refusal, pinned)
    return refusal


def _replicas_first(options: Sequence[PoolChoice]) -> list[PoolChoice]:
    """Return only the options that evict nothing but replicas, if replicas are enough; else all
    options."""
    free = [option for option in options if all(victim.cost_s == 0.0 for victim in option.victims)]
    is_enough = any(victim.copy.replica for option in free for victim in option.victims)
    return free if is_enough else list(options)


def _no_room(size_bytes: int, nodes: Sequence[NodeCapacity]) -> Refusal:
    """Return the refusal of a lease because no node has enough free memory now. It has no retry
    time if no node can ever have enough."""
    measured = [node for node in nodes if node.reading is not None]
    if not measured:
        text = "no memory reading has arrived yet; check that `telemetry` is running"
        return Refusal(reason="pending", message=text, retry_after_s=PENDING_RETRY_S)
    most = max(measured, key=lambda node: node.ceiling_bytes)
    facts: dict[str, object] = {
        "size_bytes": size_bytes,
        "usable_bytes": {node.name: node.usable_bytes for node in measured},
    }
    if most.ceiling_bytes < size_bytes:
        text = (
            f"too much memory: {gb(size_bytes)} GB; the largest limit is "
            f"{gb(most.ceiling_bytes)} GB on {most.name}"
        )
        return Refusal(reason="insufficient_memory", message=text, field="size_bytes", facts=facts)
    free = ", ".join(f"{node.name} {gb(node.usable_bytes)} GB" for node in measured)
    return Refusal(
        reason="no_capacity",
        message=f"no node has {gb(size_bytes)} GB available: {free}",
        retry_after_s=ROOM_RETRY_S,
        facts=facts,
    )


def _as_placed(placed: Placement) -> PoolChoice:
    needs = {rank.copy.node.id: rank.need.total for rank in placed.ranks}
    loss_s = 0.0
    if len(placed.ranks) > 1:
        alone_s = sum(rank.read_s for rank in placed.ranks)
        slower = placed.token_s / (alone_s or math.inf) - 1.0
        loss_s = GROUP_S + SPLIT_S * max(0.0, slower)
    devices = {
        rank.copy.node.id: rank.copy.node.shares(rank.need.total)
        for rank in placed.ranks
        if rank.devices
    }
    return PoolChoice(needs, placement=placed, cost_s=loss_s, devices=devices)


def _singles(
    spec: PlacementSpec,
    nodes: Sequence[NodeCapacity],
    sizing: RunnerSizing,
    links: Links,
    candidates: Sequence[Victim],
) -> list[PoolChoice]:
    choices: list[PoolChoice] = []
    leaving = [victim for victim in candidates if victim.yielding.ever]
    for node, need, fetch_s in single_costs(spec, nodes, sizing, links):
        chosen = cheapest(node, need, leaving)
        if chosen is not None:
            cost_s = fetch_s + sum(victim.cost_s for victim in chosen)
            devices = _devices(node, need, chosen)
            choices.append(
                PoolChoice({node.id: need}, tuple(chosen), cost_s=cost_s, devices=devices)
            )
    return choices


def _group(
    roomy: Placement, nodes: Sequence[NodeCapacity], leaving: Sequence[Victim]
) -> list[PoolChoice]:
    by_id = {node.id: node for node in nodes}
    needs = {rank.copy.node.id: rank.need.total for rank in roomy.ranks}
    homes = {rank.copy.node.id: rank.copy.node.home for rank in roomy.ranks}
    chosen: dict[str, Victim] = {}
    for node, need in needs.items():
        for_nothing = [victim for victim in leaving if victim.copy.instance.instance in chosen]
        at_home = replace(by_id[node], home=homes[node])
        here = without(at_home, [victim.copy.instance for victim in for_nothing])
        others = [victim for victim in leaving if victim.copy.instance.instance not in chosen]
        more = cheapest(here, need, others)
        if more is None:
            return []
        chosen |= {victim.copy.instance.instance: victim for victim in more}
    victims = tuple(sorted(chosen.values(), key=lambda victim: victim.cost_s))
    devices: dict[NodeId, tuple[DeviceShare, ...]] = {}
    for node, need in needs.items():
        devices |= _devices(replace(by_id[node], home=homes[node]), need, victims)
    cost_s = sum(victim.cost_s for victim in victims)
    return [PoolChoice(needs, victims, cost_s=cost_s, devices=devices)]


def _devices(
    node: NodeCapacity, need: int, victims: Iterable[Victim]
) -> dict[NodeId, tuple[DeviceShare, ...]]:
    """Return what a model takes of each GPU of its home once the victims are gone, by node; empty
    for a model in the machine's memory."""
    emptied = without(node, [victim.copy.instance for victim in victims])
    shares = emptied.shares(need)
    return {node.id: shares} if shares else {}


def cheapest(
    node: NodeCapacity, need: int, candidates: Iterable[Victim], slots: int = 1
) -> list[Victim] | None:
    """Return the cheapest instances whose eviction frees `need` bytes and `slots` runner slots on a
    node, cheapest first. Empty if enough is free already; None if evicting all candidates is not
    enough."""
    there = [
        victim
        for victim in candidates
        if any(shard.node == node.id for shard in victim.copy.instance.shards)
    ]
    there = sorted(there, key=lambda lease: lease.cost_s)[:MOST_TRIED]
    best: tuple[float, list[Victim]] | None = None
    for size in range(len(there) + 1):
        for chosen in combinations(there, size):
            cost_s = sum(victim.cost_s for victim in chosen)
            if best is not None and cost_s >= best[0]:
                continue
            room = without(node, [victim.copy.instance for victim in chosen])
            fits = not slots or room.shards + slots <= room.card.slots
            if fits and need <= room.usable_bytes:
                best = (cost_s, list(chosen))
    return None if best is None else best[1]


def _in_vain(refusal: Refusal, pinned: Sequence[str]) -> Hopeless:
    """Return `Hopeless`, with the refusal's text and the pinned models: no eviction helps, because
    these models are pinned."""
    text = f"{refusal.message}; pinned models take the memory: {', '.join(pinned)}; unpin one"
    facts = {**refusal.facts, "pinned": list(pinned)}
    update = {"message": text, "facts": facts, "retry_after_s": None}
    return Hopeless(refusal.model_copy(update=update))
