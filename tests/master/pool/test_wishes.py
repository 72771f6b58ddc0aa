"""What the holder does with each answer of its rules: what it writes, pursues, keeps and says.

The rule for commands answers here as each test says; the holder around it is the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bus.membership.card_book import HeldCard
from bus.replica.state import ClusterState, NodeSeat
from bus.wire.errors import Refusal
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Setbacks
from bus.wire.messages.commands import EndLease, PlaceModel, RenewLease, TakeLease
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import (
    FactId,
    GenerationOpened,
    InstancePlaced,
    InstanceRemoved,
    LeaseAskedBack,
    LeaseEnded,
    LeaseGranted,
    ModelPinned,
    NodeJoined,
    SetbacksCounted,
    TermOpened,
)
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import LinkReading
from bus.wire.pool import Lease, LeaseId, Pin
from master.decisions.decide import Decided, Decision, Known, Later, Policy, Scene
from master.decisions.holder import Holder
from master.log.sequencer import LogDraft
from master.pool import Claim, Copy, PoolChoice, Victim, Yielding
from tests.harness.holder_scenes import (
    GB,
    N1,
    N2,
    NOW,
    A,
    B,
    on_disk,
    ready,
    seen,
    state_of,
    use,
)

PLACE = PlaceModel(command_id=CommandId("place"), model=A)
LEASE = TakeLease(command_id=CommandId("take"), lease=LeaseId("lease-l"), size_bytes=GB)
FULL = Refusal(reason="no_capacity", message="full", retry_after_s=5.0)
VAIN = Refusal(reason="no_capacity", message="pinned")
UNKNOWN = Refusal(reason="unknown_model", message="no such model")
BODIES = tuple(InstanceRemoved(instance=InstanceId(name), why="x") for name in ("x", "y", "z"))
GOES = Decided(BODIES, InstanceId("fresh"))


def later(claim: Claim | None = None, at: float = NOW) -> Later:
    victims = tuple(
        Victim(Copy(ready(name, model=B), None, 0.0, 1.0), Yielding(when, "busy"), 1.0)
        for name, when in (("v", NOW), ("w", at))
    )
    return Later(claim or Claim(A, ((10, NOW),)), PoolChoice({N1: GB}, victims))


class Desk:
    """A holder whose rule for commands gives the answers of a test, and its log."""

    def __init__(self, answer: Any, state: ClusterState | None = None) -> None:
        self.answer: Callable[[Any, Scene], Decision] = (
            answer if callable(answer) else lambda _command, _scene: answer
        )
        self.asked_of: list[str] = []
        self.holder = Holder(Policy(), lambda: InstanceId("fresh"), decide=self._decide)
        self.state = state or ClusterState()

    def _decide(self, command: Any, scene: Scene, fresh: InstanceId) -> Decision:
        self.asked_of.append(command.command_id)
        return self.answer(command, scene)

    def ask(self, command: Any, *, at: float = NOW, unsettled: Refusal | None = None) -> Any:
        draft = self.draft()
        answer = self.holder.take_command(command, draft, at, unsettled=unsettled)
        return answer, self.take(draft)

    def plan(self, at: float = NOW) -> list[tuple[Any, str | None]]:
        draft = self.draft()
        self.holder.planned(draft, at)
        return self.take(draft)

    def draft(self) -> LogDraft:
        return LogDraft(self.state, 1, NodeId("holder"), 1_000.0)

    def take(self, draft: LogDraft) -> list[tuple[Any, str | None]]:
        self.state = draft.state
        return [(event.body, event.command_id) for event, _ in draft.events]

    def pursues(self, at: float = NOW) -> bool:
        """Whether its wish is asked for again when it plans."""
        self.asked_of.clear()
        self.plan(at)
        return bool(self.asked_of)

    def waits(self) -> list[tuple[str, str]]:
        told = self.holder.pool(self.state, NodeId("holder"), NOW)
        return [(one.model, one.phase) for one in told.waits]

    def outcomes(self) -> list[Any]:
        return [facts["outcome"] for line, facts in self.holder.take_notes() if "outcome" in facts]


WRITTEN = [(BODIES[0], None), (BODIES[1], None)]


@pytest.mark.parametrize(
    ("command", "decision", "answer", "written", "pursued"),
    [
        (PLACE, GOES, Known(3, InstanceId("fresh")), [*WRITTEN, (BODIES[2], "place")], False),
        (PLACE, Decided(BODIES[:1], None), Known(1), [(BODIES[0], "place")], False),
        (PLACE, later(), None, [], True),
        (PLACE, later(at=NOW + 0.1), later(at=NOW + 0.1).refusal, [], False),
        (PLACE, FULL, FULL, [], False),
        (PLACE, UNKNOWN, UNKNOWN, [], False),
        (PLACE, Known(7), Known(7), [], False),
        (LEASE, later(), None, [], True),
        (LEASE, later(at=NOW + 0.1), None, [], True),
        (LEASE, FULL, FULL, [], True),
        (LEASE, VAIN, VAIN, [], False),
        (LEASE, Known(7), Known(7), [], False),
    ],
)
def test_what_an_asker_is_told_what_is_written_and_what_is_pursued_then(
    command: Any, decision: Decision, answer: Any, written: list[Any], pursued: bool
) -> None:
    desk = Desk(decision)
    assert desk.ask(command) == (answer, written)
    assert desk.pursues() == pursued


def test_what_would_change_voters_is_refused_while_they_are_not_settled() -> None:
    unsettled = Refusal(reason="pending", message="soon")
    assert Desk(GOES).ask(PLACE, unsettled=unsettled) == (unsettled, [])
    assert Desk(Known(7)).ask(PLACE, unsettled=unsettled) == (Known(7), [])


def test_a_wish_is_pursued_for_three_seconds_after_it_was_last_asked_for() -> None:
    desk = Desk(FULL)
    desk.ask(LEASE, at=NOW)
    assert desk.pursues(NOW + 2.9) and not desk.pursues(NOW + 3.0)
    desk.ask(LEASE, at=NOW)
    desk.ask(LEASE, at=NOW + 2.0)
    assert desk.pursues(NOW + 4.9)


def test_who_gives_a_lease_back_waits_for_it_no_longer_and_who_renews_one_keeps_it() -> None:
    desk = Desk(FULL)
    desk.ask(LEASE)
    desk.answer = lambda _command, _scene: FULL
    desk.ask(EndLease(command_id=CommandId("end"), lease=LeaseId("lease-l")))
    assert not desk.pursues()
    lease = Lease(lease=LeaseId("lease-l"), node=N1, size_bytes=GB, ttl_s=10.0)
    nodes = {"n1": NodeSeat(node=N1, name="n1")}
    renew = RenewLease(command_id=CommandId("renew"), lease=lease.lease, used_bytes=5)
    for command, decision, lasts in (
        (renew, Known(1), True), (renew, UNKNOWN, False), (PLACE, Known(1), False),
    ):  # fmt: skip
        desk = Desk(decision, ClusterState(leases={lease.lease: lease}, nodes=nodes))
        assert desk.plan(NOW) == []
        desk.ask(command, at=NOW + 8.0)
        ended = [body for body, _ in desk.plan(NOW + 12.0)]
        assert [isinstance(body, LeaseEnded) for body in ended] == ([] if lasts else [True])


@pytest.mark.parametrize(
    ("fields", "decision", "pins", "is_pinned"),
    [
        ({"pinned": True}, Known(1), (), True),
        ({"pinned": True}, GOES, (), True),
        ({"pinned": True}, later(), (), True),
        ({"pinned": True}, FULL, (), False),
        ({"pinned": True, "dry_run": True}, Known(1), (), False),
        ({"pinned": False}, Known(1), (), False),
        ({"pinned": True}, Known(1), ("a",), False),
        ({"pinned": True}, Known(1), ("b",), True),
    ],
)
def test_a_placement_that_says_so_pins_its_model(
    fields: dict[str, bool], decision: Decision, pins: tuple[str, ...], is_pinned: bool
) -> None:
    state = ClusterState(pins={name: Pin(model=ModelId(name)) for name in pins})
    _, written = Desk(decision, state).ask(PLACE.model_copy(update=fields))
    found = [body for body, _ in written if isinstance(body, ModelPinned)]
    pin = Pin(model=A, by="its placement", at_s=1_000.0)
    assert found == ([ModelPinned(pin=pin)] if is_pinned else [])


# --- what is wished for --------------------------------------------------------------------------


def test_a_wish_that_is_met_is_written_as_its_askers_command() -> None:
    desk = Desk(later())
    desk.ask(PLACE)
    desk.answer = lambda _command, _scene: GOES
    assert desk.plan() == [*WRITTEN, (BODIES[2], "place")]
    assert not desk.pursues(), "it is met"
    pins = {"a": Pin(model=A)}
    unasked = Desk(GOES, ClusterState(pins=pins))
    assert unasked.plan() == [*WRITTEN, (BODIES[2], None)]


@pytest.mark.parametrize(
    ("refusal", "phase"),
    [(FULL, "refused"), (VAIN, "hopeless"), (UNKNOWN, "refused")],
    ids=lambda one: getattr(one, "message", one),
)
def test_what_has_no_plan_waits_in_vain_where_there_is_never_room(
    refusal: Refusal, phase: str
) -> None:
    desk = Desk(refusal, ClusterState(pins={"a": Pin(model=A)}))
    desk.plan()
    assert desk.waits() == [("a", phase)]


@pytest.mark.parametrize(("reason", "asks"), [("no_capacity", True), ("unknown_model", False)])
def test_a_lease_is_asked_back_for_want_of_room_alone(reason: Any, asks: bool) -> None:
    def answer(_command: Any, scene: Scene) -> Decision:
        refused = Refusal(reason=reason, message="x", retry_after_s=5.0)
        return refused if scene.state.leases else GOES

    lease = Lease(lease=LeaseId("lease-l"), node=N1, size_bytes=GB, ttl_s=10.0, priority=50)
    nodes = {"n1": NodeSeat(node=N1, name="n1")}
    desk = Desk(
        answer, ClusterState(leases={lease.lease: lease}, nodes=nodes, pins={"a": Pin(model=A)})
    )  # fmt: skip
    asked = [body for body, _ in desk.plan() if isinstance(body, LeaseAskedBack)]
    assert [one.to for one in asked] == (["a"] if asks else [])


def test_what_becomes_of_a_wish_is_said_when_it_changes() -> None:
    desk = Desk(FULL, ClusterState(pins={"a": Pin(model=A)}))
    said: list[Any] = []
    for answer in (FULL, FULL, UNKNOWN, FULL, later(), later(), GOES):
        desk.answer = lambda _command, _scene, answer=answer: answer
        desk.plan()
        said.append(desk.outcomes())
    waits = f"waiting for memory: {later().refusal.message}"
    assert said == [["full"], [], ["no such model"], ["full"], [waits], [], ["placed"]]
    assert desk.holder.take_notes() == []


def test_a_placing_or_a_lease_ends_its_plan_and_what_others_are_promised_with_it() -> None:
    desk = Desk(later(), ClusterState(pins={"a": Pin(model=A)}))
    desk.plan()
    assert desk.waits() == [("a", "evicting")]
    desk.answer = lambda _command, _scene: Decided((InstancePlaced(instance=ready()),), None)
    desk.ask(PLACE)
    assert desk.waits() == []
    claim = Claim(LEASE.model, ((10, NOW),), "lease")
    desk = Desk(later(claim))
    desk.ask(LEASE)
    desk.plan()
    assert desk.waits() == [("lease-l", "evicting")]
    lease = Lease(lease=LEASE.lease, node=N1, size_bytes=GB, ttl_s=10.0)
    desk.answer = lambda _command, _scene: Decided((LeaseGranted(lease=lease),), None)
    desk.ask(LEASE)
    assert desk.waits() == []


def test_a_plan_from_whose_node_a_copy_has_just_left_is_decided_for_that_node() -> None:
    nodes = {name: NodeSeat(node=NodeId(name), name=name) for name in ("n1", "n2")}
    desk = Desk(later(), ClusterState(pins={"a": Pin(model=A)}, nodes=nodes))
    desk.plan()
    memory = desk.holder._memory  # pyright: ignore[reportPrivateUsage]
    memory.tenure.removed(InstanceId("v"), [N1], NOW)
    desk.answer = lambda _command, scene: GOES if scene.avoided == {N2} else FULL
    assert desk.plan(NOW + 0.1) == [*WRITTEN, (BODIES[2], None)]


# --- what is heard and told ----------------------------------------------------------------------


def test_what_is_measured_calls_for_a_plan_while_something_waits() -> None:
    desk, measured = Desk(later()), seen(ClusterState()).observed.nodes[N1][0]
    links = LinkReading(node=N1, links=(), measured_at_s=1.0)
    assert desk.holder.observe(measured, NOW), "a node's first"
    assert not desk.holder.observe(measured, NOW)
    desk.ask(PLACE)
    desk.plan()
    assert desk.holder.observe(measured, NOW)
    assert not desk.holder.observe(links, NOW)
    assert desk.holder.observe(measured.model_copy(update={"node": N2}), NOW)


def test_a_fact_is_taken_once_and_in_its_turn() -> None:
    desk = Desk(FULL)

    def tell(seq: int) -> tuple[bool, int]:
        fact_id = FactId(node=N1, process="worker", boot=Boot("b"), seq=seq)
        draft = desk.draft()
        told = TellFact(fact=NodeJoined(node=N1, name="n1"), fact_id=fact_id)
        taken = desk.holder.take_fact(told, draft, NOW)
        return taken, len(desk.take(draft))

    assert [tell(2), tell(1), tell(1), tell(2)] == [(False, 0), (True, 1), (True, 0), (True, 1)]


def test_a_term_begins_with_its_opening_and_keeps_nothing_of_the_last_one() -> None:
    desk = Desk(later())
    desk.ask(PLACE)
    desk.plan()
    draft = desk.draft()
    desk.holder.opened(draft, NOW)
    assert [body for body, _ in desk.take(draft)] == [
        TermOpened(holder=NodeId("holder"), counter=1)
    ]
    assert desk.waits() == [] and not desk.pursues()


def test_a_failure_that_a_dead_holder_left_out_is_counted_before_it_is_made_good() -> None:
    left = ready("i", status="placed", failures=("generation 1 rank 0: x",))
    desk = Desk(FULL, state_of(left))
    draft = desk.draft()
    desk.holder.opened(draft, NOW)
    _, (counted, _), (opened, _) = desk.take(draft)
    assert isinstance(opened, GenerationOpened) and isinstance(counted, SetbacksCounted)
    assert counted.setbacks.failed_at_s == (1_000.0,), "by the clock of the wall"


def test_a_new_holder_takes_up_pauses_by_its_own_clock() -> None:
    """The wall's clock is 900 seconds ahead."""
    known = Setbacks(model=A, in_a_row=3, instance=InstanceId("i"), again_at_s=1_020.0)
    desk = Desk(FULL, ClusterState(setbacks={"a": known}))
    desk.holder.opened(desk.draft(), NOW)
    memory = desk.holder._memory  # pyright: ignore[reportPrivateUsage]
    assert memory.crash_loops.next_at(A) == NOW + 20.0


