"""Seeded schedules of faults against real candidates, mirrors and outboxes.

By default 6 of seven plans; `SHOAL_PROVE=1` runs 1,500 of each, 18,000 in all. A failing one
says how to have it told again: `SHOAL_TEST_SIM=<plan>:<seed> pytest tests/sim -k replay -s`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.harness.variants import mostly_proof
from tests.sim.cluster import PLANS, run_schedule

pytestmark = pytest.mark.slow

PROVING = bool(os.environ.get("SHOAL_PROVE"))
PART = 20 if PROVING else 6
PARTS = 75 if PROVING else 1
"""Schedules of each plan in one test, and how many tests."""
GATE = (
    "pair", "pair-that-rots", "three-voters", "voters-at-work", "voters-forgotten",
    "voters-that-rot", "voters-with-keys",
)  # fmt: skip


@pytest.mark.parametrize("name", mostly_proof(sorted(PLANS), GATE))
@pytest.mark.parametrize("part", range(PARTS))
def test_every_schedule_keeps_its_promises_and_settles(name: str, part: int) -> None:
    said: Counter[str] = Counter()
    for seed in range(part * PART, (part + 1) * PART):
        cluster = run_schedule(PLANS[name], seed)
        said.update(cluster.checks.heard)
        said["terms"] += len(cluster.checks.terms)
        said["faults"] += cluster.faults
        said["refused"] += cluster.checks.refused
    print(f"{name} {part}: {dict(said)}")
    worth = "majority" if PLANS[name].voters else "replicated"
    assert said[worth] > 20, "a simulation in which nothing happens shows nothing"


@pytest.mark.skipif("SHOAL_TEST_SIM" not in os.environ, reason="tells one schedule again")
def test_replay() -> None:
    name, _, seed = os.environ["SHOAL_TEST_SIM"].partition(":")
    cluster = run_schedule(PLANS[name], int(seed))
    print("\n".join(cluster.world.story))
    print(cluster.checks.heard, cluster.checks.terms)
