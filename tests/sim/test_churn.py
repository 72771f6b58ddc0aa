"""Two hundred rounds of churn in simulated time: machines start, stop and are killed while models
are placed, deleted and asked. `SHOAL_TEST_CHURN=<plan>:<seed>` tells one story again."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.churn import run_churn
from tests.sim.cluster import PLANS

pytestmark = pytest.mark.slow

ROUNDS = 200
FEWEST = 2
"""Of each kind of act, in a story that shows anything."""
SEEDS = 20 if os.environ.get("SHOAL_PROVE") else 2


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["pair-at-work", "voters-at-work", "three-at-work"])
def test_a_cluster_is_sound_after_churn(name: str, seed: int) -> None:
    churn = run_churn(PLANS[name], seed, ROUNDS)
    said = Counter(request.ends[0] for request in churn.requests.all)
    print(f"{name} {seed}: {dict(churn.did)} {dict(said)} {len(churn.cluster.checks.terms)} terms")
    assert min(churn.did[what] for what in ("start", "stop", "kill", "place", "delete")) >= FEWEST
    assert said["finished"] >= FEWEST, "a simulation in which nothing is served shows nothing"


@pytest.mark.skipif("SHOAL_TEST_CHURN" not in os.environ, reason="tells one story again")
def test_replay() -> None:
    name, _, seed = os.environ["SHOAL_TEST_CHURN"].rpartition(":")
    churn = run_churn(PLANS[name or "pair-at-work"], int(seed), ROUNDS)
    print("\n".join(churn.cluster.world.story))
