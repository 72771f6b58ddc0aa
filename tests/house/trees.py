"""The product's source as parsed trees: which modules there are, in which rooms, importing what.

Reads files and nothing else: no module of the product is imported. Everything is found from
folders, so that a checkout of another day, or a tree made up by a test, reads the same way.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[2]
PACKAGES: tuple[str, ...] = ("bus", "runner", "gateway", "worker", "master", "telemetry", "conf")
FLOORS: tuple[str, ...] = (
    "bus",
    "runner",
    "runner/mlx",
    "gateway",
    "worker",
    "master",
    "telemetry",
    "conf",
)
"""The folders that are divided into rooms; `runner/mlx` is a room of `runner` with rooms of its
own, big enough to be held to what packages are held to."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One name that a module of ours imports from another module of ours."""

    source: str
    target: str
    name: str | None
    """What is taken from `target`; None when the module itself is imported."""
    line: int
    typing: bool
    """Whether the import stands under `if TYPE_CHECKING:` and so never runs."""


@dataclass(frozen=True, eq=False)
class Module:
    """One python file of the product."""

    name: str
    """Dotted, and that of the folder for an `__init__.py`."""
    path: str
    """From the root, with slashes."""
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return every node of the tree, walked once."""
        return list(ast.walk(self.tree))

    @property
    def is_room(self) -> bool:
        """Return whether the file is the `__init__.py` of a folder."""
        return self.path.endswith("/__init__.py")

    @property
    def is_main(self) -> bool:
        """Return whether the file is a composition root, run as `python -m`."""
        return self.path.endswith("/__main__.py")

    @property
    def law(self) -> str:
        """Return the first paragraph of the module's docstring, empty without one."""
        return (ast.get_docstring(self.tree) or "").split("\n\n")[0]

    @property
    def is_shell(self) -> bool:
        """Return whether the module may read clocks, chance, files and sockets."""
        return self.law.startswith("Talks to") or self.is_main


def within(name: str, room: str) -> bool:
    """Return whether the module `name` is the room, or lies in it."""
    return name == room or name.startswith(room + ".")


def dotted(folder: str) -> str:
    """Return the module name of a folder that is written with slashes."""
    return folder.replace("/", ".")


def is_type_checking(node: ast.If) -> bool:
    """Return whether an `if` asks for `TYPE_CHECKING`."""
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def imports_in(module: Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield every import statement, each with whether it stands under `if TYPE_CHECKING:`."""
    typed = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.If) and is_type_checking(node)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in module.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, id(node) in typed


class Tree:
    """All modules of the product under one root."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        paths = [path for name in PACKAGES for path in (root / name).rglob("*.py")]
        with _without_collecting():
            modules = sorted((_read(root, path) for path in paths), key=lambda m: m.name)
        self.modules = {module.name: module for module in modules}

    @cached_property
    def product(self) -> list[Module]:
        """Return all modules, in the order of their names."""
        return list(self.modules.values())

    @cached_property
    def rooms(self) -> list[str]:
        """Return the folders below the packages that hold python, dotted."""
        folders = {module.name.rpartition(".")[0] for module in self.product if not module.is_room}
        folders |= {module.name for module in self.product if module.is_room}
        return sorted(folder for folder in folders if "." in folder)

    def files_of(self, folder: str) -> list[str]:
        """Return the names of the python files that lie directly in a dotted folder."""
        return [
            module.path.rpartition("/")[2]
            for module in self.product
            if not module.is_room and module.name.rpartition(".")[0] == folder
        ]

    def folders_of(self, folder: str) -> list[str]:
        """Return the names of the rooms that lie directly in a dotted folder."""
        return [room for room in self.rooms if room.rpartition(".")[0] == folder]

    @cached_property
    def imports(self) -> list[Import]:
        """Return every import of a module of ours by a module of ours."""
        return [one for module in self.modules.values() for one in self._imports_of(module)]

    def home_of(self, target: str, name: str | None) -> str:
        """Return the module that an import reaches: through a door, the home of the name."""
        module = self.modules.get(target)
        if name is None or module is None or not module.is_room:
            return target
        homes = homes_of(module)
        if name in homes:
            return self.home_of(homes[name], name)
        for one in self._imports_of(module):
            if one.name == name and one.target != target:
                return self.home_of(one.target, name)
        return target

    def _imports_of(self, module: Module) -> Iterator[Import]:
        for node, typing in imports_in(module):
            if isinstance(node, ast.Import):
                pairs = [(alias.name, None) for alias in node.names]
            else:
                base = _base(module, node)
                pairs = [self._pair(base, alias.name) for alias in node.names]
            for target, name in pairs:
                if target in self.modules or target in self.rooms:
                    yield Import(module.name, target, name, node.lineno, typing)

    def _pair(self, base: str, name: str) -> tuple[str, str | None]:
        inner = f"{base}.{name}"
        return (inner, None) if inner in self.modules else (base, name)


def homes_of(module: Module) -> dict[str, str]:
    """Return the `_HOMES` table of a lazy door, name to module; empty when it has none."""
    table = assigned(module, "_HOMES")
    return cast(dict[str, str], table) if isinstance(table, dict) else {}


def door_names(module: Module) -> list[str]:
    """Return what a room's `__init__.py` puts into `__all__`; empty when it has none."""
    names = assigned(module, "__all__")
    return list(cast(Sequence[str], names)) if isinstance(names, (list, tuple)) else []


def assigned(module: Module, name: str) -> object:
    """Return the literal that a module assigns to `name` on its top level, or None."""
    value = _assigned_node(module, name)
    try:
        return None if value is None else ast.literal_eval(value)
    except ValueError:
        return None


def functions(module: Module) -> Iterator[Function]:
    """Yield every function, method and nested function of a module."""
    for node in module.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def classes(module: Module) -> Iterator[ast.ClassDef]:
    """Yield every class of a module, nested ones too."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            yield node


def methods(node: ast.ClassDef) -> list[Function]:
    """Return what a class defines with `def`: properties and dunder methods count."""
    return [y for y in node.body if isinstance(y, (ast.FunctionDef, ast.AsyncFunctionDef))]


def parameters(function: Function, of_class: bool) -> list[ast.arg]:
    """Return the named parameters of a function; of a method, those after `self` or `cls`."""
    args = function.args
    named = [*args.posonlyargs, *args.args]
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    return [*(named[1:] if of_class and not static else named), *args.kwonlyargs]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Switch the garbage collector off: it takes half the time of parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _assigned_node(module: Module, name: str) -> ast.expr | None:
    for node in module.tree.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return node.value
    return None


def _base(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    here = module.name if module.is_room else module.name.rpartition(".")[0]
    for _ in range(node.level - 1):
        here = here.rpartition(".")[0]
    return f"{here}.{node.module}" if node.module else here


def _read(root: Path, path: Path) -> Module:
    inside = path.relative_to(root)
    name = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
    text = path.read_text()
    return Module(name, str(inside), text, ast.parse(text))
