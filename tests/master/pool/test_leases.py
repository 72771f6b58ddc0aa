"""Leases in simulated time with the real holder: who makes way, who is asked, when each ends."""

from __future__ import annotations

from typing import Any

import pytest

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import AskLeaseBack, EndLease, PinModel, RenewLease, TakeLease
from bus.wire.messages.events import LeaseAskedBack, LeaseEnded, NodeForgotten
from bus.wire.pool import Lease, LeaseId
from master.decisions.decide import Known, Policy
from master.placement import LeasedMemory, NodeCapacity
from master.pool import Claim, LeaseNotes, PoolChoice, PoolPlan, Promise, reserve
from tests.sim.pool_world import GB, HOLDER, Client, Kind, PoolWorld, run_clients

LOAD_S = 4.0
N1, N2 = NodeId("n1"), NodeId("n2")
ONE = {"n1": (16.0, 4)}


def world(sizes: dict[str, float], nodes: dict[str, tuple[float, int]]) -> PoolWorld:
    kinds = [Kind(ModelId(name), size, LOAD_S) for name, size in sizes.items()]
    return PoolWorld(kinds, nodes, Policy(keep_alive_s=10_000.0))


class Owner:
    """Who asks for a lease each second until it has one, and then renews it."""

    def __init__(self, made: PoolWorld, name: str, gigabytes: float, **more: Any) -> None:
        self.made = made
        self.lease = LeaseId(f"lease-{name}")
        self.command = TakeLease(
            command_id=CommandId(f"take-{name}"), lease=self.lease,
            size_bytes=int(gigabytes * GB), owner=name, **more,
        )  # fmt: skip
        self.used_bytes: int | None = None
        self.answer: Any = None

    @property
    def held(self) -> bool:
        return self.lease in self.made.state.leases

    def live(self, seconds: float, *, renews: bool = True) -> None:
        """Let time pass, asking or renewing each second."""
        for _ in range(round(seconds)):
            if not self.held:
                self.answer = self.made.command(self.command)
            elif renews:
                name = CommandId(f"renew-{self.made.now}")
                self.made.command(
                    RenewLease(command_id=name, lease=self.lease, used_bytes=self.used_bytes)
                )
            self.made.run(1.0)

    def give_back(self) -> None:
        name = CommandId(f"end-{self.lease}")
        self.made.command(EndLease(command_id=name, lease=self.lease))


def loaded(made: PoolWorld, *models: str) -> None:
    for model in models:
        ask = made.ask(model, work_s=0.1)
        assert made.run(60.0, lambda ask=ask: ask in made.done), f"{model} is answered"


def in_memory(made: PoolWorld) -> set[str]:
    return {str(one.model) for one in made.state.instances.values() if one.status == "ready"}


def waits(made: PoolWorld) -> dict[str, Any]:
    told = made.holder.pool(made.state, HOLDER, made.now)
    return {str(one.model): one for one in told.waits}


def test_a_lease_where_there_is_room_is_granted_at_once_on_the_freest_node() -> None:
    made = world({"a": 4}, {"n1": (16.0, 4), "n2": (30.0, 4)})
    owner = Owner(made, "training", 8.0)
    assert isinstance(made.command(owner.command), Known)
    lease = made.state.leases[owner.lease]
    assert (lease.node, lease.size_bytes, lease.owner) == (N2, 8 * GB, "training")


def test_an_idle_model_makes_way_and_comes_back_when_the_lease_is_given_back() -> None:
    made = world({"a": 8}, ONE)
    loaded(made, "a")
    owner = Owner(made, "training", 12.0)
    assert made.command(owner.command) is None, "a makes way first"
    owner.live(6.0)
    assert owner.held and not in_memory(made)
    asks = made.ask("a")
    owner.live(20.0)
    assert asks.began_at is None
    assert "leased: 12.00 GB on n1 to training (lease-training)" in waits(made)["a"].why
    owner.give_back()
    assert made.run(LOAD_S + 3.0, lambda: asks.began_at is not None)


def test_a_model_in_use_keeps_its_turn_then_finishes_then_makes_way() -> None:
    made = world({"a": 8}, ONE)
    busy = [Client(made, ["a"], work_s=2.0) for _ in range(2)]
    run_clients(made, busy, 12.0)
    owner = Owner(made, "training", 12.0)
    for _ in range(60):
        if not owner.held:
            made.command(owner.command)
        run_clients(made, busy, 1.0)
        if waits(made).get("lease-training"):
            assert waits(made)["lease-training"].kind == "lease"
        if owner.held:
            break
    assert owner.held
    granted_at = made.now
    assert 20.0 < granted_at - 100.0 < 60.0, "after the turn, and within its bound"
    assert not made.broken_off and all(ask in made.done for one in busy for ask in one.asks[:-1])


