"""What a gateway notes of a traced request, keeps of it, and shows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import InstanceId, NodeId, RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Traced, TraceSpan
from gateway.tracing import (
    GatewayTrace,
    TracedRequest,
    TraceParent,
    TraceSampler,
    chrome_trace,
    document_of,
    place_of,
)
from gateway.tracing.gateway_trace import MOST_STAGES
from tests.harness.traces import check_trace, check_usage

RID = RequestId("req-n1-h0-b-1")
HERE, THERE = NodeId("n1"), NodeId("n2")
SPANS = (
    TraceSpan("template", 0, 0.0, 0.1),
    TraceSpan("queued", 0, 0.1, 0.3),
    TraceSpan("prefill", 0, 0.3, 1.0, 40, 1, 0.7, 0.6),
    TraceSpan("decode", 0, 1.0, 3.9, 29, 29, 0.2, 2.5),
    TraceSpan("end", 0, 3.9, 4.0),
)
USAGE = Usage(prompt_tokens=40, completion_tokens=30, queue_s=0.2, prefill_s=0.7, decode_s=2.9)


def lead(ahead_s: float = 0.0) -> Traced:
    """What a runner tells whose clock is ahead of ours: it had the request at 11.02."""
    at = 11.02 + ahead_s
    return Traced(RID, at, at + 0.1, at + 4.0, 1, SPANS)


def played(node: NodeId = HERE, ahead_s: float = 0.0) -> GatewayTrace:
    trace = GatewayTrace(10.7)
    trace.waits("wait_model", 10.8)
    trace.submitted(InstanceId("i"), node, 11.0)
    trace.accepted(11.15)
    trace.arrived(12.1, ended=False)
    trace.arrived(13.0, ended=False)
    trace.add_timings(lead(ahead_s), 15.04)
    trace.arrived(15.05, ended=True)
    return trace


def known(**more: Any) -> TracedRequest:
    facts: dict[str, Any] = {"model": "m", "why": "asked", "first_token_s": 2.1}
    made = {
        "request": RID, "place": place_of(RID, RID, None), "node": HERE, "began_at_s": 1e9,
        "started_at": 10.0, "read_at": 10.5,
        "ended_at": 15.1, "facts": facts, "usage": USAGE,
    }  # fmt: skip
    return TracedRequest(**{**made, **more})


def told(node: NodeId = HERE, ahead_s: float = 0.0) -> dict[str, Any]:
    return document_of(played(node, ahead_s), known()).told


def test_the_stages_of_a_request_are_its_whole_time() -> None:
    document = document_of(played(), known())
    stages = [(one["name"], one["began_s"], one["ended_s"]) for one in document.told["gateway"]]
    assert stages == [
        ("read", 0.0, 0.5), ("parse", 0.5, 0.7), ("place", 0.7, 0.8), ("wait_model", 0.8, 1.0),
        ("route", 1.0, 1.15), ("first_entry", 1.15, 2.1), ("entries", 2.1, 5.05),
        ("answer", 5.05, 5.1),
    ]  # fmt: skip
    assert document.told["seconds"] == 5.1
    assert document.spans == len(stages) + len(SPANS)
    assert document.sums["gateway.wait_model"] == 0.2 and document.sums["lead.decode"] == 2.9


def test_one_node_has_one_clock_and_another_node_s_is_told_with_its_error() -> None:
    assert told()["lead"]["clock"] == {"how": "one clock", "offset_s": 0.0, "error_s": 0.0}
    assert told()["lead"]["received_s"] == 1.02
    far = told(THERE, ahead_s=5000.0)["lead"]
    assert far["clock"]["how"] == "measured"
    assert abs(far["clock"]["offset_s"] - 5000.0) <= far["clock"]["error_s"] < 0.05
    assert abs(far["received_s"] - 1.02) <= far["clock"]["error_s"]


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3),
    st.lists(st.floats(0.001, 50.0), min_size=3, max_size=3),
)
def test_the_true_offset_is_within_the_stated_error(
    ahead_s: float, travel_s: list[float], work_s: list[float]
) -> None:
    trace = GatewayTrace(0.0)
    trace.submitted(InstanceId("i"), THERE, 1.0)
    received_at = 1.0 + travel_s[0]
    accepted_at = received_at + work_s[0]
    told_at = accepted_at + travel_s[1] + work_s[1]
    trace.accepted(accepted_at + travel_s[1])
    runner = (received_at + ahead_s, accepted_at + ahead_s, told_at + ahead_s)
    trace.add_timings(Traced(RID, *runner, 1, ()), told_at + travel_s[2])
    offset = trace.offset(HERE)
    assert abs(offset.offset_s - ahead_s) <= offset.error_s + 1e-6


def test_a_request_that_was_given_back_again_and_again_has_bounded_stages() -> None:
    trace, at = GatewayTrace(0.0), 0.0
    for _ in range(10 * MOST_STAGES):
        trace.submitted(InstanceId("i"), HERE, at + 0.25)
        trace.waits("wait_place", at + 0.5)
        at += 1.0
    trace.arrived(at, ended=False)
    trace.arrived(at + 1, ended=True)
    stages = trace.stages(0.0, 0.0, at + 2)
    assert len(stages) <= MOST_STAGES + 4
    assert sum(one.ended_at - one.began_at for one in stages) == pytest.approx(at + 2)
    assert stages[-1].name == "answer"


def test_a_request_that_ends_before_a_runner_had_it_has_no_lead() -> None:
    trace = GatewayTrace(10.5)
    trace.waits("wait_model", 10.5)
    trace.arrived(14.0, ended=True)
    document = document_of(trace, known(usage=None))
    names = [one["name"] for one in document.told["gateway"]]
    assert names == ["read", "parse", "wait_model", "answer"] and document.told["lead"] is None
    check_trace(chrome_trace(document.told))


def test_what_an_earlier_runner_told_is_not_told_of_a_later_one() -> None:
    trace = played()
    trace.submitted(InstanceId("j"), THERE, 16.0)
    assert trace.lead is None


def test_the_events_are_sound_and_what_is_made_of_them_is_not() -> None:
    for raw in (told(), told(THERE, ahead_s=-77.0)):
        check_usage(raw)
        check_trace(chrome_trace(raw), sequential=True)

    def span(trace: dict[str, Any], name: str) -> dict[str, Any]:
        return next(one for one in trace["traceEvents"] if one["name"] == name and one["ph"] == "X")

    def shifted(trace: dict[str, Any]) -> None:
        for one in trace["traceEvents"]:
            if one["pid"] == 2 and one["ph"] != "M":
                one["ts"] += 900_000

    breaks: list[Callable[[dict[str, Any]], Any]] = [
        lambda trace: span(trace, "decode").update(ts=1_000_000),
        lambda trace: span(trace, "decode").update(dur=2_000_000),
        lambda trace: span(trace, "decode").update(dur=-1),
        lambda trace: span(trace, "entries").update(dur=2_950_100),
        lambda trace: span(trace, "answer").update(dur=0),
        lambda trace: trace["traceEvents"].pop(),
        lambda trace: trace["traceEvents"].__delitem__(slice(2)),
        shifted,
    ]
    for broken in breaks:
        trace = copy.deepcopy(chrome_trace(told()))
        broken(trace)
        with pytest.raises((AssertionError, KeyError)):
            check_trace(trace, sequential=True)


def test_the_sums_fail_where_time_is_lost_between_two_processes() -> None:
    trace = GatewayTrace(10.5)
    trace.submitted(InstanceId("i"), HERE, 10.5)
    trace.accepted(11.15)
    trace.arrived(12.1, ended=False)
    trace.add_timings(lead(), 18.0)
    trace.arrived(18.0, ended=True)
    late = chrome_trace(document_of(trace, known(ended_at=18.1)).told)
    check_trace(late)
    with pytest.raises(AssertionError):
        check_trace(late, sequential=True)


class Draws:
    """Draws lots as told, and says how often."""

    def __init__(self, lot: float) -> None:
        self.lot, self.count = lot, 0

    def __call__(self) -> float:
        self.count += 1
        return self.lot


def test_who_asks_is_traced_and_of_the_others_a_share() -> None:
    cluster: list[float | None] = [None]
    draws = Draws(0.25)
    sampler = TraceSampler(lambda: cluster[0], 0.0, keeps=True, draw=draws)
    assert sampler.choose(by_client=True) == "asked"
    assert sampler.choose(by_client=False) == "" and draws.count == 0, "off draws no lots"
    recorded, unrecorded = (TraceParent("a" * 32, "b" * 16, sampled) for sampled in (True, False))
    assert sampler.choose(by_client=False, parent=recorded) == "parent"
    assert sampler.choose(by_client=True, parent=recorded) == "asked"
    assert sampler.choose(by_client=False, parent=unrecorded) == "" and draws.count == 0
    cluster[0] = 0.3
    assert sampler.choose(by_client=False) == "sampled"
    cluster[0] = 0.25
    assert sampler.choose(by_client=False) == ""
    own = TraceSampler(lambda: None, 1.0, keeps=True, draw=draws)
    assert own.choose(by_client=False) == "sampled"
    assert TraceSampler(lambda: 0.0, 1.0, keeps=True, draw=draws).choose(by_client=False) == ""
    assert TraceSampler(lambda: 1.0, 1.0, keeps=False, draw=draws).choose(by_client=True) == ""
