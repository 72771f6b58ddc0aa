"""The leader's work without a command: preload, load on demand, unload idle instances, repair.

Pure: a list of small rules over a `Scene`; each returns commands or events, and the shell carries
them out in order. Demand becomes an ordinary `PlaceModel` command, with evictions and waits.
Unloading has three steps: the instance drains, its runner ends, then the instance is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bus.replica.state import ClusterState
from bus.wire.cards import NodeCard
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import LEAST_IDLE_S, Conditions, Instance, Setbacks
from bus.wire.messages.commands import PlaceModel, TakeLease
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
from master.decisions.collective_tests import follow_test
from master.decisions.crash_loop import RETRY_FAILED_S, CrashLoops, Setback, pause_s
from master.decisions.decide import (
    Decided,
    Decision,
    Later,
    Scene,
)
from master.decisions.nodes import BareNodes
from master.decisions.pool_view import claim_of, living, placement_again
from master.pool import (
    LeaseNotes,
    LoadMeters,
    PoolPlan,
    Tenure,
    holds_by_sum,
    pinned_by,
    replicas_in,
)

IDLE_DRAIN_S = 600.0
"""How long, in seconds, a request may still run that reached an idle instance while the leader
decided to unload that instance."""


@dataclass(slots=True)
class PlannerNotes:
    """The planner's notes on its own decisions, by the leader's clock.

    `failed_at`: when an instance was given up. `tenure`: when instances were placed and ready (idle
    time begins when they are ready). `preloaded`: preload models that were handled since this
    leader began. `crash_loops`: models that must wait because their runners keep failing.
    """

    failed_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    preloaded: set[ModelId] = field(default_factory=set[ModelId])
    tenure: Tenure = field(default_factory=Tenure)
    nothing_was_desired: bool | None = None
    crash_loops: CrashLoops = field(default_factory=CrashLoops)
    leases: LeaseNotes = field(default_factory=LeaseNotes)
    bare: BareNodes = field(default_factory=BareNodes)
    loads: LoadMeters = field(default_factory=LoadMeters)


def wanted_commands(
    scene: Scene, notes: PlannerNotes, requests: Sequence[PlaceModel | TakeLease] = ()
) -> list[PlaceModel | TakeLease]:
    """Return the commands for models and leases that are wanted now. Each is returned again until
    it is met. The command ids are only labels, except for those of `requests`.

    Sources: requests, instances that a worker refused, the preload list if a new leader finds no
    desired state, pinned models without an instance, and demand at gateways. There is one command
    per model, most urgent first.
    """
    commands: list[PlaceModel | TakeLease] = [
        *requests,
        *_placements_again(scene, notes),
        *_preloads(scene, notes),
    ]
    wanted = {**dict.fromkeys(scene.state.pins, 10)}
    wanted |= {
        demand.model: demand.best_priority for demand in scene.observed.demand(scene.now).values()
    }
    commands += [
        PlaceModel(
            command_id=CommandId(f"demand-{model}"),
            model=ModelId(model),
            priority=priority,
            pinned=model in scene.policy.preload,
        )
        for model, priority in wanted.items()
        if not living(scene.state, ModelId(model))
        and not _failed_lately(ModelId(model), scene, notes)
    ]
    once = {wish.model: wish for wish in reversed(commands)}.values()
    rate = scene.policy.pool.ageing_per_s

    def order(wish: PlaceModel | TakeLease) -> tuple[float, float, str]:
        """Return the sort key of a command, by urgency."""
        claim = claim_of(scene, wish)
        return claim.standing(rate, scene.now), claim.since_at, wish.model

    return sorted(once, key=order)


def stayed(
    wish: PlaceModel | TakeLease,
    scene: Scene,
    plan: PoolPlan,
    decide: Callable[[Scene], Decision],
) -> Decision | None:
    """Return the decision for a plan whose evictions have just ended: the model goes to the nodes
    of the plan. Until their memory is measured again, these nodes look full, and a new decision
    would evict more instances. None if the nodes have been measured since, or if their memory was
    reserved for another model."""
    needs = plan.choice.needs
    if not scene.tenure.unsettled(needs, scene.observed.measured_at, scene.now):
        return None
    others = {NodeId(node) for node in scene.state.nodes.keys() - needs.keys()}
    decision = decide(replace(scene, avoided=scene.avoided | others))
    if isinstance(decision, Decided | Later):
        return decision
    promise = plan.promise(scene.state)
    if not holds_by_sum(promise, scene.nodes(), scene.promises):
        return None
    left = {victim.instance for victim in promise.leaving}
    victims = tuple(
        victim for victim in plan.choice.victims if victim.copy.instance.instance in left
    )
    return Later(claim_of(scene, wish), replace(plan.choice, victims=victims))


def drain_idle(scene: Scene, notes: PlannerNotes) -> list[EventBody]:
    """Return the events that drain ready, unpinned instances which were unused for `keep_alive_s`
    and whose model has no unmet demand."""
    demand = scene.observed.demand(scene.now)
    replicas = replicas_in(scene.state.instances.values(), scene.observed.lost_nodes(scene.now))
    events: list[EventBody] = []
    for instance in scene.state.instances.values():
        if instance.status != "ready" or instance.keep_alive_s < 0:
            continue
        is_pinned = pinned_by(instance, scene.state) is not None
        if is_pinned and instance.instance not in replicas:
            continue
        use = scene.observed.use_of(instance, scene.now)
        limit_s = max(instance.keep_alive_s, LEAST_IDLE_S)
        ready_at = notes.tenure.ready_at.setdefault(instance.instance, scene.now)
        if use is None or instance.model in demand:
            continue
        idle_s = min(use.idle_s, scene.now - ready_at)
        if idle_s < limit_s:
            continue
        why = f"idle for {idle_s:.0f} s; keep_alive is {instance.keep_alive_s:g} s"
        events.append(
            InstanceDraining(instance=instance.instance, deadline_s=IDLE_DRAIN_S, why=why)
        )
    return events


def follow_up(
    before: Instance | None,
    news: RunnerEnded | LoadRefused | RunnerUnloaded,
    crash_loops: CrashLoops,
    now: float,
) -> list[EventBody]:
    """Return the events that follow when a rank has ended. `before` is the instance when the fact
    arrived; facts about older generations (load attempts) have no effect. A replica is not
    retried."""
    if before is None or news.generation != before.generation:
        return []
    if before.status == "draining":
        others = {rank.rank for rank in before.ready} - {news.rank}
        if others:
            return []
        return [InstanceRemoved(instance=before.instance, why=before.why)]
    if before.status == "failed":
        return []
    if not before.serves:
        return follow_test(before, news)
    if before.replica:
        why = f"a failed replica is not loaded again: {_why_left(news)}"
        return [InstanceRemoved(instance=before.instance, why=why)]
    if isinstance(news, RunnerUnloaded):
        why = "the instance was unloaded by an earlier leader whose changes were undone"
        return [_reopen(before, why)]
    if isinstance(news, LoadRefused):
        again = conditions_elsewhere(before, news)
        why = news.refusal.message
        return [InstanceFailed(instance=before.instance, why=why, place_again=again)]
    if news.found_gone:
        return [_reopen(before, news.message)]  # a node's restart says nothing of its models
    setback = crash_loops.count_failure(
        before, news.exit_code, now, node=news.node, message=news.message
    )
    return [_after_failure(before, setback, news.message)]


def _after_failure(
    before: Instance, setback: Setback, reason: str
) -> GenerationOpened | InstanceFailed:
    if setback.gives_up:
        wait_s = max(setback.pause_s, RETRY_FAILED_S)
        when = f"after {wait_s:.0f} s, or once the model's files have changed"
        why = f"{reason} (not retried; a request loads it again {when})"
        return InstanceFailed(instance=before.instance, why=why)
    if setback.pause_s:
        tries = f"the runner failed {setback.count} times in a row; next attempt"
        why = f"{reason} ({tries} {setback.pause_s:.0f} s after this failure)"
        again = before.conditions
        return InstanceFailed(instance=before.instance, why=why, place_again=again)
    return _reopen(before, reason)


def _why_left(news: RunnerEnded | LoadRefused | RunnerUnloaded) -> str:
    match news:
        case LoadRefused(refusal=refusal):
            return refusal.message
        case RunnerEnded(message=message):
            return message
        case RunnerUnloaded():
            return "the node unloaded the instance"


def conditions_elsewhere(before: Instance, news: LoadRefused) -> Conditions | None:
    """Return the conditions for placing an instance again that a node refused; None if the user
    chose the split. If memory was missing, the conditions require one more node; otherwise they
    exclude the node that refused."""
    conditions = before.conditions
    if conditions.layers:
        return None
    if news.refusal.reason == "insufficient_memory":
        return conditions.model_copy(update={"min_nodes": len(before.shards) + 1})
    return conditions.model_copy(update={"excluded_nodes": (*conditions.excluded_nodes, news.node)})


def repairs(state: ClusterState, crash_loops: CrashLoops, now: float) -> list[EventBody]:
    """Return the events that the previous leader did not write.

    For each instance whose latest load attempt has ended, that is the next attempt or, after too
    many failures, the end of the instance. The failure is counted once. A test or a quantization
    fails.
    """
    events: list[EventBody] = []
    for instance in state.instances.values():
        if not instance.has_ended:
            continue
        if not instance.serves:
            events.append(InstanceFailed(instance=instance.instance, why=instance.failures[-1]))
        elif instance.replica:
            events.append(_reopen(instance, "the leader changed before it was restarted"))
        else:
            setback = crash_loops.counted(instance) or crash_loops.count_failure(
                instance, None, now
            )
            events.append(_after_failure(instance, setback, instance.reason))
    return events


def setbacks(notes: PlannerNotes, wall_s: float) -> dict[ModelId, Setbacks]:
    """Return the failure records of models, for the next leader. `wall_s`: how far the wall clock
    is ahead of this leader's clock."""
    return notes.crash_loops.setbacks(notes.loads.paused_until, wall_s)