def test_what_has_no_room_for_ever_is_refused_with_the_arithmetic() -> None:
    made = world({"a": 4}, ONE)
    answer = made.command(Owner(made, "huge", 40.0).command)
    assert isinstance(answer, Refusal) and answer.reason == "insufficient_memory"
    assert answer.message == "too much memory: 40.00 GB; the largest limit is 16.00 GB on n1"


def test_pinned_models_make_no_way_for_a_lease() -> None:
    made = world({"a": 8}, ONE)
    loaded(made, "a")
    made.command(PinModel(command_id=CommandId("pin"), model=ModelId("a"), by="ann"))
    owner = Owner(made, "training", 12.0)
    owner.live(4.0)
    assert isinstance(owner.answer, Refusal) and owner.answer.facts["pinned"] == ["a"]
    assert in_memory(made) == {"a"}


def test_models_are_placed_beside_a_lease_by_the_sum_and_by_what_is_measured() -> None:
    made = world({"a": 3, "b": 4}, ONE)
    owner = Owner(made, "training", 8.0)
    owner.live(2.0)
    loaded(made, "a")
    big = made.ask("b")
    owner.live(10.0)
    assert big.began_at is not None and in_memory(made) == {"b"}, "both do not fit beside it"
    made.outside[N1] = 8.0  # now the job takes what it has leased
    owner.used_bytes = 8 * GB
    owner.live(3.0)
    loaded(made, "a")
    assert in_memory(made) == {"a"}


def test_more_than_leased_is_seen_by_measuring() -> None:
    made = world({"a": 4}, ONE)
    owner = Owner(made, "training", 2.0)
    owner.used_bytes = 2 * GB
    owner.live(2.0)
    made.outside[N1] = 14.0
    owner.live(3.0)
    asks = made.ask("a")
    owner.live(10.0)
    assert asks.began_at is None


def test_an_owner_that_is_gone_loses_its_lease_after_its_time() -> None:
    made = world({"a": 8}, ONE)
    owner = Owner(made, "training", 12.0, ttl_s=30.0)
    owner.live(5.0)
    asks = made.ask("a")
    made.run(26.0)
    assert owner.held and asks.began_at is None
    made.run(5.0 + LOAD_S)
    assert not owner.held and asks.began_at is not None
    ended = next(body for body in made.told if isinstance(body, LeaseEnded))
    assert ended.why == "was not renewed for 30 s"


def test_a_lease_that_is_renewed_lasts() -> None:
    made = world({"a": 8}, ONE)
    owner = Owner(made, "training", 12.0, ttl_s=5.0)
    owner.live(60.0)
    assert owner.held and not any(isinstance(body, LeaseEnded) for body in made.told)


def test_a_new_holder_keeps_leases_and_gives_them_their_time_anew() -> None:
    made = world({"a": 8}, ONE)
    owner = Owner(made, "training", 12.0, ttl_s=10.0)
    owner.live(9.0, renews=False)
    made.begin_term()
    made.run(9.0)
    assert owner.held
    made.run(3.0)
    assert not owner.held


def test_a_lease_is_asked_back_for_what_is_more_urgent_and_for_nothing_else() -> None:
    made = world({"a": 8}, ONE)
    owner = Owner(made, "training", 12.0, priority=20)
    owner.live(2.0)
    same = Owner(made, "other", 12.0, priority=20)
    same.live(3.0)
    assert not made.state.leases[owner.lease].yields_to
    asks = made.ask("a", priority=10)
    owner.live(3.0)
    assert made.state.leases[owner.lease].yields_to == "a"
    assert owner.held, "it is asked back, not taken"
    owner.give_back()
    assert made.run(LOAD_S + 3.0, lambda: asks.began_at is not None)


def test_the_question_is_withdrawn_with_the_wish() -> None:
    made = world({"a": 8}, ONE)
    owner = Owner(made, "training", 12.0, priority=20)
    owner.live(2.0)
    asks = made.ask("a", priority=10)
    owner.live(3.0)
    assert made.state.leases[owner.lease].yields_to == "a"
    made.give_up(asks)
    owner.live(8.0)
    assert not made.state.leases[owner.lease].yields_to
    asked = [body for body in made.told if isinstance(body, LeaseAskedBack)]
    assert [body.to for body in asked] == ["a", ""], "each is said once"


