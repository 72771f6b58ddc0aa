"""Write the rooms and the lives of docs/tour.md from the source.

What stands above the heading `## Rooms` is written by hand and kept. Below it: for each package
a picture of its rooms with the arrows of their imports, the law of each room, the law of each
module; then a picture of every table of states in the product.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from tests.house.counting import room_imports, top_floor
from tests.house.trees import Module, Tree, dotted

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tour.md"
FLOORS = (
    "bus",
    "master",
    "worker",
    "runner",
    "runner/mlx",
    "gateway",
    "gateway/cli",
    "telemetry",
    "conf",
)
"""The folders that get a section, in this order."""
MARK = "## Rooms\n"
INTRODUCTION = """
Made by `make docs`: the pictures from the imports, the laws from the first lines of rooms and
modules. An arrow goes from what imports to what is imported; one that follows from others is left
out. Boxes are rooms, round ones single files.
"""
LIVES = """
## Lives

Made by `make docs` from the tables in the code: a state, a signal, the next state. A signal that a
table does not list changes nothing.
"""

Edge = tuple[str, str]


def page() -> str:
    """Return the page: the text above MARK as it is, everything below it made anew."""
    by_hand, mark, _ = PAGE.read_text().partition(MARK)
    return by_hand + mark + made(Tree())


def made(tree: Tree) -> str:
    """Return everything below MARK."""
    return INTRODUCTION + "".join(section(tree, floor) for floor in FLOORS) + lives(tree)


def section(tree: Tree, floor: str) -> str:
    """Return one package: its law, its picture, its rooms, its modules."""
    name = dotted(floor)
    parts = [f"\n### {floor}/\n\n{law(tree.modules[name])}\n", picture(tree, name)]
    rooms = tree.folders_of(name)
    if rooms:
        parts.append("\n| room | its law |\n|---|---|\n")
        parts += [f"| `{_path(room)}/` | {law(tree.modules[room])} |\n" for room in rooms]
    elsewhere = {dotted(other) for other in FLOORS if other.startswith(f"{floor}/")}
    parts.append("\n| module | its law |\n|---|---|\n")
    parts += [
        f"| `{module.path.removeprefix(floor + '/')}` | {_first(module)} |\n"
        for module in sorted(tree.product, key=lambda module: module.path)
        if module.path.startswith(floor + "/")
        and not module.is_room
        and not any(module.name.startswith(f"{room}.") for room in elsewhere)
    ]
    return "".join(parts)


def law(module: Module) -> str:
    """Return the whole docstring of a module as one line that a table may hold."""
    return " ".join((ast.get_docstring(module.tree) or "").split()).replace("|", "\\|")


def picture(tree: Tree, name: str) -> str:
    """Draw the things on a dotted floor and the imports between them; empty for fewer than two."""
    things = top_floor(tree, name)
    edges = reduced(sorted(room_imports(tree, name)))
    if not edges:
        return ""
    folders = {room.rpartition(".")[2] for room in tree.folders_of(name)}
    lines = ["\n```mermaid", "flowchart TB"]
    keys = {thing: f"r{number}" for number, thing in enumerate(things)}
    for thing, key in keys.items():
        label = thing.rpartition(".")[2]
        lines.append(f'    {key}["{label}/"]' if label in folders else f'    {key}("{label}")')
    lines += [f"    {keys[source]} --> {keys[target]}" for source, target in edges]
    return "\n".join([*lines, "```\n"])


def reduced(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges without those that a longer way makes superfluous."""
    kept = list(edges)
    for edge in edges:
        others = [other for other in kept if other != edge]
        if edge[1] in _reached(edge[0], others):
            kept = others
    return kept


def lives(tree: Tree) -> str:
    """Draw every table of states, with what its docstring says."""
    parts = [LIVES]
    for module in tree.product:
        for name, table, about in state_tables(module):
            parts.append(f"\n### `{name}` in `{module.path}`\n\n{about or _first(module)}\n")
            parts.append(diagram(table))
    return "".join(parts)


def state_tables(
    module: Module,
) -> Iterator[tuple[str, Mapping[str, Mapping[str, str]], str]]:
    """Yield (name, table, docstring) of each `NAME: Mapping[S, Mapping[Signal, S]] = {...}`."""
    body = module.tree.body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        words = ast.unparse(node.annotation).replace("[", " ").replace("]", " ").replace(",", " ")
        match words.split():
            case ["Mapping", state, "Mapping", _, final] if state == final and node.value:
                table = cast(Mapping[str, Mapping[str, str]], ast.literal_eval(node.value))
                yield node.target.id, table, _text(after)
            case _:
                continue


def diagram(table: Mapping[str, Mapping[str, str]]) -> str:
    """Draw a table of states; it begins in the first and ends in those without a way out."""
    lines = ["\n```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    for state, ways in table.items():
        signals: dict[str, list[str]] = {}
        for signal, after in ways.items():
            signals.setdefault(after, []).append(signal)
        lines += [f"    {state} --> {after}: {', '.join(s)}" for after, s in signals.items()]
        if not ways:
            lines.append(f"    {state} --> [*]")
    return "\n".join([*lines, "```\n"])


def _path(room: str) -> str:
    return room.replace(".", "/")


def _first(module: Module) -> str:
    return " ".join(module.law.split()).replace("|", "\\|")


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _reached(start: str, edges: Sequence[Edge]) -> set[str]:
    found: set[str] = set()
    front = [start]
    while front:
        at = front.pop()
        fresh = {target for source, target in edges if source == at} - found
        found |= fresh
        front += fresh
    return found
