"""Converts an event of the cluster's log to plain values: its position, its subject and its reason.

Pure. Everyone who may see the cluster may see the result. So it names an API key only by id and
name, and leaves out the prompt and parameters of a derived model. Texts are truncated.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from bus.replica.state import ClusterState
from bus.wire.instances import Instance
from bus.wire.messages.events import (
    ApiKeyAdded,
    ApiKeyChanged,
    ApiKeyRemoved,
    CloudFallbackAllowed,
    DerivedForgotten,
    Event,
    EventBody,
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

MOST_NAME, MOST_WHY = 200, 1000
"""Longest name and longest reason, in characters."""
GAP = "gap"
"""The kind of an entry that stands for events that are missing."""


class EventTold(TypedDict):
    """An event of the log. `about` has the same keys for all events of a kind. For a gap (kind
    `gap`), `about` names the event before it."""

    index: int
    term: int
    at_s: float | None
    kind: str
    about: dict[str, Any]
    why: str


def event_told(event: Event, before: ClusterState, after: ClusterState) -> EventTold:
    """Return an event as plain values. `before` and `after` are the states of the cluster before
    and after the event."""
    return {
        "index": event.index,
        "term": event.term,
        "at_s": event.at_s,
        "kind": event.body.kind,
        "about": _about(event.body, before, after),
        "why": why_of(event)[:MOST_WHY],
    }


def gap_told(
    index: int, term: int, after: int | None, why: str, at_s: float | None = None
) -> EventTold:
    """Return a gap in the form of an event. It replaces the events after the index `after` (None:
    from the first event on) up to `index`, which this process does not have."""
    about = {"after": after}
    return {"index": index, "term": term, "at_s": at_s, "kind": GAP, "about": about, "why": why}


def why_of(event: Event) -> str:
    """Return the reason in an event, or an empty string."""
    match event.body:
        case (
            GenerationOpened(why=why)
            | InstanceDraining(why=why)
            | InstanceYields(why=why)
            | InstanceFailed(why=why)
            | InstanceRemoved(why=why)
            | LeaseAskedBack(why=why)
            | LeaseEnded(why=why)
        ):
            return why
        case RunnerEnded(message=message):
            return message
        case LoadRefused(refusal=refusal):
            return refusal.message
        case _:
            return ""


def _about(body: EventBody, before: ClusterState, after: ClusterState) -> dict[str, Any]:
    """Return the subject of an event, with the same keys for all events of a kind."""
    match body:
        case NodeJoined() | NodeRenamed():
            return {"node": body.node, "name": body.name[:MOST_NAME]}
        case NodeDrained():
            return {"node": body.node, "draining": body.draining}
        case NodeForgotten() | NodeRemembered():
            return {"node": body.node}
        case TermOpened():
            return {"node": body.holder, "counter": body.counter}
        case ModelPinned(pin=pin):
            return {"model": pin.model[:MOST_NAME], "by": pin.by}
        case SetbacksCounted(setbacks=counted):
            return {"model": counted.model[:MOST_NAME], "in_a_row": counted.in_a_row}
        case ModelUnpinned():
            return {"model": body.model[:MOST_NAME]}
        case LeaseGranted(lease=lease):
            about = {"lease": lease.lease, "node": lease.node, "owner": lease.owner}
            return {**about, "size_bytes": lease.size_bytes}
        case LeaseAskedBack():
            return {"lease": body.lease, "to": body.to[:MOST_NAME]}
        case LeaseEnded():
            return {"lease": body.lease}
        case ModelDerived(derived=derived):
            return {"model": derived.name[:MOST_NAME], "base": derived.base[:MOST_NAME]}
        case DerivedForgotten():
            return {"model": body.name[:MOST_NAME]}
        case ApiKeyAdded(key=key) | ApiKeyChanged(key=key):
            return {"key": key.id, "name": key.name[:MOST_NAME]}
        case ApiKeyRemoved(key_id=gone):
            key = before.api_keys.get(gone)
            return {"key": gone, "name": "" if key is None else key.name[:MOST_NAME]}
        case TracingSet():
            return {"ratio": body.ratio}
        case CloudFallbackAllowed(allowed=allowed):
            return {"allowed": allowed}
        case _:
            return _about_instance(body, before, after)


def _about_instance(body: Any, before: ClusterState, after: ClusterState) -> dict[str, Any]:
    placed: Instance | None = body.instance if isinstance(body, InstancePlaced) else None
    name = str(body.instance if placed is None else placed.instance)
    subject = placed or after.instances.get(name) or before.instances.get(name)
    about = {"instance": name, "model": None if subject is None else subject.model[:MOST_NAME]}
    match body:
        case InstancePlaced(instance=instance):
            nodes = dict.fromkeys(shard.node for shard in instance.shards)
            return {**about, "nodes": list(nodes)}
        case RankSeated(seat=seat):
            return {**about, "generation": body.generation, "rank": seat.rank, "node": seat.node}
        case RunnerReady() | LoadRefused() | RunnerUnloaded() | RunnerEnded():
            about |= {"generation": body.generation, "rank": body.rank, "node": body.node}
            ended = isinstance(body, RunnerEnded)
            return {**about, "exit_code": body.exit_code} if ended else about
        case GenerationOpened():
            return {**about, "generation": body.generation}
        case InstanceDraining():
            return {**about, "deadline_s": body.deadline_s}
        case InstanceYields():
            return {**about, "to": body.to}
        case KeepAliveSet():
            return {**about, "keep_alive_s": body.keep_alive_s}
        case _:
            return about
