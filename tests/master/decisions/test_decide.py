from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.replica.state import ClusterState, apply
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.messages.commands import (
    AllowCloudFallback,
    DeleteInstance,
    KeepAlive,
    PlaceModel,
    SupposedModel,
)
from bus.wire.messages.events import (
    EventBody,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    KeepAliveSet,
    LoadRefused,
    NodeDrained,
    NodeJoined,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
)
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    ModelDemand,
    NodeReading,
    RunnerReading,
)
from master.decisions.crash_loop import FREE_FAILURES, LOAD_FAILED, WEDGED, WELL_S, CrashLoops
from master.decisions.decide import Decided, Decision, Known, Policy, Scene, decide
from master.decisions.observations import Observations
from master.decisions.planner import (
    PlannerNotes,
    drain_idle,
    follow_up,
    note_event,
    repairs,
    wanted_commands,
)
from tests.harness.drafts import next_event

N1 = NodeId("n1")
GB = 10**9


def model(name: str, weights: int = 1 * GB) -> ModelCard:
    return ModelCard(
        model=ModelId(name), path="/m", family="qwen3", layers=4, weights_bytes=weights,
        size_bytes=weights, kv_bytes_per_token=1_000, context_tokens=4_096, vocabulary=100,
    )  # fmt: skip


@dataclass
class Stage:
    """A holder without its shell: state, view, rules, and a clock that the test turns."""

    policy: Policy = field(default_factory=Policy)
    state: ClusterState = field(default_factory=ClusterState)
    view: Observations = field(default_factory=Observations)
    memory: PlannerNotes = field(default_factory=PlannerNotes)
    now: float = 100.0
    count: int = 0
    announced: int = 0

    def announce(self, *models: ModelCard, memory: int = 16 * GB, free: int = 12 * GB) -> None:
        self.announced += 1
        card = NodeCard(
            node=N1, name="box", platform="linux", cores=2, memory_bytes=memory,
            backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=4, models=models,
            announced_at_s=self.now + self.announced * 1e-3, ttl_s=1e6,
        )  # fmt: skip
        self.view.hear(CardReading(card=card), self.now)
        self.measure(free, memory=memory)

    def measure(self, free: int, *, memory: int = 16 * GB) -> None:
        reading = NodeReading(
            node=N1, memory_total_bytes=memory, memory_available_bytes=free, cpu_ratio=0.0,
            load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=self.now,
        )  # fmt: skip
        self.view.hear(reading, self.now)

    def scene(self) -> Scene:
        return Scene(self.state, self.view, self.policy, self.now, tenure=self.memory.tenure)

    def command(self, command: Any) -> Decision:
        self.count += 1
        decision = decide(command, self.scene(), InstanceId(f"i{self.count}"))
        if isinstance(decision, Decided):
            for body in decision.events[:-1]:
                self.index(body)
            self.index(decision.events[-1], command.command_id)
        return decision

    def index(self, body: EventBody, command_id: CommandId | None = None) -> None:
        before = self.state
        event = next_event(self.state, body, term=1, at_s=0.0, command_id=command_id)
        self.state = apply(self.state, event)
        note_event(self.memory, body, before, self.now)
        if isinstance(body, RunnerEnded | LoadRefused | RunnerUnloaded):
            known = before.instances.get(body.instance)
            for more in follow_up(known, body, self.memory.crash_loops, self.now):
                self.index(more)

    def load(self, name: str, **more: Any) -> InstanceId:
        """Place a model and have its runner report ready."""
        decision = self.command(place(name, **more))
        assert isinstance(decision, Decided) and decision.instance is not None
        self.ready(decision.instance)
        return decision.instance

    def ready(self, instance: InstanceId) -> None:
        generation = self.state.instances[instance].generation
        self.index(
            RunnerReady(
                instance=instance, generation=generation, rank=0, node=N1,
                process=f"runner:{instance}", pid=generation, addresses=("ipc://x",),
            )
        )  # fmt: skip

    def use(self, instance: InstanceId, *, running: int = 0, idle_s: float = 0.0) -> None:
        known = self.state.instances[instance]
        reading = RunnerReading(
            node=N1, process=f"runner:{instance}", instance=instance, model=known.model,
            generation=known.generation, phase="ready", running=running, waiting=0,
            max_running=8, max_waiting=8, best_waiting_priority=None, prompt_tokens=0,
            generation_tokens=0, prompt_tokens_per_s=0, generation_tokens_per_s=0, kv_bytes=0,
            kv_limit_bytes=0, prefix_bytes=0, prefix_hits=0, prefix_hit_tokens=0, preemptions=0,
            active_bytes=0, peak_bytes=0, step=0, step_ms=0, last_used_ago_s=idle_s,
        )  # fmt: skip
        self.view.hear(reading, self.now)

    def demand(self, *names: str, priority: int = 10) -> None:
        models = tuple(
            ModelDemand(model=ModelId(n), waiting=1, best_priority=priority, oldest_s=1.0)
            for n in names
        )
        self.view.hear(DemandReading(node=N1, process="gateway.0", models=models), self.now)

    def ended(self, instance: InstanceId, *, exit_code: int | None = 1, message: str = "x") -> None:
        generation = self.state.instances[instance].generation
        self.index(
            RunnerEnded(
                instance=instance, generation=generation, rank=0, node=N1, exit_code=exit_code,
                message=message,
            )
        )  # fmt: skip


