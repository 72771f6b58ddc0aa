"""The holder's own rules, each alone: what follows from a fact, what is wished for, what idles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.replica.state import ClusterState, NodeSeat
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance, Setbacks
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import (
    EventBody,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceYields,
    LeaseEnded,
    LeaseGranted,
    LoadRefused,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
)
from bus.wire.pool import Lease, LeaseId, Pin
from master.decisions.crash_loop import CrashLoops
from master.decisions.decide import Decided, Later, Policy, Scene
from master.decisions.planner import (
    PlannerNotes,
    conditions_elsewhere,
    drain_idle,
    follow_up,
    note_event,
    recall,
    repairs,
    setbacks,
    stayed,
    wanted_commands,
)
from master.pool import Claim, Copy, PoolChoice, PoolPlan, Tenure, Victim, Yielding
from tests.harness.holder_scenes import (
    GB,
    N1,
    N2,
    NOW,
    A,
    copy,
    demand,
    ready,
    seen,
    state_of,
    use,
)

I = InstanceId("i")  # noqa: E741
TEST = CollectiveTest(
    mode="quick", sizes=(1,), latency_warm_ups=0, latency_rounds=1, warm_ups=0, rounds=1,
    cap_bytes=1, deadline_s=1.0,
)  # fmt: skip


# --- what follows from a rank's leaving --------------------------------------------------------

NEWS: dict[str, Any] = {"instance": I, "generation": 1, "rank": 0, "node": N1}
ENDED = RunnerEnded(**NEWS, exit_code=1, message="x")
UNLOADED = RunnerUnloaded(**NEWS)
REFUSAL = Refusal(reason="insufficient_memory", message="full")
REFUSED = LoadRefused(**NEWS, refusal=REFUSAL)
WIDER, OTHER = Conditions(min_nodes=2), Conditions(excluded_nodes=(N1,))


def opened(why: str) -> GenerationOpened:
    return GenerationOpened(instance=I, generation=2, why=why)


def removed(why: str) -> InstanceRemoved:
    return InstanceRemoved(instance=I, why=why)


@pytest.mark.parametrize(
    ("before", "news", "found"),
    [
        (None, ENDED, []),
        (ready(generation=2), ENDED, []),
        (ready(generation=0), ENDED, []),
        (ready(), ENDED, [opened("x")]),
        (copy(), ENDED, [opened("x")]),
        (ready(), ENDED.model_copy(update={"found_gone": True}), [opened("x")]),
        (ready(), UNLOADED,
         [opened("the instance was unloaded by an earlier leader whose changes were undone")]),
        (copy(), REFUSED, [InstanceFailed(instance=I, why="full", place_again=WIDER)]),
        (copy("i", 0, status="draining", why="w"), UNLOADED, [removed("w")]),
        (copy("i", status="draining", why="w"), ENDED, [removed("w")]),
        (copy("i", 0, 1, nodes=(N1, N2), status="draining"), UNLOADED, []),
        (copy("i", 1, nodes=(N1, N2), status="draining"), UNLOADED, []),
        (copy("i", 0, nodes=(N1, N2), status="draining", why="w"), UNLOADED, [removed("w")]),
        (copy(status="failed"), ENDED, []),
        (ready(replica="load"), ENDED, [removed("a failed replica is not loaded again: x")]),
        (ready(replica="load"), REFUSED, [removed("a failed replica is not loaded again: full")]),
        (ready(replica="load"), UNLOADED,
         [removed("a failed replica is not loaded again: the node unloaded the instance")]),
    ],
)  # fmt: skip
def test_what_follows_from_a_ranks_leaving(
    before: Instance | None, news: Any, found: list[EventBody]
) -> None:
    loops = CrashLoops()
    assert follow_up(before, news, loops, NOW) == found
    counts = news == ENDED and found == [opened("x")]
    assert bool(loops.rows) == counts, "only a crash is counted as one"


def test_a_test_of_links_whose_rank_ends_is_not_tried_again() -> None:
    found = follow_up(ready(test=TEST), ENDED, CrashLoops(), NOW)
    assert found and not any(isinstance(one, GenerationOpened) for one in found)


def test_a_model_that_keeps_failing_waits_and_is_placed_again_or_is_given_up() -> None:
    loops, asked = CrashLoops(), Conditions(min_nodes=3)
    for n in range(2):
        loops.count_failure(copy(f"j{n}"), 1, 10.0 * n)
    (paused,) = follow_up(ready(conditions=asked), ENDED, loops, NOW)
    text = "x (the runner failed 3 times in a row; next attempt 15 s after this failure)"
    assert paused == InstanceFailed(instance=I, why=text, place_again=asked)
    given_up = ENDED.model_copy(update={"exit_code": 72})
    again = "after 60 s, or once the model's files have changed"
    text = f"x (not retried; a request loads it again {again})"
    found = follow_up(ready(conditions=asked), given_up, loops, NOW)
    assert found == [InstanceFailed(instance=I, why=text)]


def test_a_refused_copy_goes_elsewhere_as_its_refusal_says() -> None:
    two = copy(nodes=(N1, N2), conditions=Conditions(excluded_nodes=(NodeId("x"),), min_nodes=2))
    weights = REFUSED.model_copy(
        update={"refusal": Refusal(reason="weights_unavailable", message="no")}
    )  # fmt: skip
    wider = two.conditions.model_copy(update={"min_nodes": 3})
    assert conditions_elsewhere(two, REFUSED) == wider
    other = two.conditions.model_copy(update={"excluded_nodes": (NodeId("x"), N1)})
    assert conditions_elsewhere(two, weights) == other
    by_hand = copy(conditions=Conditions(layers={"n1": 1}))
    assert conditions_elsewhere(by_hand, REFUSED) is None
    assert conditions_elsewhere(by_hand, weights) is None


def test_a_new_holder_makes_good_what_a_dead_one_left_out() -> None:
    said = ("generation 1 rank 0: older", "generation 2 rank 0: x")
    left = copy("i", generation=2, failures=said)
    assert repairs(state_of(copy(), ready("j")), CrashLoops(), NOW) == []
    loops, again = CrashLoops(), GenerationOpened(instance=I, generation=3, why="x")
    assert repairs(state_of(left), loops, NOW) == [again]
    assert repairs(state_of(left), loops, NOW + 1.0) == [again]
    assert loops.rows[A].count == 1, "it is counted once"
    tried_once = left.model_copy(update={"test": TEST})
    failed = InstanceFailed(instance=I, why=said[-1])
    assert repairs(state_of(tried_once), CrashLoops(), NOW) == [failed]
    replica = left.model_copy(update={"replica": "load"})
    why = "the leader changed before it was restarted"
    loops = CrashLoops()
    found = repairs(state_of(replica), loops, NOW)
    assert found == [GenerationOpened(instance=I, generation=3, why=why)] and not loops.rows


def test_what_was_remembered_of_failures_is_taken_up_by_this_holders_clock() -> None:
    told = {
        "a": Setbacks(model=A, replica_at_s=1_130.0),
        "b": Setbacks(model=ModelId("b"), in_a_row=3, instance=I, again_at_s=1_120.0),
    }
    notes, state = PlannerNotes(), state_of(ready("j"), copy("k"), setbacks=told)
    recall(notes, state, NOW, 1_000.0)
    assert notes.loads.paused_until == {"a": 130.0}
    assert notes.crash_loops.next_at(ModelId("b")) == 120.0
    assert notes.crash_loops.ready_at == {"j": NOW}
    again = setbacks(notes, 1_000.0)
    assert again["a"].replica_at_s == 1_130.0 and again["b"].again_at_s == 1_120.0


# --- what is wished for ------------------------------------------------------------------------


def wishes(scene: Scene, notes: PlannerNotes | None = None, *asked: PlaceModel) -> list[Any]:
    found = wanted_commands(scene, notes or PlannerNotes(), asked)
    return [(str(one.model), one.command_id, getattr(one, "pinned", None)) for one in found]


def test_what_is_wanted_and_has_no_copy_is_wished_for_the_best_standing_first() -> None:
    pins = {"p": Pin(model=ModelId("p")), "a": Pin(model=A)}
    policy = Policy(preload=(ModelId("d"),))
    scene = demand(seen(state_of(ready(), pins=pins), policy=policy), d=20, c=1, a=1)
    found = wanted_commands(scene, PlannerNotes(nothing_was_desired=False))
    assert found == [
        PlaceModel(command_id=CommandId(f"demand-{name}"), model=ModelId(name), priority=priority,
                   pinned=name == "d")
        for name, priority in (("c", 1), ("p", 10), ("d", 20))
    ]  # fmt: skip
    asked = PlaceModel(command_id=CommandId("mine"), model=ModelId("c"), priority=50)
    assert [one[1] for one in wishes(scene, None, asked)] == ["mine", "demand-p", "demand-d"]


def test_of_equal_standing_the_oldest_wish_goes_first_and_a_long_wait_counts() -> None:
    tenure = Tenure(wished_at={ModelId("c"): 60.0, ModelId("b"): 61.0, ModelId("d"): 99.0})
    scene = replace(seen(state_of()), tenure=tenure)
    asked = [
        PlaceModel(command_id=CommandId(name), model=ModelId(name), priority=priority)
        for name, priority in (("d", 10), ("e", 10), ("b", 20), ("c", 20))
    ]
    assert [one[0] for one in wishes(scene, None, *asked)] == ["c", "b", "d", "e"]


@pytest.mark.parametrize(
    ("instances", "hears", "dealt_with", "models"),
    [
        ([], True, set[ModelId](), ["a", "b"]),
        ([], False, set[ModelId](), []),
        ([], True, {A}, ["b"]),
        ([copy("x", model=ModelId("x"), status="failed")], True, set[ModelId](), ["a", "b"]),
        ([copy("x", model=ModelId("x"))], True, set[ModelId](), []),
        ([copy("x", model=ModelId("x"), status="failed"), ready("y", model=ModelId("y"))], True,
         set[ModelId](), []),
    ],
)  # fmt: skip
def test_the_preload_list_is_wished_for_where_nothing_is_desired(
    instances: list[Instance], hears: bool, dealt_with: set[ModelId], models: list[str]
) -> None:
    policy, notes = Policy(preload=(A, ModelId("b"))), PlannerNotes(preloaded=set(dealt_with))
    scene = seen(state_of(*instances), disks=None if hears else {}, policy=policy)
    assert wishes(scene, notes) == [(name, f"preload-{name}", True) for name in models]
    if not models:
        return
    now_there = replace(scene, state=state_of(ready()))
    assert wishes(now_there, notes) == [("b", "preload-b", True)]
    assert wishes(scene, notes) == [("b", "preload-b", True)], "once is enough"


def failed(name: str = "i", **more: Any) -> Instance:
    fields = {"status": "failed", "place_again": WIDER, **more}
    return copy(name, **fields)


@pytest.mark.parametrize(
    ("there", "failed_at", "waits_until", "again"),
    [
        ([failed()], None, 0.0, True),
        ([failed()], 40.1, 0.0, True),
        ([failed()], 40.0, 0.0, False),
        ([failed(pinned=True)], 1.0, 0.0, True),
        ([failed()], 1.0, 100.0, True),
        ([failed()], 99.0, 100.5, False),
        ([failed(place_again=None)], 99.0, 0.0, False),
        ([failed(), ready("j")], 99.0, 0.0, False),
        ([failed(), copy("j", status="draining")], 99.0, 0.0, True),
        ([failed(status="placed")], 99.0, 0.0, False),
        ([failed(status="draining")], 99.0, 0.0, False),
    ],
)
def test_a_copy_that_failed_is_placed_again_for_a_minute_from_when_it_may_be(
    there: list[Instance], failed_at: float | None, waits_until: float, again: bool
) -> None:
    notes = PlannerNotes() if failed_at is None else PlannerNotes(failed_at={I: failed_at})
    notes.crash_loops.count_failure(copy("k"), 1, 0.0)
    notes.crash_loops.rows[A].waits_until = waits_until
    found = wanted_commands(seen(state_of(*there)), notes)
    place = PlaceModel(
        command_id=CommandId("again-i"), model=A, min_nodes=2, pinned=there[0].pinned,
        keep_alive_s=None if there[0].pinned else 9.0,
    )  # fmt: skip
    assert found == ([place] if again else [])
    if failed_at is None:
        assert notes.failed_at == {I: NOW}


@pytest.mark.parametrize(
    ("there", "failed_at", "waits_until", "wanted"),
    [
        ([failed(place_again=None)], 40.0, 0.0, True),
        ([failed(place_again=None)], 40.1, 0.0, False),
        ([failed(place_again=None)], None, 0.0, True),
        ([failed(place_again=None, model=ModelId("b"))], 99.0, 0.0, True),
        ([copy(status="draining")], 99.0, 0.0, True),
        ([], None, 100.0, True),
        ([], None, 100.1, False),
    ],
)
def test_what_was_given_up_is_wanted_on_demand_after_a_minute(
    there: list[Instance], failed_at: float | None, waits_until: float, wanted: bool
) -> None:
    notes = PlannerNotes(nothing_was_desired=False)
    if failed_at is not None:
        notes.failed_at[I] = failed_at
    notes.crash_loops.count_failure(copy("k"), 1, 0.0)
    notes.crash_loops.rows[A].waits_until = waits_until
    scene = demand(seen(state_of(*there)), a=10)
    assert wishes(scene, notes) == ([("a", "demand-a", False)] if wanted else [])


@pytest.mark.parametrize(("failed_at", "name"), [(95.1, "again-i"), (95.0, "demand-a")])
def test_demand_soon_tries_the_node_again_that_refused_for_want_of_files(
    failed_at: float, name: str
) -> None:
    notes = PlannerNotes(nothing_was_desired=False, failed_at={I: failed_at})
    refused = failed(place_again=Conditions(excluded_nodes=(N1,)))
    scene = demand(seen(state_of(refused)), a=10)
    (command,) = wanted_commands(scene, notes)
    assert isinstance(command, PlaceModel) and command.command_id == name
    assert command.excluded_nodes == ((N1,) if name == "again-i" else ())


# --- idling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "idle_s", "ready_at", "why"),
    [
        ({}, 9.0, 0.0, "idle for 9 s; keep_alive is 9 s"),
        ({}, 8.9, 0.0, ""),
        ({}, 50.0, 91.0, "idle for 9 s; keep_alive is 9 s"),
        ({}, 50.0, 91.1, ""),
        ({}, 50.0, None, ""),
        ({"keep_alive_s": 0.0}, 3.0, 0.0, "idle for 3 s; keep_alive is 0 s"),
        ({"keep_alive_s": 0.0}, 2.9, 0.0, ""),
        ({"keep_alive_s": 0.5}, 3.0, 0.0, "idle for 3 s; keep_alive is 0.5 s"),
        ({"keep_alive_s": -1.0}, 1e4, 0.0, ""),
        ({"pinned": True}, 50.0, 0.0, ""),
        ({"pinned": True, "replica": "load"}, 50.0, 0.0, ""),
        ({"status": "draining"}, 50.0, 0.0, ""),
    ],
)
def test_a_copy_idles_for_its_time_and_three_seconds_at_least(
    fields: dict[str, Any], idle_s: float, ready_at: float | None, why: str
) -> None:
    one = ready(**fields)
    scene, notes = seen(state_of(one)), PlannerNotes()
    if ready_at is not None:
        notes.tenure.ready_at[I] = ready_at
    use(scene, one, idle_s=idle_s)
    drains = InstanceDraining(instance=I, deadline_s=600.0, why=why)
    assert drain_idle(scene, notes) == ([drains] if why else [])
    if ready_at is None:
        assert notes.tenure.ready_at == {I: NOW}


def test_a_copy_that_is_used_wanted_or_not_heard_does_not_idle() -> None:
    one, notes = ready(), PlannerNotes(tenure=Tenure(ready_at={I: 0.0, InstanceId("j"): 0.0}))
    unheard = seen(state_of(one))
    assert drain_idle(unheard, notes) == []
    busy = seen(state_of(one))
    use(busy, one, running=1)
    assert drain_idle(busy, notes) == []
    for model, drains in (("a", False), ("b", True)):
        scene = demand(seen(state_of(one)), **{model: 10})
        use(scene, one, idle_s=50.0)
        assert bool(drain_idle(scene, notes)) == drains
    pinned = state_of(one, ready("j", replica="load"), pins={"a": Pin(model=A)})
    scene = seen(pinned)
    for instance in pinned.instances.values():
        use(scene, instance, idle_s=50.0)
    assert [getattr(body, "instance", "") for body in drain_idle(scene, notes)] == ["j"]


# --- what is noted -----------------------------------------------------------------------------


def noted(body: EventBody, before: ClusterState, notes: PlannerNotes | None = None) -> PlannerNotes:
    found = notes or PlannerNotes()
    note_event(found, body, before, NOW)
    return found


def heard_ready(rank: int, generation: int = 1) -> RunnerReady:
    return RunnerReady(
        instance=I, generation=generation, rank=rank, node=N1, process="p", pid=1, addresses=()
    )  # fmt: skip


def test_a_copy_is_ready_with_its_last_rank() -> None:
    two = copy("i", 0, nodes=(N1, N2))
    assert noted(heard_ready(1), state_of(two)).tenure.ready_at == {I: NOW}
    assert noted(heard_ready(0), state_of(two)).tenure.ready_at == {}
    assert noted(heard_ready(1, 2), state_of(two)).tenure.ready_at == {}
    assert noted(heard_ready(1), state_of()).tenure.ready_at == {}
    assert noted(heard_ready(0), state_of()).crash_loops.ready_at == {I: NOW}


def test_what_each_event_leaves_in_the_notes() -> None:
    state, lease = (
        state_of(ready()),
        Lease(lease=LeaseId("lease-l"), node=N1, size_bytes=5, ttl_s=9),
    )
    assert noted(InstanceFailed(instance=I, why="x"), state).failed_at == {I: NOW}
    full = PlannerNotes(failed_at={I: 1.0}, tenure=Tenure(ready_at={I: 1.0}))
    full.loads.heavy_s[A] = 5.0
    full.crash_loops.failures[I] = [1.0]
    noted(InstanceRemoved(instance=I, why="x"), state, full)
    assert (full.failed_at, full.tenure.ready_at, full.tenure.left_at) == ({}, {}, {N1: NOW})
    assert (full.loads.heavy_s, full.crash_loops.failures) == ({}, {})
    unknown = noted(InstanceRemoved(instance=I, why="x"), state_of(), PlannerNotes({I: 1.0}))
    assert (unknown.failed_at, unknown.tenure.left_at) == ({}, {})
    for body in (
        InstanceDraining(instance=I, deadline_s=1.0, why="x"), InstancePlaced(instance=copy()),
    ):  # fmt: skip
        notes = PlannerNotes()
        notes.loads.heavy_s[A] = 5.0
        assert noted(body, state, notes).loads.heavy_s == {}
    noted(InstanceDraining(instance=I, deadline_s=1.0, why="x"), state_of())
    assert noted(InstancePlaced(instance=copy()), state_of()).tenure.placed_at == {I: NOW}
    assert noted(opened("x"), state).tenure.placed_at == {I: NOW}
    assert noted(InstanceYields(instance=I, to="b", why="x"), state).tenure.yields_at == {I: NOW}
    granted = noted(LeaseGranted(lease=lease), state)
    assert granted.leases.renewed_at == {lease.lease: NOW}
    noted(LeaseEnded(lease=lease.lease, why="x"), state, granted)
    assert granted.leases.renewed_at == {}


# --- a plan from whose nodes copies have just left ---------------------------------------------


def test_a_plan_stays_on_its_nodes_until_they_are_measured() -> None:
    """On n1 a copy has just left, and another is to leave yet; the plan is of 5 GB there."""
    stays = ready("j", model=ModelId("j"))
    gone = Victim(Copy(ready("g"), None, 0.0, 1.0), Yielding(NOW), 1.0)
    still = Victim(Copy(stays, None, 0.0, 1.0), Yielding(NOW), 1.0)
    choice = PoolChoice({N1: 5 * GB}, (gone, still))
    claim = Claim(ModelId("b"), ((10, 90.0),))
    plan = PoolPlan(claim, choice, "settling", "", None, 0.0)
    wish = PlaceModel(command_id=CommandId("c"), model=ModelId("b"))
    nodes = {name: NodeSeat(node=NodeId(name), name=name) for name in ("n1", "n2")}
    asked: list[Scene] = []
    refused = Refusal(reason="no_capacity", message="full")

    def decide(scene: Scene, answer: Any = refused) -> Any:
        asked.append(scene)
        return answer

    measured = seen(state_of(stays, nodes=nodes))
    assert stayed(wish, measured, plan, decide) is None and not asked
    scene = replace(measured, tenure=Tenure(left_at={N1: NOW - 0.1}))
    later = stayed(wish, scene, plan, decide)
    assert isinstance(later, Later) and later.choice == replace(choice, victims=(still,))
    assert [one.avoided for one in asked] == [frozenset({N2})], "n1 alone is looked at"
    placed = Decided((InstanceRemoved(instance=I, why="x"),), None)
    assert stayed(wish, scene, plan, lambda _: placed) == placed
    soon = Later(claim, choice)
    assert stayed(wish, scene, plan, lambda _: soon) == soon
    huge = replace(plan, choice=replace(choice, needs={N1: 500 * GB}))
    assert stayed(wish, scene, huge, decide) is None, "others were promised its room since"
