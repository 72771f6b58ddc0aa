"""What the shell of a candidate has to do: the election's actions, the journal's, and messages.

Pure data, to be done in the order in which it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.replica.state import ClusterState
from bus.wire.messages.events import Event
from bus.wire.messages.wire import Message
from master.consensus.types import Action


@dataclass(frozen=True, slots=True)
class Append:
    """Write the event to the journal; `after` is the state behind it."""

    event: Event
    after: ClusterState


@dataclass(frozen=True, slots=True)
class Replace:
    """Begin the journal anew with this state: what it held was of another log, or too old.
    `undone` are those commands' events in it that the new one lacks."""

    state: ClusterState
    undone: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """Publish an event that was appended."""

    event: Event


@dataclass(frozen=True, slots=True)
class Spread:
    """Send to every other candidate that is known."""

    message: Message


Act = Append | Replace | PublishEvent | Spread | Action
