"""Mutants: one change of one file of the product, and what comes of tests run against it.

Pure but for `first_failure`. `changes` are those of expressions and early exits, which the pool's
mutants use; `all_changes` drop statements, negate conditions and replace returns besides.
"""

from __future__ import annotations

import ast
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
Changes = Callable[[ast.AST], Iterator[ast.AST]]
Site = tuple[int, int]
"""Which node, in the order of `ast.walk`, and which of its changes."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file: `old` becomes `new`; `breaks` says what is no longer so."""

    file: str
    old: str
    new: str
    breaks: str

    def applied(self, text: str) -> str:
        """Return the file's text with the change in it; ValueError where `old` is gone."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Made:
    """A mutant of the tool: the whole text of one file."""

    file: str
    text: str
    breaks: str
    line: int = 0

    def applied(self, text: str) -> str:
        """Return the file's text with the change in it."""
        return self.text


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Return what one node of a syntax tree may be changed to."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others):
            yield ast.Compare(left, [SWAPS[type(op)]()], others)
        case ast.BoolOp(op=op, values=values):
            for dropped in range(len(values)):
                rest = [one for number, one in enumerate(values) if number != dropped]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLS:
            if name in ("any", "all") or not keywords:
                yield ast.Call(ast.Name(CALLS[name], ast.Load()), args, keywords)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield ast.BinOp(left, ast.Add(), right)
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield ast.Constant(value + 1)
        case ast.If(body=body, orelse=[]) if isinstance(body[-1], ast.Continue | ast.Return):
            yield ast.Pass()
        case _:
            return


def all_changes(node: ast.AST) -> Iterator[ast.AST]:
    """Return `changes` and more: comparisons and conditions turned round, `and` for `or`,
    statements dropped, returns replaced."""
    yield from changes(node)
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in FLIPS:
            yield ast.Compare(left, [FLIPS[type(op)]()], others)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.If(test=test, body=body, orelse=orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()) | ast.Raise() | ast.AugAssign():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield ast.Pass()
        case _:
            return


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def sites(tree: ast.Module, of: Changes = changes) -> list[Site]:
    """Return each change that the tool can make to a module. Annotations are left as they are."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    return [
        (number, which)
        for number, node in enumerate(ast.walk(tree))
        if id(node) not in skipped
        for which, _ in enumerate(of(node))
    ]


def mutated(file: str, text: str, site: Site, of: Changes = changes) -> Made:
    """Return a module with one change."""
    tree = ast.parse(text)
    old = next(node for number, node in enumerate(ast.walk(tree)) if number == site[0])
    new = copy.copy(list(of(old))[site[1]])
    ast.copy_location(new, old)
    was, now = ast.unparse(old).splitlines()[0], ast.unparse(new).splitlines()[0]
    _Put(old, new).visit(tree)
    whole = ast.unparse(ast.fix_missing_locations(tree))
    line = getattr(old, "lineno", 0)
    return Made(file, whole, f"line {line}: `{was}` is `{now}`", line)


class _Put(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant: the test that failed first, or how else it was noticed; "" where it
    was not."""

    mutant: Mutant | Made
    caught_by: str

    def line(self) -> str:
        """Return the verdict as a line of the table."""
        return f"{self.mutant.file:32} {self.mutant.breaks:70} {self.caught_by or 'SURVIVED'}"


def first_failure(tree: Path, tests: Sequence[str], deadline_s: float) -> str:
    """Return which test fails first in a tree; "" where all pass."""
    order = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "PYTEST_"))}
    try:
        ran = subprocess.run(
            [*order, *tests], cwd=tree, env=mine, capture_output=True, text=True, timeout=deadline_s
        )
    except subprocess.TimeoutExpired:
        return f"no end within {deadline_s:g} s"
    if ran.returncode == 0:
        return ""
    said = [one for one in ran.stdout.splitlines() if one.startswith(("FAILED", "ERROR"))]
    if not said:
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
    return said[0].split(" - ")[0]
