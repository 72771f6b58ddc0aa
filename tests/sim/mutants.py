"""Mutants of the pool's rules: by hand, and made by a tool from a seed. Each is put into a copy of
the tree, where the pool's tests are run against it until one fails or the time is up."""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("bus", "master", "conf", "tests/sim", "tests/master", "tests/harness")
FAST = ("tests/master/pool",)
ALL = (
    "tests/master/decisions", "tests/master/test_place_again.py", "tests/master/pool",
    "tests/sim/test_pool_oracle.py", "tests/sim/test_pool.py",
)  # fmt: skip
MODULES = (
    "master/pool/choice.py", "master/pool/claims.py", "master/pool/ledger.py",
    "master/pool/plans.py", "master/pool/turns.py", "master/decisions/pool_view.py",
    "master/decisions/planner.py", "master/decisions/holder.py", "master/pool/leases.py",
    "master/decisions/leasing/leases.py", "master/pool/replicas.py",
    "master/decisions/replicating/replicas.py", "master/decisions/crash_loop.py",
)  # fmt: skip
"""What the tool may change."""
DEADLINE_S = 240.0


@dataclass(frozen=True)
class Mutant:
    """One change of one file: `old` becomes `new`; `breaks` says what is no longer so."""

    file: str
    old: str
    new: str
    breaks: str

    def applied(self, text: str) -> str:
        """Return the file's text with the change in it."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Made:
    """A mutant of the tool: the whole text of one file."""

    file: str
    text: str
    breaks: str

    def applied(self, text: str) -> str:
        """Return the file's text with the change in it."""
        return self.text


HAND = (
    Mutant(
        "master/pool/turns.py", "if copy.pinned_by is not None:", "if False:",
        "a pin is no protection",
    ),
    Mutant(
        "master/pool/plans.py", "if not use.open_requests and use.heard_at >= told_at + HEARD_S:",
        "if use.heard_at >= told_at + HEARD_S:", "a yielding copy is unloaded while it answers",
    ),
    Mutant(
        "master/pool/turns.py", "at = max(turn_at, passes_at, now)", "at = max(passes_at, now)",
        "no copy keeps its turn",
    ),
    Mutant(
        "master/pool/ledger.py",
        "net = max(0, need - sum(shard.bytes_reserved for shard in there))", "net = 0",
        "what is promised to one is promised to the next",
    ),
    Mutant(
        "master/pool/choice.py", "if best is not None and cost_s >= best[0]:",
        "if best is not None and cost_s <= best[0]:", "the dearest copies leave",
    ),
    Mutant(
        "master/pool/claims.py",
        "return max(float(min(priority, FLOOR)), priority - ageing_per_s * max(0.0, waited_s))",
        "return float(priority)", "what waits does not age",
    ),
    Mutant(
        "master/pool/plans.py", "found.append(_first_step(claim, mine[0]))",
        "found += [_first_step(claim, one) for one in mine]", "all victims leave at once",
    ),
    Mutant(
        "master/decisions/pool_view.py",
        "[one for one in everyone if one.copy.instance.instance not in claimed]", "everyone",
        "a copy leaves for two plans",
    ),
    Mutant(
        "master/decisions/planner.py",
        "        if idle_s < limit_s:", "        if idle_s >= limit_s:",
        "copies leave before they were idle for so long, and stay afterwards",
    ),
    Mutant(
        "master/decisions/decide.py", "if command.if_absent and not command.dry_run:", "if False:",
        "a model is placed beside its copy",
    ),
)  # fmt: skip

SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


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


def sites(tree: ast.Module) -> list[tuple[int, int]]:
    """Return each change that the tool can make to a module: which node, in the order of
    `ast.walk`, and which of its `changes`. Annotations are left as they are."""
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
        for which, _ in enumerate(changes(node))
    ]


def mutated(file: str, text: str, site: tuple[int, int]) -> Made:
    """Return a module with one change."""
    tree = ast.parse(text)
    old = next(node for number, node in enumerate(ast.walk(tree)) if number == site[0])
    new = list(changes(old))[site[1]]
    ast.copy_location(new, old)
    was, now = ast.unparse(old).splitlines()[0], ast.unparse(new).splitlines()[0]
    _Put(old, new).visit(tree)
    whole = ast.unparse(ast.fix_missing_locations(tree))
    return Made(file, whole, f"line {getattr(old, 'lineno', 0)}: `{was}` is `{now}`")


class _Put(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def made(seed: int, count: int, modules: Sequence[str] = MODULES) -> list[Made]:
    """Return as many mutants of modules as are asked for, one module after the other, in an order
    that the seed says."""
    chance = random.Random(seed)
    modules = chance.sample(modules, len(modules))
    texts = {file: (ROOT / file).read_text() for file in modules}
    left = {file: sites(ast.parse(text)) for file, text in texts.items()}
    found: list[Made] = []
    for number in range(count):
        file = modules[number % len(modules)]
        site = left[file].pop(chance.randrange(len(left[file])))
        found.append(mutated(file, texts[file], site))
    return found


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant: the test that failed first, or how else it was noticed; "" where it
    was not."""

    mutant: Mutant | Made
    caught_by: str

    def line(self) -> str:
        """Return the verdict as a line of the table."""
        return f"{self.mutant.file:32} {self.mutant.breaks:70} {self.caught_by or 'SURVIVED'}"


def verdict(mutant: Mutant | Made, tests: Sequence[str], deadline_s: float = DEADLINE_S) -> Verdict:
    """Run tests against a mutant in a copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="shoal-mutant-") as name:
        tree = Path(name)
        copied(tree)
        file = tree / mutant.file
        file.write_text(mutant.applied(file.read_text()))
        return Verdict(mutant, first_failure(tree, tests, deadline_s))


def copied(tree: Path) -> None:
    """Copy what the pool's tests need of this tree."""
    for folder in COPIED:
        keep = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.c", "*.cpp")
        shutil.copytree(ROOT / folder, tree / folder, ignore=keep)
    for file in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / file, tree / file)


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
