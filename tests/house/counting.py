"""What is counted in a tree: floors, imports between rooms, wide classes, lengths, docstrings.

Pure: a parsed tree in, figures and lists out; nothing is judged here. How each figure is defined
stands at the function that counts it; the figures of commit 964311d are in `before.json`.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from functools import cache

from tests.house.trees import (
    FLOORS,
    Function,
    Import,
    Module,
    Tree,
    classes,
    dotted,
    functions,
    methods,
    parameters,
    within,
)

DIALECTS = "gateway.dialects"
"""Each of its folders is one dialect's namespace, where `ChatBody` may stand once per dialect."""
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def floor_of(name: str) -> str | None:
    """Return the floor that a module belongs to: the most specific of `FLOORS`."""
    holding = [floor for floor in FLOORS if within(name, dotted(floor))]
    return max(holding, key=len) if holding else None


def room_on(floor: str, name: str) -> str | None:
    """Return the thing on a dotted floor that a module is, or lies in; None outside of it."""
    if name == floor or not within(name, floor):
        return None
    return name.removeprefix(floor + ".").split(".")[0]


def top_floor(tree: Tree, floor: str) -> list[str]:
    """Return the things on a dotted floor: its files and its folders that hold python.

    `__main__.py` counts as a file; `__init__.py` is the floor itself and does not.
    """
    rooms = {room_on(floor, module.name) for module in tree.product}
    return sorted(room for room in rooms if room is not None)


def room_imports(tree: Tree, floor: str) -> dict[tuple[str, str], list[Import]]:
    """Return the imports between two things on a dotted floor, by (importing, imported).

    Each pair is an edge, however many names cross it. Imports in functions and under
    `if TYPE_CHECKING:` count, since they too say who knows of whom; what goes through the
    floor's own `__init__.py` does not.
    """
    edges: dict[tuple[str, str], list[Import]] = {}
    for one in tree.imports:
        source, target = room_on(floor, one.source), room_on(floor, one.target)
        if source is not None and target is not None and source != target:
            edges.setdefault((source, target), []).append(one)
    return edges


def public_classes(tree: Tree) -> dict[str, list[str]]:
    """Return where each public class on a module's top level stands: name to modules."""
    found: dict[str, list[str]] = {}
    for module in tree.product:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module.name)
    return found


def names_in_two_modules(tree: Tree) -> dict[str, list[str]]:
    """Return the public class names that stand in more than one module, and where.

    Dialects in folders of their own are namespaces: among them a name may stand once each.
    """
    found: dict[str, list[str]] = {}
    for name, where in public_classes(tree).items():
        spaces = [_namespace(module) for module in where]
        among_dialects = all(space.startswith(DIALECTS + ".") for space in spaces)
        if len(where) > 1 and not (among_dialects and len(set(spaces)) == len(where)):
            found[name] = where
    return dict(sorted(found.items()))


def _namespace(module: str) -> str:
    """Return the dialect's folder that a module lies in, else an empty text."""
    folder = module.rpartition(".")[0]
    return folder if within(folder, DIALECTS) and folder != DIALECTS else ""


def method_counts(tree: Tree) -> Iterator[tuple[Module, ast.ClassDef, int]]:
    """Yield every class with the number of its methods: each `def` in its body counts."""
    for module in tree.product:
        for node in classes(module):
            yield module, node, len(methods(node))


def constructors(tree: Tree) -> Iterator[tuple[Module, ast.ClassDef, Function]]:
    """Yield every class that writes its `__init__`: fields of a dataclass are no parameters."""
    for module in tree.product:
        for node in classes(module):
            for method in methods(node):
                if method.name == "__init__":
                    yield module, node, method


@cache
def functions_of(module: Module) -> list[tuple[Function, ast.ClassDef | None]]:
    """Return every function of a module, nested ones too, with the class whose method it is."""
    owners = {id(m): node for node in classes(module) for m in methods(node)}
    return [(function, owners.get(id(function))) for function in functions(module)]


def parameter_count(function: Function, owner: ast.ClassDef | None) -> int:
    """Return how many named parameters a function has, `self` and `cls` left out."""
    return len(parameters(function, owner is not None))


def length(function: Function) -> int:
    """Return the lines from `def` to the last line of the body: decorators do not count."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


@cache
def import_statements(module: Module) -> int:
    """Return how many import statements a module has, wherever they stand."""
    return sum(isinstance(n, (ast.Import, ast.ImportFrom)) for n in module.nodes)


@cache
def code_lines(module: Module) -> int:
    """Return the lines that hold code: no docstrings, no comments, no blank lines.

    A text that stands alone as a statement is a docstring, also below a field.
    """
    texts: set[int] = set()
    for node in module.nodes:
        if isinstance(node, ast.Expr) and _is_text(node.value):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def lengths_of(modules: list[Module]) -> list[int]:
    """Return the lengths of all functions of some modules, shortest first."""
    return sorted(length(f) for module in modules for f, _ in functions_of(module))


def median(lengths: list[int]) -> int:
    """Return the median length, rounded down; 0 of nothing."""
    return int(statistics.median(lengths)) if lengths else 0


def p99(lengths: list[int]) -> int:
    """Return the length that 99 of 100 functions stay below; 0 of nothing."""
    return lengths[int(len(lengths) * 0.99)] if lengths else 0
