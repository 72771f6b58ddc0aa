"""Which instances leave for a new one: ready, unpinned, idle ones of no higher priority.

Pure. Lowest priority goes first (the highest number), then what was used longest ago; as few
as are needed. What is leaving already counts as room to come. An instance whose use is
not known stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from bus.wire.instances import Instance
from master.decisions.observations import Observations
from master.placement import Crowded

EVICT_DRAIN_S = 120.0
"""A request that slipped in while the decision was made may finish."""
SETTLE_S = 2.0
"""After a copy has left, its memory is measured again before another has to go."""


@dataclass(frozen=True, slots=True)
class Evictions:
    """Instances that leave already, and those to drain, in order. `enough`: when all of them are
    gone there is room."""

    leaving: tuple[Instance, ...]
    victims: tuple[Instance, ...]
    enough: bool


def plan_evictions(
    crowded: Crowded, state: ClusterState, observed: Observations, priority: int, now: float
) -> Evictions:
    """Return the fewest instances to drain, in order, for a new one of `priority`.

    On each crowded node they free the memory that is missing, or one slot where only that is.
    """
    short, held = crowded.shortages, state.instances.values()
    there = [i for i in held if any(s.node in short for s in i.shards)]
    leaving = tuple(i for i in there if i.status == "draining")
    gone = list(leaving)
    victims: list[Instance] = []
    for candidate in _in_order(there, observed, priority, now):
        missing = _missing(crowded, gone)
        if not missing:
            break
        if any(shard.node in missing for shard in candidate.shards):
            victims.append(candidate)
            gone.append(candidate)
    return Evictions(leaving, tuple(victims), not _missing(crowded, gone))


def _missing(crowded: Crowded, gone: list[Instance]) -> set[NodeId]:
    """Return the nodes on which there is no room yet although all of `gone` have left."""
    missing: set[NodeId] = set()
    for node, short_bytes in crowded.shortages.items():
        freed = [s.bytes_reserved for i in gone for s in i.shards if s.node == node]
        if not freed or sum(freed) < short_bytes:
            missing.add(node)
    return missing


def _in_order(
    there: list[Instance], observed: Observations, priority: int, now: float
) -> list[Instance]:
    """Return the instances that may be drained, lowest priority first, then longest idle."""
    idle: list[tuple[int, float, Instance]] = []
    for instance in there:
        if instance.status != "ready" or instance.pinned or instance.priority < priority:
            continue
        use = observed.use_of(instance, now)
        if use is not None and not use.open_requests:
            idle.append((-instance.priority, -use.idle_s, instance))
    return [instance for _, _, instance in sorted(idle, key=lambda one: one[:2])]
