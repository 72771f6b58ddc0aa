"""Who makes way for a newcomer: ready, unpinned, idle, of no higher priority.

Pure. Lowest priority goes first (the highest number), then what was used longest ago; as few
as are needed. What is leaving already counts as room to come. Nobody is evicted whose use
is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from bus.wire.instances import Instance
from master.decisions.observations import View
from master.placement.explain import Crowded

EVICT_DRAIN_S = 120.0
"""A request that slipped in while the decision was made may finish."""
SETTLE_S = 2.0
"""After a copy has left, its memory is measured again before another has to go."""


@dataclass(frozen=True, slots=True)
class Refuge:
    """`enough`: when `leaving` and `victims` are gone there is room. Victims in their order."""

    leaving: tuple[Instance, ...]
    victims: tuple[Instance, ...]
    enough: bool


def make_way(
    crowded: Crowded, state: ClusterState, view: View, priority: int, now: float
) -> Refuge:
    """Who has to leave the crowded nodes for a newcomer of `priority`: memory that is missing on
    each, or one slot where memory is not what is missing."""
    short = {one.node for one in crowded.shortages}
    there = [i for i in state.instances.values() if any(s.node in short for s in i.shards)]
    leaving = tuple(i for i in there if i.status == "draining")
    gone = list(leaving)
    victims: list[Instance] = []
    for candidate in _in_order(there, view, priority, now):
        missing = _missing(crowded, gone)
        if not missing:
            break
        if any(shard.node in missing for shard in candidate.shards):
            victims.append(candidate)
            gone.append(candidate)
    return Refuge(leaving, tuple(victims), not _missing(crowded, gone))


def _missing(crowded: Crowded, gone: list[Instance]) -> set[NodeId]:
    """Nodes on which there is no room yet although all of `gone` have left."""
    missing: set[NodeId] = set()
    for one in crowded.shortages:
        freed = [s.bytes_reserved for i in gone for s in i.shards if s.node == one.node]
        if not freed or sum(freed) < one.short_bytes:
            missing.add(one.node)
    return missing


def _in_order(there: list[Instance], view: View, priority: int, now: float) -> list[Instance]:
    idle: list[tuple[int, float, Instance]] = []
    for instance in there:
        if instance.status != "ready" or instance.pinned or instance.priority < priority:
            continue
        use = view.use_of(instance, now)
        if use is not None and not use.open_requests:
            idle.append((-instance.priority, -use.idle_s, instance))
    return [instance for _, _, instance in sorted(idle, key=lambda one: one[:2])]