def forget_replaced(
    notes: PlannerNotes, state: ClusterState, cards: Mapping[NodeId, NodeCard]
) -> None:
    """Forget the failures of models whose files have changed since, on the nodes of these cards."""
    if not notes.crash_loops.rows:
        return
    files = {
        node: {
            model.model: (model.digest, model.modified_at_s, model.size_bytes)
            for model in card.models
        }
        for node, card in cards.items()
    }
    for model in notes.crash_loops.forget_replaced(files):
        for instance in state.instances.values():
            if instance.model == model:
                notes.failed_at.pop(instance.instance, None)


def recall(notes: PlannerNotes, state: ClusterState, now: float, wall_s: float) -> None:
    """Take over the failure records of earlier leaders."""
    setbacks = state.setbacks.values()
    notes.crash_loops.recall(setbacks, now, wall_s)
    notes.loads.recall({setback.model: setback.replica_at_s - wall_s for setback in setbacks}, now)
    for instance in state.instances.values():
        if instance.status == "ready":
            notes.crash_loops.note_ready(instance.instance, now)


def _reopen(instance: Instance, why: str) -> GenerationOpened:
    return GenerationOpened(instance=instance.instance, generation=instance.generation + 1, why=why)


def _preloads(scene: Scene, notes: PlannerNotes) -> list[PlaceModel]:
    if not scene.observed.living_cards(scene.now):
        return []
    if notes.nothing_was_desired is None:
        notes.nothing_was_desired = all(
            instance.status == "failed" for instance in scene.state.instances.values()
        )
    if not notes.nothing_was_desired:
        return []
    commands: list[PlaceModel] = []
    for model in scene.policy.preload:
        if living(scene.state, model):
            notes.preloaded.add(model)
        elif model not in notes.preloaded:
            name = CommandId(f"preload-{model}")
            commands.append(PlaceModel(command_id=name, model=model, pinned=True))
    return commands


