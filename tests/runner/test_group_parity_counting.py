"""A real cluster of three nodes, one stage on each, counts without a slip."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness.clusters import running_cluster
from tests.harness.slot import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.proof]

ASKED = "List the integers from 1 to 30."
TIMES, AT_ONCE = 20, 4


def test_a_pipeline_over_three_nodes_counts_to_thirty_twenty_times_in_twenty() -> None:
    """Sampled at temperature 0.2 with twenty seeds, four at a time, by every node's gateway."""
    with running_cluster(3) as cluster:
        placed = cluster.place(min_nodes=3)
        assert len({shard["node"] for shard in placed["shards"]}) == 3

        def count(number: int) -> str:
            node = cluster.nodes[number % 3]
            answer = node.chat(ASKED, temperature=0.2, seed=number)
            return answer.json()["choices"][0]["message"]["content"]

        since = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            said = list(pool.map(count, range(TIMES)))
    right = said.count(", ".join(str(n) for n in range(1, 31)))
    row = {
        "model": "bundled",
        "shape": "pipeline 3, three nodes",
        "kind": "counting",
        "prompts": TIMES,
        "equal": right,
        "seconds": round(time.monotonic() - since, 1),
    }
    print(json.dumps(row))
    if os.environ.get("SHOAL_PROVE"):
        (ROOT / "prove-results").mkdir(exist_ok=True)
        with open(ROOT / "prove-results" / "parity.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
    assert right == TIMES, [one for one in said if "28, 29, 30" not in one]
