"""Bindings and functions whose name is a participle or a pronoun, counted in each package. Pure.

A binding is an assignment, a loop variable, a parameter, a target of `with` or `except`, a capture
of a pattern, an import's alias or a field.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.house.trees import ROOT, Module, Tree

SEVEN = ("one", "told", "found", "asked", "said", "known", "kept")
PARTICIPLES = frozenset(
    (*SEVEN, "heard", "given", "wanted", "held", "made", "gone", "taken", "meant", "written")
)
"""Names that no function has: `one`, and participles without a noun."""
FOLLOWERS = frozenset(("of", "by", "to", "for", "from", "in", "at", "on", "with", "it", "there"))
"""Second words that leave a participle without a noun: `told_of`, `asked_by`."""
FUNCTIONS = "participle functions"


def bindings(module: Module) -> Iterator[str]:
    """Yield each name that a module binds."""
    for node in module.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def participles(module: Module) -> Iterator[str]:
    """Yield each function name that is a participle without a noun."""
    for node in module.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first, *rest = node.name.strip("_").split("_")
            if first in PARTICIPLES and (not rest or rest[0] in FOLLOWERS):
                yield node.name


def counts(modules: Iterable[Module]) -> dict[str, dict[str, int]]:
    """Return package to (name to bindings); participle functions stand under `FUNCTIONS`."""
    found: dict[str, dict[str, int]] = {}
    for module in modules:
        package = module.path.partition("/")[0]
        for name in (*bindings(module), *(FUNCTIONS for _ in participles(module))):
            bare = name.lstrip("_")
            if bare in SEVEN or bare == FUNCTIONS:
                figures = found.setdefault(package, {})
                figures[bare] = figures.get(bare, 0) + 1
    return found


def of_product(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the counts of each package of the product."""
    return counts(tree.product)


def of_tests(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Return the counts of the tests, under `tests`."""
    files = sorted((root / "tests").rglob("*.py"))
    texts = [(file, file.read_text()) for file in files]
    return counts(
        Module(file.stem, file.relative_to(root).as_posix(), text, ast.parse(text))
        for file, text in texts
    )