def place(name: str, command: str | None = None, **more: Any) -> PlaceModel:
    place.count += 1  # type: ignore[attr-defined]
    command_id = CommandId(command or f"c{place.count}")  # type: ignore[attr-defined]
    return PlaceModel(command_id=command_id, model=ModelId(name), **more)


place.count = 0  # type: ignore[attr-defined]


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.announce(model("a"), model("b"), model("big", 5 * GB), model("vast", 50 * GB))
    return stage


# --- placing ---


def test_a_repeated_command_gets_the_first_answer_and_places_nothing_twice(stage: Stage) -> None:
    command = place("a", if_absent=False)
    first, again = stage.command(command), stage.command(command)
    assert isinstance(first, Decided) and isinstance(again, Known)
    assert (again.instance, again.index) == (first.instance, 1)
    assert len(stage.state.instances) == 1


def test_an_existing_copy_is_the_answer_unless_another_is_asked_for(stage: Stage) -> None:
    first = stage.load("a")
    assert stage.command(place("a")) == Known(stage.state.index, first)
    another = stage.command(place("a", if_absent=False))
    assert isinstance(another, Decided) and another.instance != first


@pytest.mark.parametrize(
    "more", [{"context_tokens": 4000}, {"min_nodes": 2}, {"excluded_nodes": (N1,)}]
)
def test_an_existing_copy_that_is_not_what_was_asked_for_is_no_answer(
    stage: Stage, more: dict[str, Any]
) -> None:
    first = stage.load("a", context_tokens=512)
    decision = stage.command(place("a", **more))
    assert not isinstance(decision, Known)
    assert first in stage.state.instances


def test_asking_for_an_existing_copy_with_another_keep_alive_changes_it(stage: Stage) -> None:
    first = stage.load("a")
    decision = stage.command(place("a", keep_alive_s=7.0))
    assert isinstance(decision, Decided)
    assert decision.events == (KeepAliveSet(instance=first, keep_alive_s=7.0),)
    assert stage.state.instances[first].keep_alive_s == 7.0


def test_keep_alive_is_the_commands_then_the_policys_pinned_or_not(
    stage: Stage,
) -> None:
    stage.policy = Policy(keep_alive_s=42.0)
    kept: list[float] = []
    for more in ({}, {"keep_alive_s": 3.0}, {"keep_alive_s": 3.0, "pinned": True}):
        instance = stage.load("a", if_absent=False, **more)
        kept.append(stage.state.instances[instance].keep_alive_s)
    assert kept == [42.0, 3.0, 3.0]


def test_a_kind_of_model_may_have_a_keep_alive_of_its_own(stage: Stage) -> None:
    embeds = model("e").model_copy(update={"makes": "embedding", "kv_bytes_per_token": 0})
    stage.announce(model("a"), embeds)
    stage.policy = Policy(keep_alive_s=42.0, keep_alive_by_kind={"embedding": 900.0})
    loaded = [stage.load(name) for name in ("a", "e")]
    assert [stage.state.instances[one].keep_alive_s for one in loaded] == [42.0, 900.0]


def test_a_dry_run_answers_the_plan_and_changes_nothing(stage: Stage) -> None:
    decision = stage.command(place("a", dry_run=True))
    assert isinstance(decision, Known) and decision.plan is not None
    assert decision.plan["need_bytes"] == int(1.3 * GB) + 4_096 * 1_000 + 256_000_000
    assert stage.state.index == 0
    refused = stage.command(place("vast", dry_run=True))
    assert isinstance(refused, Refusal) and refused.reason == "insufficient_memory"


