"""One event behind a state, as a holder drafts it."""

from __future__ import annotations

from bus.replica.state import ClusterState
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import Event, EventBody
from master.log.sequencer import LogDraft

HOLDER = NodeId("holder")


def next_event(
    state: ClusterState,
    body: EventBody,
    *,
    term: int,
    at_s: float,
    command_id: CommandId | None = None,
) -> Event:
    return LogDraft(state, term, HOLDER, at_s).add(body, command_id)


def fact_event(state: ClusterState, told: TellFact, *, term: int, at_s: float) -> Event:
    return LogDraft(state, term, HOLDER, at_s).add(told.fact, fact=told.fact_id)
