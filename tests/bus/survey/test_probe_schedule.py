"""When links are measured, what is kept, and whom it never disturbs."""

from __future__ import annotations

import itertools
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.survey.link_probe import MOST_BYTES, ProbeResult
from bus.survey.probe_schedule import (
    BANDWIDTH_EVERY_S,
    FIRST_S,
    GAP_S,
    KEEP_S,
    LATENCY_EVERY_S,
    LOOPBACK_MOST_BYTES,
    OVERDUE,
    RETRY_S,
    VPN_MOST_BYTES,
    Measurement,
    ProbeSchedule,
    ProbeTarget,
    busy_nodes,
    one_way_s,
)
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.readings import FetchReading, RunnerReading, WeightsReading
from bus.wire.topology import PRIORS

PROVING = bool(os.environ.get("SHOAL_PROVE"))

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


def rehearse(
    rounds: ProbeSchedule, addresses: dict[NodeId, tuple[str, ...]], until_s: float
) -> list[tuple[float, Measurement]]:
    """What a node measures in idle seconds, all of which succeeds; its clock is that of all."""
    found: list[tuple[float, Measurement]] = []
    for second in range(int(until_s)):
        now = float(second)
        chosen = rounds.choose(addresses, (), now, 0.5, now)
        if chosen is not None:
            found.append((now, chosen))
            rate = 0.1e9 if chosen.most_bytes else None
            rounds.measured(chosen.target, ProbeResult(1e-3, rate), now)
    return found


def test_latency_is_measured_every_ten_seconds_and_bandwidth_every_minute() -> None:
    found = rehearse(ProbeSchedule(ME), ONE, 5 * BANDWIDTH_EVERY_S)
    bursts = [at for at, one in found if one.most_bytes]
    assert found[0][0] <= FIRST_S and bursts[0] == found[0][0], "all of it, soon"
    gaps = [b - a for a, b in itertools.pairwise(bursts[2:])]
    assert gaps and all(abs(gap - BANDWIDTH_EVERY_S) <= 1 for gap in gaps)
    every = [at for at, _ in found]
    assert max(b - a for a, b in itertools.pairwise(every)) <= LATENCY_EVERY_S + 1
    assert len(every) <= 5 * BANDWIDTH_EVERY_S / LATENCY_EVERY_S * 1.2


@given(st.integers(2, 16))
@settings(max_examples=15 if PROVING else 5, deadline=None)
def test_nodes_take_turns_with_bursts_and_each_measures_each_other(count: int) -> None:
    ids = [NodeId(f"n-{number:02d}") for number in range(count)]
    addresses = {node: (f"10.0.0.{at}:1",) for at, node in enumerate(ids, 1)}
    every_s = ProbeSchedule(ids[0]).bandwidth_every_s
    assert every_s == BANDWIDTH_EVERY_S, "alone"
    bursts: list[tuple[float, NodeId, NodeId]] = []
    for node in ids:
        rounds = ProbeSchedule(node)
        found = rehearse(rounds, addresses, 1.0)
        every_s = rounds.bandwidth_every_s
        found = rehearse(rounds, addresses, 4 * every_s)
        bursts += [(at, node, one.target.peer) for at, one in found if one.most_bytes]
    later = [(at, *pair) for at, *pair in bursts if 2 * every_s <= at < 4 * every_s]
    assert len({at for at, *_ in later}) == len(later), "never two at once"
    pairs = {(a, b) for a in ids for b in ids if a != b}
    assert {(one, other) for _, one, other in later} == pairs


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
def test_no_node_that_is_busy_or_gone_is_measured_and_bursts_are_apart(
    steps: list[tuple[float, frozenset[NodeId], frozenset[NodeId], bool, float]],
) -> None:
    rounds, now, before = ProbeSchedule(ME), 0.0, -GAP_S
    all_ = {A: (AT_A.address, "192.168.0.1:1"), B: (AT_B.address,), ME: ("127.0.0.1:1",)}
    for wait_s, busy, gone, works, chance in steps:
        now += wait_s
        there = {node: some for node, some in all_.items() if node not in gone}
        chosen = rounds.choose(there, busy, now, chance, now)
        assert {one.peer for one in rounds.links(now)} <= set(there) - {ME}
        rests = {one.peer: one.why for one in rounds.resting(busy, now)}
        assert set(rests) <= set(there) - {ME}
        assert all((why == "busy_here") == (ME in busy) for why in rests.values())
        if chosen is None:
            continue
        target = chosen.target
        assert ME not in busy and target.peer not in busy and target.peer in there
        if chosen.most_bytes:
            assert now - before >= GAP_S and target.peer != ME
            before = now
        rate = 0.1e9 if chosen.most_bytes else None
        if works:
            rounds.measured(target, ProbeResult(1e-3, rate), now)
        else:
            rounds.failed(target, now)
            assert rounds.choose(there, (), now + RETRY_S / 2, chance, now) != chosen


