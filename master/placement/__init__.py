"""Decides on which nodes a model is placed: its memory and speed, the search over nodes, and the
reasons for a refusal.

Pure arithmetic, polynomial in the number of nodes. It knows node cards, nodes and links, but no
commands.
"""

from master.placement.availability import PlacementSpec, offering
from master.placement.capacity import (
    LeasedMemory,
    NodeCapacity,
    at_home,
    node_capacities,
    resolve_backend,
    supposing,
)
from master.placement.explain import PENDING_RETRY_S, Crowded
from master.placement.gpus import KEPT_BYTES, DeviceRoom, Home
from master.placement.memory_cost import FIXED_BYTES, RunnerSizing, gb
from master.placement.pipeline_search import MAX_RANKS
from master.placement.place import place, single_costs
from master.placement.preview import plan_of, previews
from master.placement.search import Placement
from master.placement.speed import Links, read_s_per_byte

__all__ = [
    "FIXED_BYTES",
    "KEPT_BYTES",
    "MAX_RANKS",
    "PENDING_RETRY_S",
    "Crowded",
    "DeviceRoom",
    "Home",
    "LeasedMemory",
    "Links",
    "NodeCapacity",
    "Placement",
    "PlacementSpec",
    "RunnerSizing",
    "at_home",
    "gb",
    "node_capacities",
    "offering",
    "place",
    "plan_of",
    "previews",
    "read_s_per_byte",
    "resolve_backend",
    "single_costs",
    "supposing",
]  # fmt: skip
