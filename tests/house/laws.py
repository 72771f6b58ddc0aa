"""The laws of floors, doors, names and sizes, as functions over a parsed tree.

Pure: each returns the breaches of one law and excuses nothing; `test_laws.py` holds them against
`exceptions.py`, and `test_laws_can_fail.py` breaks each on purpose. The laws of purity are in
`purity.py`, those of pages and contracts in `pages.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

from tests.house import counting
from tests.house.judging import Breach
from tests.house.trees import (
    FLOORS,
    Import,
    Module,
    Tree,
    assigned,
    classes,
    door_names,
    dotted,
    homes_of,
    parameters,
    within,
)

FLOOR_FOLDERS, FLOOR_FILES = 12, 6
ROOM_FOLDERS, ROOM_FILES = 8, 12
METHODS, PARAMETERS = 20, 8


def floors(tree: Tree) -> list[Breach]:
    """Return the packages with over 12 folders or 6 files, and the rooms with over 8 or 12.

    `__init__.py` is not counted; `__main__.py` is. `runner/mlx` is held to what a package is.
    """
    packages = [dotted(floor) for floor in FLOORS]
    found: list[Breach] = []
    for folder in sorted({*packages, *tree.rooms}):
        files, folders = tree.files_of(folder), tree.folders_of(folder)
        is_floor = folder in packages
        most_files = FLOOR_FILES if is_floor else ROOM_FILES
        most_folders = FLOOR_FOLDERS if is_floor else ROOM_FOLDERS
        if len(files) > most_files:
            what = f"{len(files)} files where {most_files} may be"
            found.append(Breach(f"{folder} files", what, len(files)))
        if len(folders) > most_folders:
            what = f"{len(folders)} folders where {most_folders} may be"
            found.append(Breach(f"{folder} folders", what, len(folders)))
    return found


def doors(tree: Tree, doored: Collection[str]) -> list[Breach]:
    """Return the imports past the doors of rooms: by others, of what the door does not name.

    `doored` are dotted rooms. Imports under `if TYPE_CHECKING:` count: they too know the inside.
    A door may name a module, whose public names others then import, or a room with its own door.
    """
    found: list[Breach] = []
    for room in sorted(doored):
        if room not in tree.modules:
            found.append(Breach(room, "no such room, or no __init__.py in it"))
            continue
        door = door_names(tree.modules[room])
        found += [Breach(room, flaw) for flaw in door_flaws(tree, room)]
        for one in tree.imports:
            if within(one.source, room) or not within(one.target, room):
                continue
            if one.target == room and (one.name is None or one.name in door):
                continue
            if _by_a_named_module(tree, one, room, doored):
                continue
            reached = one.target if one.name is None else f"{one.target}.{one.name}"
            what = f"{one.source}:{one.line} imports {reached}, which the door does not name"
            found.append(Breach(room, what))
    return found


def _by_a_named_module(tree: Tree, line: Import, room: str, doored: Collection[str]) -> bool:
    """Return whether an import enters a module on a room's door, or a doored room behind it."""
    head, _, deeper = line.target.removeprefix(room + ".").partition(".")
    if head not in door_names(tree.modules[room]):
        return False
    if f"{room}.{head}" in doored or (line.name is None and not deeper):
        return True
    is_file = not tree.modules[line.target].is_room and not deeper
    return is_file and line.name is not None and not line.name.startswith("_")


