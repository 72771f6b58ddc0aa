"""The rules of leases, each alone: what a command comes to, what is asked back, what ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.replica.state import ClusterState, NodeSeat
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import (
    AskLeaseBack,
    EndLease,
    PlaceModel,
    RenewLease,
    TakeLease,
)
from bus.wire.messages.events import LeaseAskedBack, LeaseEnded, LeaseGranted
from bus.wire.pool import MAX_LEASES, Lease, LeaseId
from master.decisions.decide import Known, Scene
from master.decisions.leasing import asked_back, decide_lease, not_wanted_back, take_lease
from master.pool import LeaseNotes, PoolChoice, askable
from tests.harness.holder_scenes import GB, N1, N2, demand, ready, seen, state_of, use

WISH = PlaceModel(command_id=CommandId("c"), model=ModelId("a"), priority=10)
FULL = Refusal(reason="no_capacity", message="full")


def lease(name: str, node: NodeId = N1, **more: Any) -> Lease:
    fields = {"size_bytes": GB, "ttl_s": 30.0, "priority": 20, **more}
    return Lease(lease=LeaseId(f"lease-{name}"), node=node, **fields)


def leased(*leases: Lease, **more: Any) -> ClusterState:
    return ClusterState(leases={one.lease: one for one in leases}, **more)


def seats(*nodes: str) -> dict[str, NodeSeat]:
    return {name: NodeSeat(node=NodeId(name), name=name) for name in nodes}


@pytest.mark.parametrize(
    ("node", "age_s", "why"),
    [
        (N1, 0.0, None), (N1, 30.0, None), (N1, 30.1, "was not renewed for 30 s"),
        (N2, 30.0, "the node left the cluster"),
        (N2, 30.1, "was not renewed for 30 s"),
    ],
)  # fmt: skip
def test_a_lease_ends_after_its_time_or_with_its_node(
    node: NodeId, age_s: float, why: str | None
) -> None:
    state, notes = leased(lease("l", node), nodes=seats("n1")), LeaseNotes()
    notes.renewed(LeaseId("lease-l"), None, 100.0)
    assert notes.over(state, 100.0 + age_s) == ({} if why is None else {"lease-l": why})
    fresh = LeaseNotes()
    assert fresh.over(leased(lease("l"), nodes=seats("n1")), 500.0) == {}
    assert fresh.renewed_at == {"lease-l": 500.0}, "a new holder gives it its time anew"


def test_leases_of_less_urgent_classes_may_be_asked_back_the_least_urgent_and_youngest_first() -> (
    None
):
    state = leased(
        lease("a", at_s=1.0), lease("b", at_s=2.0), lease("c", priority=30), lease("e", N2),
        lease("d", priority=10),
    )  # fmt: skip
    found = {node: [one.lease[6:] for one in some] for node, some in askable(state, 10).items()}
    assert found == {N1: ["c", "b", "a"], N2: ["e"]}
    assert askable(state, 30) == {} and len(askable(state, 9)[N1]) == 4


def asks(needed: int, *leases: Lease, wish: Any = WISH) -> list[str]:
    """Which leases are asked back where so many of them have to go for there to be room."""

    def decide(scene: Scene) -> Any:
        gone = len(leases) - len(scene.state.leases)
        return FULL if gone < needed else Known(1)

    found = asked_back(wish, seen(leased(*leases)), decide)
    why = f"{wish.model} is more urgent, and no other memory is free"
    assert all((one.to, one.why) == (wish.model, why) for one in found)
    return [one.lease[6:] for one in found]


def test_as_few_leases_of_one_node_are_asked_back_as_help_and_eight_at_most() -> None:
    many = [lease(f"n{n}", at_s=-n) for n in range(10)]
    for needed in range(1, 11):
        names = [f"n{n}" for n in range(needed)]
        assert asks(needed, *many) == (names if needed <= 8 else [])
    split = [lease("a"), lease("b", N2), lease("c", N2)]
    assert asks(1, *split) == ["a"] and asks(2, *split) == ["b", "c"]
    assert asks(3, *split) == [], "no node has so many"
    assert asks(1) == [] and asks(1, lease("a", priority=10)) == []


def test_what_was_asked_back_already_is_not_asked_again() -> None:
    others, mine = lease("a", yields_to="x"), lease("b", yields_to="a")
    assert asks(1, others, lease("c")) == ["c"]
    assert asks(1, others, lease("c"), lease("d")) == ["c"]
    assert asks(1, mine, lease("c")) == [] and asks(1, lease("c"), mine) == []


def test_a_question_is_withdrawn_when_its_model_waits_no_longer_and_an_operators_never() -> None:
    state = leased(
        lease("a", yields_to="a"), lease("b", yields_to="b"), lease("c"),
        lease("d", yields_to="operator ann"), lease("e", yields_to="an operator"),
    )  # fmt: skip
    why = "the model that needed its memory is no longer requested"
    found = [LeaseAskedBack(lease=LeaseId("lease-b"), why=why)]
    assert not_wanted_back(state, [ModelId("a")]) == found
    assert not_wanted_back(state, [ModelId("a"), ModelId("b")]) == []


def take(gigabytes: int = 4, **more: Any) -> TakeLease:
    return TakeLease(
        command_id=CommandId("t"), lease=LeaseId("lease-l"), size_bytes=gigabytes * GB, **more
    )  # fmt: skip


def test_a_lease_is_taken_once_and_as_it_was_asked_for() -> None:
    command = take(owner="ann", priority=7, ttl_s=9.0, at_s=5.0)
    granted = take_lease(command, seen(ClusterState()))
    assert isinstance(granted, LeaseGranted) and granted.lease == lease(
        "l", size_bytes=4 * GB, owner="ann", priority=7, ttl_s=9.0, at_s=5.0
    )
    assert take_lease(command, seen(leased(granted.lease))) is None
    refused = take_lease(take(40), seen(ClusterState()))
    assert isinstance(refused, Refusal) and refused.reason == "insufficient_memory"
    full = ready()
    shard = full.shards[0].model_copy(update={"bytes_reserved": 12 * GB})
    full = full.model_copy(update={"shards": (shard,)})
    scene = seen(state_of(full), disks={N1: ()}, free=0)
    use(scene, full, idle_s=60.0)
    later = take_lease(command, scene)
    assert isinstance(later, PoolChoice) and len(later.victims) == 1


def test_the_most_leases_are_sixty_four() -> None:
    for count, fits in ((MAX_LEASES - 1, True), (MAX_LEASES, False), (MAX_LEASES + 1, False)):
        scene = seen(leased(*(lease(f"n{n}", size_bytes=1) for n in range(count))))
        assert isinstance(take_lease(take(1), scene), LeaseGranted) == fits


def test_what_a_command_about_a_lease_comes_to() -> None:
    state, name = leased(lease("l")), LeaseId("lease-l")
    ids: dict[str, Any] = {"command_id": CommandId("x"), "lease": name}
    assert decide_lease(RenewLease(**ids), state) is None
    for by, to in (("ann", "operator ann"), ("", "an operator")):
        found = LeaseAskedBack(lease=name, to=to, why=f"{to} needs its memory")
        assert decide_lease(AskLeaseBack(**ids, by=by), state) == found
    assert decide_lease(EndLease(**ids, why="w"), state) == LeaseEnded(lease=name, why="w")
    refused = decide_lease(RenewLease(**ids), ClusterState())
    assert isinstance(refused, Refusal) and refused.reason == "unknown_lease"


def test_ageing_does_not_count_for_asking_back() -> None:
    scene = demand(seen(leased(lease("l", priority=50))), a=50)
    asked = replace(scene, now=scene.now + 4.0)
    assert asked_back(WISH, asked, lambda _: Known(1)) == []