def test_unknown_and_improper_names_are_refused(stage: Stage) -> None:
    for name in ("nobody/knows", "../../etc/passwd"):
        refused = stage.command(place(name))
        assert isinstance(refused, Refusal) and refused.reason == "unknown_model"


def test_a_copy_that_was_given_up_is_swept_away_by_the_next_placement(stage: Stage) -> None:
    old = stage.load("a")
    stage.ended(old, exit_code=LOAD_FAILED)
    assert stage.state.instances[old].status == "failed"
    fresh = stage.load("a")
    assert list(stage.state.instances) == [fresh]


def unload(stage: Stage, instance: InstanceId) -> None:
    generation = stage.state.instances[instance].generation
    stage.index(RunnerUnloaded(instance=instance, generation=generation, rank=0, node=N1))


def test_a_copy_that_an_undone_delete_let_go_of_is_held_anew(stage: Stage) -> None:
    instance = stage.load("a")
    unload(stage, instance)
    again = stage.state.instances[instance]
    assert (again.generation, again.status) == (2, "placed")


# --- deleting, keeping ---


def test_deleting_drains_and_the_runners_leaving_removes(stage: Stage) -> None:
    instance = stage.load("a")
    command = DeleteInstance(command_id=CommandId("d"), instance=instance, drain_s=3.0)
    stage.command(command)
    draining = stage.state.instances[instance]
    assert (draining.status, draining.drain_deadline_s) == ("draining", 3.0)
    assert isinstance(stage.command(command), Known)
    unload(stage, instance)
    assert stage.state.instances == {}


def test_a_second_delete_may_only_shorten_the_deadline(stage: Stage) -> None:
    instance = stage.load("a")
    for number, (drain_s, kind) in enumerate(((9.0, Decided), (20.0, Known), (0.0, Decided))):
        command = DeleteInstance(
            command_id=CommandId(f"d{number}"), instance=instance, drain_s=drain_s
        )
        assert isinstance(stage.command(command), kind)


def test_a_copy_that_fails_to_load_can_be_deleted(stage: Stage) -> None:
    instance = stage.load("a")
    stage.ended(instance, exit_code=LOAD_FAILED)
    stage.command(DeleteInstance(command_id=CommandId("d"), instance=instance))
    unload(stage, instance)
    assert stage.state.instances == {}


def test_commands_about_nobody_name_who_is_there(stage: Stage) -> None:
    there = stage.load("a")
    for command in (
        DeleteInstance(command_id=CommandId("d"), instance=InstanceId("nope")),
        KeepAlive(command_id=CommandId("k"), instance=InstanceId("nope"), keep_alive_s=1.0),
    ):
        refused = stage.command(command)
        assert isinstance(refused, Refusal) and there in refused.message


# --- what follows from a rank's leaving ---


def test_a_runner_that_ends_leads_to_another_generation_and_three_in_a_minute_to_failure(
    stage: Stage,
) -> None:
    instance = stage.load("a")
    for expected in ("placed", "placed", "failed"):
        stage.ended(instance, message="boom")
        stage.now += 10.0
        assert stage.state.instances[instance].status == expected
    assert "boom" in stage.state.instances[instance].why
    assert stage.state.instances[instance].generation == 3


def test_failures_after_it_was_well_are_forgiven(stage: Stage) -> None:
    instance = stage.load("a")
    for _ in range(9):
        stage.now += WELL_S
        stage.ended(instance)
        stage.ready(instance)
    assert stage.state.instances[instance].status == "ready"


@pytest.mark.parametrize(("served_s", "status"), [(WELL_S, "placed"), (1.0, "failed")])
def test_failures_are_forgiven_to_a_model_whose_copy_was_well_when_it_was_unloaded(
    stage: Stage, served_s: float, status: str
) -> None:
    instance = stage.load("a")
    for _ in range(2):
        stage.now += 40.0
        stage.ended(instance)
        stage.ready(instance)
    stage.now += served_s
    stage.index(InstanceRemoved(instance=instance, why="stopped by its user"))
    stage.now += 3.0
    stage.measure(12 * GB)
    again = stage.load("a")
    stage.ended(again)
    assert stage.state.instances[again].status == status


