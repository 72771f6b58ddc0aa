"""The defects that the pool was made for, each in simulated time with the real holder."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import DeleteInstance, PinModel, PlaceModel
from bus.wire.messages.events import InstanceDraining, InstanceYields, NodeDrained
from bus.wire.pool import MAX_PINS, Pin
from master.decisions.decide import Known, Policy
from master.pool import PoolSettings
from tests.sim.pool_world import HOLDER, Client, Kind, PoolWorld, run_clients

LOAD_S = 4.0
LONG_S = 10_000.0


def world(
    sizes: dict[str, float], nodes: dict[str, tuple[float, int]], **settings: Any
) -> PoolWorld:
    kinds = [Kind(ModelId(name), size, LOAD_S) for name, size in sizes.items()]
    policy = Policy(keep_alive_s=LONG_S, pool=PoolSettings(**settings))
    return PoolWorld(kinds, nodes, policy)


def pin(made: PoolWorld, model: str, *, pinned: bool = True) -> Any:
    name = CommandId(f"pin-{made.now}-{model}")
    command = PinModel(command_id=name, model=ModelId(model), pinned=pinned, by="ann")
    return made.command(command)


def loaded(made: PoolWorld, *models: str) -> None:
    for model in models:
        ask = made.ask(model, work_s=0.1)
        assert made.run(60.0, lambda ask=ask: ask in made.done), f"{model} is answered"


def instances(made: PoolWorld) -> dict[str, Instance]:
    return {str(one.model): one for one in made.state.instances.values()}


def why(made: PoolWorld, model: str) -> str:
    told = made.holder.pool(made.state, HOLDER, made.now)
    return next(one.why for one in told.waits if one.model == model)


ONE = {"n1": (16.0, 1)}


def test_two_models_in_turn_are_loaded_once_a_turn_not_once_a_request() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    clients = [Client(made, [model], work_s=0.5) for model in ("a", "b")]
    run_clients(made, clients, 600.0)
    loading_s = sum(ready - began for _, began, ready in made.loads)
    assert len(made.loads) <= 600 / 30 + 1
    assert loading_s / 600.0 <= 1 / (1 + 4.0)
    waits = [ask.began_at - ask.at for one in clients for ask in one.asks if ask.began_at]
    assert max(waits) <= 2 * (30.0 + LOAD_S + 4.0)


def test_no_copy_is_evicted_just_after_it_is_ready() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    born: dict[str, float] = {}

    def watch(body: Any, _before: Any) -> None:
        if isinstance(body, InstanceDraining | InstanceYields):
            ready_at = made.held[body.instance].ready_at
            assert ready_at is not None
            born[body.instance] = made.now - ready_at

    made.on_event = watch
    for _ in range(8):
        for model in ("a", "b"):
            made.ask(model, work_s=3.0)
    made.run(200.0)
    assert born and min(born.values()) >= 1.0


def test_a_lone_client_that_alternates_waits_for_one_load_and_two_seconds() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    client = Client(made, ["a", "b"], work_s=1.0)
    run_clients(made, [client], 120.0)
    waits = [ask.began_at - ask.at for ask in client.asks if ask.began_at]
    assert len(waits) > 10 and max(waits) <= LOAD_S + 2.0


def test_a_busy_model_yields_when_its_turn_is_over_and_nothing_is_killed() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    busy = [Client(made, ["a"], work_s=3.0) for _ in range(3)]
    run_clients(made, busy, 20.0)
    wants = made.ask("b")
    run_clients(made, busy, 5.0)
    assert "a is in use; its minimum residency" in why(made, "b")
    run_clients(made, busy, 60.0)
    assert wants.began_at is not None and wants.began_at - wants.at <= 30.0 + 3.0 + LOAD_S + 3.0
    assert len(made.done) > 20, "what ran has finished"


def test_urgent_beside_a_flood_waits_for_one_load_and_what_runs() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    for _ in range(60):
        made.ask("a", work_s=5.0, priority=50)
    made.run(12.0)
    urgent = made.ask("b", priority=1)
    assert made.run(60.0, lambda: urgent.began_at is not None)
    assert urgent.began_at is not None and urgent.began_at - urgent.at <= LOAD_S + 5.0 + 2.0
    assert made.run(600.0, lambda: len(made.done) == 61), "the flood goes on afterwards"


def test_what_was_loaded_urgently_does_not_hold_others_off_when_nobody_uses_it() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    urgent = made.ask("a", priority=1)
    made.run(30.0)
    assert urgent in made.done
    normal = made.ask("b")
    assert made.run(20.0, lambda: normal.began_at is not None)
    assert normal.began_at is not None and normal.began_at - normal.at <= LOAD_S + 2.0


def test_node_and_victims_are_chosen_together() -> None:
    """The node that lacks least holds what is busy; the other one has an idle model."""
    made = world({"a": 4, "b": 6, "c": 7}, {"n1": (11.0, 4), "n2": (13.0, 4)})
    loaded(made, "b", "a")
    where = {model: one.shards[0].node for model, one in instances(made).items()}
    assert set(where.values()) == {"n1", "n2"}
    busy = Client(made, ["a"], work_s=2.0)
    run_clients(made, [busy], 5.0)
    wants = made.ask("c")
    run_clients(made, [busy], 15.0)
    assert wants.began_at is not None and wants.began_at - wants.at <= LOAD_S + 2.0
    assert set(instances(made)) == {"a", "c"}
    assert instances(made)["c"].shards[0].node == where["b"]


def test_victims_leave_one_after_the_other_and_the_node_is_measured_between() -> None:
    """What the first freed may be more than was counted, so that the second need not go."""
    made = world({"a": 4, "b": 4, "c": 9}, {"n1": (13.0, 3)})
    loaded(made, "a", "b")
    made.run(20.0)
    left: list[float] = []

    def watch(body: Any, before: Any) -> None:
        if isinstance(body, InstanceDraining):
            others = (one for one in before.instances.values() if one.instance != body.instance)
            assert not any(one.status == "draining" for one in others), "one leaves at a time"
            left.append(made.now)

    made.on_event = watch
    wants = made.ask("c")
    assert made.run(60.0, lambda: wants in made.done)
    assert len(left) == 2 and left[1] - left[0] > 0.5, "it is measured, once a second"


def test_what_is_promised_to_one_is_not_counted_on_by_another() -> None:
    """Three models want in where three are: three leave, whatever happens between two ticks."""
    names = ["a", "b", "c", "d", "e", "f"]
    made = world(dict.fromkeys(names, 4.0), {"n1": (19.0, 6)})
    loaded(made, "a", "b", "c")
    made.run(20.0)
    began = made.evictions
    for model in ("d", "e", "f"):
        made.ask(model, work_s=8.0)
    made.run(40.0)
    assert set(instances(made)) == {"d", "e", "f"}
    assert made.evictions - began == 3


def test_no_more_leave_than_needed_and_the_one_that_is_wanted_least() -> None:
    made = world({"a": 2, "b": 2, "c": 2, "d": 2}, {"n1": (13.0, 3)})
    loaded(made, "b", "a", "c")
    made.run(30.0)
    made.ask("d")
    made.run(15.0)
    assert set(instances(made)) == {"a", "c", "d"}


def test_a_copy_yields_urgently_to_what_is_urgent_alone_and_as_soon_as_that_comes() -> None:
    made = world({"a": 4, "b": 4}, ONE, turn_s=5.0, turn_loads=0.0)
    made.ask("a", work_s=60.0, priority=50)
    made.run(12.0)
    made.ask("b")
    assert made.run(10.0, lambda: bool(instances(made)["a"].yields_to))
    assert not instances(made)["a"].yields_urgently
    urgent = made.ask("b", priority=1)
    assert made.run(3.0, lambda: instances(made)["a"].yields_urgently)
    assert instances(made)["a"].yields_to == "b"
    made.give_up(urgent)
    assert made.run(90.0, lambda: "b" in instances(made))


def test_one_that_is_urgent_makes_a_busy_copy_yield_urgently_and_withdrawn_it_is_as_before() -> (
    None
):
    made = world({"a": 4, "b": 4}, ONE)
    made.ask("a", work_s=600.0, priority=50)
    made.run(12.0)
    urgent = made.ask("b", priority=1)
    assert made.run(5.0, lambda: instances(made)["a"].yields_urgently)
    made.give_up(urgent)
    assert made.run(5.0, lambda: not instances(made)["a"].yields_to)
    assert not instances(made)["a"].yields_urgently


def test_a_plan_is_withdrawn_with_its_demand_and_the_copy_stays() -> None:
    made = world({"a": 4, "b": 4}, ONE, turn_s=5.0, turn_loads=0.0)
    long = made.ask("a", work_s=60.0)
    made.run(12.0)
    assert long.began_at is not None
    wants = made.ask("b")
    assert made.run(10.0, lambda: bool(instances(made)["a"].yields_to))
    more = made.ask("a", work_s=1.0)
    made.run(3.0)
    assert more.began_at is None, "it takes nothing new"
    made.give_up(wants)
    made.run(3.0)
    assert not instances(made)["a"].yields_to
    assert more.began_at is not None and set(instances(made)) == {"a"}


def test_a_model_that_yields_stays_when_it_is_wanted_urgently() -> None:
    made = world({"a": 4, "b": 4}, ONE, turn_s=5.0, turn_loads=0.0)
    made.ask("a", work_s=60.0)
    made.run(12.0)
    made.ask("b")
    assert made.run(10.0, lambda: bool(instances(made)["a"].yields_to))
    urgent = made.ask("a", work_s=1.0, priority=1)
    assert made.run(3.0, lambda: urgent.began_at is not None)


def test_a_pin_on_a_loaded_model_holds_whoever_comes_and_says_so() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    loaded(made, "a")
    assert isinstance(pin(made, "a"), Known)
    made.run(20.0)
    made.ask("b", priority=1)
    made.run(30.0)
    assert set(instances(made)) == {"a"}
    told = made.holder.pool(made.state, HOLDER, made.now)
    (wait,) = told.waits
    assert wait.phase == "hopeless" and "a" in wait.why and "pinned" in wait.why
    assert [one.pinned_by for one in told.copies] == ["ann"]
    pin(made, "a", pinned=False)
    made.run(10.0)
    assert set(instances(made)) == {"b"}


def test_a_pin_makes_no_wait_hopeless_that_another_copy_can_end() -> None:
    made = world(dict.fromkeys("abcd", 9), {"n1": (16.0, 1), "n2": (16.0, 1)})
    pin(made, "a")
    loaded(made, "a", "b")
    made.ask("b", work_s=8.0)
    made.run(1.0)
    first, second = made.ask("d", priority=1), made.ask("c")
    made.run(2.0)
    phases = {w.model: w.phase for w in made.holder.pool(made.state, HOLDER, made.now).waits}
    assert phases["c"] != "hopeless", "b's place on the other node is taken, and free again later"
    assert made.run(200.0, lambda: {id(one) for one in (first, second)} <= set(map(id, made.done)))


def test_a_pinned_model_is_not_unloaded_by_name_and_does_not_idle_out() -> None:
    made = PoolWorld([Kind(ModelId("a"), 4, LOAD_S)], ONE, Policy(keep_alive_s=5.0))
    loaded(made, "a")
    pin(made, "a")
    made.run(30.0)
    held = instances(made)["a"]
    refused = made.command(DeleteInstance(command_id=CommandId("d"), instance=held.instance))
    assert isinstance(refused, Refusal) and "unpin" in refused.message
    pin(made, "a", pinned=False)
    made.run(10.0)
    assert not instances(made)


def test_a_pin_loads_and_survives_copy_node_and_holder() -> None:
    made = world({"a": 4}, {"n1": (16.0, 2), "n2": (16.0, 2)})
    pin(made, "a")
    made.run(10.0)
    first = instances(made)["a"]
    made.begin_term()
    draft = made._draft()  # pyright: ignore[reportPrivateUsage]
    made.holder._write(  # pyright: ignore[reportPrivateUsage]
        draft, NodeDrained(node=first.shards[0].node, draining=True), made.now
    )
    made.holder._write(  # pyright: ignore[reportPrivateUsage]
        draft, InstanceDraining(instance=first.instance, deadline_s=1.0, why="x"), made.now
    )
    made._take(draft)  # pyright: ignore[reportPrivateUsage]
    made.run(20.0)
    second = instances(made)["a"]
    assert second.status == "ready" and second.shards[0].node != first.shards[0].node


def test_a_pin_that_cannot_be_beside_the_others_is_refused_with_the_arithmetic() -> None:
    made = world({"a": 8, "b": 8}, {"n1": (13.0, 4)})
    pin(made, "a")
    made.run(10.0)
    refused = pin(made, "b")
    assert isinstance(refused, Refusal) and "pinned" in refused.message and "GB" in refused.message
    unknown = pin(made, "nobody")
    assert isinstance(unknown, Refusal) and unknown.reason == "unknown_model"


def test_a_placement_that_says_pinned_pins_a_model_that_is_loaded_already() -> None:
    made = world({"a": 4}, ONE)
    loaded(made, "a")
    command = PlaceModel(command_id=CommandId("p"), model=ModelId("a"), pinned=True)
    assert isinstance(made.command(command), Known)
    assert set(made.state.pins) == {"a"}


def test_who_asks_for_a_load_beside_a_busy_model_is_told_when_it_may_be() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    busy = Client(made, ["a"], work_s=2.0)
    run_clients(made, [busy], 10.0)
    refused = made.command(PlaceModel(command_id=CommandId("p"), model=ModelId("b")))
    assert isinstance(refused, Refusal) and refused.reason == "no_capacity"
    assert "a is in use; its minimum residency" in refused.message


def test_no_idle_model_leaves_for_a_load_that_needs_a_busy_ones_memory_too() -> None:
    made = world({"a": 4, "b": 4, "c": 9}, {"n1": (16.0, 2)})
    busy = Client(made, ["a"], work_s=2.0)
    made.ask("b", work_s=0.1)
    run_clients(made, [busy], 12.0)
    refused = made.command(PlaceModel(command_id=CommandId("p"), model=ModelId("c")))
    assert isinstance(refused, Refusal) and "a is in use; its minimum residency" in refused.message
    run_clients(made, [busy], 3.0)
    assert {name: one.status for name, one in instances(made).items()} == dict.fromkeys(
        "ab", "ready"
    )


def test_a_load_that_was_asked_for_makes_way_and_answers_when_it_is_repeated() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    loaded(made, "a")
    made.run(5.0)
    placed: list[Any] = []
    made.on_event = lambda body, _: placed.append(body) if body.kind == "instance_placed" else None
    command = PlaceModel(command_id=CommandId("p"), model=ModelId("b"))
    for _ in range(6):
        answer = made.command(command)
        if answer is not None:
            break
        made.run(1.0)
    assert isinstance(answer, Known) and answer.instance == instances(made)["b"].instance
    assert len(placed) == 1 and made.state.commands.get(command.command_id), "it is not placed anew"


def test_settling_is_of_one_node_not_of_all() -> None:
    made = world({"a": 4, "b": 4, "c": 4, "d": 4}, {"n1": (16.0, 1), "n2": (16.0, 1)})
    loaded(made, "a", "b")
    made.run(10.0)
    made.ask("c")
    made.ask("d")
    began = made.now
    assert made.run(20.0, lambda: {"c", "d"} <= {str(h.model) for h in made.held.values()})
    assert made.now - began <= 3.0


@pytest.mark.parametrize("priority", [1, 10, 50])
def test_a_bound_is_stated_for_a_wait_and_kept(priority: int) -> None:
    made = world({"a": 4, "b": 4}, ONE)
    busy = [Client(made, ["a"], work_s=2.0) for _ in range(2)]
    run_clients(made, busy, 10.0)
    wants = made.ask("b", priority=priority)
    run_clients(made, busy, 1.0)
    told = made.holder.pool(made.state, HOLDER, made.now)
    (wait,) = [one for one in told.waits if one.model == "b"]
    assert wait.within_s is not None
    run_clients(made, busy, wait.within_s + 2.0)
    assert wants.began_at is not None


def says(made: PoolWorld, model: str, *, pin: bool, node: str | None = None) -> None:
    """A `card.toml` is written now, on one node or all, and each node's card is heard anew."""
    for name in made.nodes if node is None else (NodeId(node),):
        made.card_files[name, ModelId(model)] = (made.now + 1.0, pin)
    made.hear_cards()


