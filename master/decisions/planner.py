"""The holder's own initiative: preload, load on demand, unload idle copies, repair.

Pure: a ladder of small rules over a `Scene`; each returns commands or events, and the
shell carries them out in order. Demand is an ordinary `PlaceModel` (it evicts and waits like one).
Unloading is a handshake: draining, then the runner ends, then it is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bus.replica.state import ClusterState
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
from master.decisions.crash_loop import RETRY_FAILED_S, CrashLoops, Setback
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
"""The time for a request that came in while the decision was made."""


@dataclass(slots=True)
class PlannerNotes:
    """The planner's notes of its own acts, by the holder's clock.

    `failed_at`: when a copy was given up; `tenure`: how copies came into memory (their idling
    begins when they are ready, not with their loading). `preloaded`: models of the preload list
    that have been dealt with since this holder began. `crash_loops` says which models are not
    tried again yet, for their runners keep failing.
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
    scene: Scene, notes: PlannerNotes, asked: Sequence[PlaceModel | TakeLease] = ()
) -> list[PlaceModel | TakeLease]:
    """Return the placements, and leases, to ask for now, each until it is met; but for those that
    were `asked` for, their command ids are only names.

    What was asked for, copies that a worker refused, the preload list where a new holder finds
    nothing desired, pinned models that have no copy, and unmet demand (models of the preload list
    are pinned); each model once, the best standing first.
    """
    found: list[PlaceModel | TakeLease] = [
        *asked,
        *_placements_again(scene, notes),
        *_preloads(scene, notes),
    ]
    wanted = {**dict.fromkeys(scene.state.pins, 10)}
    wanted |= {one.model: one.best_priority for one in scene.observed.demand(scene.now).values()}
    found += [
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
    once = {wish.model: wish for wish in reversed(found)}.values()
    rate = scene.policy.pool.ageing_per_s

    def order(wish: PlaceModel | TakeLease) -> tuple[float, float, str]:
        """Return what the wishes are sorted by."""
        claim = claim_of(scene, wish)
        return claim.standing(rate, scene.now), claim.since_at, wish.model

    return sorted(once, key=order)


def stayed(
    wish: PlaceModel | TakeLease,
    scene: Scene,
    plan: PoolPlan,
    decide: Callable[[Scene], Decision],
) -> Decision | None:
    """Return the decision for a plan from whose nodes copies have just left: it stays on them.
    Until they are measured again they look full, and copies would have to leave others as well.
    None for a plan whose nodes are measured, or whose room others were promised since."""
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
    left = {one.instance for one in promise.leaving}
    victims = tuple(one for one in plan.choice.victims if one.copy.instance.instance in left)
    return Later(claim_of(scene, wish), replace(plan.choice, victims=victims))


def drain_idle(scene: Scene, notes: PlannerNotes) -> list[EventBody]:
    """Return the draining of ready, unpinned copies that were unused for their `keep_alive_s`
    and whose model has no unmet demand."""
    demand = scene.observed.demand(scene.now)
    replicas = replicas_in(scene.state.instances.values(), scene.observed.lost_nodes(scene.now))
    found: list[EventBody] = []
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
        why = f"idle for {idle_s:.0f} s, kept for {instance.keep_alive_s:g} s"
        found.append(InstanceDraining(instance=instance.instance, deadline_s=IDLE_DRAIN_S, why=why))
    return found


def follow_up(
    before: Instance | None,
    news: RunnerEnded | LoadRefused | RunnerUnloaded,
    crash_loops: CrashLoops,
    now: float,
) -> list[EventBody]:
    """Return the events after a rank has left. `before` is the instance as it was when the fact
    came; a fact about an older generation has none. A replica is not tried again."""
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
        why = f"a replica is not tried again: {_why_left(news)}"
        return [InstanceRemoved(instance=before.instance, why=why)]
    if isinstance(news, RunnerUnloaded):
        return [_reopen(before, "it was let go by a holder whose changes have been undone")]
    if isinstance(news, LoadRefused):
        again = conditions_elsewhere(before, news)
        why = news.refusal.message
        return [InstanceFailed(instance=before.instance, why=why, place_again=again)]
    if news.found_gone:
        return [_reopen(before, news.message)]  # a node's restart says nothing of its models
    setback = crash_loops.count_failure(
        before, news.exit_code, now, node=news.node, said=news.message
    )
    return [_after_failure(before, setback, news.message)]


def _after_failure(
    before: Instance, setback: Setback, said: str
) -> GenerationOpened | InstanceFailed:
    if setback.gives_up:
        why = f"{said} (given up; asked for later, it is tried again)"
        return InstanceFailed(instance=before.instance, why=why)
    if setback.pause_s:
        tries = f"its runner has ended {setback.count} times in a row; the next attempt is"
        why = f"{said} ({tries} {setback.pause_s:.0f} s after this one)"
        again = before.conditions
        return InstanceFailed(instance=before.instance, why=why, place_again=again)
    return _reopen(before, said)


def _why_left(news: RunnerEnded | LoadRefused | RunnerUnloaded) -> str:
    match news:
        case LoadRefused(refusal=refusal):
            return refusal.message
        case RunnerEnded(message=message):
            return message
        case RunnerUnloaded():
            return "its node let it go"


def conditions_elsewhere(before: Instance, news: LoadRefused) -> Conditions | None:
    """Return the conditions under which a refused copy is placed again; None for a manual split.

    For want of memory one node more, else (for want of weights) without the node that refused.
    """
    asked = before.conditions
    if asked.layers:
        return None
    if news.refusal.reason == "insufficient_memory":
        return asked.model_copy(update={"min_nodes": len(before.shards) + 1})
    return asked.model_copy(update={"excluded_nodes": (*asked.excluded_nodes, news.node)})


def repairs(state: ClusterState, crash_loops: CrashLoops, now: float) -> list[EventBody]:
    """Return the events that a dead holder left out: of each instance whose generation has ended
    the next one, or what else follows from so many failures, this one counted once; or the failure
    of what is tried once."""
    found: list[EventBody] = []
    for one in state.instances.values():
        if not one.has_ended:
            continue
        if not one.serves:
            found.append(InstanceFailed(instance=one.instance, why=one.failures[-1]))
        elif one.replica:
            found.append(_reopen(one, "the holder changed before it was opened anew"))
        else:
            setback = crash_loops.counted(one) or crash_loops.count_failure(one, None, now)
            found.append(_after_failure(one, setback, one.reason))
    return found


def setbacks(notes: PlannerNotes, wall_s: float) -> dict[ModelId, Setbacks]:
    """Return what the next holder is to know of failures; `wall_s` is how far the wall's clock is
    ahead of this holder's."""
    return notes.crash_loops.told(notes.loads.paused_until, wall_s)


def recall(notes: PlannerNotes, state: ClusterState, now: float, wall_s: float) -> None:
    """Take up what the holders before knew of failures."""
    known = state.setbacks.values()
    notes.crash_loops.recall(known, now, wall_s)
    notes.loads.recall({one.model: one.replica_at_s - wall_s for one in known}, now)
    for one in state.instances.values():
        if one.status == "ready":
            notes.crash_loops.note_ready(one.instance, now)


def _reopen(instance: Instance, why: str) -> GenerationOpened:
    return GenerationOpened(instance=instance.instance, generation=instance.generation + 1, why=why)


def _preloads(scene: Scene, notes: PlannerNotes) -> list[PlaceModel]:
    if not scene.observed.living_cards(scene.now):
        return []
    if notes.nothing_was_desired is None:
        notes.nothing_was_desired = all(
            one.status == "failed" for one in scene.state.instances.values()
        )
    if not notes.nothing_was_desired:
        return []
    found: list[PlaceModel] = []
    for model in scene.policy.preload:
        if living(scene.state, model):
            notes.preloaded.add(model)
        elif model not in notes.preloaded:
            name = CommandId(f"preload-{model}")
            found.append(PlaceModel(command_id=name, model=model, pinned=True))
    return found


def _placements_again(scene: Scene, notes: PlannerNotes) -> list[PlaceModel]:
    """Return the placements of copies that a worker refused to load, that were lost with their
    nodes, or whose runners failed, and had their pause or can be elsewhere, each until it is placed
    (which removes the failed one). One that is not pinned is not tried for longer than
    `RETRY_FAILED_S`."""
    found: list[PlaceModel] = []
    for one in scene.state.instances.values():
        if one.status != "failed" or one.place_again is None or living(scene.state, one.model):
            continue
        failed_at = notes.failed_at.setdefault(one.instance, scene.now)
        since_at = max(failed_at, 0.0 if one.elsewhere else notes.crash_loops.next_at(one.model))
        is_pinned = pinned_by(one, scene.state) is not None
        if since_at <= scene.now and (is_pinned or scene.now - since_at < RETRY_FAILED_S):
            found.append(placement_again(one, one.place_again, "again"))
    return found


def _failed_lately(model: ModelId, scene: Scene, notes: PlannerNotes) -> bool:
    return scene.now < notes.crash_loops.next_at(model) or any(
        instance.instance in notes.failed_at
        and scene.now - notes.failed_at[instance.instance] < RETRY_FAILED_S
        for instance in scene.state.instances.values()
        if instance.model == model and instance.status == "failed"
    )


def note_event(notes: PlannerNotes, body: EventBody, before: ClusterState, now: float) -> None:
    """Note of an event, and of the state before it, what the rules above need to know later."""
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
    """Note that a copy is ready, with its last rank."""
    known = before.instances.get(body.instance)
    if known is not None and known.generation == body.generation:
        ranks = {rank.rank for rank in known.ready} | {body.rank}
        if len(ranks) == len(known.shards):
            notes.tenure.ready(known.instance, known.model, now)
            notes.crash_loops.note_serves(known)
