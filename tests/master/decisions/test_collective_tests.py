"""Where a collective test goes, why it does not, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hardware.collective_test import ARRAYS, ELEMENT_BYTES, SIZES, is_skipped
from bus.replica.state import ClusterState, apply
from bus.wire.cards import NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.collectives import TEST_MODEL, CollectiveReading, RankFinding
from bus.wire.messages.commands import RunCollectiveTest
from bus.wire.messages.events import (
    EventBody,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    LoadRefused,
    NodeDrained,
    NodeJoined,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
)
from bus.wire.messages.readings import CardReading, NodeReading
from bus.wire.topology import RdmaPort
from master.decisions.collective_tests import FAILED_S, decide_test, expire_tests
from master.decisions.crash_loop import CrashLoops
from master.decisions.decide import Decided, Policy, Scene, decide
from master.decisions.observations import Observations
from master.decisions.planner import follow_up, repairs
from master.decisions.pool_view import living
from master.placement.capacity import NodeCapacity, node_capacities
from master.placement.memory_cost import FIXED_BYTES
from tests.harness.drafts import next_event
from tests.harness.placement_nodes import GB, MB, carded, node

NAME = InstanceId("t1")
FEW = [node(1), node(2), node(3)]


def command(**more: Any) -> RunCollectiveTest:
    return RunCollectiveTest.model_validate({"command_id": CommandId("c"), **more})


def placed(
    fleet: list[NodeCapacity], /, state: ClusterState | None = None, **more: Any
) -> Instance:
    bodies = decide_test(command(**more), fleet, state or ClusterState(), NAME)
    assert not isinstance(bodies, Refusal), bodies
    assert isinstance(bodies[-1], InstancePlaced)
    return bodies[-1].instance


def refused(
    fleet: list[NodeCapacity], /, state: ClusterState | None = None, **more: Any
) -> Refusal:
    found = decide_test(command(**more), fleet, state or ClusterState(), NAME)
    assert isinstance(found, Refusal)
    return found


def after(state: ClusterState, *bodies: EventBody) -> ClusterState:
    for body in bodies:
        state = apply(state, next_event(state, body, term=1, at_s=0.0))
    return state


def meshed(*nodes: NodeCapacity) -> list[NodeCapacity]:
    return [
        carded(one, rdma={o.id: f"rdma_en{o.id[1:]}" for o in nodes if o is not one})
        for one in nodes
    ]


def running() -> ClusterState:
    """A test over two nodes whose ranks are ready."""
    state = after(ClusterState(), InstancePlaced(instance=placed(FEW[:2])))
    return after(state, *(ready(rank) for rank in (0, 1)))


def ready(rank: int) -> RunnerReady:
    return RunnerReady(
        instance=NAME, generation=1, rank=rank, node=FEW[rank].id, process="runner:00", pid=7,
        addresses=(),
    )  # fmt: skip


def ended(rank: int, message: str, exit_code: int | None = 76) -> RunnerEnded:
    return RunnerEnded(
        instance=NAME, generation=1, rank=rank, node=FEW[rank].id, exit_code=exit_code,
        message=message,
    )  # fmt: skip


def said(rank: int, phase: str, state: ClusterState) -> CollectiveReading:
    return CollectiveReading.model_validate(
        {
            "node": FEW[rank].id, "process": "runner:00", "instance": NAME, "rank": rank,
            "size": 2, "backend": "ring", "test": state.instances[NAME].test, "phase": phase,
            "done": 1, "rounds": 1, "finding": RankFinding(), "pid": 7, "mlx_version": "",
            "device": "cpu",
        }
    )  # fmt: skip


def test_without_names_every_node_takes_part_and_with_names_those_in_their_order() -> None:
    assert [one.node for one in placed(FEW).shards] == ["n1", "n2", "n3"]
    named = placed(FEW, nodes=["n3", "n1"])
    assert [(one.rank, one.node) for one in named.shards] == [(0, "n3"), (1, "n1")]
    assert (named.model, named.collectives, named.test is not None) == (TEST_MODEL, "ring", True)


@pytest.mark.parametrize("nodes", [FEW[:1], []])
def test_one_node_alone_is_told_that_two_are_needed(nodes: list[NodeCapacity]) -> None:
    found = refused(nodes)
    assert found.reason == "unsupported" and "at least two nodes" in found.message


def test_a_node_that_is_unknown_named_twice_or_full_is_named() -> None:
    assert refused(FEW, nodes=["n1", "n9"]).reason == "unknown_node"
    assert "n9" in refused(FEW, nodes=["n1", "n9"]).message
    assert refused(FEW, nodes=["n1", "box1"]).reason == "bad_request"
    full = [FEW[0], replace(FEW[1], shards=4)]
    assert refused(full).reason == "no_capacity" and "box2" in refused(full).message
    drained = after(
        ClusterState(), NodeJoined(node=FEW[2].id, name="box3"),
        NodeDrained(node=FEW[2].id, draining=True),
    )  # fmt: skip
    assert "box3 is drained" in refused(FEW[:2], drained, nodes=["n1", "n3"]).message


@given(
    st.lists(st.integers(0, 8 * GB), min_size=2, max_size=6),
    st.sampled_from(["quick", "standard", "stress"]),
    st.none() | st.integers(1, 8 * GB),
)
def test_it_takes_no_more_than_there_is_and_is_refused_where_nothing_would_fit(
    rooms: list[int], mode: str, memory_bytes: int | None
) -> None:
    nodes = [node(at, usable=room) for at, room in enumerate(rooms)]
    found = decide_test(command(mode=mode, memory_bytes=memory_bytes), nodes, ClusterState(), NAME)
    least = min([*rooms, *([] if memory_bytes is None else [memory_bytes])])
    needed = FIXED_BYTES + ARRAYS * SIZES[0] * ELEMENT_BYTES
    if isinstance(found, Refusal):
        assert least < needed
        assert found.reason in ("insufficient_memory", "bad_request")
        return
    assert least >= needed
    assert isinstance(found[-1], InstancePlaced)
    instance = found[-1].instance
    assert instance.test is not None and not is_skipped(instance.test, SIZES[0])
    for shard in instance.shards:
        assert shard.bytes_reserved <= least
        assert shard.bytes_reserved >= FIXED_BYTES + ARRAYS * max(
            size * ELEMENT_BYTES
            for size in instance.test.sizes
            if not is_skipped(instance.test, size)
        )


def test_nodes_of_one_machine_share_its_memory() -> None:
    room = 2 * (FIXED_BYTES + 60 * MB)
    here = [node(1, usable=room, machine="m"), node(2, usable=room, machine="m")]
    test = placed(here).test
    assert test is not None and test.cap_bytes == 20 * MB
    assert sum(shard.bytes_reserved for shard in placed(here).shards) <= room


def test_memory_that_is_not_measured_yet_is_waited_for() -> None:
    assert refused([FEW[0], node(2, free_bytes=None)]).reason == "pending"


def test_jaccl_is_taken_where_rdma_joins_all_and_refused_with_the_pair_where_not() -> None:
    assert placed(meshed(*FEW)).collectives == "jaccl"
    assert placed(meshed(*FEW), backend="ring").collectives == "ring"
    found = refused(FEW, backend="jaccl")
    assert found.reason == "unsupported" and "box1 has none to box2" in found.message
    down = [carded(FEW[0], rdma_ports=(RdmaPort(device="rdma_en2", active=False),)), FEW[1]]
    assert "rdma_en2" in refused(down, backend="jaccl").message


def test_one_test_at_a_time_and_a_failed_one_makes_way() -> None:
    state = running()
    found = refused(FEW, state)
    assert found.reason == "conflict" and NAME in found.message
    failed = after(state, InstanceFailed(instance=NAME, why="x"))
    bodies = decide_test(command(), FEW, failed, InstanceId("t2"))
    assert not isinstance(bodies, Refusal)
    assert [body.kind for body in bodies] == ["instance_removed", "instance_placed"]


def test_its_memory_counts_as_taken_even_when_its_ranks_are_ready() -> None:
    card = NodeCard(
        node=NodeId("n1"), name="box1", platform="linux", cores=2, memory_bytes=16 * GB,
        backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=4, announced_at_s=0.0,
    )  # fmt: skip
    state = running()
    reserved = state.instances[NAME].shards[0].bytes_reserved
    (node,) = node_capacities({card.node: card}, {}, state.instances)
    assert node.reserved_bytes == node.loading_bytes == reserved


def test_what_was_in_memory_beside_it_is_told() -> None:
    other = Instance(
        instance=InstanceId("i9"), model="org/m", context_tokens=8, keep_alive_s=1.0,
        shards=placed(FEW[:2]).shards[:1], status="ready",
    )  # fmt: skip
    state = after(ClusterState(), InstancePlaced(instance=other))
    test = placed(FEW, state).test
    assert test is not None and test.beside == ("org/m (i9)",)


def test_a_test_is_never_taken_for_a_copy_of_a_model() -> None:
    assert living(running(), TEST_MODEL) == []


def test_a_rank_that_ends_fails_the_test_for_good_and_is_named() -> None:
    state = running()
    news = ended(1, "runner:00 was killed by a signal")
    (failed,) = follow_up(state.instances[NAME], news, CrashLoops(), 0.0)
    assert isinstance(failed, InstanceFailed) and failed.place_again is None
    assert failed.why == "rank 1 on node n2: runner:00 was killed by a signal"
    state = after(state, news, failed)
    assert follow_up(state.instances[NAME], ended(0, "y"), CrashLoops(), 0.0) == []


def test_a_rank_that_a_worker_refuses_fails_the_test() -> None:
    refusal = Refusal(reason="insufficient_memory", message="only 1 GB is free")
    news = LoadRefused(instance=NAME, generation=1, rank=1, node=FEW[1].id, refusal=refusal)
    (failed,) = follow_up(running().instances[NAME], news, CrashLoops(), 0.0)
    assert isinstance(failed, InstanceFailed) and failed.place_again is None
    assert "rank 1 on node n2: only 1 GB is free" in failed.why


def test_a_holder_that_takes_over_gives_up_a_test_whose_rank_has_ended() -> None:
    (failed,) = repairs(after(running(), ended(1, "was killed")), CrashLoops(), 0.0)
    assert isinstance(failed, InstanceFailed) and "rank 1" in failed.why


def test_a_test_is_drained_when_every_rank_has_said_that_it_is_done() -> None:
    state, view = running(), Observations()
    assert view.hear(said(0, "done", state), 1.0)
    assert not view.hear(said(1, "bandwidth", state), 1.0)
    assert expire_tests(state, view, {}, 1.0) == []
    view.hear(said(1, "done", state), 2.0)
    (draining,) = expire_tests(state, view, {}, 2.0)
    assert isinstance(draining, InstanceDraining)
    state = after(state, draining)
    assert expire_tests(state, view, {}, 3.0) == []
    for rank, more in ((0, 0), (1, 1)):
        gone = RunnerUnloaded(instance=NAME, generation=1, rank=rank, node=FEW[rank].id)
        follows = follow_up(state.instances[NAME], gone, CrashLoops(), 3.0)
        assert len(follows) == more
        state = after(state, gone, *follows)
    assert NAME not in state.instances


def test_ranks_that_leave_by_themselves_when_done_end_a_test_well() -> None:
    (draining,) = follow_up(
        running().instances[NAME], ended(0, "the test finished", 0), CrashLoops(), 0.0
    )
    assert isinstance(draining, InstanceDraining)


def test_a_failed_test_can_be_looked_at_for_a_while() -> None:
    state = after(running(), InstanceFailed(instance=NAME, why="x"))
    failed_at = {NAME: 100.0}
    assert expire_tests(state, Observations(), failed_at, 100.0 + FAILED_S - 1) == []
    (removed,) = expire_tests(state, Observations(), failed_at, 100.0 + FAILED_S)
    assert isinstance(removed, InstanceRemoved)


def test_the_command_is_decided_once() -> None:
    view = Observations()
    for each in FEW[:2]:
        card = NodeCard(
            node=each.id, name=each.name, platform="linux", cores=2, memory_bytes=16 * GB,
            backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=4, announced_at_s=0.0,
        )  # fmt: skip
        view.hear(CardReading(card=card), 0.0)
        reading = NodeReading(
            node=each.id, memory_total_bytes=16 * GB, memory_available_bytes=12 * GB,
            cpu_ratio=0.0, load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
        )  # fmt: skip
        view.hear(reading, 0.0)
    scene = Scene(ClusterState(), view, Policy(), 0.0)
    first = decide(command(), scene, NAME)
    assert isinstance(first, Decided) and first.instance == NAME
    event = next_event(scene.state, first.events[-1], term=1, at_s=0.0, command_id=CommandId("c"))
    again = decide(command(), replace(scene, state=apply(scene.state, event)), InstanceId("t2"))
    assert not isinstance(again, Decided) and getattr(again, "instance", None) == NAME
