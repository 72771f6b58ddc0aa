"""Failures for want of a rank on a lost node say nothing of the model."""

from __future__ import annotations

import pytest

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from master.decisions.crash_loop import FREE_FAILURES, GROUP_LOST, CrashLoops

MANY = FREE_FAILURES + 3


def group(number: int) -> Instance:
    """A copy of the same model on nodes a and b."""
    shards = tuple(
        Shard(rank=n, node=NodeId(node), first_layer=n, last_layer=n + 1, bytes_reserved=1)
        for n, node in enumerate("ab")
    )
    return Instance(
        instance=InstanceId(f"i{number}"), model=ModelId("m"), shards=shards, context_tokens=64,
        keep_alive_s=-1.0,
    )  # fmt: skip


def test_a_model_whose_nodes_are_lost_again_and_again_is_never_paused() -> None:
    loops = CrashLoops()
    for number in range(MANY):
        at = 100.0 * number
        setback = loops.count_failure(group(number), GROUP_LOST, at)
        assert (setback.count, setback.pause_s, setback.gives_up) == (1, 0.0, False)
        loops.excuse({NodeId("b"): at - 1.0})
        assert loops.next_at(group(number).model) == 0.0


def test_a_pause_that_a_lost_node_brought_about_ends_when_it_is_found_lost() -> None:
    loops = CrashLoops()
    for number in range(FREE_FAILURES):
        loops.count_failure(group(number), -9, float(number))
    paused = loops.count_failure(group(9), GROUP_LOST, 10.0)
    assert paused.pause_s > 0 and loops.next_at(group(9).model) > 10.0
    loops.excuse({NodeId("b"): 9.7})
    assert loops.next_at(group(9).model) == 0.0
    assert loops.count_failure(group(9), -9, 20.0).count == FREE_FAILURES + 1


@pytest.mark.parametrize(
    ("exit_code", "lost"),
    [
        (-9, {NodeId("b"): 0.0}),
        (GROUP_LOST, {}),
        (GROUP_LOST, {NodeId("c"): 0.0}),
        (GROUP_LOST, {NodeId("b"): 1e6}),
    ],
    ids=["its own crash", "no node is lost", "another node is lost", "heard long after it"],
)
def test_other_failures_are_not_excused(exit_code: int, lost: dict[NodeId, float]) -> None:
    loops = CrashLoops()
    counts: list[int] = []
    for number in range(MANY):
        counts.append(loops.count_failure(group(number), exit_code, 10.0 * number).count)
        loops.excuse(lost)
    assert counts == list(range(1, MANY + 1))
    assert loops.next_at(group(0).model) > 10.0 * MANY


def test_within_a_minute_one_copy_is_given_up_but_not_for_lost_nodes() -> None:
    loops, one = CrashLoops(), group(0)
    for at in (0.0, 5.0, 10.0, 15.0):
        assert not loops.count_failure(one, GROUP_LOST, at).gives_up
        loops.excuse({NodeId("a"): at})
    given_up = [loops.count_failure(one, -9, at).gives_up for at in (20.0, 21.0, 22.0)]
    assert given_up == [False, False, True]
    loops.forget(one, 23.0)
    assert InstanceId("i0") not in loops.failures
