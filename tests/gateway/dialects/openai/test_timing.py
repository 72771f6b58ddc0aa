"""`timing` of an answer counts drafts by drafter, and says what those with a network cost."""

from __future__ import annotations

from bus.wire.messages.requests import Usage
from gateway.dialects.collect import total
from gateway.dialects.openai.shapes import timing_object


def test_timing_has_the_cost_of_drafters_with_a_network() -> None:
    ngram = Usage(drafts=1, drafted_tokens=4, accepted_tokens=3, drafters={"ngram": (1, 4, 3)})
    block = Usage(
        drafts=2,
        drafted_tokens=8,
        accepted_tokens=5,
        drafters={"block": (2, 8, 5)},
        proposals={"block": (4, 900)},
    )
    timing = timing_object(total([ngram, block, block]))
    assert "drafters" in timing and timing["drafters"] == {
        "ngram": {"drafts": 1, "drafted_tokens": 4, "accepted_tokens": 3},
        "block": {
            "drafts": 4, "drafted_tokens": 16, "accepted_tokens": 10, "passes": 8,
            "peak_bytes": 900,
        },
    }  # fmt: skip
