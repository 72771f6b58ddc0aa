"""Who makes way for a newcomer: ready, unpinned, idle, of no higher priority.

Pure. Lowest priority goes first (the highest number), then what was used longest ago; as few
as are needed. What is leaving already counts as room to come. Nobody is evicted whose use
is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.instances import Instance
from bus.state import ClusterState
from master.placement import Crowded
from master.view import View

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
    """Who has to leave `crowded.node` for a newcomer of `priority`: memory that is missing,
    or one slot where memory is not what is missing."""
    there = [i for i in state.instances.values() if any(_shares(i, crowded))]
    leaving = tuple(i for i in there if i.status == "draining")
    freed, gone = sum(_bytes(i, crowded) for i in leaving), len(leaving)
    victims: list[Instance] = []
    for candidate in _in_order(there, view, priority, now):
        if _is_room(crowded, freed, gone):
            break
        victims.append(candidate)
        freed, gone = freed + _bytes(candidate, crowded), gone + 1
    return Refuge(leaving, tuple(victims), _is_room(crowded, freed, gone))


def _is_room(crowded: Crowded, freed_bytes: int, gone: int) -> bool:
    return gone > 0 and freed_bytes >= crowded.short_bytes


def _in_order(there: list[Instance], view: View, priority: int, now: float) -> list[Instance]:
    idle: list[tuple[int, float, Instance]] = []
    for instance in there:
        if instance.status != "ready" or instance.pinned or instance.priority < priority:
            continue
        use = view.use_of(instance, now)
        if use is not None and not use.open_requests:
            idle.append((-instance.priority, -use.idle_s, instance))
    return [instance for _, _, instance in sorted(idle, key=lambda one: one[:2])]


def _shares(instance: Instance, crowded: Crowded) -> list[int]:
    return [s.bytes_reserved for s in instance.shards if s.node == crowded.node]


def _bytes(instance: Instance, crowded: Crowded) -> int:
    return sum(_shares(instance, crowded))
