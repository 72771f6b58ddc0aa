"""Memory for few of many models, in simulated time: the pool, the rules before it, and the optimum.

`python -m tests.bench.pool`. The world is `tests/sim/pool_world.py`, the holder the real one; the
rules before the pool are the holder of the commit `BEFORE`, run in the same world from an archive
of that tree. The optimum is the fewest loads with which a trace can be served in its order (dynamic
programming over what is in memory), so that a policy which serves out of order may beat it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

from bus.wire.ids import ModelId
from tests.sim.pool_world import Ask, Client, Kind, PoolWorld, run_clients

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "bcf6004f"
"""The last commit with the rules of 964311d: what idles, of no higher priority; one at a time."""
LOAD_S = 6.0
SECONDS = 900.0
URGENT, NORMAL, BATCH = 1, 10, 50
Case = Callable[[PoolWorld], list[Ask]]


def world(models: int, slots: int) -> PoolWorld:
    """Return one node with so many slots, and so many models that take `LOAD_S` to load."""
    kinds = [Kind(ModelId(f"m{number}"), 4.0, LOAD_S) for number in range(models)]
    return PoolWorld(kinds, {"n1": (60.0, slots)})


def loops(clients: Sequence[tuple[list[str], float]]) -> Case:
    """Return closed loops: clients that ask again as soon as they are answered."""

    def run(made: PoolWorld) -> list[Ask]:
        them = [Client(made, models, work_s=work_s) for models, work_s in clients]
        run_clients(made, them, SECONDS)
        return [ask for one in them for ask in one.asks]

    return run


def poisson(made: PoolWorld) -> list[Ask]:
    """Ask at random, of all models and classes."""
    chance, asks = random.Random(1), list[Ask]()
    end = made.now + SECONDS
    while made.now < end:
        if chance.random() < 0.04:
            model = f"m{min(int(chance.expovariate(0.8)), len(made.kinds) - 1)}"
            priority = chance.choice((URGENT, 5, NORMAL, NORMAL, NORMAL, 20, BATCH))
            asks.append(made.ask(model, work_s=chance.uniform(0.5, 6.0), priority=priority))
        made.step()
    return asks


def flood(made: PoolWorld) -> list[Ask]:
    """Ask for 300 batch answers of one model, and now and then urgently for another."""
    asks = [made.ask("m0", work_s=5.0, priority=BATCH) for _ in range(300)]
    for _ in range(int(SECONDS / 60)):
        made.run(60.0)
        asks.append(made.ask("m1", work_s=2.0, priority=URGENT))
    return asks


CASES: dict[str, tuple[int, int, Case]] = {
    "ABAB, two clients, 1 of 2": (2, 1, loops([(["m0"], 1.0), (["m1"], 1.0)])),
    "AABB, two clients each, 1 of 2": (
        2, 1, loops([(["m0"], 2.0), (["m0"], 2.0), (["m1"], 2.0), (["m1"], 2.0)]),
    ),
    "one client by turns, 1 of 2": (2, 1, loops([(["m0", "m1"], 2.0)])),
    "agents that alternate, 2 of 5": (
        5, 2, loops([(["m0", "m1"], 3.0), (["m2", "m3"], 3.0), (["m4", "m0"], 3.0)]),
    ),
    "Poisson, mixed classes, 2 of 5": (5, 2, poisson),
    "batch flood with urgent ones, 1 of 2": (2, 1, flood),
}  # fmt: skip


def measured(name: str) -> dict[str, Any]:
    """Run one case; return its figures."""
    models, slots, case = CASES[name]
    made = world(models, slots)
    began = made.now
    asks = case(made)
    made.run(1.0)
    served = [ask for ask in asks if ask.began_at is not None]
    loading_s = sum(ready - since for _, since, ready in made.loads)
    seconds = made.now - began
    waits = {
        label: sorted(a.began_at - a.at for a in served if a.began_at and a.priority in classes)
        for label, classes in (("urgent", {1}), ("normal", {5, 10, 20}), ("batch", {50}))
    }
    return {
        "answered": len(made.done),
        "waiting": len(asks) - len(served),
        "loads": len(made.loads),
        "loading": round(loading_s / (seconds * slots), 3),
        **{
            label: f"{_at(found, 0.5)}/{_at(found, 0.99)}"
            for label, found in waits.items()
            if found
        },
        "longest": max(
            (round(made.now - a.at, 1) for a in asks if a.began_at is None), default=0.0
        ),
    }


def optimum(trace: Sequence[str], slots: int) -> int:
    """Return the fewest loads that serve a trace in its order with so many places."""
    best: dict[frozenset[str], int] = {frozenset(): 0}
    for model in trace:
        after: dict[frozenset[str], int] = {}
        for held, loads in best.items():
            if model in held:
                choices = [(held, loads)]
            elif len(held) < slots:
                choices = [(held | {model}, loads + 1)]
            else:
                kept = combinations(sorted(held), slots - 1)
                choices = [(frozenset(rest) | {model}, loads + 1) for rest in kept]
            for state, count in choices:
                after[state] = min(count, after.get(state, count))
        best = after
    return min(best.values())


def batches(seed: int) -> dict[str, Any]:
    """Serve 60 batches of 5 models with 2 places, one after the other as they come."""
    chance = random.Random(seed)
    made = world(5, 2)
    trace: list[str] = []
    asks: list[Ask] = []
    for _ in range(60):
        model = f"m{min(int(chance.expovariate(0.7)), 4)}"
        trace.append(model)
        asks += [made.ask(model, work_s=2.0) for _ in range(3)]
        made.run(chance.uniform(4.0, 16.0))
    made.run(600.0, lambda: len(made.done) == len(asks))
    return {"answered": len(made.done), "loads": len(made.loads), "optimum": optimum(trace, 2)}


def all_of_it() -> dict[str, Any]:
    """Return the figures of every case under the rules of this tree."""
    found: dict[str, Any] = {name: measured(name) for name in CASES}
    for seed in range(3):
        found[f"60 batches, 2 of 5, seed {seed}"] = batches(seed)
    return found


def before() -> dict[str, Any] | None:
    """Return the figures under the rules of `BEFORE`; None where that commit is not here."""
    packed = subprocess.run(
        ["git", "archive", BEFORE, "bus", "master"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        return None
    with tempfile.TemporaryDirectory(prefix="pool-before-") as folder:
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as tree:
            tree.extractall(folder, filter="data")
        told = subprocess.run(
            [sys.executable, "-P", "-m", "tests.bench.pool", "--figures"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(told.stdout)


def _at(found: Sequence[float], share: float) -> str:
    return f"{found[min(len(found) - 1, int(share * len(found)))]:.1f}"


def main() -> None:
    """Print the figures side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", action="store_true", help="only those of this tree, as JSON")
    parser.add_argument("--json", type=Path, help="write them there, too")
    asked = parser.parse_args()
    now = all_of_it()
    if asked.figures:
        print(json.dumps(now))
        return
    then = before()
    print(f"{SECONDS:.0f} simulated seconds a case, {LOAD_S:.0f} s a load; waits are p50/p99 in s")
    for name, figures in now.items():
        print(name)
        print(f"  the pool    {_line(figures)}")
        print(f"  before it   {_line(then[name]) if then else f'{BEFORE} is not here'}")
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps({"pool": now, "before": then}, indent=1))


def _line(figures: dict[str, Any]) -> str:
    return "  ".join(f"{name} {figure}" for name, figure in figures.items())


if __name__ == "__main__":
    main()