def door_flaws(tree: Tree, room: str) -> list[str]:
    """Return what is wrong with a room's door itself.

    A door names in `__all__` what it has, by `from ... import` or a definition of its own. A lazy
    door has the same names under `if TYPE_CHECKING:`, the table `_HOMES` (name to module) and a
    `__getattr__` that looks there (PEP 562); its table is held to be what the imports say.
    """
    module = tree.modules[room]
    door, homes = door_names(module), homes_of(module)
    if not door:
        return ["the door names nothing: __all__ is missing, empty or no literal"]
    taken = {one.name: one for one in tree.imports if one.source == room and one.name}
    modules = {name for name in door if f"{room}.{name}" in tree.modules}
    own = {n.name for n in module.tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    flaws = [
        f"__all__ names {name}, which the door does not have"
        for name in door
        if name not in {*taken, *own, *modules} and assigned(module, name) is None
    ]
    if any(taken[name].typing for name in door if name in taken) and not homes:
        flaws.append("names stand under TYPE_CHECKING alone, and there is no _HOMES to find them")
    if homes and "__getattr__" not in own:
        flaws.append("there is a table _HOMES and no __getattr__ that looks there")
    flaws += [
        f"_HOMES has {name} in {home}, the import says otherwise"
        for name, home in homes.items()
        if name not in taken or taken[name].target != home or name not in door
    ]
    return flaws


def without_a_door(tree: Tree, doored: Collection[str]) -> list[Breach]:
    """Return the rooms that are not held to a door: a new room needs a door from its first day.

    A room whose door would already hold is not among them, so that its excuse is used up.
    """
    floors_of_rooms = {dotted(floor) for floor in FLOORS}
    return [
        Breach(room, "the room has no door: give it an __all__ and name it in DOORED_ROOMS")
        for room in tree.rooms
        if room not in doored and room not in floors_of_rooms and doors(tree, [room])
    ]


def names(tree: Tree) -> list[Breach]:
    """Return the public class names that stand in two modules."""
    return [
        Breach(name, f"stands in {' and '.join(where)}", len(where))
        for name, where in counting.names_in_two_modules(tree).items()
    ]


def wide_classes(tree: Tree) -> list[Breach]:
    """Return the classes with over 20 methods."""
    return [
        Breach(node.name, f"{count} methods in {module.name}", count)
        for module, node, count in counting.method_counts(tree)
        if count > METHODS
    ]


def wide_constructors(tree: Tree) -> list[Breach]:
    """Return the classes whose constructor takes over 8 parameters, `self` left out.

    A parameter whose type is a bag counts as the bag's fields (see `bags`).
    """
    packed = bags(tree)
    found: list[Breach] = []
    for module, node, method in counting.constructors(tree):
        named = parameters(method, of_class=True)
        widths = [packed.get((module.name, node.name, p.arg), 1) for p in named]
        if sum(widths) > PARAMETERS:
            what = f"{sum(widths)} parameters in {module.name}, {len(named)} as written"
            found.append(Breach(node.name, what, sum(widths)))
    return found


def bags(tree: Tree) -> dict[tuple[str, str, str], int]:
    """Return the parameters that only pack others: (module, class, parameter) to fields.

    A bag is a dataclass or NamedTuple of the same package that is made for one constructor: no
    other function takes it, it has no methods, and it is built, at least once, and nowhere but
    where that constructor is called: in the call itself, or just for it under a name used once.
    """
    records = _records(tree)
    takers = _takers(tree)
    found: dict[tuple[str, str, str], int] = {}
    for module, node, method in counting.constructors(tree):
        for parameter in parameters(method, of_class=True):
            kind = _type_name(parameter.annotation)
            package = module.name.split(".")[0]
            fields = records.get((package, kind))
            if fields is None or takers.get((package, kind), 0) != 1:
                continue
            built = [
                _built_for(m, kind, node.name) for m in tree.product if within(m.name, package)
            ]
            if sum(map(len, built)) and all(all(one) for one in built):
                found[(module.name, node.name, parameter.arg)] = fields
    return found


def _records(tree: Tree) -> Mapping[tuple[str, str], int]:
    """Return the method-less dataclasses and NamedTuples: (package, name) to number of fields."""
    found: dict[tuple[str, str], int] = {}
    for module in tree.product:
        for node in classes(module):
            heads = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.bases)]
            is_record = any("dataclass" in head or "NamedTuple" in head for head in heads)
            if is_record and not counting.methods(node):
                fields = sum(isinstance(statement, ast.AnnAssign) for statement in node.body)
                found[(module.name.split(".")[0], node.name)] = fields
    return found


def _takers(tree: Tree) -> dict[tuple[str, str], int]:
    """Return how many functions have a parameter of each type, by package and name."""
    found: dict[tuple[str, str], int] = {}
    for module in tree.product:
        for function, owner in counting.functions_of(module):
            for parameter in parameters(function, owner is not None):
                kind = (module.name.split(".")[0], _type_name(parameter.annotation))
                found[kind] = found.get(kind, 0) + 1
    return found


def _type_name(annotation: ast.expr | None) -> str:
    """Return the last part of a plain type's name: `Seat` of `office.Seat` and `Seat | None`."""
    if isinstance(annotation, ast.BinOp):
        annotation = annotation.left
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.rpartition(".")[2]
    return _called_name(annotation)


def _called_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _built_for(module: Module, kind: str, owner: str) -> list[bool]:
    """Return of each place that builds a `kind` whether it stands at the call of an `owner`."""
    if kind not in module.text:
        return []
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    given = [
        value
        for call in calls
        if _called_name(call.func) == owner
        for value in [*call.args, *(keyword.value for keyword in call.keywords)]
    ]
    direct = {id(value) for value in given}
    used_once = {
        value.id for value in given if isinstance(value, ast.Name) and _uses(module, value.id) == 1
    }
    for node in module.nodes:
        if isinstance(node, ast.Assign) and _called_name(node.targets[0]) in used_once:
            direct.add(id(node.value))
    return [id(call) in direct for call in calls if _called_name(call.func) == kind]


def _uses(module: Module, name: str) -> int:
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in module.nodes
    )
