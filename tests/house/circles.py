"""Circles of imports between files, those under `if TYPE_CHECKING:` included. Pure.

A file knows another when it imports a name of it, directly or through a door.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.house.trees import Tree


def circles(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the first file of each circle to its number of files, as ceilings count them."""
    return {"circles of imports": {members[0]: len(members) for members in found(tree)}}


def found(tree: Tree) -> list[list[str]]:
    """Return each strongly connected group of two or more modules, sorted."""
    imported = edges(tree)
    importers: dict[str, set[str]] = {}
    for source, targets in imported.items():
        for target in targets:
            importers.setdefault(target, set()).add(source)
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(imported):
        _visit(start, imported, seen, order.append)
    groups: list[list[str]] = []
    seen = set()
    for start in reversed(order):
        group: list[str] = []
        _visit(start, importers, seen, group.append)
        if len(group) > 1:
            groups.append(sorted(group))
    return sorted(groups)


def edges(tree: Tree) -> dict[str, set[str]]:
    """Return module to the modules that it imports, doors looked through."""
    edges: dict[str, set[str]] = {name: set() for name in tree.modules}
    for line in tree.imports:
        home = tree.home_of(line.target, line.name)
        if home in tree.modules and home != line.source:
            edges[line.source].add(home)
    return edges


def _visit(
    start: str, edges: dict[str, set[str]], seen: set[str], add: Callable[[str], None]
) -> None:
    """Call `add` with each unseen module that `start` reaches, deepest first."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(edges.get(start, ()))))]
    while stack:
        name, rest = stack[-1]
        target = next((target for target in rest if target not in seen), None)
        if target is None:
            stack.pop()
            add(name)
        else:
            seen.add(target)
            stack.append((target, iter(sorted(edges.get(target, ())))))
