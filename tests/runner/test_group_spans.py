"""A group whose requests are traced says what one rank says, and every rank tells what it did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bus.links.clock_offset import ClockOffsets, ClockSample
from bus.links.traffic import Crossed, read_traffic
from bus.process.clock import wall
from bus.process.flight import read_flight
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Traced
from bus.wire.messages.traces import RankSpans, RankTraced
from gateway.http.diagnostics.behind import InstanceRank, NodeRunners
from gateway.http.diagnostics.clocks import Clocks
from gateway.http.diagnostics.merged import timeline
from runner.group.rank_recorder import MOST_TRACED
from runner.lifecycle import WEDGED
from tests.harness.group_requests import assert_same, play, text_hand
from tests.harness.ranks import (
    PIPELINE_2,
    PIPELINE_3,
    TENSOR_2,
    TINY,
    Layers,
    become,
    group_spec,
    one_gateway,
    ready_group,
    started_ranks,
    until_ready,
)
from tests.harness.slot import FakeGateway, Slot, request

pytestmark = pytest.mark.slow

Outcomes = dict[str, Any]


@pytest.fixture(scope="module")
def one_rank() -> Outcomes:
    with one_gateway(TINY) as gateway:
        return play(gateway, text_hand())


def traced(hand: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    return [one.model_copy(update={"trace": True}) for one in hand]


def told(gateway: FakeGateway, name: str, ranks: int) -> dict[int, RankTraced]:
    """What each rank tells of a request, once all have."""

    def found() -> dict[int, RankTraced]:
        return {
            one.rank: one
            for one in gateway.heard
            if isinstance(one, RankTraced) and one.request_id == name
        }

    gateway.until(lambda: len(found()) == ranks, f"every rank tells of {name}")
    return found()


def spans_of(one: RankTraced) -> RankSpans:
    assert one.spans is not None, one
    return one.spans


@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        pytest.param("pipeline", PIPELINE_3, id="pipeline of 3", marks=pytest.mark.proof),
        pytest.param("tensor", TENSOR_2, id="tensor over 2"),
    ],
)
def test_a_traced_group_says_what_one_rank_says_and_tells_of_each_rank(
    one_rank: Outcomes, sharding: str, layers: Layers
) -> None:
    hand = traced(text_hand())
    assert len(hand) <= MOST_TRACED
    with ready_group(TINY, sharding, layers) as (_, gateway):
        assert_same(play(gateway, hand), one_rank)
        for one in hand:
            found = told(gateway, one.request_id, len(layers))
            (lead,) = [
                message
                for message in gateway.heard
                if isinstance(message, Traced) and message.request_id == one.request_id
            ]
            assert lead.ranks == tuple(f"node-{rank}" for rank in range(len(layers)))
            made = {
                rank: sum(turn.tokens for turn in spans_of(of).turns) for rank, of in found.items()
            }
            # each rank goes through the same plans; which of them it had read at the end differs
            assert max(made.values()) - min(made.values()) <= 2 * one.n, made
            for of in found.values():
                assert abs(of.offset_s) <= of.error_s, "all ranks are of this machine"
                seconds = sum(sum(turn.seconds) for turn in spans_of(of).turns)
                assert seconds == pytest.approx(spans_of(of).ended_s, rel=1e-6)


def test_what_crosses_a_pipeline_is_told_at_both_ends_in_its_order() -> None:
    with ready_group(TINY, "pipeline", PIPELINE_2) as (_, gateway):
        (one,) = traced([request("one", "The boat goes on", max_tokens=20)])
        gateway.ended(gateway.submit(one))
        found = told(gateway, "one", 2)
    at: dict[tuple[str, int, int, int], float] = {}
    for of in found.values():
        for crossing in spans_of(of).crossings:
            if crossing.sent:
                key = (crossing.what, crossing.step, crossing.number, of.rank)
                at[key] = spans_of(of).began_at - of.offset_s + crossing.at_s
    matched = {"plan": 0, "hidden": 0, "tokens": 0}
    for of in found.values():
        for crossing in spans_of(of).crossings:
            sent_at = at.get((crossing.what, crossing.step, crossing.number, crossing.peer))
            if crossing.sent or sent_at is None:
                continue
            had_at = spans_of(of).began_at - of.offset_s + crossing.at_s
            assert had_at >= sent_at - found[1].error_s, crossing
            matched[crossing.what] += 1
    assert min(matched.values()) >= 18, matched


@pytest.mark.proof
def test_the_bytes_between_stages_are_counted_at_both_ends() -> None:
    with ready_group(TINY, "pipeline", PIPELINE_2) as (slots, gateway):

        def exchanged(rank: int) -> Crossed:
            """What a rank has handed to the other one's node, and had from there."""
            (found,) = read_traffic(Path(slots[rank].endpoints.folder)).values()
            ways = {(one.peer, one.plane): one for one in found}
            return ways[f"node-{1 - rank}", "exchange"]

        before = {rank: exchanged(rank) for rank in (0, 1)}
        (one,) = traced([request("one", "The boat goes on", max_tokens=20)])
        gateway.ended(gateway.submit(one))
        totals = {rank: spans_of(of).totals for rank, of in told(gateway, "one", 2).items()}
        for rank in (0, 1):
            now, then = exchanged(rank), before[rank]
            for sent, count in (
                (True, now.sent_bytes - then.sent_bytes),
                (False, now.received_bytes - then.received_bytes),
            ):
                crossed = [
                    total.bytes_
                    for total in totals[rank]
                    if total.what != "plan" and total.sent is sent
                ]
                # the trace ends with the request, the group's last step a moment later
                assert 0 < sum(crossed) <= count <= 1.2 * sum(crossed) + 4096
        assert exchanged(0).received_bytes == exchanged(1).sent_bytes
        for rank in (0, 1):
            (found,) = read_traffic(Path(slots[rank].endpoints.folder)).values()
            (plans,) = [one for one in found if one.plane == "plans"]
            assert plans.peer == f"node-{1 - rank}"
            assert plans.sent_bytes > 0 < plans.received_bytes