def _placements_again(scene: Scene, notes: PlannerNotes) -> list[PlaceModel]:
    """Return the commands that place instances again after a worker refused them, their nodes were
    lost, or the pause after their runners' failures is over. A command is returned until its
    instance is placed. If the model is not pinned, it is returned for at most `RETRY_FAILED_S`, or
    `pause_s` while requests wait for the model; then the demand places the model."""
    commands: list[PlaceModel] = []
    demand = scene.observed.demand(scene.now)
    for instance in scene.state.instances.values():
        if (
            instance.status != "failed"
            or instance.place_again is None
            or living(scene.state, instance.model)
        ):
            continue
        failed_at = notes.failed_at.setdefault(instance.instance, scene.now)
        since_at = max(
            failed_at, 0.0 if instance.elsewhere else notes.crash_loops.next_at(instance.model)
        )
        is_pinned = pinned_by(instance, scene.state) is not None
        limit_s = pause_s(instance) if instance.model in demand else RETRY_FAILED_S
        if since_at <= scene.now and (is_pinned or scene.now - since_at < limit_s):
            commands.append(placement_again(instance, instance.place_again, "again"))
    return commands


def _failed_lately(model: ModelId, scene: Scene, notes: PlannerNotes) -> bool:
    return scene.now < notes.crash_loops.next_at(model) or any(
        instance.instance in notes.failed_at
        and scene.now - notes.failed_at[instance.instance] < pause_s(instance)
        for instance in scene.state.instances.values()
        if instance.model == model and instance.status == "failed"
    )