def test_a_runner_that_keeps_dying_is_loaded_again_after_growing_pauses(stage: Stage) -> None:
    stage.load("a", context_tokens=2_000, keep_alive_s=77.0)
    pauses: list[float] = []
    for _ in range(10):
        (name,) = stage.state.instances
        stage.now += 40.0
        died_at = stage.now
        stage.ended(InstanceId(name))
        failed = stage.state.instances[name]
        while stage.state.instances.get(name, failed).status == "failed":
            assert "in a row" in failed.why
            stage.demand("a")
            stage.now += 0.5
            stage.measure(12 * GB)
            wish(stage)
            (name,) = stage.state.instances
        pauses.append(stage.now - died_at)
        again = stage.state.instances[name]
        assert (again.keep_alive_s, again.conditions.context_tokens) == (77.0, 2_000)
        stage.ready(again.instance)
    assert pauses[:7] == [0.0, 0.0, 15.0, 30.0, 60.0, 120.0, 240.0]
    assert pauses[7:] == [480.0, 600.0, 600.0]


@pytest.mark.parametrize(("exit_code", "attempts"), [(LOAD_FAILED, 1), (WEDGED, 2), (1, 3)])
def test_how_a_runner_ended_says_how_often_it_is_worth_another_try(
    stage: Stage, exit_code: int, attempts: int
) -> None:
    instance = stage.load("a")
    for _ in range(attempts):
        assert stage.state.instances[instance].status != "failed"
        stage.ended(instance, exit_code=exit_code)
    assert stage.state.instances[instance].status == "failed"


def test_exit_codes_are_those_of_the_runner() -> None:
    from runner import lifecycle

    assert (WEDGED, LOAD_FAILED) == (lifecycle.WEDGED, lifecycle.LOAD_FAILED)


def test_a_fact_of_an_older_generation_leads_to_nothing(stage: Stage) -> None:
    instance = stage.load("a")
    stage.ended(instance)
    index = stage.state.index
    stage.index(RunnerEnded(instance=instance, generation=1, rank=0, node=N1))
    assert stage.state.index == index + 1
    assert stage.state.instances[instance].generation == 2


def test_a_refused_load_gives_the_copy_up_with_the_workers_numbers(stage: Stage) -> None:
    instance = stage.load("a")
    refusal = Refusal(reason="insufficient_memory", message="3.1 GB are free now")
    stage.index(LoadRefused(instance=instance, generation=1, rank=0, node=N1, refusal=refusal))
    known = stage.state.instances[instance]
    assert (known.status, known.why) == ("failed", "3.1 GB are free now")


def test_a_new_holder_opens_the_generation_that_the_old_one_did_not_come_to(stage: Stage) -> None:
    instance = stage.load("a")
    ended = RunnerEnded(instance=instance, generation=1, rank=0, node=N1, message="x")
    event = next_event(stage.state, ended, term=1, at_s=0.0)
    stage.state = apply(stage.state, event)
    loops = CrashLoops()
    (repair,) = repairs(stage.state, loops, 0.0)
    assert isinstance(repair, GenerationOpened) and repair.generation == 2
    stage.index(repair)
    assert repairs(stage.state, loops, 0.0) == []


def test_a_node_that_is_restarted_again_and_again_gives_no_model_up(stage: Stage) -> None:
    instance, loops = stage.load("a"), CrashLoops()
    for generation in range(1, 6):
        gone = RunnerEnded(
            instance=instance, generation=generation, rank=0, node=N1, found_gone=True
        )
        (opened,) = follow_up(stage.state.instances[instance], gone, loops, float(generation))
        assert isinstance(opened, GenerationOpened) and opened.generation == generation + 1
        stage.state = apply(stage.state, next_event(stage.state, opened, term=1, at_s=0.0))
    assert not loops.rows and not loops.failures


@pytest.mark.parametrize("was_counted", [False, True])
def test_a_new_holder_counts_a_failure_that_the_old_one_did_not_come_to_and_no_other(
    stage: Stage, was_counted: bool
) -> None:
    instance = stage.load("a")
    known, loops = stage.state.instances[instance], CrashLoops()
    for number in range(FREE_FAILURES):
        earlier = known.model_copy(update={"instance": InstanceId(f"before{number}")})
        loops.count_failure(earlier, -9, 0.0)
    if was_counted:
        loops.count_failure(known, -9, 1.0)
    ended = RunnerEnded(instance=instance, generation=1, rank=0, node=N1, message="x")
    stage.state = apply(stage.state, next_event(stage.state, ended, term=1, at_s=0.0))
    (repair,) = repairs(stage.state, loops, 1.0)
    assert isinstance(repair, InstanceFailed) and repair.place_again is not None
    assert "3 times in a row" in repair.why and "15 s" in repair.why
    assert loops.rows[known.model].count == FREE_FAILURES + 1