@pytest.mark.proof
def test_a_group_that_is_not_asked_notes_nothing() -> None:
    with ready_group(TINY, "pipeline", PIPELINE_2) as (_, gateway):
        gateway.ended(gateway.submit(request("plain", "The boat goes on", max_tokens=20)))
        (one,) = traced([request("one", "The boat goes on", max_tokens=4)])
        gateway.ended(gateway.submit(one))
        told(gateway, "one", 2)
        names = {one.request_id for one in gateway.heard if isinstance(one, Traced | RankTraced)}
        assert names == {"one"}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        pytest.param("pipeline", PIPELINE_2, id="pipeline of 2"),
        pytest.param("tensor", TENSOR_2, id="tensor over 2"),
    ],
)
def test_a_rank_whose_engine_hangs_tells_it_and_the_timeline_names_it(
    sharding: str, layers: Layers
) -> None:
    group = group_spec(sharding, layers)
    with started_ranks(TINY, group, faults={1: "hanging"}) as slots:
        become(slots)
        until_ready(slots)
        gateway = FakeGateway(slots[0])
        try:
            stream = gateway.submit(request("one", "The boat", max_tokens=1000, ignore_eos=True))
            # who hangs is told while both processes speak; the lead gives up some seconds later
            seen: list[dict[str, Any]] = []

            def is_named() -> bool:
                seen[:] = behind_in(slots)
                return bool(seen)

            gateway.until(is_named, "the rank is named")
            (behind,) = seen
            assert all(slot.process.poll() is None for slot in slots)
            assert (behind["rank"], behind["node"]) == (1, "node-1")
            assert behind["why"].startswith("the engine hangs in step ")
            gateway.ended(stream, seconds=60)
        finally:
            gateway.close()
        assert slots[0].exit_code() == WEDGED
        slots[1].exit_code()
        (after,) = behind_in(slots)
        assert after["rank"] == 1 and after["ended_at_s"] is not None


def behind_in(slots: Sequence[Slot]) -> list[dict[str, Any]]:
    """Who is behind by the flight recorders that these ranks have in their files."""
    nodes: list[NodeRunners] = []
    for rank, slot in enumerate(slots):
        over = slot.process.poll() is not None
        told = {
            "process": "runner:00", "pid": slot.process.pid, "instance": "inst-1", "generation": 1,
            "rank": rank, "model": "toy", "phase": "ended" if over else "ready", "silent_s": 0.2,
            "halted": False, "ended_at_s": wall() if over else None,
            "recorder": read_flight(Path(slot.endpoints.folder), "runner:00", slot.process.pid),
        }  # fmt: skip
        nodes.append(NodeRunners(f"node-{rank}", f"node-{rank}", [told]))
    now_s = wall()
    alike = ClockOffsets()
    alike.add(ClockSample(now_s, now_s, now_s, now_s))
    found = timeline(
        nodes,
        [InstanceRank("inst-1", "toy", 1, rank, f"node-{rank}") for rank in range(len(slots))],
        wanted=lambda _instance, _model: True,
        most=128,
        clocks=Clocks("node-0", {"node-1": alike}),
        now_s=now_s,
    )
    return found["behind"]