def note_event(notes: PlannerNotes, body: EventBody, before: ClusterState, now: float) -> None:
    """Record the parts of an event that the planner's rules need later. `before` is the state
    before the event."""
    if isinstance(body, InstanceFailed):
        notes.failed_at[body.instance] = now
    elif isinstance(body, RunnerReady):
        _note_ready(notes, body, before, now)
        notes.crash_loops.note_ready(body.instance, now)
    elif isinstance(body, InstanceRemoved):
        notes.failed_at.pop(body.instance, None)
        if (gone := before.instances.get(body.instance)) is not None:
            notes.crash_loops.forget(gone, now)
            notes.tenure.removed(gone.instance, (shard.node for shard in gone.shards), now)
            notes.loads.removed(gone, now)
    elif isinstance(body, InstanceDraining):
        if (leaves := before.instances.get(body.instance)) is not None:
            notes.loads.changed(leaves.model)
    elif isinstance(body, InstancePlaced):
        notes.tenure.placed(body.instance.instance, now)
        notes.loads.changed(body.instance.model)
    elif isinstance(body, GenerationOpened):
        notes.tenure.placed(body.instance, now)
    elif isinstance(body, LeaseGranted):
        notes.leases.renewed(body.lease.lease, None, now)
    elif isinstance(body, LeaseEnded):
        notes.leases.ended(body.lease)
    elif isinstance(body, InstanceYields):
        notes.tenure.yields_at[body.instance] = now


def _note_ready(notes: PlannerNotes, body: RunnerReady, before: ClusterState, now: float) -> None:
    """Record that an instance is ready, if this event is about its last rank."""
    instance = before.instances.get(body.instance)
    if instance is not None and instance.generation == body.generation:
        ranks = {rank.rank for rank in instance.ready} | {body.rank}
        if len(ranks) == len(instance.shards):
            notes.tenure.ready(instance.instance, instance.model, now)
            notes.crash_loops.note_serves(instance)
