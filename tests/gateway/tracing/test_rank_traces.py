"""What is kept and shown of the ranks of a group: by one clock, with both ends of what crosses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import InstanceId, NodeId, RequestId
from bus.wire.messages.tokens import Traced, TraceSpan
from bus.wire.messages.traces import (
    RANK_PARTS,
    RankCrossing,
    RankPart,
    RankPartName,
    RankSpans,
    RankTotal,
    RankTraced,
    RankTurn,
)
from gateway.tracing import (
    GatewayTrace,
    TracedRequest,
    chrome_trace,
    document_of,
    place_of,
)
from gateway.tracing.otlp.spans import spans_of
from tests.harness.traces import check_trace

RID = RequestId("req-n1-h0-b-1")
NODES = (NodeId("n2"), NodeId("n3"), NodeId("n4"))
HAD_AT, TOLD_AT = 11.0, 15.0
"""When the runner had the request and when it told of it, by the gateway's clock."""
FOR_A_COLLECTOR: dict[str, Any] = {
    "answer": "", "finishes": [], "status": 200, "dialect": "openai", "why": "asked",
    "streamed": False, "error": None,
}  # fmt: skip
ROW_AT = 12.0
"""When it has a row."""


def turn(name: Any, step: int, began_s: float, tokens: int, **seconds: float) -> RankTurn:
    parts = tuple(seconds.get(part, 0.0) for part in RANK_PARTS)
    return RankTurn(name, step, 1, began_s, began_s + sum(parts), tokens, parts)


def parts_of(*named: tuple[RankPartName, float]) -> tuple[RankPart, ...]:
    found: list[RankPart] = []
    at = 0.0
    for name, seconds in named:
        found.append(RankPart(name, at, at + seconds))
        at += seconds
    return tuple(found)


def spans(began_at: float, *crossings: RankCrossing) -> RankSpans:
    """A second of prompt and two of answer."""
    return RankSpans(
        began_at,
        3.0,
        (
            turn("prefill", 5, 0.0, 9, host=0.25, compute=0.75),
            turn("decode", 6, 1.0, 29, wait=0.5, receive=0.25, compute=1.0, send=0.25),
        ),
        parts_of(
            ("host", 0.25), ("compute", 0.75), ("wait", 0.5), ("receive", 0.25), ("compute", 1.0),
            ("send", 0.25),
        ),
        crossings,
        (RankTotal("hidden", 1, True, 40, 4000),),
    )  # fmt: skip


def crossing(what: Any, step: int, peer: int, *, sent: bool, at_s: float) -> RankCrossing:
    return RankCrossing(what, step, 0, peer, sent, 16 if sent else 0, at_s)


def told_of(rank: int, ahead_s: float, error_s: float = 0.001) -> RankTraced:
    """Rank 2 sends hidden states to rank 1, which sends none on that are known at both ends."""
    crossings = {
        0: [crossing("plan", 5, 1, sent=True, at_s=0.1), crossing("plan", 6, 1, sent=True, at_s=1)],
        1: [
            crossing("plan", 5, 0, sent=False, at_s=0.2),
            crossing("hidden", 6, 2, sent=False, at_s=1.6),
            crossing("hidden", 6, 0, sent=True, at_s=2.8),
        ],
        2: [crossing("hidden", 6, 1, sent=True, at_s=1.2)],
    }[rank]
    return RankTraced(RID, rank, ahead_s, error_s, spans(ROW_AT + ahead_s, *crossings))


def played(lead_ahead_s: float = 0.0) -> GatewayTrace:
    trace = GatewayTrace(10.5)
    trace.submitted(InstanceId("i"), NODES[0], 10.9)
    trace.accepted(HAD_AT + 0.01)
    trace.arrived(13.0, ended=False)
    lead = (
        TraceSpan("template", 0, 0.0, 0.25),
        TraceSpan("queued", 0, 0.25, 1.0),
        TraceSpan("prefill", 0, 1.0, 2.0, 9, 1, 1.0, 1.0),
        TraceSpan("decode", 0, 2.0, 3.98, 28, 28, 0.1, 1.5),
        TraceSpan("end", 0, 3.98, 4.0),
    )
    instants = (HAD_AT + lead_ahead_s, HAD_AT + lead_ahead_s, TOLD_AT + lead_ahead_s)
    trace.add_timings(Traced(RID, *instants, 1, lead, NODES), TOLD_AT + 0.01)
    trace.arrived(TOLD_AT + 0.02, ended=True)
    return trace


def known() -> TracedRequest:
    return TracedRequest(
        request=RID, place=place_of(RID, RID, None), node=NodeId("n1"), began_at_s=1e9,
        started_at=10.0, read_at=10.4,
        ended_at=15.1, facts={"model": "m"}, usage=None,
    )  # fmt: skip


def raw(*ranks: int, lead_ahead_s: float = 0.0) -> dict[str, Any]:
    trace = played(lead_ahead_s)
    for rank in ranks:
        # a rank tells by its own clock, and the lead how far that is from its own
        told = told_of(rank, 7.0 * rank)
        inner = told.spans
        assert inner is not None
        moved = RankSpans(
            inner.began_at + lead_ahead_s, inner.ended_s, inner.turns, inner.parts,
            inner.crossings, inner.totals,
        )  # fmt: skip
        trace.add_timings(RankTraced(RID, rank, told.offset_s, told.error_s, moved), 16.0)
    return document_of(trace, known()).told


