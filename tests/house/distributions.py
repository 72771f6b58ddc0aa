"""Sizes as distributions, with an aim for each: methods, lines, rooms, arrows between rooms. Pure.

A maximum becomes a target: code stands where a number has room. So the law also holds the 95th
percentile, and how many classes, files and rooms lie within 5 % of a maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.house import counting
from tests.house.laws import METHODS, ROOM_FILES
from tests.house.purity import MAX_LINES
from tests.house.trees import Tree, dotted

LEAST_FILES = 3
"""A folder of fewer files is no room, unless it holds rooms."""
NEAR = 0.95
AIMS: Mapping[str, Mapping[str, int]] = {
    "sizes": {
        "methods of a class, p95": 14,
        "lines of a file, p95": 300,
        "classes near the limit, per 1000": 30,
        "files near the limit, per 1000": 30,
        "rooms near the limit, per 1000": 30,
    },
    "arrows between rooms": {
        "bus": 34, "runner": 32, "runner/mlx": 20, "gateway": 54, "worker": 14, "master": 10,
    },
}  # fmt: skip
"""Figures that the house is to reach; a larger figure of today is its ceiling until then."""


def figures(tree: Tree) -> dict[str, dict[str, int]]:
    """Return every figure that has an aim, by the same names."""
    methods = sorted(n for _, _, n in counting.method_counts(tree) if n)
    lines = sorted(module.text.count("\n") for module in tree.product)
    rooms = sorted(len(tree.files_of(room)) for room in tree.rooms)
    sizes = {
        "methods of a class, p95": p95(methods),
        "lines of a file, p95": p95(lines),
        "classes near the limit, per 1000": near(methods, METHODS),
        "files near the limit, per 1000": near(lines, MAX_LINES),
        "rooms near the limit, per 1000": near(rooms, ROOM_FILES),
    }
    arrows = {
        floor: len(counting.room_imports(tree, dotted(floor)))
        for floor in AIMS["arrows between rooms"]
    }
    return {"sizes": sizes, "arrows between rooms": arrows}


def beyond_aims(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the figures that exceed their aims, as ceilings count them."""
    return {
        group: {name: n for name, n in values.items() if n > AIMS[group][name]}
        for group, values in figures(tree).items()
    }


def small_rooms(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the folders with fewer than three files and no rooms, as ceilings count them.

    The figure is 1 for each folder; an empty `__init__.py` aside, a door counts as a file.
    """
    return {
        "rooms of fewer than three files": {
            room: 1
            for room in tree.rooms
            if not tree.folders_of(room) and _files(tree, room) < LEAST_FILES
        }
    }


def _files(tree: Tree, room: str) -> int:
    door = tree.modules.get(room)
    has_code = door is not None and counting.functions_of(door) != []
    return len(tree.files_of(room)) + has_code


def p95(values: Sequence[int]) -> int:
    """Return the value that 95 of 100 do not exceed; `values` are sorted; 0 of nothing."""
    return values[int(len(values) * 0.95)] if values else 0


def near(values: Sequence[int], limit: int) -> int:
    """Return how many of 1000 values lie within 5 % of a limit, or above it; rounded up."""
    close = sum(value >= limit * NEAR for value in values)
    return -(-close * 1000 // len(values)) if values else 0
