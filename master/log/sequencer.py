"""Assigns each event its (term, index), and accepts each fact at most once.

Pure. Facts of one witness (node, process, boot) are taken in their order, 1, 2, 3, ... A repeated
fact has no effect; a fact that comes too early must be sent again. A new boot begins at 1. The
content of a fact is not checked here. `apply` ignores facts of an older generation (load attempt),
but they still get a place in the log, so that the witness can forget them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.replica.state import ClusterState, apply, is_known
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import Event, EventBody, FactId

Verdict = Literal["known", "next", "early"]


def judge(state: ClusterState, message: TellFact) -> Verdict:
    """Return whether a fact is the next one of its witness, already in the log, or too early."""
    fact = message.fact_id
    if is_known(state, fact):
        return "known"
    boot, last = state.facts.get(f"{fact.node}/{fact.process}", ("", 0))
    expected = last + 1 if boot == fact.boot else 1
    return "next" if fact.seq == expected else "early"


@dataclass(slots=True)
class LogDraft:
    """The next `events` to append, each with the state after it, in order. `state` is the state
    after the last of them. All events are in the term `term` of `holder` and happened at `at_s`."""

    state: ClusterState
    term: int
    holder: NodeId
    at_s: float
    events: list[tuple[Event, ClusterState]] = field(
        default_factory=list[tuple[Event, ClusterState]]
    )

    def add(
        self,
        body: EventBody,
        command_id: CommandId | None = None,
        *,
        fact: FactId | None = None,
    ) -> Event:
        """Append an event with this `body` to the draft, and return it. `fact` is the origin of the
        event if it is a fact that `judge` found to be `next`."""
        event = Event(
            term=self.term,
            index=self.state.index + 1,
            at_s=self.at_s,
            body=body,
            command_id=command_id,
            fact=fact,
            holder=self.holder,
        )
        self.state = apply(self.state, event)
        self.events.append((event, self.state))
        return event