def test_an_address_that_does_not_answer_loses_its_figures_and_rests_longer() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose(ONE, (), 0.0, 0.0, 0.0)
    rounds.measured(AT_A, FAST, 0.0)
    assert [one.host for one in rounds.links(1.0)] == ["10.0.0.1"]
    rounds.failed(AT_A, 1.0)
    assert rounds.links(1.0) == ()
    assert rounds.choose(ONE, (), RETRY_S, 0.0, 0.0) is None
    chosen = rounds.choose(ONE, (), RETRY_S + 1.0, 0.0, 0.0)
    assert chosen == Measurement(AT_A, MOST_BYTES), "bandwidth, too, for none is known"
    rounds.failed(AT_A, 100.0)
    assert rounds.choose(ONE, (), 100.0 + 2 * RETRY_S - 1, 0.0, 0.0) is None


def test_a_peer_that_comes_and_goes_is_not_measured_more_often() -> None:
    rounds, now, taken = ProbeSchedule(ME), 0.0, 0
    while now < 10 * LATENCY_EVERY_S:
        there = ONE if int(now) % 10 < 7 else {}
        chosen = rounds.choose(there, (), now, 0.5, now)
        if chosen is not None:
            taken += 1
            rounds.measured(AT_A, FAST, now)
        assert not rounds.links(now) or there
        now += 1.0
    assert taken <= 11
    assert rounds.choose({}, (), now + 2 * BANDWIDTH_EVERY_S, 0.5, now) is None
    assert rounds.turns == {}, "and forgotten when it stays away"


def test_who_is_not_measured_is_named_with_why() -> None:
    rounds = ProbeSchedule(ME)
    there = {**ONE, B: (AT_B.address,), ME: ("127.0.0.1:1",)}
    rounds.choose(there, (), 0.0, 0.0, 0.0)
    assert {one.peer: one.why for one in rounds.resting((), 0.0)} == {A: "new", B: "new"}
    rounds.measured(AT_A, FAST, 0.0)
    rounds.failed(AT_B, 0.0)
    assert {one.peer: one.why for one in rounds.resting((), 1.0)} == {B: "unanswered"}
    assert {one.peer: one.why for one in rounds.resting({A}, 1.0)} == {B: "unanswered"}
    late = OVERDUE * LATENCY_EVERY_S + 1
    assert {one.peer: one.why for one in rounds.resting({A}, late)}[A] == "busy_there"
    assert {one.why for one in rounds.resting({ME, A}, late)} == {"busy_here"}
    assert rounds.links(late) != (), "what was measured is still told"


def test_a_measurement_that_was_broken_off_is_made_again_when_it_can_be() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose(ONE, (), 0.0, 0.0, 0.0)
    assert rounds.choose(ONE, (), FIRST_S, 0.0, 0.0) == Measurement(AT_A, MOST_BYTES)
    rounds.interrupted(AT_A, FIRST_S)
    assert rounds.choose(ONE, {A}, FIRST_S + GAP_S, 0.0, 0.0) is None
    again = rounds.choose(ONE, (), FIRST_S + GAP_S, 0.0, 0.0)
    assert again == Measurement(AT_A, MOST_BYTES)


def test_the_best_of_a_few_counts_and_figures_grow_old() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose(ONE, (), 0.0, 0.0, 0.0)
    for at, rate in ((0.0, 0.05e9), (1.0, 0.11e9), (2.0, 0.08e9)):
        rounds.measured(AT_A, ProbeResult(1e-3, rate), at)
    (link,) = rounds.links(10.0)
    assert (link.bytes_per_s, link.at_least, link.age_s) == (0.11e9, False, 8.0)
    assert rounds.links(2.0 + KEEP_S) != ()
    assert rounds.links(3.0 + KEEP_S) == ()


def test_what_encryption_or_this_machine_sets_the_pace_of_is_a_lower_bound() -> None:
    rounds, at_home = ProbeSchedule(ME), ProbeTarget(B, "127.0.0.1:7")
    rounds.choose({A: ONE[A], B: (at_home.address,)}, (), 0.0, 0.0, 0.0)
    rounds.measured(AT_A, ProbeResult(1e-3, 0.4e9), 0.0)
    rounds.measured(at_home, ProbeResult(1e-4, 0.02e9), 0.0)
    assert {one.peer: one.at_least for one in rounds.links(0.0)} == {A: True, B: True}
    home = next(one for one in rounds.links(0.0) if one.peer == B)
    assert home.latency_s == PRIORS["loopback"].latency_s, "no network, so it is load that was seen"


def test_the_way_is_what_the_network_adds_to_an_echo_at_home() -> None:
    rounds = ProbeSchedule(ME)
    rounds.choose({**ONE, ME: ("127.0.0.1:1",)}, (), 0.0, 0.0, 0.0)
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