def test_a_model_that_was_given_up_holds_no_other_off(stage: Stage) -> None:
    instance = stage.load("a")
    stage.index(InstanceFailed(instance=InstanceId(instance), why="x"))
    stage.demand("a", "b")
    assert wish(stage) == ["b"]


# --- unasked ---


def wish(stage: Stage) -> list[str]:
    found = wanted_commands(stage.scene(), stage.memory)
    for one in found:
        stage.command(one)
    return [one.model for one in found]


def test_the_preload_list_is_placed_once_and_pinned_when_nothing_else_is_desired(
    stage: Stage,
) -> None:
    stage.policy = Policy(preload=(ModelId("a"), ModelId("b")))
    assert wish(stage) == ["a", "b"]
    assert wish(stage) == []
    assert all(i.pinned for i in stage.state.instances.values())
    for instance in list(stage.state.instances):
        stage.index(InstanceRemoved(instance=InstanceId(instance), why="stopped by its user"))
    assert wish(stage) == [], "what a user stopped is not started again behind their back"


def test_nothing_is_preloaded_beside_what_is_desired_already(stage: Stage) -> None:
    stage.load("b")
    stage.policy = Policy(preload=(ModelId("a"),))
    assert wish(stage) == []


def test_a_preload_that_cannot_be_placed_yet_is_wished_for_again(stage: Stage) -> None:
    stage.view.nodes.clear()
    stage.policy = Policy(preload=(ModelId("a"),))
    assert (wish(stage), wish(stage)) == (["a"], ["a"])
    stage.measure(12 * GB)
    assert (wish(stage), wish(stage)) == (["a"], [])


def test_demand_places_what_nobody_holds_most_urgent_first(stage: Stage) -> None:
    stage.load("a")
    stage.demand("a", "b")
    assert wish(stage) == ["b"]
    assert wish(stage) == []
    placed = [i for i in stage.state.instances.values() if i.model == "b"]
    assert len(placed) == 1 and not placed[0].pinned


def test_a_model_of_the_preload_list_is_pinned_again_when_it_is_wanted_again(stage: Stage) -> None:
    stage.load("b")
    stage.policy = Policy(preload=(ModelId("a"),))
    stage.demand("a")
    assert wish(stage) == ["a"]
    (placed,) = [i for i in stage.state.instances.values() if i.model == "a"]
    assert placed.pinned


def test_demand_that_is_no_longer_renewed_is_forgotten(stage: Stage) -> None:
    stage.demand("b")
    stage.now += 16.0
    stage.measure(12 * GB)
    assert wish(stage) == []


def test_a_copy_that_was_given_up_is_tried_again_on_demand_after_a_minute(stage: Stage) -> None:
    instance = stage.load("a")
    stage.ended(instance, exit_code=LOAD_FAILED)
    stage.demand("a")
    assert wish(stage) == []
    stage.now += 61.0
    stage.measure(12 * GB)
    stage.demand("a")
    assert wish(stage) == ["a"]


def test_a_copy_idles_out_by_its_own_keep_alive(stage: Stage) -> None:
    instance = stage.load("a", keep_alive_s=30.0)
    stage.now += 60.0
    stage.use(instance, idle_s=29.0)
    assert drain_idle(stage.scene(), stage.memory) == []
    stage.now += 2.0
    (body,) = drain_idle(stage.scene(), stage.memory)
    assert isinstance(body, InstanceDraining) and "31 s" in body.why


@pytest.mark.parametrize("why", ["busy", "wanted", "pinned", "for ever", "unheard", "just ready"])
def test_a_copy_does_not_idle_out_when_it_is(stage: Stage, why: str) -> None:
    kept_s = -1.0 if why == "for ever" else 1.0
    instance = stage.load("a", keep_alive_s=kept_s, pinned=why == "pinned")
    stage.now += 2.0 if why == "just ready" else 60.0
    stage.use(instance, running=int(why == "busy"), idle_s=999.0)
    if why == "wanted":
        stage.demand("a")
    if why == "unheard":
        stage.now += 6.0
    assert drain_idle(stage.scene(), stage.memory) == []


