"""Loads and unloads of the last hour, from the events of the log that this process has applied.

Pure. Times are wall times of the leaders that wrote the events, for people only. At the start, or
after a gap, a snapshot may replace events. The timeline is complete only since that snapshot;
`since_s` is its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from typing_extensions import TypedDict

from bus.replica.mirror import Move
from bus.wire.instances import Instance
from bus.wire.messages.events import Event
from gateway.view.watch.event_form import why_of

SPAN_S = 3600.0
MOST = 500
What = Literal["loading", "ready", "lost", "unloading", "failed", "unloaded"]


class ChangeTold(TypedDict):
    """A change of an instance, for JSON."""

    index: int
    at_s: float
    what: What
    instance: str
    model: str
    nodes: list[str]
    bytes: int
    why: str


class LoadsTold(TypedDict):
    """The changes since `since_s`, the latest last. `since_s` is null before the first snapshot."""

    since_s: float | None
    changes: list[ChangeTold]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an instance, made by the event at `index`. `why` is the event's reason. If an
    instance is `lost`, its model will be loaded again."""

    index: int
    at_s: float
    what: What
    instance: str
    model: str
    nodes: tuple[str, ...]
    bytes: int
    why: str

    def plain(self) -> ChangeTold:
        return {
            "index": self.index,
            "at_s": self.at_s,
            "what": self.what,
            "instance": self.instance,
            "model": self.model,
            "nodes": list(self.nodes),
            "bytes": self.bytes,
            "why": self.why,
        }


class LoadTimeline:
    """The changes of the last `span_s`, oldest first. It keeps at most the latest `most`
    changes."""

    def __init__(self, span_s: float = SPAN_S, most: int = MOST) -> None:
        self._span_s = span_s
        self._changes: deque[Change] = deque(maxlen=most)
        self._held: Mapping[str, Instance] = {}
        self._since_s: float | None = None

    def moved(self, moves: Iterable[Move], now_s: float) -> list[Change]:
        """Add the latest changes of the mirrored state. Return the new changes of instances.
        `now_s` is wall time."""
        new: list[Change] = []
        for event, state in moves:
            if event is None:
                self._since_s = now_s
            else:
                new.extend(changes(event, self._held, state.instances))
            self._held = state.instances
        self._changes.extend(new)
        self._forget(now_s)
        return new

    def plain(self, now_s: float) -> LoadsTold:
        """Return the changes as plain values, the latest last. The timeline is complete since
        `since_s`, which is None before the first snapshot."""
        self._forget(now_s)
        if self._since_s is None:
            return {"since_s": None, "changes": []}
        whole = len(self._changes) < (self._changes.maxlen or 0)
        first = now_s - self._span_s if whole else self._changes[0].at_s
        return {
            "since_s": max(self._since_s, first),
            "changes": [change.plain() for change in self._changes],
        }

    def _forget(self, now_s: float) -> None:
        while self._changes and self._changes[0].at_s < now_s - self._span_s:
            self._changes.popleft()


class LoadTimes:
    """Load times of the instances whose rank 0 is on `node`. Loads that began before this process
    started are left out."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._began_at_s: dict[str, float] = {}

    def record(self, changes: Iterable[Change]) -> list[tuple[str, float]]:
        """Add changes. Return the model and the seconds of each load that these changes
        complete."""
        loads: list[tuple[str, float]] = []
        for change in changes:
            began_at_s = self._began_at_s.pop(change.instance, None)
            if change.nodes[:1] != (self._node,):
                continue
            if change.what in ("loading", "lost"):
                self._began_at_s[change.instance] = change.at_s
            elif change.what == "ready" and began_at_s is not None:
                loads.append((change.model, max(0.0, change.at_s - began_at_s)))
        return loads


def changes(
    event: Event, before: Mapping[str, Instance], after: Mapping[str, Instance]
) -> list[Change]:
    """Return the changes that an event made to instances. Instances that serve no requests
    (collective tests, quantizations) are left out."""
    changed: list[Change] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is now:
            continue
        what = _became(was, now)
        instance = now or was
        if what is None or instance is None or not instance.serves:
            continue
        changed.append(
            Change(
                index=event.index,
                at_s=event.at_s,
                what=what,
                instance=instance.instance,
                model=instance.model,
                nodes=tuple(dict.fromkeys(shard.node for shard in instance.shards)),
                bytes=sum(shard.bytes_reserved for shard in instance.shards),
                why=why_of(event),
            )
        )
    return changed


_WHAT: Mapping[str, What] = {
    "placed": "loading",
    "ready": "ready",
    "draining": "unloading",
    "failed": "failed",
}


def _became(was: Instance | None, now: Instance | None) -> What | None:
    if now is None:
        return "unloaded"
    if was is None:
        return _WHAT[now.status]
    is_anew = was.generation != now.generation and now.status == "placed"
    if was.status == now.status and not is_anew:
        return None
    if was.status == "ready" and now.status == "placed" and not is_anew:
        return "lost"
    return _WHAT[now.status]
