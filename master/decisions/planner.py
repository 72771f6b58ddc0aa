"""What the holder does unasked: preload, load on demand, unload what idles, repair.

Pure: a ladder of small rules over a `Scene`; each returns wishes or events, and the shell
carries them out in order. Demand is an ordinary `PlaceModel` (it evicts and waits like one).
Unloading is a handshake: draining, then the runner ends, then it is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.state import ClusterState
from bus.wire.ids import CommandId, InstanceId, ModelId
from bus.wire.instances import Conditions, Instance
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.events import (
    EventBody,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstanceRemoved,
    LoadRefused,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
)
from master.decisions.collective_tests import follow_test
from master.decisions.crash_loop import Breaker
from master.decisions.decide import Scene, living

IDLE_DRAIN_S = 600.0
"""A request that slipped in while the decision was made may finish."""
RETRY_FAILED_S = 60.0
"""A copy that was given up is tried again on demand, but not before."""
LEAST_IDLE_S = 3.0
"""Longer than readings take to come, so that a use is heard of before it is judged."""


@dataclass(slots=True)
class Memory:
    """What the planner remembers of its own acts, by the holder's clock.

    `failed_at`: when a copy was given up; `ready_at`: when it was last seen to become ready (its
    idling begins there, not with its loading). `preloaded`: models of the preload list that have
    been dealt with since this holder began.
    """

    failed_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    preloaded: set[ModelId] = field(default_factory=set[ModelId])
    ready_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    nothing_was_desired: bool | None = None


def wishes(scene: Scene, memory: Memory) -> list[PlaceModel]:
    """Models to place now: those of the preload list at the start of a holder that finds
    nothing desired, then unmet demand, most urgent first (what is on the list is pinned again
    when it is wanted again). Their command ids are only names:
    each wish is decided anew until it is met."""
    found = [*_again(scene, memory), *_preloads(scene, memory)]
    wanted = scene.view.wanted(scene.now).values()
    found += [
        PlaceModel(
            command_id=CommandId(f"demand-{one.model}"),
            model=one.model,
            priority=one.best_priority,
            pinned=one.model in scene.policy.preload,
        )
        for one in sorted(wanted, key=lambda w: (w.best_priority, -w.oldest_s))
        if not living(scene.state, one.model) and not _cooling(one.model, scene, memory)
    ]
    return found


def idle(scene: Scene, memory: Memory) -> list[EventBody]:
    """Copies whose time is up: ready, unpinned, unused for `keep_alive_s`, wanted by nobody."""
    wanted = scene.view.wanted(scene.now)
    found: list[EventBody] = []
    for instance in scene.state.instances.values():
        if instance.status != "ready" or instance.pinned or instance.keep_alive_s < 0:
            continue
        use = scene.view.use_of(instance, scene.now)
        limit_s = max(instance.keep_alive_s, LEAST_IDLE_S)
        ready_at = memory.ready_at.setdefault(instance.instance, scene.now)
        if use is None or use.open_requests or instance.model in wanted:
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
    breaker: Breaker,
    now: float,
) -> list[EventBody]:
    """What a rank's leaving leads to. `before` is the instance as it was when the fact came;
    facts about an older generation lead to nothing."""
    if before is None or news.generation != before.generation:
        return []
    if before.status == "draining":
        others = {rank.rank for rank in before.ready} - {news.rank}
        if others:
            return []
        return [InstanceRemoved(instance=before.instance, why=before.why)]
    if before.status == "failed":
        return []
    if before.test is not None:
        return follow_test(before, news)
    if isinstance(news, RunnerUnloaded):
        return [_reopened(before, "it was let go by a holder whose changes have been undone")]
    if isinstance(news, LoadRefused):
        again = elsewhere(before, news)
        why = news.refusal.message
        return [InstanceFailed(instance=before.instance, why=why, place_again=again)]
    if breaker.failed(before.instance, news.exit_code, now):
        why = f"given up (at most 3 failures in 60 s); the last: {news.message}"
        return [InstanceFailed(instance=before.instance, why=why)]
    return [_reopened(before, news.message)]


def elsewhere(before: Instance, news: LoadRefused) -> Conditions | None:
    """Under which conditions a refused copy is placed again: for want of memory one node wider,
    else (its weights could not be had) without the node that refused. None for a split by hand."""
    asked = before.conditions
    if asked.layers:
        return None
    if news.refusal.reason == "insufficient_memory":
        return asked.model_copy(update={"min_nodes": len(before.shards) + 1})
    return asked.model_copy(update={"excluded_nodes": (*asked.excluded_nodes, news.node)})


def repairs(state: ClusterState) -> list[EventBody]:
    """What a holder that died left half done: a generation that has ended but was not
    followed by another."""
    return [
        _reopened(instance, "the holder changed before it was opened anew")
        if instance.test is None
        else InstanceFailed(instance=instance.instance, why=instance.failures[-1])
        for instance in state.instances.values()
        if instance.has_ended
    ]


def _reopened(instance: Instance, why: str) -> GenerationOpened:
    return GenerationOpened(instance=instance.instance, generation=instance.generation + 1, why=why)


def _preloads(scene: Scene, memory: Memory) -> list[PlaceModel]:
    if not scene.view.living_cards(scene.now):
        return []
    if memory.nothing_was_desired is None:
        memory.nothing_was_desired = all(
            one.status == "failed" for one in scene.state.instances.values()
        )
    if not memory.nothing_was_desired:
        return []
    found: list[PlaceModel] = []
    for model in scene.policy.preload:
        if living(scene.state, model):
            memory.preloaded.add(model)
        elif model not in memory.preloaded:
            name = CommandId(f"preload-{model}")
            found.append(PlaceModel(command_id=name, model=model, pinned=True))
    return found


def _again(scene: Scene, memory: Memory) -> list[PlaceModel]:
    """Copies that a worker refused to load, to be placed elsewhere. Each is wished for until it
    is placed (which sweeps the failed one away), but not for longer than `RETRY_FAILED_S`."""
    found: list[PlaceModel] = []
    for one in scene.state.instances.values():
        if one.status != "failed" or one.place_again is None or living(scene.state, one.model):
            continue
        failed_at = memory.failed_at.setdefault(one.instance, scene.now)
        if scene.now - failed_at < RETRY_FAILED_S:
            asked = one.place_again
            found.append(
                PlaceModel(
                    command_id=CommandId(f"again-{one.instance}"),
                    model=one.model,
                    context_tokens=asked.context_tokens,
                    keep_alive_s=None if one.pinned else one.keep_alive_s,
                    pinned=one.pinned,
                    priority=one.priority,
                    excluded_nodes=asked.excluded_nodes,
                    min_nodes=asked.min_nodes,
                    sharding=asked.sharding,
                )
            )
    return found


def _cooling(model: ModelId, scene: Scene, memory: Memory) -> bool:
    return any(
        instance.instance in memory.failed_at
        and scene.now - memory.failed_at[instance.instance] < RETRY_FAILED_S
        for instance in scene.state.instances.values()
        if instance.model == model and instance.status == "failed"
    )


def remember(memory: Memory, body: EventBody, now: float) -> None:
    """Note what the rules above need to know later."""
    if isinstance(body, InstanceFailed):
        memory.failed_at[body.instance] = now
    elif isinstance(body, RunnerReady):
        memory.ready_at[body.instance] = now
    elif isinstance(body, InstanceRemoved):
        memory.failed_at.pop(body.instance, None)
        memory.ready_at.pop(body.instance, None)
