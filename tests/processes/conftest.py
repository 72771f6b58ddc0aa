"""The nodes that files share, and the ledger of what faults cost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.nodes import ROOT, Node
from tests.harness.shared_nodes import (
    lent,
    one_at_a_time,
    shared_empty,
    shared_keyed,
    shared_node,
    shared_pair,
    shared_stores,
)

__all__ = [
    "lent",
    "one_at_a_time",
    "shared_empty",
    "shared_keyed",
    "shared_node",
    "shared_pair",
    "shared_stores",
]

PROVING = bool(os.environ.get("SHOAL_PROVE"))
RESULTS = ROOT / "prove-results"
Ledger = Callable[..., None]
OF_CLUSTERS = (
    "test_cluster",
    "test_two_nodes",
    "test_partition",
    "test_churn",
    "test_mixed_clusters",
)
"""Whose notes go to a file of their own: `make prove-cluster` shows it as one table."""
OF_RECORDS = ("test_record_kills",)
"""The same for `make prove-records`."""


@pytest.fixture(scope="module")
def node(shared_node: Node) -> Node:
    return shared_node


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """Note what a fault cost, print it, and hold it to its bound: three times the bound in a
    test run, the bound itself when proving."""

    def note(fault: str, *, saw: str, seconds: float, bound_s: float, reloaded: int) -> None:
        row = {
            "fault": fault,
            "client saw": saw,
            "seconds": round(seconds, 2),
            "bound": bound_s,
            "models reloaded": reloaded,
            "test": request.node.name,
        }
        RESULTS.mkdir(exist_ok=True)
        stem = request.node.path.stem
        name = "cluster" if stem in OF_CLUSTERS else "records" if stem in OF_RECORDS else "faults"
        with open(RESULTS / f"{name}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row))
        assert seconds <= (bound_s if PROVING else 3 * bound_s)

    return note


def results_folder() -> Path:
    RESULTS.mkdir(exist_ok=True)
    return RESULTS