def test_instances_are_placed_with_what_the_command_asked(stage: Stage) -> None:
    decision = stage.command(place("a", context_tokens=512))
    assert isinstance(decision, Decided)
    (body,) = decision.events
    assert isinstance(body, InstancePlaced)
    placed = body.instance
    assert placed.context_tokens == 512
    assert (placed.shards[0].first_layer, placed.shards[0].last_layer) == (0, 4)


# --- models that are on no disk yet ---


def suppose(
    stage: Stage, card: ModelCard, *, dry_run: bool = True, previews: bool = True
) -> Decision:
    supposed = SupposedModel(node=N1, card=card)
    command = PlaceModel(
        command_id=CommandId("c"), model=card.model, supposed=supposed, dry_run=dry_run,
        previews=previews,
    )  # fmt: skip
    scene = Scene(stage.state, stage.view, stage.policy, stage.now)
    return decide(command, scene, InstanceId("fresh"))


def test_a_supposed_model_is_reckoned_as_one_that_is_there() -> None:
    stage, card = Stage(), model("a/b")
    stage.announce()
    found = suppose(stage, card)
    stage.announce(card)
    command = PlaceModel(command_id=CommandId("c"), model=card.model, dry_run=True, previews=True)
    known = decide(
        command, Scene(stage.state, stage.view, stage.policy, stage.now), InstanceId("fresh")
    )
    assert isinstance(found, Known) and isinstance(known, Known)
    assert found.plan == known.plan and found.plan is not None
    assert found.plan["chosen"]["node"] == N1
    (alone,) = found.plan["nodes"]
    assert alone["need_bytes"] == int(1.30 * GB) + 4_096 * 1_000 + 256_000_000
    assert alone["missing_bytes"] == alone["never_bytes"] == 0


def test_of_a_supposed_model_it_is_told_what_each_node_lacks_now_and_for_ever() -> None:
    stage = Stage()
    stage.announce(free=2 * GB)
    tells = suppose(stage, model("a/b", 5 * GB))
    assert isinstance(tells, Known) and tells.plan is not None
    (alone,) = tells.plan["nodes"]
    assert alone["missing_bytes"] == alone["need_bytes"] - 2 * GB and not alone["never_bytes"]
    assert tells.plan["refusal"]["reason"] == "no_capacity"
    never = suppose(stage, model("a/b", 50 * GB))
    assert isinstance(never, Known) and never.plan is not None
    (alone,) = never.plan["nodes"]
    assert alone["never_bytes"] == alone["need_bytes"] - 12 * GB
    assert never.plan["refusal"]["reason"] == "insufficient_memory"


@pytest.mark.parametrize("fields", [{"dry_run": False}, {"previews": False}])
def test_a_supposed_model_is_never_placed(fields: dict[str, bool]) -> None:
    stage = Stage()
    stage.announce()
    refused = suppose(stage, model("a/b"), **{"dry_run": True, "previews": True, **fields})
    assert isinstance(refused, Refusal) and refused.field == "supposed"


def test_the_fallback_to_providers_is_switched_once_and_stands_in_the_state(stage: Stage) -> None:
    def switched(name: str, *, allowed: bool) -> Decision:
        return stage.command(AllowCloudFallback(command_id=CommandId(name), allowed=allowed))

    assert stage.state.cloud_fallback and isinstance(switched("a", allowed=True), Known)
    assert isinstance(switched("b", allowed=False), Decided) and not stage.state.cloud_fallback
    assert isinstance(switched("c", allowed=False), Known), "it is so already"
    assert isinstance(switched("d", allowed=True), Decided) and stage.state.cloud_fallback


def test_a_node_that_is_held_back_for_wired_memory_is_named_to_whoever_asks() -> None:
    stage = Stage()
    stage.announce(model("m"))
    stage.index(NodeJoined(node=N1, name="box"))
    stage.index(NodeDrained(node=N1, draining=True, wired_bytes=6 * GB))
    refused = stage.command(place("m"))
    assert isinstance(refused, Refusal) and refused.retry_after_s
    assert "box takes no model because 6.00 GB stay wired there" in refused.message
    assert "shoal nodes undrain box" in refused.message
    stage.index(NodeDrained(node=N1, draining=False, wired_bytes=6 * GB))
    assert isinstance(stage.command(place("m")), Decided)
