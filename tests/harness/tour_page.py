"""Write the rooms and the states of docs/tour.md from the source.

The text above the heading `## Rooms` is written by hand, and this module keeps it. Below the
heading it writes a picture of the imports of each package, one line for each room, and a diagram of
every state table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from tests.house import ceilings, walk
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
`make docs` writes the rest of this page. It draws the pictures from the imports, and takes the text
of a room from the first sentence of the room's `__init__.py`. An arrow points from the importer to
the imported. It is left out if a longer path already leads from the one to the other. Boxes are
rooms, and round nodes are files.

`python -m tests.house.walk` counts the files and functions that the chat request of the walk above
enters. It fails above {files} files or {functions} functions in the gateway and the runner, or
above {calls} function calls of the runner for each token.
"""
LIVES = """
## States

Each diagram shows a table in the code. An arrow is a signal, and leads from one state to the next.
If a state has no arrow for a signal, the signal changes nothing.
"""

Edge = tuple[str, str]


def page() -> str:
    """Return the page: the text above MARK as it is, everything below it made anew."""
    by_hand, mark, _ = PAGE.read_text().partition(MARK)
    return by_hand + mark + made(Tree())


def made(tree: Tree) -> str:
    """Return everything below MARK."""
    most = ceilings.read(walk.CEILINGS)["walk"]
    introduction = INTRODUCTION.format(
        files=most["files"], functions=most["functions"], calls=most["runner, calls of a token"]
    )
    return introduction + "".join(section(tree, floor) for floor in FLOORS) + lives(tree)


def section(tree: Tree, floor: str) -> str:
    """Return one package: its law, its picture, and a line for each of its rooms."""
    name = dotted(floor)
    parts = [f"\n### {floor}/\n\n{_first(tree.modules[name])}\n", picture(tree, name)]
    lines = [line(tree, room) for room in sorted(tree.folders_of(name))]
    return "".join([*parts, *(["\n"] if lines else []), *lines])


def line(tree: Tree, room: str) -> str:
    """Return one room's line. It names the inner rooms, unless the room has a section."""
    has_section = room in map(dotted, FLOORS)
    inner = [] if has_section else [r for r in sorted(tree.rooms) if r.startswith(f"{room}.")]
    names = ", ".join(f"`{_path(r.removeprefix(f'{room}.'))}`" for r in inner)
    about = f" Inside: {names}." if inner else ""
    return f"- `{_path(room)}/`: {_sentence(tree.modules[room])}{about}\n"


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
    """Draw every state table, with its docstring."""
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
    return " ".join(module.law.split())


def _sentence(module: Module) -> str:
    return re.split(r"(?<=\.) (?=[A-Z`])", _first(module))[0]


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