@given(st.floats(-1e5, 1e5))
def test_every_rank_is_told_by_the_gateway_s_clock(lead_ahead_s: float) -> None:
    found = raw(0, 1, 2, lead_ahead_s=lead_ahead_s)
    for rank, one in enumerate(found["ranks"]):
        assert (one["rank"], one["node"], one["told"]) == (rank, NODES[rank], True)
        clock = one["clock"]
        assert abs(clock["offset_s"] - lead_ahead_s - 7.0 * rank) <= clock["error_s"] + 1e-6
        assert clock["error_s"] > found["lead"]["clock"]["error_s"]
        assert abs(one["began_s"] - (ROW_AT - 10.0)) <= clock["error_s"] + 1e-5
        assert one["ended_s"] - one["began_s"] == pytest.approx(3.0, abs=1e-5)
    assert found["sums"]["rank1.compute"] == 1.75 and found["sums"]["rank2.send"] == 0.25
    check_trace(chrome_trace(found))


def test_a_crossing_is_told_where_both_ends_are() -> None:
    found = raw(0, 1, 2)
    crossed = [(one["what"], one["step"], one["from"], one["to"]) for one in found["links"]]
    assert crossed == [("plan", 5, 0, 1), ("hidden", 6, 2, 1)], "of the others one end is unknown"
    (plan, hidden) = found["links"]
    assert plan["had_s"] - plan["sent_s"] == pytest.approx(0.1)
    assert (hidden["bytes"], hidden["error_s"]) == (16, 0.002)
    assert hidden["had_s"] - hidden["sent_s"] == pytest.approx(0.4)


def test_a_rank_that_tells_nothing_is_named() -> None:
    trace = played()
    trace.add_timings(told_of(0, 0.0), 16.0)
    trace.add_timings(RankTraced(RID, 2, 0.0, 0.0, None), 16.0)
    assert not trace.is_whole
    ranks = document_of(trace, known()).told["ranks"]
    assert [one["told"] for one in ranks] == [True, False, False]
    assert "no data in time" in ranks[1]["why"] and "the rank has no data" in ranks[2]["why"]
    shown = chrome_trace(document_of(trace, known()).told)
    check_trace(shown)
    names = [one["args"]["name"] for one in shown["traceEvents"] if one["name"] == "process_name"]
    assert any(
        name.startswith("rank 1 on node n3: the rank sent no data in time") for name in names
    )


def test_a_trace_is_whole_with_its_last_rank_and_is_then_told_once() -> None:
    trace, calls = played(), list[int]()
    trace.when_whole(lambda: calls.append(1))
    unknown = RankTraced(RID, 9, 0.0, 0.0, None)
    for told in (told_of(2, 0.0), told_of(0, 0.0), unknown, told_of(1, 0.0)):
        assert calls == []
        trace.add_timings(told, 16.0)
    assert calls == [1]
    trace.add_timings(told_of(1, 0.0), 16.0)
    assert calls == [1]


def test_what_ranks_told_of_an_earlier_try_is_not_told_of_a_later_one() -> None:
    trace = played()
    trace.add_timings(told_of(0, 0.0), 16.0)
    trace.submitted(InstanceId("j"), NODES[0], 16.0)
    assert trace.ranks == {} and trace.is_whole


def test_the_checks_of_ranks_can_fail() -> None:
    sound = chrome_trace(raw(0, 1, 2))
    check_trace(sound, sequential=True)

    def of_rank(trace: dict[str, Any], rank: int, name: str) -> dict[str, Any]:
        return next(
            one
            for one in trace["traceEvents"]
            if one["pid"] == 10 + rank and one["name"] == name and one["ph"] == "X"
        )

    def arrow(trace: dict[str, Any], end: str, name: str) -> dict[str, Any]:
        return next(one for one in trace["traceEvents"] if one["ph"] == end and one["name"] == name)

    def shifted(trace: dict[str, Any]) -> None:
        for one in trace["traceEvents"]:
            if one["pid"] == 12 and one["ph"] != "M":
                one["ts"] += 700_000

    breaks: list[Callable[[dict[str, Any]], Any]] = [
        lambda trace: of_rank(trace, 1, "decode").update(dur=1_900_000),
        lambda trace: of_rank(trace, 1, "prefill").update(ts=1_000_000),
        lambda trace: of_rank(trace, 2, "wait").update(dur=400_000),
        lambda trace: of_rank(trace, 0, "decode")["args"].update(tokens=12),
        lambda trace: arrow(trace, "f", "hidden").update(ts=2_900_000),
        lambda trace: arrow(trace, "f", "plan").update(ts=9_900_000),
        lambda trace: trace["otherData"]["ranks"][1].update(told=False),
        shifted,
    ]
    for broken in breaks:
        trace = copy.deepcopy(sound)
        broken(trace)
        with pytest.raises((AssertionError, KeyError)):
            check_trace(trace, sequential=True)


def test_ranks_are_spans_below_their_runner_for_a_collector() -> None:
    told = raw(0, 2) | FOR_A_COLLECTOR
    spans = list(spans_of(told, {"gen_ai.operation.name": "chat"}))
    ranks = {one.name: one for one in spans if one.name in ("rank0", "rank1", "rank2")}
    (runner,) = [one for one in spans if one.name == "lead"]
    assert ranks.keys() == {"rank0", "rank2"}, "one that told nothing is none"
    assert {one.parent_id for one in ranks.values()} == {runner.span_id}
    for number in (0, 2):
        inside = [one for one in spans if one.parent_id == ranks[f"rank{number}"].span_id]
        of = told["ranks"][number]
        assert len(inside) == len(of["turns"]) + len(of["parts"]) > 0
    assert len({one.span_id for one in spans}) == len(spans)
