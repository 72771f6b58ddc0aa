"""What fails on one node is tried on another: the real holder in simulated time."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import InstanceFailed
from gateway.requests.placement_check import is_final
from gateway.requests.routing import given_up
from master.decisions.crash_loop import CANNOT_IMPORT, LOAD_FAILED, RETRY_FAILED_S, WEDGED
from runner import lifecycle
from tests.sim.pool_world import Kind, PoolWorld

OTHER, FIRST = NodeId("n1"), NodeId("n2")  # of two that are alike the last is placed on first
SOON_S = 10.0
TWO = {"n1": (16.0, 2), "n2": (16.0, 2)}


class Failing:
    """A pool of which some nodes' runners end as soon as they begin, or as soon as they are
    `loaded`. `tries` counts them."""

    def __init__(self, exit_code: int, *nodes: NodeId, loaded: bool = False) -> None:
        self.world = PoolWorld([Kind(ModelId("a"), 4, 1.0), Kind(ModelId("b"), 12, 1.0)], TWO)
        self.exit_code, self.nodes, self.loaded = exit_code, nodes, loaded
        self.tries: dict[NodeId, int] = {}

    def run(self, seconds: float, until: Any = lambda: False) -> bool:
        def look() -> bool:
            for held in [one for one in self.world.held.values() if one.node in self.nodes]:
                if held.model != "a" or (self.loaded and held.ready_at is None):
                    continue
                self.tries[held.node] = self.tries.get(held.node, 0) + 1
                self.world.crash(held, self.exit_code)
            return until()

        return self.world.run(seconds, look)

    def asked(self, **more: Any) -> Any:
        command = PlaceModel(
            command_id=CommandId(f"c{self.world.now}"), model=ModelId("a"), if_absent=False, **more
        )
        return self.world.command(command)


@pytest.mark.parametrize(("exit_code", "tries"), [(WEDGED, 2), (1, 3)])
def test_a_copy_that_keeps_failing_once_it_is_loaded_goes_to_another_node(
    exit_code: int, tries: int
) -> None:
    failing = Failing(exit_code, FIRST, loaded=True)
    world = failing.world
    failing.asked()

    def is_elsewhere() -> bool:
        return any(one.node == OTHER and one.ready_at for one in world.held.values())

    assert failing.run(SOON_S, is_elsewhere), "the other node has it"
    assert failing.tries == {FIRST: tries}
    (served,) = world.state.instances.values()
    assert served.shards[0].node == OTHER and served.conditions.excluded_nodes == ()


@pytest.mark.parametrize("exit_code", [LOAD_FAILED, CANNOT_IMPORT, WEDGED, 1, -9])
def test_a_runner_that_ends_while_it_loads_is_followed_by_one_on_another_node(
    exit_code: int,
) -> None:
    failing = Failing(exit_code, FIRST)
    world = failing.world
    ask = world.ask("a", work_s=0.1)
    assert failing.run(SOON_S, lambda: ask in world.done), "the other node answers"
    assert failing.tries == {FIRST: 1}, "it is not tried there again"
    (failed,) = [one for one in world.told if isinstance(one, InstanceFailed)]
    assert (
        "it crashed" in failed.why and "it failed on n2 and is placed on other nodes" in failed.why
    )
    blocked = failing.asked(dry_run=True, previews=True).plan["blocked"]
    assert "is in cooldown for" in blocked["n2"] and "it crashed" in blocked["n2"]


def test_no_model_is_evicted_for_one_whose_runner_ended_once_while_it_loaded() -> None:
    failing = Failing(1, FIRST)
    world = failing.world
    world.command(
        PlaceModel(command_id=CommandId("b"), model=ModelId("b"), excluded_nodes=(FIRST,))
    )
    assert world.run(SOON_S, lambda: any(one.ready_at for one in world.held.values()))
    world.ask("a", work_s=0.1)
    assert failing.run(SOON_S, lambda: failing.tries == {FIRST: 2}), "it is tried there again"
    assert not any(isinstance(one, InstanceFailed) for one in world.told), "not placed elsewhere"


def test_a_model_that_ends_every_runner_is_given_up_after_one_try_and_three() -> None:
    failing = Failing(1, FIRST, OTHER)
    world = failing.world
    world.ask("a")
    failing.run(SOON_S)
    assert failing.tries == {FIRST: 1, OTHER: 3}
    why = given_up(world.state.instances.values(), ModelId("a")) or ""
    assert "on n1: it crashed" in why and "on n2: it crashed" in why


def test_a_request_is_not_refused_while_another_node_can_be_tried() -> None:
    failing = Failing(LOAD_FAILED, FIRST)
    world = failing.world
    ask = world.ask("a", work_s=0.1)
    refused: list[str | None] = []

    def look() -> bool:
        refused.append(given_up(world.state.instances.values(), ModelId("a")))
        return ask in world.done

    assert failing.run(SOON_S, look) and set(refused) == {None}


def test_where_all_nodes_fail_each_is_tried_and_the_refusal_names_them() -> None:
    failing = Failing(LOAD_FAILED, FIRST, OTHER)
    world = failing.world
    world.ask("a")
    failing.run(SOON_S)
    assert failing.tries == {FIRST: 1, OTHER: 1}, "each once, not in turn"
    why = given_up(world.state.instances.values(), ModelId("a")) or ""
    assert "on n1: it crashed" in why and "on n2: it crashed" in why
    refused = failing.asked(dry_run=True)
    assert isinstance(refused, Refusal) and refused.reason == "not_ready" and is_final(refused)
    assert refused.retry_after_s is not None and refused.retry_after_s <= RETRY_FAILED_S
    failing.run(RETRY_FAILED_S)
    assert sum(failing.tries.values()) > 2, "after a minute they are tried again"


def test_who_insists_gets_another_try_on_a_node_that_failed() -> None:
    failing = Failing(LOAD_FAILED, FIRST, OTHER)
    failing.world.ask("a")
    failing.run(SOON_S)
    failing.nodes = ()
    failing.asked()
    assert failing.run(SOON_S, lambda: bool(failing.world.done)), "it was mended meanwhile"


def test_the_next_holder_knows_on_which_node_a_model_failed() -> None:
    failing = Failing(LOAD_FAILED, FIRST)
    world = failing.world
    ask = world.ask("a", work_s=0.1)
    assert failing.run(SOON_S, lambda: ask in world.done)
    world.begin_term()
    (served,) = world.state.instances.values()
    failing.nodes = (FIRST, OTHER)
    world.crash(world.held[served.instance], LOAD_FAILED)
    failing.run(SOON_S)
    assert failing.tries == {FIRST: 1}, "it is not tried there again"


def test_a_node_that_says_that_it_cannot_run_is_passed_by_and_named() -> None:
    failing = Failing(0)
    world = failing.world
    world.broken = {FIRST: "cannot run models: mlx is not installed there"}
    world.hear_cards()
    ask = world.ask("a", work_s=0.1)
    assert world.run(SOON_S, lambda: ask in world.done)
    assert [one.node for one in world.held.values()] == [OTHER]
    world.broken[OTHER] = "cannot start runners: supervisord does not answer"
    world.hear_cards()
    refused = failing.asked(dry_run=True)
    assert isinstance(refused, Refusal) and refused.reason == "not_ready" and is_final(refused)
    assert "n2 cannot run models: mlx is not" in refused.message
    assert "n1 cannot start runners: supervisord" in refused.message


def test_exit_codes_are_those_of_the_runner() -> None:
    from worker.machine import ability

    assert CANNOT_IMPORT == ability.CANNOT_IMPORT == lifecycle.CANNOT_IMPORT
