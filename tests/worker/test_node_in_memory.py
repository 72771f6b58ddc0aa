from __future__ import annotations

import pytest

from bus.wire.instances import DRAIN_S
from bus.wire.messages.events import GenerationOpened
from tests.harness.node_in_memory import GB, Chances, NodeInMemory, Task
from tests.harness.variants import mostly_proof
from worker.slots.admission import SPARE_ROOM_BYTES, USUAL


def test_a_placed_instance_is_started_given_its_spec_and_becomes_ready() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    assert len(node.living()) == 1


def test_a_deleted_instance_drains_and_leaves_no_process() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    node.delete(instance, deadline_s=10.0)

    def told() -> set[float | None]:
        return {s.drain_deadline_s for s in node.worker.table.slots.values() if s.life != "free"}

    assert node.run(5.0, lambda: told() == {10.0}), "it is told as long as was given to it"
    assert node.run(5.0, lambda: not node.state.instances)
    assert node.living() == []


def test_a_copy_that_the_log_no_longer_has_gets_the_time_of_any_drain() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    node.state = node.state.model_copy(update={"instances": {}})

    def told() -> set[float | None]:
        return {s.drain_deadline_s for s in node.worker.table.slots.values() if s.life != "free"}

    assert node.run(1.0, lambda: told() == {DRAIN_S}), "another log took the place of its own"
    waits = node.place("i2", bytes_reserved=2 * node.free_bytes)
    node.run(0.25)
    assert node.state.instances[waits].status == "placed", "what leaves gives memory back"


def test_a_copy_of_an_older_generation_ends_at_once() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    node.index(GenerationOpened(instance=instance, generation=2, why="a rank is gone"))

    def told() -> set[float | None]:
        return {s.drain_deadline_s for s in node.worker.table.slots.values() if s.life != "free"}

    assert node.run(1.0, lambda: 0.0 in told())
    assert node.run(8.0, lambda: node.ready(instance))


def test_an_instance_deleted_before_it_is_ready_leaves_too() -> None:
    for wait_s in (0.0, 0.5, 1.0, 1.5):
        node = NodeInMemory(1)
        instance = node.place("i1")
        node.run(wait_s)
        node.delete(instance)
        assert node.run(8.0, lambda node=node: not node.state.instances)
        assert node.run(8.0, lambda node=node: not node.living())


def test_a_runner_that_crashes_is_replaced_by_the_next_generation() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    node.crash(node.living()[0])
    assert node.run(5.0, lambda: node.state.instances[instance].generation == 2)
    assert node.run(5.0, lambda: node.ready(instance))


def test_a_frozen_runner_is_ended_after_12_s_and_replaced() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    frozen = node.living()[0]
    frozen.frozen = True
    node.run(11.0)
    assert frozen.alive, "silence is only suspect until then"
    assert node.run(2.0, lambda: node.state.instances[instance].generation == 2)
    assert not frozen.alive
    assert node.run(3.0, lambda: node.ready(instance))
    assert "was silent for 12 s" in node.state.instances[instance].failures[-1]


def test_a_restarted_worker_adopts_what_runs_and_starts_nothing() -> None:
    node = NodeInMemory(1)
    instances = [node.place("i1"), node.place("i2")]
    assert node.run(8.0, lambda: all(map(node.ready, instances)))
    pids = {p.pid for p in node.living()}
    index = node.state.index
    node.new_worker()
    node.run(10.0)
    assert {p.pid for p in node.living()} == pids
    assert node.state.index == index, "what is as it should be is not told again"
    assert set(node.started.values()) == {1}


def test_a_worker_that_restarts_in_the_middle_of_a_load_does_not_load_twice() -> None:
    for wait_s in (0.25, 0.5, 0.75, 1.0, 1.25):
        node = NodeInMemory(1)
        instance = node.place("i1")
        node.run(wait_s)
        node.new_worker()
        assert node.run(15.0, lambda node=node, i=instance: node.ready(i))
        assert len(node.living()) == 1 and node.state.instances[instance].generation == 1


def test_a_process_that_does_not_answer_the_inventory_is_ended_and_its_place_taken() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    node.living()[0].frozen = True
    node.run(1.0)
    node.new_worker()
    node.run(2.5)
    assert len(node.started) == 1, "nothing starts before the inventory is complete"
    assert node.run(2.0, lambda: node.state.instances[instance].generation == 2)
    assert node.run(5.0, lambda: node.ready(instance))


def test_a_runner_that_died_while_the_worker_was_away_is_missed_and_replaced() -> None:
    node = NodeInMemory(1)
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    node.run(1.0)
    node.crash(node.living()[0])
    node.new_worker()
    assert node.run(8.0, lambda: node.ready(instance))
    known = node.state.instances[instance]
    assert known.generation == 2 and "the runner no longer existed" in known.failures[-1]


def test_a_shard_that_does_not_fit_any_more_is_refused_with_numbers() -> None:
    node = NodeInMemory(1)
    node.free_bytes = GB
    fits = node.place("i1", bytes_reserved=int(1.09 * GB))
    too_big = node.place("i2", bytes_reserved=int(1.11 * GB))
    assert node.run(10.0, lambda: node.ready(fits))
    refused = node.state.instances[too_big]
    assert refused.status == "failed" and "1.00 GB are free" in refused.why
    assert len(node.living()) == 1