def test_a_card_pins_its_model_until_it_says_so_no_longer() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    says(made, "a", pin=True)
    assert made.run(20.0, lambda: "a" in instances(made)), "it is loaded unasked"
    made.run(10.0)
    assert made.state.pins["a"].by == "its card.toml"
    refused = pin(made, "a", pinned=False)
    assert isinstance(refused, Refusal) and "remove `pin` from" in refused.message
    kept = made.command(
        DeleteInstance(command_id=CommandId("stop"), instance=instances(made)["a"].instance)
    )
    assert isinstance(kept, Refusal) and "card.toml" in kept.message
    assert "unpin" not in kept.message
    wants = made.ask("b")
    made.run(20.0)
    assert wants.began_at is None and set(instances(made)) == {"a"}
    says(made, "a", pin=False)
    assert made.run(20.0, lambda: wants.began_at is not None)
    assert not made.state.pins


def test_of_two_cards_the_newest_pins() -> None:
    made = world({"a": 4}, {"n1": (16.0, 1), "n2": (16.0, 1)})
    says(made, "a", pin=True, node="n1")
    made.run(3.0)
    assert set(made.state.pins) == {"a"}
    says(made, "a", pin=False, node="n2")
    made.run(3.0)
    assert not made.state.pins
    made.run(3.0)
    says(made, "a", pin=True, node="n1")
    made.run(3.0)
    assert set(made.state.pins) == {"a"}


