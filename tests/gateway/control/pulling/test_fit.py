"""What the holder says of a model that is to be pulled, as a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import Acknowledged, CommandRefused
from bus.wire.messages.readings import PullForecast, PullState
from gateway.control.pulling.fit import Fit, fit_of, refused_pull, too_late, unreckoned
from gateway.requests.pull_faults import of_pull

N1 = NodeId("n1")
NODES = [{"node": "n0", "need_bytes": 1}, {"node": "n1", "need_bytes": 2}]


def answered(**plan: Any) -> Acknowledged:
    said = {"nodes": NODES, "blocked": {"box": "runs nothing"}, "chosen": None, "refusal": None}
    return Acknowledged(
        command_id=CommandId("c"), term=1, index=1, durability="local", plan={**said, **plan}
    )


def refusal(reason: Any) -> dict[str, Any]:
    return Refusal(reason=reason, message="4 GB are missing").model_dump(mode="json")


def test_a_model_with_a_place_fits_now_and_has_the_bill_of_the_node_that_pulls() -> None:
    fit = fit_of(answered(chosen={"tokens_per_s": 5.0}), N1)
    assert (fit.verdict, fit.why, fit.plan) == ("now", "", {"tokens_per_s": 5.0})
    assert fit.bill == NODES[1] and fit.blocked == {"box": "runs nothing"}
    assert fit_of(answered(chosen={}), NodeId("gone")).bill == NODES[0]


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("insufficient_memory", "never"),
        ("no_capacity", "later"),
        ("pending", "unknown"),
        ("unsupported", "unknown"),
    ],
)
def test_only_what_could_never_be_held_fits_never(reason: str, verdict: str) -> None:
    fit = fit_of(answered(refusal=refusal(reason)), N1)
    assert (fit.verdict, fit.why) == (verdict, "4 GB are missing")


def test_a_holder_that_cannot_say_is_no_reason_to_refuse() -> None:
    for reason in ("pending", "insufficient_memory", "unknown_model"):
        refused = CommandRefused(
            command_id=CommandId("c"), refusal=Refusal.model_validate(refusal(reason))
        )
        assert fit_of(refused, N1).verdict == "unknown"
    assert fit_of(answered(), N1).verdict == "unknown"


def test_a_hopeless_pull_ends_typed_with_the_sum_and_the_way_out() -> None:
    state = PullState(model=ModelId("a/b"), phase="listing", forecast=PullForecast())
    ended = refused_pull(state, Fit("never", why="it needs 4 TB"))
    fault = of_pull(ended)
    assert (ended.phase, fault.status, fault.code) == ("failed", 507, "model_too_large")
    assert "it needs 4 TB" in fault.message and "--anyway" in fault.message
    assert ended.forecast is None and fault.retry_after_s is None


def test_a_dry_run_that_is_not_told_in_time_ends_with_what_is_waited_for() -> None:
    state = PullState(model=ModelId("a/b"), phase="listing", note="waits 200 s: 429")
    fault = of_pull(too_late(state, 60.0))
    assert fault.status == 502 and fault.retry_after_s is not None
    assert "within 60 s" in fault.message and "waits 200 s: 429" in fault.message


def test_what_could_not_be_reckoned_is_said_beside_the_pull() -> None:
    state = PullState(model=ModelId("a/b"), phase="listing")
    said = unreckoned(state, Fit("unknown", why="no config.json"))
    assert said.forecast is not None and said.forecast.why == "no config.json"
    assert said.phase == "listing"