def test_as_few_leases_as_help_are_asked_back_the_least_urgent_first() -> None:
    made = world({"a": 4}, ONE)
    owners = [Owner(made, f"job{n}", 5.0, priority=20 + n) for n in range(3)]
    for owner in owners:
        owner.live(1.0)
    assert all(owner.held for owner in owners)
    made.ask("a", priority=10)
    for _ in range(4):
        for owner in owners:
            owner.live(1.0)
    asked = [one.lease for one in made.state.leases.values() if one.yields_to]
    assert asked == ["lease-job2"]


def test_an_operator_asks_and_that_stands() -> None:
    made = world({"a": 4}, ONE)
    owner = Owner(made, "training", 5.0)
    owner.live(1.0)
    made.command(AskLeaseBack(command_id=CommandId("x"), lease=owner.lease, by="ann"))
    owner.live(5.0)
    assert made.state.leases[owner.lease].yields_to == "operator ann"


@pytest.mark.parametrize("kind", [RenewLease, AskLeaseBack, EndLease])
def test_an_unknown_lease_is_named(kind: Any) -> None:
    made = world({"a": 4}, ONE)
    answer = made.command(kind(command_id=CommandId("x"), lease=LeaseId("lease-none")))
    assert isinstance(answer, Refusal) and answer.reason == "unknown_lease"
    assert "'lease-none'" in answer.message


def test_a_lease_of_a_named_node_stays_there() -> None:
    made = world({"a": 4}, {"n1": (16.0, 4), "n2": (30.0, 4)})
    owner = Owner(made, "training", 8.0, node=N1)
    owner.live(1.0)
    assert made.state.leases[owner.lease].node == N1
    answer = made.command(Owner(made, "astray", 8.0, node=NodeId("n9")).command)
    assert isinstance(answer, Refusal) and answer.field == "node"


def test_a_lease_ends_with_its_node() -> None:
    made = world({"a": 4}, {"n1": (16.0, 4), "n2": (30.0, 4)})
    owner = Owner(made, "training", 8.0)
    owner.live(1.0)
    draft = made._draft()
    draft.add(NodeForgotten(node=N2))
    made._take(draft)
    owner.made.run(2.0)
    assert not owner.held


def test_repeats_of_a_command_are_one_lease() -> None:
    made = world({"a": 4}, ONE)
    owner = Owner(made, "training", 8.0)
    first, again = made.command(owner.command), made.command(owner.command)
    assert first == again and len(made.state.leases) == 1


def test_of_a_lease_what_its_owner_does_not_say_to_use_is_kept_free() -> None:
    made = world({"a": 4}, ONE)
    owner = Owner(made, "training", 8.0)
    owner.live(1.0)
    notes = LeaseNotes()
    assert notes.memory(made.state) == [LeasedMemory(N1, 8 * GB, 8 * GB)]
    notes.renewed(owner.lease, 3 * GB, made.now)
    assert notes.memory(made.state) == [LeasedMemory(N1, 8 * GB, 5 * GB)]
    notes.renewed(owner.lease, 9 * GB, made.now)
    assert notes.memory(made.state) == [LeasedMemory(N1, 8 * GB, 0)]


@pytest.mark.parametrize(("kind", "slots"), [("lease", 0), ("demand", 1), ("pin", 1)])
def test_a_plan_promises_a_runner_slot_to_a_model_alone(kind: str, slots: int) -> None:
    claim = Claim(ModelId("wanted"), ((10, 0.0),), kind)
    plan = PoolPlan(claim, PoolChoice({N1: 1}), "waiting", "", None, 0.0)
    assert plan.promise(ClusterState()) == Promise(ModelId("wanted"), {N1: 1}, (), slots)


def test_what_waits_for_a_lease_is_promised_bytes_and_no_runner_slot() -> None:
    made = world({"a": 4}, {"n1": (16.0, 1)})
    node = NodeCapacity(made._card(N1), made._reading(N1))
    promise = Promise(ModelId("lease-x"), {N1: 8 * GB}, slots=0)
    (kept,) = reserve([node], [promise])
    assert kept.has_slot and kept.usable_bytes == node.usable_bytes - 8 * GB


@pytest.mark.parametrize(
    ("used", "unused"), [(None, 5), (0, 5), (2, 3), (5, 0), (9, 0)], ids=lambda n: str(n)
)
def test_what_a_lease_does_not_use_yet_is_counted_to_the_byte(
    used: int | None, unused: int
) -> None:
    notes, lease = LeaseNotes(), Lease(lease=LeaseId("lease-l"), node=N1, size_bytes=5, ttl_s=30.0)
    notes.renewed(lease.lease, used, 0.0)
    assert notes.memory(ClusterState(leases={lease.lease: lease})) == [LeasedMemory(N1, 5, unused)]
    notes.ended(lease.lease)
    assert notes.memory(ClusterState(leases={lease.lease: lease})) == [LeasedMemory(N1, 5, 5)]
