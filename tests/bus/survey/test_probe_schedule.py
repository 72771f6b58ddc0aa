"""When links are measured, what is kept, and whom it never disturbs."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.survey.link_probe import MOST_BYTES, ProbeResult
from bus.survey.probe_schedule import (
    EVERY_S,
    FIRST_S,
    GAP_S,
    KEEP_S,
    LOOPBACK_MOST_BYTES,
    RETRY_S,
    VPN_MOST_BYTES,
    ProbeSchedule,
    ProbeTarget,
    busy_nodes,
    one_way_s,
)
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.readings import FetchReading, RunnerReading, WeightsReading
from bus.wire.topology import PRIORS

ME, A, B = NodeId("n-me"), NodeId("n-a"), NodeId("n-b")
AT_A, AT_B = ProbeTarget(A, "10.0.0.1:1"), ProbeTarget(B, "10.0.0.2:1")
ONE = {A: (AT_A.address,)}
FAST = ProbeResult(1e-3, 0.1e9)


def runner(node: NodeId, running: int = 0, phase: str = "ready") -> RunnerReading:
    numbers = {
        name: 0
        for name, info in RunnerReading.model_fields.items()
        if info.annotation in (int, float) and info.is_required()
    }
    return RunnerReading.model_validate({
        **numbers, "node": node, "process": "runner:00", "instance": InstanceId("i"),
        "model": ModelId("m"), "best_waiting_priority": None, "running": running, "phase": phase,
    })  # fmt: skip


def test_each_address_has_its_turn_soon_and_then_every_few_minutes() -> None:
    rounds, now, taken = ProbeSchedule(ME), 0.0, list[float]()
    while now < 3 * EVERY_S:
        if rounds.choose(ONE, (), now, 0.5) is not None:
            taken.append(now)
            rounds.measured(AT_A, FAST, now)
        now += 1.0
    assert taken[0] <= FIRST_S
    assert [round((b - a) / EVERY_S, 1) for a, b in itertools.pairwise(taken)] == [1, 1]


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 40.0),
            st.frozensets(st.sampled_from([ME, A, B])),
            st.frozensets(st.sampled_from([A, B])),
            st.booleans(),
            st.floats(0.0, 0.999),
        ),
        max_size=60,
    )
)
@settings(max_examples=100)
def test_nobody_busy_or_gone_is_measured_and_turns_are_apart(
    steps: list[tuple[float, frozenset[NodeId], frozenset[NodeId], bool, float]],
) -> None:
    rounds, now, before = ProbeSchedule(ME), 0.0, -GAP_S
    all_ = {A: (AT_A.address, "192.168.0.1:1"), B: (AT_B.address,), ME: ("127.0.0.1:1",)}
    taken: dict[ProbeTarget, float] = {}
    for wait_s, busy, gone, works, chance in steps:
        now += wait_s
        there = {node: some for node, some in all_.items() if node not in gone}
        chosen = rounds.choose(there, busy, now, chance)
        assert {one.peer for one in rounds.links(now)} <= set(there) - {ME}
        if chosen is None:
            continue
        assert ME not in busy and chosen.peer not in busy and chosen.peer in there
        assert now - before >= GAP_S
        before = now
        assert now - taken.get(chosen, -EVERY_S) >= RETRY_S, "whoever came and went"
        taken[chosen] = now
        (rounds.measured(chosen, FAST, now) if works else rounds.failed(chosen, now))


def test_an_address_that_does_not_answer_loses_its_figures_and_rests_longer() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose(ONE, (), 0.0, 0.0)
    rounds.measured(AT_A, FAST, 0.0)
    assert [one.host for one in rounds.links(1.0)] == ["10.0.0.1"]
    rounds.failed(AT_A, 1.0)
    assert rounds.links(1.0) == ()
    assert rounds.choose(ONE, (), RETRY_S, 0.0) is None
    assert rounds.choose(ONE, (), RETRY_S + 1.0, 0.0) == AT_A
    rounds.failed(AT_A, 100.0)
    assert rounds.choose(ONE, (), 100.0 + 2 * RETRY_S - 1, 0.0) is None


def test_a_peer_that_comes_and_goes_is_not_measured_more_often() -> None:
    rounds, now, taken = ProbeSchedule(ME), 0.0, 0
    while now < 3 * EVERY_S:
        there = ONE if int(now) % 10 < 7 else {}
        if rounds.choose(there, (), now, 0.5) is not None:
            taken += 1
            rounds.measured(AT_A, FAST, now)
        assert not rounds.links(now) or there
        now += 1.0
    assert taken == 3
    assert rounds.choose({}, (), now + 2 * EVERY_S, 0.5) is None
    assert rounds.turns == {}, "and forgotten when it stays away"


def test_the_best_of_a_few_counts_and_figures_grow_old() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose(ONE, (), 0.0, 0.0)
    for at, rate in ((0.0, 0.05e9), (1.0, 0.11e9), (2.0, 0.08e9)):
        rounds.measured(AT_A, ProbeResult(1e-3, rate), at)
    (link,) = rounds.links(10.0)
    assert (link.bytes_per_s, link.at_least, link.age_s) == (0.11e9, False, 8.0)
    assert rounds.links(2.0 + KEEP_S) != ()
    assert rounds.links(3.0 + KEEP_S) == ()


def test_what_encryption_or_this_machine_sets_the_pace_of_is_a_lower_bound() -> None:
    rounds, at_home = ProbeSchedule(ME), ProbeTarget(B, "127.0.0.1:7")
    rounds.choose({A: ONE[A], B: (at_home.address,)}, (), 0.0, 0.0)
    rounds.measured(AT_A, ProbeResult(1e-3, 0.4e9), 0.0)
    rounds.measured(at_home, ProbeResult(1e-4, 0.02e9), 0.0)
    assert {one.peer: one.at_least for one in rounds.links(0.0)} == {A: True, B: True}
    home = next(one for one in rounds.links(0.0) if one.peer == B)
    assert home.latency_s == PRIORS["loopback"].latency_s, "no network, so it is load that was seen"


def test_the_way_is_what_the_network_adds_to_an_echo_at_home() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose({**ONE, ME: ("127.0.0.1:1",)}, (), 0.0, 0.0)
    rounds.measured(AT_A, ProbeResult(500e-6, 0.1e9), 0.0)
    assert rounds.links(0.0)[0].latency_s == 250e-6
    rounds.measured(ProbeTarget(ME, "127.0.0.1:1"), ProbeResult(300e-6, None), 0.0)
    (link,) = rounds.links(0.0)
    assert abs(link.latency_s - (PRIORS["loopback"].latency_s + 100e-6)) < 1e-9
    assert one_way_s(100e-6, 300e-6) == PRIORS["loopback"].latency_s


def test_slow_kinds_of_links_are_given_less() -> None:
    assert AT_A.most_bytes == MOST_BYTES
    assert ProbeTarget(A, "100.64.0.9:1").most_bytes == VPN_MOST_BYTES
    assert ProbeTarget(A, "127.0.0.1:1").most_bytes == LOOPBACK_MOST_BYTES
    assert ProbeTarget(A, "studio.local:1").most_bytes == MOST_BYTES


def test_nodes_that_decode_load_or_fetch_are_busy() -> None:
    fetch = FetchReading(
        model=ModelId("m"), phase="fetching", done_bytes=0, total_bytes=9, bytes_per_s=0.0,
        sources=(B,),
    )  # fmt: skip
    assert busy_nodes([runner(A), WeightsReading(node=B)]) == set()
    assert busy_nodes([runner(A, running=1)]) == {A}
    assert busy_nodes([runner(A, phase="loading")]) == {A}
    assert busy_nodes([WeightsReading(node=A, fetches=(fetch,))]) == {A, B}
