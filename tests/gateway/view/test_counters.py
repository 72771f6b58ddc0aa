"""Counts that cost next to nothing are still right, also where Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from bus.wire.messages.requests import Drafter, DrafterCount, Usage
from gateway.view.counters import ITL_BOUNDS_S, Counters
from gateway.view.metrics import BulkHistogram


def test_tokens_that_come_together_share_the_gap_before_them() -> None:
    counters = Counters()
    counters.tokens("m", 1, None)
    counters.tokens("m", 4, 0.04)
    found = counters.drain()["m"]
    assert found.tokens == 5
    assert found.itl_sum_s == 0.04
    assert found.itl_counts[ITL_BOUNDS_S.index(0.01)] == 4
    assert sum(found.itl_counts) == 4
    assert counters.drain() == {}


def test_a_bulk_histogram_says_what_single_observations_would_have_said() -> None:
    gaps = [0.0005, 0.001, 0.004, 0.02, 0.07, 0.9, 30.0]
    counters, one_by_one, at_once = Counters(), CollectorRegistry(), CollectorRegistry()
    slow = BulkHistogram("h", "h", ("m",), buckets=ITL_BOUNDS_S, registry=one_by_one)
    fast = BulkHistogram("h", "h", ("m",), buckets=ITL_BOUNDS_S, registry=at_once)
    for gap in gaps:
        slow.labels("m").observe(gap)
        counters.tokens("m", 1, gap)
    counted = counters.drain()["m"]
    fast.labels("m").add(counted.itl_counts, counted.itl_sum_s)

    def rows(registry: CollectorRegistry) -> list[str]:
        text = generate_latest(registry).decode().splitlines()
        return [row for row in text if not row.startswith("#") and "_created" not in row]

    assert rows(fast_registry := at_once) == rows(one_by_one)
    assert len(rows(fast_registry)) == len(ITL_BOUNDS_S) + 2


def test_drafts_are_counted_by_model_and_drafter() -> None:
    counters = Counters()
    counters.drafted("m", Usage(drafters={"ngram": (1, 4, 3), "grammar": (1, 2, 2)}))
    block: dict[Drafter, DrafterCount] = {"ngram": (2, 8, 1), "block": (2, 8, 5)}
    counters.drafted("m", Usage(drafters=block, proposals={"block": (4, 900)}))
    counters.drafted("m", Usage(drafters={"block": (1, 4, 0)}, proposals={"block": (2, 700)}))
    counts = counters.drain()
    assert dict(counts["m"].draft_counts()) == {
        "ngram": (3, 12, 4, 0),
        "grammar": (1, 2, 2, 0),
        "block": (3, 12, 5, 6),
    }
    assert counts["m"].proposals == {"block": (6, 900)} and set(counts) == {"m"}
