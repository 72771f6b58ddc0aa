"""Mutants of the pool's rules: by hand, and made by a tool from a seed. Each is put into a copy of
the tree, where the pool's tests are run against it until one fails or the time is up."""

from __future__ import annotations

import ast
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harness.mutations import Made, Mutant, Verdict, first_failure, mutated, sites

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
        "net = max(0, promise.memory_bytes(node) - freed)", "net = 0",
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
        "master/pool/plans.py", "events.append(_first_step(claim, mine[0]))",
        "events += [_first_step(claim, victim) for victim in mine]", "all victims leave at once",
    ),
    Mutant(
        "master/decisions/pool_view.py",
        "[victim for victim in everyone if victim.copy.instance.instance not in claimed]",
        "everyone", "a copy leaves for two plans",
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
