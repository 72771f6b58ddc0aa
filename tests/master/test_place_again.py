"""Placing again elsewhere when a worker would not load: wider, or without the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.replica.state import ClusterState, apply
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal, RefusalReason
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import (
    EventBody,
    InstanceRemoved,
    LoadRefused,
    NodeJoined,
    RunnerReady,
)
from bus.wire.messages.readings import (
    CardReading,
    LinkReading,
    MeasuredLink,
    NodeReading,
    RunnerReading,
)
from master.decisions.decide import Decided, Decision, Known, Later, Policy, Scene, decide
from master.decisions.observations import Observations
from master.decisions.planner import (
    RETRY_FAILED_S,
    PlannerNotes,
    follow_up,
    note_event,
    wanted_commands,
)
from tests.harness.drafts import next_event
from tests.harness.placement_nodes import GB, MODEL, model

COUNTS = (
    "running", "waiting", "max_running", "max_waiting", "prompt_tokens", "generation_tokens",
    "kv_bytes", "kv_limit_bytes", "prefix_bytes", "prefix_hits", "prefix_hit_tokens",
    "preemptions", "active_bytes", "peak_bytes", "step",
)  # fmt: skip


@dataclass
class House:
    """Some nodes and a holder without its shell."""

    nodes: int
    card: ModelCard
    usable: int = 12 * GB
    others: tuple[ModelCard, ...] = ()
    state: ClusterState = field(default_factory=ClusterState)
    view: Observations = field(default_factory=Observations)
    memory: PlannerNotes = field(default_factory=PlannerNotes)
    now: float = 100.0
    count: int = 0

    def __post_init__(self) -> None:
        for i in range(self.nodes):
            self.join(i)

    def join(self, number: int) -> None:
        name = f"n{number}"
        card = NodeCard(
            node=NodeId(name), name=f"box{number}", platform="darwin", cores=8,
            memory_bytes=2 * self.usable, working_set_bytes=self.usable, backends=("mlx-metal",),
            mlx_version="", shoal_version="", slots=4,
            models=(self.card, *self.others), announced_at_s=1.0,
            ttl_s=1e6,
        )  # fmt: skip
        self.view.hear(CardReading(card=card), self.now)
        self.measure(number)

    def measure(self, number: int, used: int = 0) -> None:
        reading = NodeReading(
            node=NodeId(f"n{number}"), memory_total_bytes=2 * self.usable,
            memory_available_bytes=self.usable - used, cpu_ratio=0.0, load_1m=0.0,
            disk_total_bytes=1, disk_free_bytes=1, measured_at_s=self.now,
        )  # fmt: skip
        self.view.hear(reading, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for i in range(self.nodes):
            self.measure(i)

    def scene(self) -> Scene:
        return Scene(self.state, self.view, Policy(), self.now, tenure=self.memory.tenure)

    def decide(self, command: PlaceModel) -> Decision:
        self.count += 1
        decision = decide(command, self.scene(), InstanceId(f"i{self.count}"))
        if isinstance(decision, Decided):
            for body in decision.events:
                self.index(body)
        return decision

    def place(self, **more: Any) -> Instance:
        self.decide(PlaceModel(command_id=CommandId(f"c{self.count}"), model=MODEL, **more))
        return self.only

    @property
    def only(self) -> Instance:
        (instance,) = self.state.instances.values()
        return instance

    def index(self, body: EventBody) -> None:
        known = self.state
        event = next_event(self.state, body, term=1, at_s=0.0)
        self.state = apply(self.state, event)
        note_event(self.memory, body, known, self.now)
        if isinstance(body, LoadRefused):
            before = known.instances.get(body.instance)
            for more in follow_up(before, body, self.memory.crash_loops, self.now):
                self.index(more)

    def load(self, name: str, **more: Any) -> Instance:
        """Place a copy of another model, and have it ready, measured and idle."""
        command = PlaceModel(
            command_id=CommandId(f"load{self.count}"), model=ModelId(name), if_absent=False, **more
        )
        decision = self.decide(command)
        assert isinstance(decision, Decided) and decision.instance is not None
        (shard,) = self.state.instances[decision.instance].shards
        ready = RunnerReady(
            instance=decision.instance, generation=1, rank=0, node=shard.node,
            process=f"runner:{self.count}", pid=1, addresses=("ipc://x",),
        )  # fmt: skip
        self.index(ready)
        self.measure(int(shard.node[1:]), used=shard.bytes_reserved)
        numbers = dict.fromkeys(COUNTS, 0)
        reading = RunnerReading(
            node=shard.node, process=ready.process, instance=decision.instance,
            model=ModelId(name), generation=1, phase="ready", best_waiting_priority=None,
            prompt_tokens_per_s=0.0, generation_tokens_per_s=0.0, step_ms=0.0,
            last_used_ago_s=60.0, **numbers,
        )  # fmt: skip
        self.view.hear(reading, self.now)
        return self.state.instances[decision.instance]

    def refuse(self, node: str, reason: RefusalReason = "insufficient_memory") -> None:
        one = self.only
        rank = next(shard.rank for shard in one.shards if shard.node == node)
        refusal = Refusal(reason=reason, message=f"{node} would not")
        self.index(
            LoadRefused(
                instance=one.instance, generation=one.generation, rank=rank, node=NodeId(node),
                refusal=refusal,
            )
        )  # fmt: skip

    def wish(self) -> list[Decision]:
        return [self.decide(one) for one in wanted_commands(self.scene(), self.memory)]


def nodes_of(instance: Instance) -> list[str]:
    return [shard.node for shard in instance.shards]


def test_a_refusal_for_want_of_memory_leads_to_one_node_more() -> None:
    house = House(4, model((GB,) * 4))
    first = house.place(excluded_nodes=(NodeId("n2"),), keep_alive_s=77.0)
    (node,) = nodes_of(first)
    house.refuse(node)
    assert house.only.status == "failed"
    assert house.wish() and house.only.instance != first.instance
    assert (len(house.only.shards), house.only.keep_alive_s) == (2, 77.0)
    assert "n2" not in nodes_of(house.only), "what was excluded stays excluded"
    assert house.wish() == [], "placed once"
    house.refuse(nodes_of(house.only)[0])
    house.wish()
    assert len(house.only.shards) == 3
    house.refuse(nodes_of(house.only)[0])
    (last,) = house.wish()
    assert isinstance(last, Refusal) and last.field == "min_nodes", "no wider than the cluster"
    assert house.only.status == "failed"


def test_weights_that_cannot_be_had_lead_to_a_placement_without_that_node() -> None:
    house = House(3, model((GB,) * 4))
    (node,) = nodes_of(house.place())
    house.refuse(node, "unknown_model")
    house.wish()
    assert len(house.only.shards) == 1 and nodes_of(house.only) != [node]
    assert house.only.conditions.excluded_nodes == (node,)


def test_both_ranks_refusing_is_one_failure() -> None:
    house = House(4, model((GB,) * 4))
    one = house.place(min_nodes=2)
    for node in nodes_of(one):
        house.refuse(node)
    assert house.only.failures and house.only.status == "failed"
    house.wish()
    assert len(house.only.shards) == 3
    index = house.state.index
    stale = LoadRefused(
        instance=one.instance, generation=1, rank=0, node=NodeId("n0"),
        refusal=Refusal(reason="insufficient_memory", message="again"),
    )  # fmt: skip
    house.index(stale)
    assert house.state.index == index + 1, "a repeat leads to nothing"


def test_a_new_holder_places_again_what_the_old_one_did_not_come_to() -> None:
    house = House(2, model((GB,) * 4))
    house.refuse(nodes_of(house.place())[0])
    house.memory = PlannerNotes()
    house.wish()
    assert len(house.only.shards) == 2


def test_what_cannot_be_placed_again_is_given_up_after_a_minute() -> None:
    house = House(1, model((GB,) * 4))
    house.refuse(nodes_of(house.place())[0])
    assert isinstance(house.wish()[0], Refusal)
    house.wait(RETRY_FAILED_S + 1)
    assert house.wish() == []
    assert house.only.status == "failed"


def test_a_split_by_hand_is_not_changed_behind_its_authors_back() -> None:
    house = House(3, model((GB,) * 4))
    one = house.place(layers={"n0": 2, "n1": 2})
    assert one.sharding == "pipeline"
    house.refuse("n0")
    assert house.only.place_again is None and house.wish() == []


def test_a_group_is_drawn_up_with_its_layers_backends_and_conditions() -> None:
    house = House(3, model((GB // 2,) * 44))
    one = house.place()
    assert one.sharding == "pipeline" and len(one.shards) == 3
    assert [shard.rank for shard in one.shards] == [0, 1, 2]
    assert one.shards[0].last_layer == 44 and one.shards[-1].first_layer == 0
    assert {shard.backend for shard in one.shards} == {"mlx-metal"} == {one.backend}
    for shard in one.shards:
        assert 0 < shard.bytes_reserved <= house.usable
    house = House(3, model((GB // 4,) * 44))
    forced = house.place(sharding="tensor", min_nodes=2, context_tokens=512)
    assert forced.sharding == "tensor" and forced.context_tokens == 512
    assert forced.conditions.sharding == "tensor" and forced.conditions.min_nodes == 2


def test_all_ranks_are_needed_and_rank_0_leads() -> None:
    house = House(2, model((4 * GB,) * 4), usable=16 * GB)
    one = house.place()
    for shard in one.shards:
        assert house.only.status == "placed"
        house.index(
            RunnerReady(
                instance=one.instance, generation=1, rank=shard.rank, node=shard.node,
                process="runner:00", pid=1, addresses=("ipc://x",),
            )
        )  # fmt: skip
    assert house.only.status == "ready"
    assert house.only.lead is not None and house.only.lead.node == one.shards[0].node


def test_a_young_holder_does_not_say_never_while_a_node_that_joined_is_unheard() -> None:
    house = House(1, model((GB,) * 20))
    house.index(NodeJoined(node=NodeId("n0"), name="box0"))
    house.index(NodeJoined(node=NodeId("n1"), name="box1"))
    command = PlaceModel(command_id=CommandId("c"), model=MODEL)
    early = house.decide(command)
    assert isinstance(early, Refusal)
    assert early.reason == "pending" and "box1" in early.message and early.retry_after_s
    house.wait(16.0)
    late = house.decide(command)
    assert isinstance(late, Refusal) and late.reason == "insufficient_memory"


def test_a_dry_run_with_previews_tells_of_every_candidate() -> None:
    house = House(3, model((4 * GB,) * 4))
    command = PlaceModel(
        command_id=CommandId("c"), model=MODEL, dry_run=True, previews=True, if_absent=False
    )
    found = house.decide(command)
    assert isinstance(found, Known) and found.plan is not None
    assert [one["size"] for one in found.plan["previews"]] == [1, 2, 2, 3, 3]
    assert found.plan["chosen"]["nodes"] and found.plan["refusal"] is None
    assert house.state.instances == {}
    many = command.model_copy(update={"command_id": CommandId("d"), "context_tokens": 99_999})
    assert isinstance(house.decide(many), Refusal)


def test_idle_copies_on_all_nodes_of_a_group_make_way() -> None:
    small = model((GB,) * 4).model_copy(update={"model": ModelId("small")})
    house = House(2, model((GB,) * 14), others=(small,))
    copies = [house.load("small", excluded_nodes=(NodeId(node),)) for node in ("n0", "n1")]
    dry = PlaceModel(command_id=CommandId("d"), model=MODEL, dry_run=True)
    planned = house.decide(dry)
    assert isinstance(planned, Known) and planned.plan is not None
    assert set(planned.plan["evicts"]) == {one.instance for one in copies}
    assert set(planned.plan["nodes"]) == {"n0", "n1"}
    command = PlaceModel(command_id=CommandId("big"), model=MODEL)
    for left, leaving in zip((2, 1), copies, strict=True):
        assert len(house.state.instances) == left
        decision = house.decide(command)
        assert isinstance(decision, Later)
        assert len(decision.choice.victims) == left
        house.index(InstanceRemoved(instance=leaving.instance, why="gone"))
        house.measure(int(leaving.shards[0].node[1:]))
    assert isinstance(house.decide(command), Decided)
    assert set(nodes_of(house.only)) == {"n0", "n1"}


@pytest.mark.parametrize("fresh", [True, False])
def test_measured_links_are_believed_while_they_are_fresh(fresh: bool) -> None:
    house = House(3, model((GB // 8,) * 96, activation_bytes=16_384))
    links = tuple(
        MeasuredLink(peer=NodeId(peer), latency_s=25e-6, bytes_per_s=4e9) for peer in ("n1", "n2")
    )
    for node in ("n1", "n2"):
        peers = tuple(one for one in links if one.peer != node)
        reading = LinkReading(node=NodeId(node), links=peers, measured_at_s=0.0)
        house.view.hear(reading, house.now)
    house.wait(1.0 if fresh else 700.0)
    one = house.place()
    assert len(one.shards) == 2
    assert one.sharding == ("tensor" if fresh else "pipeline")
    assert not fresh or set(nodes_of(one)) == {"n1", "n2"}
