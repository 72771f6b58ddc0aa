"""The recent events of the log, for candidates that missed some.

Pure. The number of events is bounded: a candidate that lacks older events gets a snapshot. Events
are stored by index, so that each takes one look-up (searching a queue made catching up quadratic,
as measured). They are stored as msgpack: as objects, twenty thousand took 67 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from bus.replica.state import MAX_COMMANDS, ClusterState
from bus.wire.codec import pack, unpack
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.control import AskEvents, EventsFound
from bus.wire.messages.events import ApiKeyAdded, ApiKeyChanged, Event, InstancePlaced
from bus.wire.messages.readings import UndoneChange

MAX_KEPT = 20_000
MAX_KEPT_BYTES = 16 << 20
MAX_FOUND = 1_000


class _Stored(NamedTuple):
    """An event as msgpack, with those fields that are needed without unpacking."""

    term: int
    holder: NodeId | None
    command_id: CommandId | None
    packed: bytes

    def event(self) -> Event:
        """Return the unpacked event."""
        return Event.model_validate(cast(dict[str, Any], unpack(self.packed)))


@dataclass(slots=True)
class RecentEvents:
    """The recent events. Invariant: `events` has exactly the indexes first..last; it is empty if
    first > last. There are at most `limit` events and `limit_bytes` bytes, but the newest event
    always stays. `base` is the (term, holder) of the event before the first, if known."""

    limit: int = MAX_KEPT
    limit_bytes: int = MAX_KEPT_BYTES
    events: dict[int, _Stored] = field(default_factory=dict[int, _Stored])
    size_bytes: int = 0
    first: int = 1
    last: int = 0
    base: tuple[int, NodeId | None] | None = None

    @classmethod
    def behind(cls, state: ClusterState) -> RecentEvents:
        """Return an empty history that begins after `state`."""
        index = state.index
        return cls(first=index + 1, last=index, base=(state.term, state.holder))

    def keep(self, event: Event) -> None:
        """Add the newest event. An event that does not follow the last one begins a new history."""
        if event.index != self.last + 1:
            self.events.clear()
            self.size_bytes = 0
            self.first, self.base = event.index, None
        packed = pack(event.model_dump())
        self.events[event.index] = _Stored(event.term, event.holder, event.command_id, packed)
        self.size_bytes += len(packed)
        self.last = event.index
        while len(self.events) > self.limit or (
            self.size_bytes > self.limit_bytes and len(self.events) > 1
        ):
            dropped = self.events.pop(self.first)
            self.size_bytes -= len(dropped.packed)
            self.base = (dropped.term, dropped.holder)
            self.first += 1

    def find(self, ask: AskEvents) -> EventsFound:
        """Return the requested events, at most 1,000. The reply is incomplete if the first
        requested event is too old, or if the event before it in the requester's log is not in this
        log. Events after the last one do not exist yet and do not count as missing."""
        upto = min(ask.last, self.last, ask.first + MAX_FOUND - 1)
        is_dropped = ask.first <= self.last and ask.first < self.first
        if is_dropped or not self._follows(ask):
            return EventsFound(events=(), complete=False)
        events = tuple(self.events[index].event() for index in range(ask.first, upto + 1))
        return EventsFound(events=events, complete=ask.first <= self.last + 1)

    def undone(self, state: ClusterState) -> tuple[Event, ...]:
        """Return the events of commands that this log has and `state`, which replaces the log,
        lacks: their changes are rolled back. Commands that are too old for any state to remember
        are left out."""
        commands = state.commands
        is_full = len(commands) >= MAX_COMMANDS
        oldest = min(index for index, _ in commands.values()) if is_full else 0
        return tuple(
            packed.event()
            for index, packed in self.events.items()
            if packed.command_id is not None
            and packed.command_id not in commands
            and index >= oldest
        )

    def _follows(self, ask: AskEvents) -> bool:
        """Return whether the requester's last event is also in this log. True if the requester asks
        for the first event of all, because no event precedes that."""
        if ask.after_term is None or ask.first == 1:
            return True
        before = self.events.get(ask.first - 1)
        base = self.base if ask.first == self.first else None
        previous = base if before is None else (before.term, before.holder)
        return previous == (ask.after_term, ask.after_holder)


def let_go(before: ClusterState, after: ClusterState) -> tuple[Instance, ...]:
    """Return the instances that are lost when the state `after` of another log replaces the state
    `before`: those of `before` that `after` lacks. Empty if both states belong to one log, because
    then the missing instances ended normally."""
    if not _is_other_log(before, after):
        return ()
    return tuple(
        instance
        for name, instance in before.instances.items()
        if name not in after.instances
        and instance.status in ("placed", "ready")
        and instance.serves
    )


def describe_undone(
    changes: Sequence[Event], copies: Sequence[Instance], at_s: float
) -> list[UndoneChange]:
    """Describe, for people, the `changes` that were rolled back and the instances (`copies`) that
    were lost with them. Each instance appears once."""
    placed: set[InstanceId] = set()
    undone: list[UndoneChange] = []
    for event in changes:
        body, instance = event.body, getattr(event.body, "instance", None)
        if isinstance(body, InstancePlaced):
            instance = body.instance.instance
            placed.add(instance)
            about = f"{body.instance.model} ({instance})"
        elif isinstance(body, ApiKeyAdded | ApiKeyChanged):
            about = f"{body.key.name} ({body.key.id})"
        else:
            fields = body.model_dump(exclude={"kind"}).items()
            about = ", ".join(f"{name} {value}" for name, value in fields)
        change = UndoneChange(
            what=body.kind, about=about, at_s=at_s, instance=instance, command_id=event.command_id
        )
        undone.append(change)
    for copy in copies:
        if copy.instance not in placed:
            about = f"{copy.model} ({copy.instance})"
            change = UndoneChange(
                what="instance_placed", about=about, at_s=at_s, instance=copy.instance
            )
            undone.append(change)
    return undone


def _is_other_log(before: ClusterState, after: ClusterState) -> bool:
    """Return whether `before` cannot be an earlier state of the log of `after`."""
    if before.term > after.term or before.index > after.index:
        return True
    if before.term == after.term and before.holder != after.holder:
        return True
    return any(_is_ahead(seen, after.facts.get(by)) for by, seen in before.facts.items())


def _is_ahead(mine: tuple[str, int], other: tuple[str, int] | None) -> bool:
    """Return whether `mine` counts more facts of a witness than `other`, in the same boot. Both are
    (boot, sequence number)."""
    return other is None or (mine[0] == other[0] and mine[1] > other[1])
