"""What becomes of copies whose node is lost, long before the grace of that node is over."""

from __future__ import annotations

import pytest

from bus.replica.state import ClusterState, NodeSeat
from bus.wire.cards import NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.instances import Conditions
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import (
    EventBody,
    GenerationOpened,
    InstanceFailed,
    RunnerEnded,
    RunnerReady,
)
from bus.wire.messages.peers import PeerReading, PeersReading, PeerStatus
from bus.wire.messages.readings import CardReading
from master.decisions.decide import Policy
from master.decisions.holder import Holder
from master.decisions.observations import LOST_S
from master.decisions.stand_ins import BROKEN_S
from master.log.sequencer import LogDraft
from tests.harness.placement_nodes import GB, MODEL, model, node, reading

ME = NodeId("n0")
CARD = model((GB,) * 8)


class Stage:
    """A holder among nodes that each have the model on disk; `silent` ones are heard no more, and
    our switchboard says `parted` of those that have told it something at their end."""

    def __init__(self, count: int, *, usable: int = 16 * GB) -> None:
        self.nodes = [node(number, usable=usable, models=(CARD,)).card for number in range(count)]
        self.free = usable
        self.now = 100.0
        self.silent: dict[NodeId, float] = {}
        self.parted: PeerStatus | None = None
        self.left: set[str] = set()
        self.placed = 0
        seats = {card.node: NodeSeat(node=card.node, name=card.name) for card in self.nodes}
        self.state = ClusterState(nodes=seats, index=1, term=1, holder=ME)
        self.holder = Holder(Policy(), self._fresh)
        draft = self._draft()
        self.holder.opened(draft, self.now)
        self.state = draft.state
        self.run(20.0)

    def run(self, seconds: float) -> None:
        """Let time pass, with readings and plans."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for card in self.nodes:
                if card.node not in self.silent:
                    self.hear(card)
            peers = PeersReading(node=ME, peers=tuple(self._peer(card) for card in self.nodes))
            self.holder.view.hear(peers, self.now)
            self.plan()

    def hear(self, card: NodeCard) -> None:
        self.holder.view.hear(CardReading(card=card), self.now)
        self.holder.view.hear(reading(card, self.free), self.now)

    def plan(self) -> None:
        draft = self._draft()
        self.holder.planned(draft, self.now)
        self.state = draft.state

    def lose(self, *names: str) -> None:
        self.silent |= {NodeId(name): self.now for name in names}

    def hears_again(self, name: str) -> None:
        del self.silent[NodeId(name)]

    def place(self, **fields: object) -> InstanceId:
        draft = self._draft()
        command = PlaceModel.model_validate(
            {
                "command_id": CommandId(f"c{self.placed}"),
                "model": MODEL,
                "if_absent": False,
                **fields,
            }
        )
        known = self.holder.take_command(command, draft, self.now, unsettled=None)
        self.state = draft.state
        name = getattr(known, "instance", None)
        assert name is not None, known
        self.ready(name)
        return name

    def ready(self, name: InstanceId) -> None:
        """All ranks of an instance serve."""
        one = self.state.instances[name]
        for shard in one.shards:
            self.write(
                RunnerReady(
                    instance=name, generation=one.generation, rank=shard.rank, node=shard.node,
                    process="runner:00", pid=1, addresses=(),
                )
            )  # fmt: skip

    def end(self, name: InstanceId, rank: int) -> None:
        """A rank of an instance says that its group is broken; the next generation is opened."""
        one = self.state.instances[name]
        shard = one.shards[rank]
        self.write(
            RunnerEnded(
                instance=name, generation=one.generation, rank=rank, node=shard.node, message="lost"
            )
        )
        self.write(GenerationOpened(instance=name, generation=one.generation + 1, why="lost"))

    def write(self, body: EventBody) -> None:
        draft = self._draft()
        draft.add(body)
        self.state = draft.state

    def where(self) -> dict[str, list[str]]:
        return {
            name: [str(shard.node) for shard in one.shards]
            for name, one in self.state.instances.items()
        }

    def _draft(self) -> LogDraft:
        return LogDraft(self.state, 1, ME, 0.0)

    def _fresh(self) -> InstanceId:
        self.placed += 1
        return InstanceId(f"i{self.placed}")

    def _peer(self, card: NodeCard) -> PeerReading:
        if self.parted is not None and card.node in self.silent:
            return PeerReading(node=card.node, name=card.name, status=self.parted, silent_s=0.0)
        if card.node in self.left:
            return PeerReading(node=card.node, name=card.name, status="left")
        silent_s = self.now - self.silent.get(card.node, self.now)
        return PeerReading(node=card.node, name=card.name, status="linked", silent_s=silent_s)


@pytest.mark.parametrize("parted", [None, "left", "refused"])
def test_a_copy_whose_node_is_lost_has_one_that_stands_in_until_it_is_back(
    parted: PeerStatus | None,
) -> None:
    stage = Stage(3)
    stage.parted = parted
    first = stage.place(excluded_nodes=(ME,), keep_alive_s=77.0)
    (home,) = stage.where()[first]
    stage.lose(home)
    stage.run(LOST_S - 0.5)
    assert list(stage.where()) == [first]
    stage.run(1.0)
    (other,) = set(stage.where()) - {first}
    one = stage.state.instances[other]
    assert one.shards[0].node not in (ME, home), "nor where the first may not be"
    assert one.conditions == Conditions(excluded_nodes=(ME,)) and one.keep_alive_s == 77.0
    assert stage.state.instances[first].status == "ready", "it may serve others that hear it"
    stage.run(10.0)
    assert len(stage.where()) == 2, "one stands in, not one more at each look"
    stage.ready(other)
    stage.hears_again(home)
    stage.run(1.0)
    assert stage.state.instances[first].status == "ready"
    assert stage.state.instances[other].status == "draining"


def test_the_first_comes_back_while_the_other_loads_and_both_were_pinned() -> None:
    stage = Stage(2)
    first = stage.place(pinned=True)
    (home,) = stage.where()[first]
    stage.lose(home)
    stage.run(LOST_S + 0.5)
    (other,) = set(stage.where()) - {first}
    assert stage.state.instances[other].pinned
    stage.end(first, 0)
    stage.hears_again(home)
    stage.run(5.0)
    assert stage.state.instances[other].status == "placed", "the first does not serve yet"
    stage.ready(first)
    stage.run(1.0)
    assert stage.state.instances[other].status == "draining"


def test_after_the_grace_the_one_that_stood_in_is_the_copy() -> None:
    stage = Stage(2)
    first = stage.place(pinned=True)
    (home,) = stage.where()[first]
    stage.lose(home)
    stage.run(61.0)
    (other,) = stage.where()
    assert stage.state.instances[other].pinned and other != first
    stage.hears_again(home)
    stage.run(2.0)
    assert stage.state.instances[other].status == "placed"


def test_a_group_that_lost_a_rank_gives_way_at_once_and_keeps_its_conditions() -> None:
    stage = Stage(4)
    first = stage.place(min_nodes=2, sharding="pipeline", context_tokens=2_000)
    lost = next(name for name in stage.where()[first] if name != ME)
    stage.lose(lost)
    stage.run(LOST_S + 2.0)
    assert list(stage.where()) == [first], "it may be broken between us and the node alone"
    stage.end(first, 0)
    stage.run(0.5)
    ((other, nodes),) = stage.where().items()
    assert other != first and lost not in nodes and len(nodes) == 2
    asked = Conditions(min_nodes=2, sharding="pipeline", context_tokens=2_000)
    assert stage.state.instances[InstanceId(other)].conditions == asked


@pytest.mark.parametrize("parted", [None, "left", "refused"])
def test_a_broken_group_is_believed_before_the_node_counts_as_lost(
    parted: PeerStatus | None,
) -> None:
    assert BROKEN_S < LOST_S
    stage = Stage(3)
    stage.parted = parted
    first = stage.place(min_nodes=2)
    lost = next(name for name in stage.where()[first] if name != ME)
    stage.lose(lost)
    stage.run(0.5)
    stage.end(first, 0)
    stage.run(0.5)
    assert list(stage.where()) == [first]
    stage.run(BROKEN_S)
    assert list(stage.where()) != [first]


def test_what_the_others_cannot_hold_waits_for_its_node_and_says_why_once() -> None:
    stage = Stage(2, usable=7 * GB)
    first = stage.place(min_nodes=2)
    stage.lose(next(name for name in stage.where()[first] if name != ME))
    stage.end(first, 0)
    stage.holder.take_notes()
    stage.run(50.0)
    assert list(stage.where()) == [first]
    said = [facts for _, facts in stage.holder.take_notes() if facts.get("what") == first]
    assert len(said) == 1 and "waiting for its node" in str(said[0]["outcome"])
    stage.run(15.0)
    assert stage.where() == {}, "after the grace it is over"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"min_nodes": 3}, "min_nodes 3"),
        ({"min_nodes": 3, "sharding": "pipeline"}, "sharding pipeline"),
        ({"layers": {"n0": 3, "n1": 3, "n2": 2}}, "2 on n2"),
    ],
)
def test_what_cannot_be_as_it_was_asked_for_serves_where_it_fits_and_says_so(
    asked: dict[str, object], said: str
) -> None:
    stage = Stage(3)
    first = stage.place(context_tokens=2_000, **asked)
    stage.lose("n2")
    stage.end(first, 0)
    stage.run(LOST_S + 0.5)
    ((other, nodes),) = stage.where().items()
    assert other != first and "n2" not in nodes
    one = stage.state.instances[InstanceId(other)]
    assert said in one.unmet and "cannot be met after the loss of a node" in one.unmet
    meant = {"context_tokens": 2_000, **asked}
    assert one.conditions == Conditions.model_validate(meant), "the next time it is tried again"


def test_who_said_goodbye_does_not_count_as_unheard() -> None:
    stage = Stage(3)
    first = stage.place(excluded_nodes=(ME, "n2"))
    assert stage.where()[first] == ["n1"]
    stage.left = {"n2"}
    stage.lose("n1", "n2")
    stage.state = stage.state.model_copy(
        update={"instances": {k: v.model_copy(update={"conditions": Conditions()}) for k, v in
                              stage.state.instances.items()}}
    )  # fmt: skip
    stage.run(LOST_S + 1.0)
    assert [nodes for name, nodes in stage.where().items() if name != first] == [[ME]]


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_model_that_no_node_here_has_is_unknown_or_away(says_goodbye: bool) -> None:
    stage = Stage(2)
    stage.nodes[0] = stage.nodes[0].model_copy(update={"models": (), "announced_at_s": 2.0})
    stage.run(1.0)
    stage.left = {"n1"} if says_goodbye else set()
    stage.lose("n1")
    stage.run(LOST_S + 1.0)
    command = PlaceModel(command_id=CommandId("c"), model=MODEL, dry_run=True)
    answer = stage.holder.take_command(command, stage._draft(), stage.now, unsettled=None)
    assert isinstance(answer, Refusal)
    if says_goodbye:
        assert answer.reason == "unknown_model"
    else:
        assert answer.reason == "not_ready" and "only on box1" in answer.message


def test_who_hears_fewer_than_half_decides_nothing() -> None:
    stage = Stage(5)
    first = stage.place(excluded_nodes=(ME,))
    stage.lose("n1", "n2", "n3", "n4")
    stage.run(30.0)
    assert list(stage.where()) == [first]


def test_who_does_not_hear_its_own_switchboard_decides_nothing() -> None:
    stage = Stage(3)
    first = stage.place(excluded_nodes=(ME,))
    stage.now += 30.0
    stage.plan()
    assert list(stage.where()) == [first]


def test_another_copy_of_the_model_is_enough() -> None:
    stage = Stage(3)
    first, second = stage.place(excluded_nodes=("n1",)), stage.place(excluded_nodes=(ME, "n2"))
    stage.lose(stage.where()[second][0])
    stage.run(30.0)
    assert set(stage.where()) == {first, second}


def test_nothing_new_is_placed_on_a_node_that_is_lost() -> None:
    stage = Stage(2)
    one = stage.place(min_nodes=2)
    assert len(stage.where()[one]) == 2
    stage = Stage(2)
    stage.lose("n1")
    stage.run(LOST_S + 0.5)
    alone = stage.place()
    assert stage.where()[alone] == [ME]


def test_one_that_could_not_stand_in_is_not_tried_again_at_each_look() -> None:
    stage = Stage(2)
    first = stage.place()
    home = stage.where()[first][0]
    stage.lose(home)
    stage.run(LOST_S + 0.5)
    (other,) = set(stage.where()) - {first}
    stage.write(InstanceFailed(instance=InstanceId(other), why="it does not fit after all"))
    index = stage.state.index
    stage.run(20.0)
    assert stage.state.index == index
