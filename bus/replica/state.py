"""The cluster's state and how events change it: `apply(state, event)`.

Pure and total: any event can be applied to any state. An event that no longer fits changes only the
index: one about an unknown instance or an older generation (load attempt), or a repeated fact. All
mirrors that have applied the same events have the same state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from pydantic import Field

from bus.wire.api_keys import ApiKey
from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import ENDING, Instance, RankReady, Setbacks, signalled
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.events import (
    ApiKeyAdded,
    ApiKeyChanged,
    ApiKeyRemoved,
    CloudFallbackAllowed,
    DerivedForgotten,
    Event,
    FactId,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceYields,
    KeepAliveSet,
    LeaseAskedBack,
    LeaseEnded,
    LeaseGranted,
    LoadRefused,
    ModelDerived,
    ModelPinned,
    ModelUnpinned,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeRemembered,
    NodeRenamed,
    RankSeated,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
    SetbacksCounted,
    TermOpened,
    TracingSet,
)
from bus.wire.messages.wire import Message
from bus.wire.pool import Lease, Pin

MAX_FAILURES = 8
"""How many ended load attempts (generations) of an instance are stored."""
MAX_COMMANDS = 256
"""How many commands are stored with their answers, so that a repeated command gets the first
answer."""


class NodeSeat(Message):
    """A node that has joined: its name (`renamed`: the operator chose it) and its addresses.
    `draining`: it gets no new work. `wired_bytes`: wired memory (it can't be paged out) that no
    runner uses and that is the reason for draining, or that a person accepted; else 0."""

    node: NodeId
    name: str
    renamed: bool = False
    draining: bool = False
    wired_bytes: int = 0
    addresses: tuple[str, ...] = ()


class ClusterState(Message):
    """The state that all nodes agree on. `facts`: for each witness (node/process), its boot and the
    highest sequence number in the log. `commands`: the index at which each recent command took
    effect, oldest first. `derived`, `pins`: derived and pinned models by name. `api_keys`,
    `leases`: by id. `trace_ratio`: the share of requests that are traced; None: as each node's
    settings say. `cloud_fallback`: providers may answer if a task's models fail. `setbacks`: the
    failure records of models."""

    term: int = 0
    holder: NodeId | None = None
    index: int = 0
    nodes: dict[str, NodeSeat] = Field(default_factory=dict[str, NodeSeat])
    instances: dict[str, Instance] = Field(default_factory=dict[str, Instance])
    forgotten: tuple[NodeId, ...] = ()
    facts: dict[str, tuple[str, int]] = Field(default_factory=dict[str, tuple[str, int]])
    commands: dict[str, tuple[int, str | None]] = Field(
        default_factory=dict[str, tuple[int, str | None]]
    )
    derived: dict[str, DerivedModel] = Field(default_factory=dict[str, DerivedModel])
    api_keys: dict[str, ApiKey] = Field(default_factory=dict[str, ApiKey])
    pins: dict[str, Pin] = Field(default_factory=dict[str, Pin])
    leases: dict[str, Lease] = Field(default_factory=dict[str, Lease])
    trace_ratio: float | None = None
    cloud_fallback: bool = True
    setbacks: dict[str, Setbacks] = Field(default_factory=dict[str, Setbacks])


def apply(state: ClusterState, event: Event) -> ClusterState:
    """Return the state after `event`. Events must come in index order, as `replica.mirror`
    ensures."""
    changes: dict[str, Any] = {"index": event.index, "term": max(state.term, event.term)}
    if event.command_id is not None:
        changes["commands"] = _remembered(state, event)
    if event.fact is not None:
        if is_known(state, event.fact):
            return state.model_copy(update=changes)
        witness = f"{event.fact.node}/{event.fact.process}"
        changes["facts"] = {**state.facts, witness: (event.fact.boot, event.fact.seq)}
    changes.update(_changed(state, event))
    return state.model_copy(update=changes)


def is_known(state: ClusterState, fact: FactId) -> bool:
    """Return whether this fact, or a later one of the same boot, is already in the log."""
    seen = state.facts.get(f"{fact.node}/{fact.process}")
    return seen is not None and seen[0] == fact.boot and seen[1] >= fact.seq


def digest(state: ClusterState) -> int:
    """Return the CRC-32 of the state in a canonical form; equal states have equal digests."""
    text = json.dumps(state.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return crc32(text.encode())


def _remembered(state: ClusterState, event: Event) -> dict[str, tuple[int, str | None]]:
    body = event.body
    target: str | None = None
    if isinstance(body, InstancePlaced):
        target = body.instance.instance
    elif isinstance(body, InstanceDraining | KeepAliveSet):
        target = body.instance
    commands = dict(list(state.commands.items())[-(MAX_COMMANDS - 1) :])
    commands[event.command_id or ""] = (event.index, target)
    return commands


def _changed(state: ClusterState, event: Event) -> Mapping[str, Any]:
    body = event.body
    match body:
        case TermOpened(holder=holder):
            return {"holder": holder}
        case NodeJoined(node=node, name=name, addresses=addresses):
            seat = state.nodes.get(node) or NodeSeat(node=node, name=name)
            fresh = {"name": seat.name if seat.renamed else name, "addresses": addresses}
            return {"nodes": {**state.nodes, node: seat.model_copy(update=fresh)}}
        case NodeRenamed() | NodeDrained() | NodeForgotten() | NodeRemembered():
            return _with_node(state, body)
        case InstancePlaced(instance=instance):
            return {"instances": {**state.instances, instance.instance: instance}}
        case InstanceRemoved(instance=gone):
            rest = {key: value for key, value in state.instances.items() if key != gone}
            return {"instances": rest}
        case SetbacksCounted(setbacks=counted):
            others = {key: counts for key, counts in state.setbacks.items() if key != counted.model}
            own = {} if counted.is_forgotten else {counted.model: counted}
            return {"setbacks": {**others, **own}}
        case ModelPinned(pin=pin):
            return {"pins": {**state.pins, pin.model: pin}}
        case ModelUnpinned(model=model):
            return _unpinned(state, model)
        case LeaseGranted(lease=lease):
            return {"leases": {**state.leases, lease.lease: lease}}
        case LeaseAskedBack() | LeaseEnded():
            return _with_lease(state, body)
        case ModelDerived(derived=derived):
            return {"derived": {**state.derived, derived.name: derived}}
        case DerivedForgotten(name=name):
            return {"derived": {key: model for key, model in state.derived.items() if key != name}}
        case ApiKeyAdded(key=key):
            return {"api_keys": {**state.api_keys, key.id: key}}
        case ApiKeyChanged(key=key):
            exists = key.id in state.api_keys
            return {"api_keys": {**state.api_keys, key.id: key}} if exists else {}
        case ApiKeyRemoved(key_id=gone):
            return {
                "api_keys": {key: value for key, value in state.api_keys.items() if key != gone}
            }
        case TracingSet(ratio=ratio):
            return {"trace_ratio": ratio}
        case CloudFallbackAllowed(allowed=allowed):
            return {"cloud_fallback": allowed}
        case _:
            return _with_instance(state, body.instance, body)


def _unpinned(state: ClusterState, model: str) -> Mapping[str, Any]:
    pins = {key: pin for key, pin in state.pins.items() if key != model}
    instances = {
        key: instance.model_copy(update={"pinned": False}) if instance.model == model else instance
        for key, instance in state.instances.items()
    }
    return {"pins": pins, "instances": instances}


def _with_lease(state: ClusterState, news: LeaseAskedBack | LeaseEnded) -> Mapping[str, Any]:
    lease = state.leases.get(news.lease)
    if lease is None:
        return {}
    others = {key: other for key, other in state.leases.items() if key != news.lease}
    if isinstance(news, LeaseEnded):
        return {"leases": others}
    changed = lease.model_copy(update={"yields_to": news.to})
    return {"leases": {**state.leases, news.lease: changed}}


def _with_node(
    state: ClusterState, news: NodeRenamed | NodeDrained | NodeForgotten | NodeRemembered
) -> Mapping[str, Any]:
    node = news.node
    others = tuple(other for other in state.forgotten if other != node)
    match news:
        case NodeForgotten():
            rest = {key: seat for key, seat in state.nodes.items() if key != node}
            return {"nodes": rest, "forgotten": (*others, node)}
        case NodeRemembered():
            return {"forgotten": others}
        case NodeRenamed(name=name):
            fresh: dict[str, Any] = {"name": name, "renamed": True}
        case NodeDrained(draining=draining, wired_bytes=wired_bytes):
            fresh = {"draining": draining, "wired_bytes": wired_bytes}
    seat = state.nodes.get(node)
    return {} if seat is None else {"nodes": {**state.nodes, node: seat.model_copy(update=fresh)}}


InstanceNews = (
    RankSeated
    | RunnerReady
    | RunnerEnded
    | LoadRefused
    | RunnerUnloaded
    | GenerationOpened
    | InstanceDraining
    | InstanceYields
    | InstanceFailed
    | KeepAliveSet
)


def _with_instance(state: ClusterState, name: InstanceId, news: InstanceNews) -> Mapping[str, Any]:
    instance = state.instances.get(name)
    if instance is None:
        return {}
    changed = _news(instance, news)
    return {} if changed is instance else {"instances": {**state.instances, name: changed}}


def _news(instance: Instance, news: InstanceNews) -> Instance:
    match news:
        case GenerationOpened(generation=generation, why=why):
            if generation <= instance.generation and instance.status != "failed":
                return instance
            status = signalled(instance.status, "reopened")
            fresh = {"generation": generation, "status": status, "why": why}
            stays = {"yields_to": "", "yields_urgently": False}
            return instance.model_copy(update={**fresh, **stays, "ready": (), "seats": ()})
        case InstanceDraining(deadline_s=deadline_s, why=why):
            status = signalled(instance.status, "drain")
            update = {"status": status, "drain_deadline_s": deadline_s, "why": why}
            return instance.model_copy(update=update)
        case InstanceYields(to=to, urgently=urgently):
            takes = instance.status == "ready" or not to
            update = {"yields_to": to, "yields_urgently": urgently}
            return instance.model_copy(update=update) if takes else instance
        case InstanceFailed(why=why, place_again=again, elsewhere=elsewhere):
            status = signalled(instance.status, "gave_up")
            update = {"status": status, "why": why, "ready": (), "place_again": again}
            return instance.model_copy(update={**update, "elsewhere": elsewhere})
        case KeepAliveSet(keep_alive_s=keep_alive_s):
            return instance.model_copy(update={"keep_alive_s": keep_alive_s})
        case RankSeated(generation=generation, seat=seat):
            if generation != instance.generation:
                return instance
            others = [other for other in instance.seats if other.rank != seat.rank]
            seats = tuple(sorted([*others, seat], key=lambda other: other.rank))
            return instance.model_copy(update={"seats": seats})
        case _:
            same = news.generation == instance.generation
            return _rank_news(instance, news) if same else instance


def _rank_news(
    instance: Instance, news: RunnerReady | RunnerEnded | LoadRefused | RunnerUnloaded
) -> Instance:
    others = tuple(r for r in instance.ready if r.rank != news.rank)
    if isinstance(news, RunnerReady):
        rank = RankReady.model_validate(news, from_attributes=True)
        ready = tuple(sorted((*others, rank), key=lambda r: r.rank))
        complete = len(ready) == len(instance.shards)
        status = signalled(instance.status, "all_ready") if complete else instance.status
        return instance.model_copy(update={"ready": ready, "status": status})
    update: dict[str, Any] = {"ready": others, "status": signalled(instance.status, "rank_lost")}
    if not isinstance(news, RunnerUnloaded):
        cause = news.message if isinstance(news, RunnerEnded) else news.refusal.message
        ending = f"{ENDING} {news.generation} rank {news.rank}: {cause}"
        update["failures"] = (*instance.failures, ending)[-MAX_FAILURES:]
    return instance.model_copy(update=update)
