"""Measures the house: two tables, and with `--against` before and after.

The first has a column for each package. The second has totals of the whole repository
(`totals.py`): docs, settings, docstrings, lines, names, findings of the prose checker, exceptions.

    python -m tests.house.measure [--root DIR] [--json] [--against FILE] [--lists]

Also measures another checkout (`--root`). What is counted:

- *things on the floor*: files (with `__main__.py`, without `__init__.py`) and folders that hold
  python, directly in the package; *imports between them*: distinct pairs (importing, imported).
  This gives the known figures of 964311d exactly, but for bus: 45 here, its folder included.
- a column counts what lies in its package, `runner/mlx` apart from `runner`.
- methods are what a class defines with `def`: properties and dunder methods too. Parameters are
  named ones, `self` left out. Imports are import statements. See `counting.py` for the rest.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.house import counting, counts, totals
from tests.house.trees import FLOORS, ROOT, Module, Tree, dotted

Figures = dict[str, dict[str, int]]
"""Row to (column to figure)."""
TARGETS: dict[str, tuple[int, int]] = {
    "bus": (11, 34),
    "runner": (11, 32),
    "runner/mlx": (7, 20),
    "gateway": (8, 54),
    "worker": (6, 14),
    "master": (6, 10),
}
"""Things on the floor, and at most how many imports between them, once the rooms are there."""
SUM = "sum"


def figures(tree: Tree) -> Figures:
    """Return every figure by row and column; the last column is the whole product's."""
    rows: Figures = {"things on the floor": {}, "imports between them": {}}
    for floor in FLOORS:
        rows["things on the floor"][floor] = len(counting.top_floor(tree, dotted(floor)))
        rows["imports between them"][floor] = len(counting.room_imports(tree, dotted(floor)))
    columns = {floor: _modules_on(tree, floor) for floor in FLOORS} | {SUM: tree.product}
    for name, count in _COUNTS.items():
        rows[name] = {column: count(modules) for column, modules in columns.items()}
    for name, found in lists(tree).items():
        rows[name] = _by_column(list(found), found)
    return rows


def lists(tree: Tree) -> dict[str, dict[str, list[str]]]:
    """Return what is listed by name: row to (subject to the modules that it stands in)."""
    wide = list(counting.method_counts(tree))
    inits = [
        (module, node, counting.parameter_count(method, node))
        for module, node, method in counting.constructors(tree)
    ]
    return {
        "class names in two modules": counting.names_in_two_modules(tree),
        "classes over 20 methods": _named((m, c, n) for m, c, n in wide if n > 20),
        "classes over 15 methods": _named((m, c, n) for m, c, n in wide if n > 15),
        "constructors over 8 parameters": _named((m, c, n) for m, c, n in inits if n > 8),
    }


def _named(found: Iterable[tuple[Module, ast.ClassDef, int]]) -> dict[str, list[str]]:
    return {f"{module.name}:{node.name} ({n})": [module.name] for module, node, n in found}


def _by_column(subjects: Sequence[str], found: dict[str, list[str]]) -> dict[str, int]:
    counted = dict.fromkeys(FLOORS, 0)
    for subject in subjects:
        for floor in {counting.floor_of(module) for module in found[subject]}:
            counted[str(floor)] += 1
    return {**counted, SUM: len(subjects)}


def _modules_on(tree: Tree, floor: str) -> list[Module]:
    return [module for module in tree.product if counting.floor_of(module.name) == floor]


def _over_parameters(modules: list[Module]) -> int:
    return sum(
        counting.parameter_count(function, owner) > 7
        for module in modules
        for function, owner in counting.functions_of(module)
    )


_COUNTS: dict[str, Callable[[list[Module]], int]] = {
    "files": len,
    "lines of code": lambda modules: sum(map(counting.code_lines, modules)),
    "functions": lambda modules: len(counting.lengths_of(modules)),
    "median function, lines": lambda modules: counting.median(counting.lengths_of(modules)),
    "p99 function, lines": lambda modules: counting.p99(counting.lengths_of(modules)),
    "functions over 60 lines": lambda modules: sum(n > 60 for n in counting.lengths_of(modules)),
    "functions over 7 parameters": _over_parameters,
    "modules over 25 imports": lambda modules: sum(
        counting.import_statements(module) > 25 for module in modules
    ),
}


def table(now: Figures, before: Figures | None = None) -> str:
    """Return the table as text; with `before`, cells that changed read `before > now`."""
    columns = [*FLOORS, SUM]
    lines = [["", *columns]]
    for name, row in now.items():
        old = (before or {}).get(name, {})
        lines.append([name, *(_cell(row.get(c), old.get(c)) for c in columns)])
        target = [TARGETS.get(c) for c in columns]
        if name == "things on the floor":
            lines.append(["  to be", *("" if t is None else str(t[0]) for t in target)])
        if name == "imports between them":
            lines.append(["  at most", *("" if t is None else str(t[1]) for t in target)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


def _cell(now: int | None, before: int | None) -> str:
    if now is None:
        return ""
    return str(now) if before in (None, now) else f"{before} > {now}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write the figures as JSON; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.measure")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--json", action="store_true", help="the figures and lists as JSON")
    parser.add_argument("--against", type=Path, help="figures written before, by --json")
    parser.add_argument("--lists", action="store_true", help="name what is counted by name")
    chosen = parser.parse_args(arguments)
    tree = Tree(chosen.root.resolve())
    now = figures(tree)
    if chosen.json:
        before = {"figures": now, "lists": lists(tree), "totals": totals.totals(tree)}
        json.dump(before, sys.stdout, indent=1)
        print()
        return 0
    before = json.loads(chosen.against.read_text()) if chosen.against else {}
    print(table(now, before.get("figures")))
    if chosen.against:
        print("\n" + totals.table(totals.totals(tree), before.get("totals", {})))
        print("\n" + "\n".join(counts.aims(tree)))
    if chosen.lists:
        for name, found in lists(tree).items():
            print(f"\n{name}:")
            print("\n".join(f"  {subject}: {', '.join(where)}" for subject, where in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
