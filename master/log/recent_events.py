"""The recent events of the log, for those who missed some.

Pure. Bounded: what has fallen out of it has to be replaced by a snapshot. Events are kept by
index (a look-up per event; scanning a queue made catching up quadratic, as measured), packed:
as objects twenty thousand took 67 MB.
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


class _Kept(NamedTuple):
    """An event as msgpack, and what is looked at without unpacking it."""

    term: int
    holder: NodeId | None
    command_id: CommandId | None
    packed: bytes

    def event(self) -> Event:
        """Return the event itself."""
        return Event.model_validate(cast(dict[str, Any], unpack(self.packed)))


@dataclass(slots=True)
class RecentEvents:
    """Invariant: `events` holds exactly the indexes first..last; empty when first > last. They are
    at most `limit` and together at most `limit_bytes` long, but the newest is always kept. `base`
    is the (term, holder) of the event before the first, where that is known."""

    limit: int = MAX_KEPT
    limit_bytes: int = MAX_KEPT_BYTES
    events: dict[int, _Kept] = field(default_factory=dict[int, _Kept])
    size_bytes: int = 0
    first: int = 1
    last: int = 0
    base: tuple[int, NodeId | None] | None = None

    @classmethod
    def behind(cls, state: ClusterState) -> RecentEvents:
        """Return an empty history of what follows `state`."""
        index = state.index
        return cls(first=index + 1, last=index, base=(state.term, state.holder))

    def keep(self, event: Event) -> None:
        """Add the newest event. One that does not follow the last begins a new history."""
        if event.index != self.last + 1:
            self.events.clear()
            self.size_bytes = 0
            self.first, self.base = event.index, None
        packed = pack(event.model_dump())
        self.events[event.index] = _Kept(event.term, event.holder, event.command_id, packed)
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
        """Return what was asked for, at most 1,000; incomplete when the first is not kept, or
        the asker's event before it is not of this log.

        What lies beyond the last event does not exist yet and is not missed.
        """
        upto = min(ask.last, self.last, ask.first + MAX_FOUND - 1)
        is_dropped = ask.first <= self.last and ask.first < self.first
        if is_dropped or not self._follows(ask):
            return EventsFound(events=(), complete=False)
        found = tuple(self.events[index].event() for index in range(ask.first, upto + 1))
        return EventsFound(events=found, complete=ask.first <= self.last + 1)

    def undone(self, state: ClusterState) -> tuple[Event, ...]:
        """Return, of the commands' events that are kept, those that a `state` which takes the
        place of this log does not know: what they changed is taken back. Commands so old that no
        state remembers them are not counted."""
        known = state.commands
        is_full = len(known) >= MAX_COMMANDS
        oldest = min(index for index, _ in known.values()) if is_full else 0
        return tuple(
            kept.event()
            for index, kept in self.events.items()
            if kept.command_id is not None and kept.command_id not in known and index >= oldest
        )

    def _follows(self, ask: AskEvents) -> bool:
        """Return whether the asker's last event is ours; nothing comes before the first of all."""
        if ask.after_term is None or ask.first == 1:
            return True
        before = self.events.get(ask.first - 1)
        base = self.base if ask.first == self.first else None
        known = base if before is None else (before.term, before.holder)
        return known == (ask.after_term, ask.after_holder)


def let_go(before: ClusterState, after: ClusterState) -> tuple[Instance, ...]:
    """Return the copies of models that `before` held and `after`, which takes its place, does not:
    none where the two are of one log, in which they ended as any does."""
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
    """Return undone changes and the copies that went with them, as people are told of them: each
    copy once."""
    placed: set[InstanceId] = set()
    found: list[UndoneChange] = []
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
        found.append(change)
    for copy in copies:
        if copy.instance not in placed:
            about = f"{copy.model} ({copy.instance})"
            change = UndoneChange(
                what="instance_placed", about=about, at_s=at_s, instance=copy.instance
            )
            found.append(change)
    return found


def _is_other_log(before: ClusterState, after: ClusterState) -> bool:
    """Return whether `before` cannot be an earlier state of the log of `after`."""
    if before.term > after.term or before.index > after.index:
        return True
    if before.term == after.term and before.holder != after.holder:
        return True
    return any(_is_ahead(seen, after.facts.get(by)) for by, seen in before.facts.items())


def _is_ahead(mine: tuple[str, int], other: tuple[str, int] | None) -> bool:
    """Return whether a witness told `mine` more than `other`, of one life of it."""
    return other is None or (mine[0] == other[0] and mine[1] > other[1])
