"""Seeded schedules of a pool against what must hold whatever comes, 10,000 when proving.
`SHOAL_TEST_POOL=<seed> pytest tests/sim/test_pool.py -k replay -s` tells one again."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.pool_schedules import tell

PROVING = bool(os.environ.get("SHOAL_PROVE"))
LONG = [range(at, at + 50) for at in range(0, 10_000, 50)]
GATE = [range(25), pytest.param(range(25, 50), marks=pytest.mark.proof)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LONG if PROVING else GATE, ids=lambda seeds: str(seeds.start))
def test_what_must_hold_holds_in_every_schedule(seeds: range) -> None:
    did: Counter[str] = Counter()
    for seed in seeds:
        schedule = tell(seed)
        did["loads"] += schedule.placed
        did["evictions"] += schedule.evicted
        did["answers"] += len(schedule.world.done)
        did["broken off"] += len(schedule.world.broken_off)
        did["holders"] += schedule.terms
        did["crashes"] += schedule.crashes
        did["failures handed over"] += schedule.handed_over
        did["nodes lost"] += schedule.losses
        did["replicas"] += schedule.watch.came
        did["replicas that made way"] += schedule.watch.displaced
        if (owners := schedule.owners) is not None:
            did["leases"] += owners.granted
            did["owners that died"] += owners.died
            did["leases asked back"] += owners.asked_back
    print(f"{len(seeds)} schedules from {seeds.start} on: {dict(did)}")
    least = len(seeds)
    assert did["evictions"] > least and did["answers"] > 10 * least, "nothing happened"
    assert min(did["crashes"], did["nodes lost"], did["holders"]), "nothing went wrong"
    assert did["failures handed over"], "no holder that knew of a failure was changed"
    assert did["replicas"], "no replica came"
    # some fifty schedules have none; the seeds of the first are the same in every run
    assert did["replicas that made way"] or seeds.start >= 200, "no replica made way"
    assert min(did["leases"], did["owners that died"]), "nothing leased"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(360, id="a model that a command has placed is promised no room any more"),
        pytest.param(141, id="what victims that have left had is promised to no other"),
        pytest.param(1151, id="a replica stays where the first copy's node is silent"),
        pytest.param(4069, id="a new holder counts on no copy of a node that it never heard"),
        pytest.param(6161, id="a replica makes way for no lease where the first copy may be gone"),
        pytest.param(7225, id="nor for another model"),
        pytest.param(4724, id="beside a copy that loads it is not known what a replica would free"),
        pytest.param(4922, id="a copy that was told to yield does so, whatever comes after"),
        pytest.param(6934, id="a copy that had failed is deleted, and leaves its slot"),
    ],
)
def test_what_a_schedule_has_found_stays_mended(seed: int) -> None:
    tell(seed)


@pytest.mark.skipif("SHOAL_TEST_POOL" not in os.environ, reason="tells one schedule again")
def test_replay() -> None:
    schedule = tell(int(os.environ["SHOAL_TEST_POOL"]))
    print("\n".join(schedule.world.story))
