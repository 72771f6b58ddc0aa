"""When a started node is up, when it is not yet, and when it never will be."""

from __future__ import annotations

from dataclasses import replace

from bus.process.supervisor import SupervisedProcess
from gateway.cli.node.readiness import (
    MAX_LIVES,
    NO_ROOM,
    NO_ROOM_LOOKS,
    OLD_LOOKS,
    Look,
    ModelLook,
    Starting,
    StartWatch,
    Stuck,
    Up,
    overdue,
)

SERVICES = ("bus", "worker", "gateway")
RUNNING = tuple(
    SupervisedProcess(name, "running", pid, 0, 0, None, "", "")
    for pid, name in enumerate(SERVICES, 1)
)
ALL = Look(RUNNING, http="", models=(ModelLook("tiny", "ready"),))


def with_worker(**changes: object) -> tuple[SupervisedProcess, ...]:
    return tuple(replace(s, **changes) if s.name == "worker" else s for s in RUNNING)


def test_all_there_is_up() -> None:
    assert StartWatch(SERVICES).judge(ALL) == Up()


def test_the_steps_are_awaited_in_order_and_counted() -> None:
    watch = StartWatch(SERVICES)
    looks = [
        Look(None),
        Look(with_worker(status="starting")),
        Look(RUNNING),
        Look(RUNNING, http="nobody leads", models=(ModelLook("tiny", "loading", 5, 10),)),
        Look(RUNNING, http="nobody leads", models=(ModelLook("tiny", "ready"),)),
    ]
    verdicts = [watch.judge(look) for look in looks]
    assert all(isinstance(verdict, Starting) for verdict in verdicts)
    done = [verdict.done for verdict in verdicts if isinstance(verdict, Starting)]
    assert done == sorted(done) and done[0] == 0
    texts = [verdict.text for verdict in verdicts if isinstance(verdict, Starting)]
    assert texts == [
        "starting supervisord",
        "starting worker",
        "the HTTP API does not answer yet",
        "tiny is loading",
        "nobody leads",
    ]
    assert watch.judge(ALL) == Up()


def test_what_supervisord_gave_up_is_named_at_once() -> None:
    look = Look(with_worker(status="fatal", description="no such file"))
    verdict = StartWatch(SERVICES).judge(look)
    assert verdict == Stuck("worker keeps stopping: fatal (no such file)", "worker")


def test_a_service_that_keeps_ending_is_stuck_after_its_third_life() -> None:
    watch = StartWatch(SERVICES)
    for life in range(1, MAX_LIVES + 1):
        verdict = watch.judge(Look(with_worker(status="starting", pid=100 + life)))
    assert isinstance(verdict, Stuck) and verdict.process == "worker"


def test_one_restart_is_forgiven() -> None:
    watch = StartWatch(SERVICES)
    watch.judge(Look(with_worker(pid=100)))
    assert watch.judge(replace(ALL, services=with_worker(pid=101))) == Up()


def test_another_nodes_supervisord_is_noticed() -> None:
    verdict = StartWatch(SERVICES).judge(Look(RUNNING[:2]))
    assert isinstance(verdict, Stuck) and "gateway" in verdict.why


def test_a_model_that_failed_says_why() -> None:
    watch, failed = StartWatch(SERVICES), ModelLook("tiny", "failed", why="3 failures in 60 s")
    watch.judge(replace(ALL, models=(ModelLook("tiny", "loading"),)))
    verdict = watch.judge(replace(ALL, models=(failed,)))
    assert verdict == Stuck("tiny could not be loaded: 3 failures in 60 s")


def test_a_model_that_failed_before_this_start_has_time_to_be_placed_again() -> None:
    failed = replace(ALL, models=(ModelLook("tiny", "failed", why="other code is installed"),))
    watch = StartWatch(SERVICES)
    for _ in range(OLD_LOOKS):
        assert isinstance(watch.judge(failed), Starting)
    assert watch.judge(ALL) == Up()
    watch = StartWatch(SERVICES)
    verdicts = [watch.judge(failed) for _ in range(OLD_LOOKS + 1)]
    assert verdicts[-1] == Stuck("tiny could not be loaded: other code is installed")


def test_the_deadline_names_the_process_most_likely_to_blame() -> None:
    by_name = {service.name: service for service in with_worker(status="starting")}
    assert overdue(Starting(2, 5, "starting worker"), by_name, 30.0).process == "worker"
    running = {service.name: service for service in RUNNING}
    model = ModelLook("tiny", "loading")
    assert overdue(Starting(4, 5, "tiny is loading", model), running, 30.0).process == "worker"
    assert overdue(Starting(3, 5, "no answer"), running, 30.0).process == "gateway"


def test_another_node_at_the_address_ends_the_wait_at_once() -> None:
    verdict = StartWatch(SERVICES).judge(Look(RUNNING, stranger="n2"))
    assert isinstance(verdict, Stuck) and "n2" in verdict.why


def test_a_model_without_room_is_told_with_the_sum_and_not_waited_for() -> None:
    watch, why = StartWatch(SERVICES), "needs 44.1 GB; n1 has 12.0 GB free"
    without = replace(ALL, models=(ModelLook("big", NO_ROOM, why=why),))
    with_room = replace(ALL, models=(ModelLook("big", "waiting"),))
    for look in (without, with_room, *[without] * (NO_ROOM_LOOKS - 1)):
        assert isinstance(watch.judge(look), Starting), "it may have been a moment's"
    stuck = watch.judge(without)
    assert isinstance(stuck, Stuck) and stuck.why == f"big is not loaded: {why}"
    assert "the node runs without the model" in stuck.remedy