def test_a_turn_begins_when_a_holder_first_sees_the_copy_ready() -> None:
    busy, desk = ready(), Desk(FULL)
    left: list[float] = []
    for at in (NOW, NOW + 10.0):
        use(Scene(desk.state, desk.holder.view, Policy(), at), busy, running=1)
        told = desk.holder.pool(state_of(busy), NodeId("holder"), at)
        left.append(told.copies[0].turn_left_s)
    assert left == [30.0, 20.0]


# --- what lost nodes held ------------------------------------------------------------------------


def lost_desk(answer: Any, *others: Any) -> Desk:
    """Of three nodes n2 is lost, which has a copy of a."""
    nodes = {n: NodeSeat(node=NodeId(n), name=n) for n in ("n1", "n2", "n3")}
    desk = Desk(answer, state_of(ready("i", nodes=(N2,)), *others, nodes=nodes))
    view = desk.holder.view
    cards = seen(ClusterState(), disks={N1: (), N2: (on_disk("a"),)}).observed.cards
    for node, (card, _) in cards.items():
        view.cards[node] = HeldCard(card, NOW - 10.0)
    peers = [
        PeerReading(node=N2, name="n2", status="silent", silent_s=9.0),
        PeerReading(node=N1, name="n1", status="linked", silent_s=0.0),
    ]
    view.hear(PeersReading(node=NodeId("holder"), peers=tuple(peers)), NOW)
    return desk


def test_what_a_lost_node_held_is_placed_anew_and_said() -> None:
    fresh = InstancePlaced(instance=ready("fresh"))
    desk = lost_desk(Decided((fresh,), InstanceId("fresh")))
    assert [body for body, _ in desk.plan()] == [fresh]
    assert desk.outcomes() == ["placed again because its node is lost"]
    assert desk.holder._stand_ins.of == {"i": "fresh"}  # pyright: ignore[reportPrivateUsage]
    for answer, said in ((FULL, "full"), (later(), later().refusal.message)):
        desk = lost_desk(answer)
        assert desk.plan() == []
        assert desk.outcomes() == [f"waiting for its node: {said}"]
        desk.plan()
        assert desk.outcomes() == []
    assert lost_desk(Decided((fresh,), None)).plan() == []
