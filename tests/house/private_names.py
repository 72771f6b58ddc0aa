"""Private names of libraries: each library's in one file, at a version that is pinned exactly.

Pure. Private is a name with a leading underscore that comes from an import of a library, directly
or as an attribute; an attribute with a leading underscore that no class of ours defines; and a
module of `INTERNAL`. Names of the standard library have no pin and are left alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.house.judging import Breach
from tests.house.trees import PACKAGES, Module, Tree


class Held(NamedTuple):
    """A library whose private names we use: the file that does, and the version it was read at."""

    file: str
    version: str


HELD: Mapping[str, Held] = {
    "gunicorn": Held("gateway/http/connection.py", "27.0.1"),
    "mlx-lm": Held("runner/library.py", "0.32.2"),
    "prometheus-client": Held("gateway/view/earlier_counts.py", "0.26.0"),
    "supervisor": Held("bus/process/supervisor.py", "4.3.0"),
}
"""Libraries by the name of their distribution. After an update read the file, then change this."""
INTERNAL = ("gunicorn.asgi", "prometheus_client.values", "prometheus_client.mmap_dict")
"""Modules that a library calls its own: an import of one is a use of a private name."""
UNKNOWN = "a library"
"""Stands for the library of an object whose import is not seen."""
PUBLIC = frozenset(("_exit", "_asdict", "_fields", "_replace", "_make"))
"""Names with an underscore that the documentation gives to users."""
OURS = frozenset((*PACKAGES, "tests", "__future__"))


def uses(module: Module, ours: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (library, name) of each private name that a module takes from a library.

    `ours` are the private names that the product defines.
    """
    imported: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            pairs = [(f"{node.module}.{a.name}", a.asname or a.name) for a in node.names]
        elif isinstance(node, ast.Import):
            pairs = [(a.name, a.asname or a.name.partition(".")[0]) for a in node.names]
        else:
            continue
        for path, name in pairs:
            library = path.partition(".")[0]
            if library not in OURS:
                imported[name] = library
                if path.startswith(INTERNAL) or any(map(is_private, path.split("."))):
                    yield library, path
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            library = imported.get(_root(node.value), "")
            if library and library != "typing":
                yield library, ast.unparse(node)
            elif node.attr not in ours:
                yield UNKNOWN, ast.unparse(node)


def defined(tree: Tree) -> frozenset[str]:
    """Return the private names that the product defines: functions, fields, assignments."""
    names: set[str] = set()
    for module in tree.product:
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.update([node.attr] if _root(node.value) in ("self", "cls") else [])
    return frozenset(filter(is_private, names))


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore and is not documented."""
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def scattered(tree: Tree) -> list[Breach]:
    """Return the libraries whose private names stand in a file that `HELD` does not name."""
    found: dict[str, Breach] = {}
    ours, files = defined(tree), {held.file for held in HELD.values()}
    for module in tree.product:
        for library, name in uses(module, ours):
            home = HELD.get(library.replace("_", "-"))
            if library in sys.stdlib_module_names or (home and home.file == module.path):
                continue
            if library == UNKNOWN and module.path in files:
                continue
            subject = f"{module.path}: {library}"
            where = f"{home.file} alone may" if home else "no file may"
            found[subject] = Breach(subject, f"uses the private {name}; {where}")
    return list(found.values())


def stale(tree: Tree, pins: Mapping[str, str], installed: Mapping[str, str]) -> list[Breach]:
    """Return the libraries of `HELD` that are unused, not pinned, or installed at another version.

    `pins` are texts by file name, each of which must pin it; `installed` are versions by library.
    """
    found: list[Breach] = []
    ours = defined(tree)
    used = {module.path for module in tree.product for _ in uses(module, ours)}
    for library, held in HELD.items():
        if held.file not in used:
            found.append(Breach(library, f"no private name stands in {held.file}: remove the row"))
        pin = rf'(?m)^\s*"?{re.escape(library)}=={re.escape(held.version)}(?![\w.])'
        for file, text in pins.items():
            if not re.search(pin, text):
                found.append(Breach(library, f"{file} does not pin {held.version}"))
        if installed.get(library) != held.version:
            what = f"version {installed.get(library)} is installed; {held.file} was read at "
            found.append(Breach(library, f"{what}{held.version}: read it again"))
    return found
