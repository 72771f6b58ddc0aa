"""kill -9 of an HTTP process, the gateway, the node, while responses, chats, jobs and responses in
the background are kept: nothing acknowledged is lost, nothing runs twice unnoticed, no file breaks.

When proving 200 points: 140 of an HTTP process and 30 of all of a gateway, with a runner that tells
what it is asked for, and 30 of a whole node with its real one; in stories of their own, each of
which ends with a look at everything. `SHOAL_TEST_KILLS=<seed>` tells them again (the choices are
the same; the times are the machine's).
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.gateway_testbed import eventually, gateway_testbed
from tests.harness.nodes import running_node
from tests.harness.record_kills import (
    GatewayTarget,
    Level,
    NodeTarget,
    Target,
    check_runs,
    kill_one,
    look_at_file,
)
from tests.harness.record_writers import Writers
from tests.processes.conftest import PROVING, Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

GIVEN = os.environ.get("SHOAL_TEST_KILLS", "")
SEED = int(GIVEN or (random.SystemRandom().randrange(10**6) if PROVING else 15))
OF_GATEWAYS, OF_NODES = (5, 3) if PROVING else (1, 1)
"""So many stories."""
PROCESSES, GATEWAYS, NODES = (28, 6, 10) if PROVING else (4, 1, 1)
"""So many are killed in each."""
OPTIONS: dict[str, Any] = {"processes": 2, "jobs_running": 8, "jobs_per_client": 10_000}


def orders(chance: random.Random) -> str:
    """Return what the synthetic runner is to do."""
    return f"tokens={chance.choice((1, 5, 20))} every_ms={chance.choice((0, 0, 10))}"


def words(chance: random.Random) -> str:
    """Return a question to the bundled model."""
    return f"List the integers from 1 to {chance.randrange(3, 12)}."


def kill_while_written(
    target: Target, levels: Sequence[Level], writers: Writers, chance: random.Random
) -> float:
    """Kill at random points, and return the longest that it took to serve again."""
    pause, slowest_s = threading.Event(), 0.0
    for level in levels:
        pause.wait(chance.random() * (3.0 if level == "node" else 0.8))
        slowest_s = max(slowest_s, kill_one(target, level, chance.random()))
    pause.wait(1.0)
    writers.stop()
    return slowest_s


def checked(target: Target, writers: Writers) -> str:
    """Hold all against what was acknowledged; return what to tell of it."""
    found = writers.check()
    attempts = writers.jobs.attempts()
    again = check_runs(target.runs(), attempts)
    look_at_file(target.records)
    broken = sum(times for what, times in found.items() if what.endswith("broken off"))
    last = ("kept", "submitted", "delete", "label")
    kept = sum(times for what, times in found.items() if what.endswith(last))
    print(json.dumps({"seed": SEED, **dict(sorted(found.items()))}))
    return f"{kept} acknowledged, 0 lost; {broken} broken off; {again} runs begun anew"


@pytest.mark.parametrize("story", range(OF_GATEWAYS))
def test_what_a_gateway_acknowledged_outlives_its_processes_and_itself(
    story: int, ledger: Ledger
) -> None:
    print(f"seed {SEED}, story {story}")
    seed = SEED + story
    chance = random.Random(seed)
    levels: list[Level] = ["process"] * PROCESSES + ["gateway"] * GATEWAYS
    chance.shuffle(levels)
    with gateway_testbed(**OPTIONS) as made:
        made.runner()
        target = GatewayTarget(made, OPTIONS)
        eventually(target.is_back, 20, "the instance is ready")
        writers = Writers(made.url, seed, orders)
        seconds = kill_while_written(target, levels, writers, chance)
        saw = checked(target, writers)
    fault = (
        f"kill -9: {PROCESSES} x an HTTP process, {GATEWAYS} x the gateway (seed {SEED}, {story})"
    )
    ledger(fault, saw=saw, seconds=seconds, bound_s=10, reloaded=0)


@pytest.mark.proof
@pytest.mark.parametrize("story", range(OF_NODES))
def test_what_a_node_acknowledged_outlives_it(story: int, ledger: Ledger) -> None:
    print(f"seed {SEED}, story {story}")
    seed = SEED + story
    chance = random.Random(seed)
    with running_node(SHOAL_HTTP_PROCESSES="2") as node:
        target = NodeTarget(node)
        writers = Writers(node.url, seed, words)
        levels: list[Level] = ["node"] * NODES
        seconds = kill_while_written(target, levels, writers, chance)
        saw = checked(target, writers)
    fault = f"kill -9: {NODES} x the whole node (seed {SEED}, {story})"
    ledger(fault, saw=saw, seconds=seconds, bound_s=60, reloaded=NODES)