@pytest.mark.parametrize("when_s", [0.0, 0.3])
def test_a_model_that_vanishes_from_the_disk_is_refused_and_leaves_no_process(
    when_s: float,
) -> None:
    node = NodeInMemory(1)
    node.world.delay_s = 1.0
    instance = node.place("i1")
    node.run(when_s)
    node.on_disk.clear()
    assert node.run(10.0, lambda: node.state.instances[instance].status == "failed")
    assert "no longer on" in node.state.instances[instance].why
    assert node.run(5.0, lambda: not node.living())


def test_more_instances_than_slots_wait_for_a_slot() -> None:
    node = NodeInMemory(1, slots=1)
    first, second = node.place("i1"), node.place("i2")
    assert node.run(5.0, lambda: node.ready(first))
    node.run(5.0)
    assert node.state.instances[second].status == "placed"
    node.delete(first)
    assert node.run(8.0, lambda: node.ready(second))


def test_a_runner_that_never_finishes_loading_is_given_up_in_the_end() -> None:
    node = NodeInMemory(1)
    node.world.load_s = 1e9
    instance = node.place("i1")
    assert node.run(120.0, lambda: node.state.instances[instance].generation == 3)
    assert "was not loaded within 30 s" in node.state.instances[instance].failures[-1]


def test_a_runner_that_keeps_crashing_is_given_up_and_leaves_nothing_behind() -> None:
    node = NodeInMemory(1)
    node.world.crash_per_s = 4.0
    instance = node.place("i1")
    assert node.run(60.0, lambda: node.state.instances[instance].status == "failed")
    node.run(5.0)
    assert node.living() == []


def with_spare(slots: int = 3) -> NodeInMemory:
    """A node in peace, one of whose slots has a spare runner."""
    node = NodeInMemory(1, slots=slots)
    node.spare = True
    assert node.run(USUAL.inventory_s + USUAL.spare_s + 2.0, lambda: len(node.spares()) == 1)
    node.run(1.0)
    return node


def test_a_spare_runner_becomes_the_next_task_and_another_follows() -> None:
    node = with_spare()
    (spare,) = node.spares()
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    assert [p.pid for p in node.living()] == [spare.pid], "no other was started"
    node.run(USUAL.spare_s - 0.5)
    assert not node.spares()
    assert node.run(2.0, lambda: len(node.spares()) == 1)
    node.run(300.0)
    assert len(node.living()) == 2 and not node.started, "one spare, and it stays"


def test_a_spare_runner_that_has_just_been_started_takes_what_comes() -> None:
    node = NodeInMemory(1)
    node.spare = True
    assert node.run(20.0, lambda: bool(node.living()))
    instance = node.place("i1")
    assert node.run(5.0, lambda: node.ready(instance))
    assert len(node.living()) == 1


def test_a_task_that_does_not_fit_takes_no_spare() -> None:
    node = with_spare()
    too_big = node.place("i1", bytes_reserved=2 * node.free_bytes)
    node.run(5.0)
    assert node.state.instances[too_big].status == "failed"
    assert len(node.spares()) == 1


def test_a_worker_that_restarts_keeps_the_spare_that_it_finds() -> None:
    node = with_spare()
    (spare,) = node.spares()
    node.new_worker()
    node.run(30.0)
    assert node.living() == [spare]


def test_a_spare_is_not_kept_where_none_is_to_be() -> None:
    node = with_spare()
    node.spare = False
    assert node.run(5.0, lambda: not node.living())


def test_a_spare_that_ends_is_not_started_again_at_once() -> None:
    node = with_spare()
    for _ in range(2):
        node.crash(node.spares()[0])
        node.run(USUAL.spare_again_s - 1.0)
        assert not node.living()
        assert node.run(3.0, lambda: len(node.spares()) == 1)


def test_no_spare_is_started_where_memory_is_short_or_slots_are_taken() -> None:
    node = NodeInMemory(1)
    node.spare, node.free_bytes = True, SPARE_ROOM_BYTES - 1
    node.run(30.0)
    assert not node.living()
    full = with_spare(slots=1)
    instance = full.place("i1")
    assert full.run(5.0, lambda: full.ready(instance))
    full.run(30.0)
    assert len(full.living()) == 1


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("seed", mostly_proof(range(30), range(10)))
def test_after_any_storm_the_node_matches_the_state(seed: int, spare: bool) -> None:
    """Loss, delay, crashes, freezes, restarts of worker and holder; then peace, with a spare runner
    where one is to be."""
    node = NodeInMemory(seed, slots=3 + spare)
    node.spare = spare
    node.world = Chances(
        loss=0.3, delay_s=0.8, crash_per_s=0.01, freeze_per_s=0.01, worker_restart_per_s=0.05,
        holder_restart_per_s=0.05, load_s=2.0,
    )  # fmt: skip
    kept = [node.place("i1"), node.place("i2")]
    doomed = node.place("i3")
    node.run(40.0)
    node.delete(doomed, deadline_s=2.0)
    node.run(20.0)
    node.world = Chances()

    def settled() -> bool:
        known = node.state.instances
        return doomed not in known and all(
            known[i].status == "failed" or node.ready(i) for i in kept
        )

    assert node.run(150.0, settled), "\n".join(node.story[-80:])
    node.run(25.0)
    wanted = {
        Task(i, node.state.instances[i].generation, 0)
        for i in kept
        if node.state.instances[i].status == "ready"
    }
    node.run(2 * USUAL.spare_again_s)
    assert sorted(p.task for p in node.living() if p.task is not None) == sorted(wanted)
    assert len(node.spares()) == node.spare
    assert not node.worker.outbox.waiting