def test_a_card_leaves_an_operators_pin_alone() -> None:
    made = world({"a": 4}, ONE)
    pin(made, "a")
    says(made, "a", pin=True)
    made.run(3.0)
    says(made, "a", pin=False)
    made.run(3.0)
    assert made.state.pins["a"].by == "ann"
    assert not isinstance(pin(made, "a", pinned=False), Refusal)
    assert not made.state.pins


def test_a_pin_of_a_card_outlives_a_node_that_is_away() -> None:
    """The one that is away may have the newest card."""
    made = world({"a": 4}, {"n1": (16.0, 1), "n2": (16.0, 1)})
    says(made, "a", pin=True, node="n2")
    made.run(3.0)
    assert set(made.state.pins) == {"a"}
    made.holder.view.cards.pop(NodeId("n2"))
    del made.nodes[NodeId("n2")]
    made.run(3.0)
    assert set(made.state.pins) == {"a"}


def test_what_a_card_pins_and_no_node_can_hold_is_not_pinned() -> None:
    made = world({"a": 40, "b": 4}, ONE)
    says(made, "a", pin=True)
    made.run(5.0)
    assert not made.state.pins
    loaded(made, "b")


def test_so_many_models_are_pinned_and_no_more() -> None:
    made = world({"a": 4, "b": 4}, ONE)
    pins = {f"m{n}": Pin(model=ModelId(f"m{n}")) for n in range(MAX_PINS - 1)}
    made.state = made.state.model_copy(update={"pins": pins})
    assert isinstance(pin(made, "a"), Known)
    refused = pin(made, "b")
    assert isinstance(refused, Refusal) and refused.reason == "conflict"
    assert f"{MAX_PINS} models are pinned" in refused.message
