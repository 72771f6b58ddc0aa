"""Gives each event its place: (term, index), and each fact at most one.

Pure. Facts of one witness (node, process, boot) are taken in their own order, 1, 2, 3, ...:
one that was taken before is a no-op, one that runs ahead is left to be told again. A boot that
was never heard of begins at 1. What a fact says is not judged here; `apply` ignores an older
generation, but its place in the log is what lets the witness forget it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.replica.state import ClusterState, apply, is_known
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import Event, EventBody

Verdict = Literal["known", "next", "early"]


def next_event(
    state: ClusterState,
    body: EventBody,
    *,
    term: int,
    at_s: float,
    command_id: CommandId | None = None,
    holder: NodeId | None = None,
) -> Event:
    """Return the event that follows `state` in this term of `holder`."""
    return Event(
        term=term,
        index=state.index + 1,
        at_s=at_s,
        body=body,
        command_id=command_id,
        holder=holder,
    )


def judge(state: ClusterState, told: TellFact) -> Verdict:
    """Return whether a fact is due now, was taken before, or comes too early."""
    fact = told.fact_id
    if is_known(state, fact):
        return "known"
    boot, last = state.facts.get(f"{fact.node}/{fact.process}", ("", 0))
    expected = last + 1 if boot == fact.boot else 1
    return "next" if fact.seq == expected else "early"


def fact_event(
    state: ClusterState,
    told: TellFact,
    *,
    term: int,
    at_s: float,
    holder: NodeId | None = None,
) -> Event:
    """Return the event of a fact that is `next`."""
    return Event(
        term=term,
        index=state.index + 1,
        at_s=at_s,
        body=told.fact,
        fact=told.fact_id,
        holder=holder,
    )


@dataclass(slots=True)
class LogDraft:
    """What is to be appended next: `events`, each with the state behind it, in their order.

    `state` is that behind the last of them. Their places are in the term `term` of `holder`;
    all of them happened at `at_s`.
    """

    state: ClusterState
    term: int
    holder: NodeId
    at_s: float
    events: list[tuple[Event, ClusterState]] = field(
        default_factory=list[tuple[Event, ClusterState]]
    )

    def add(self, body: EventBody, command_id: CommandId | None = None) -> Event:
        """Append the event of `body` and return it."""
        return self._append(
            next_event(
                self.state,
                body,
                term=self.term,
                at_s=self.at_s,
                command_id=command_id,
                holder=self.holder,
            )
        )

    def take(self, told: TellFact) -> Event:
        """Append the event of a fact that `judge` calls `next`, and return it."""
        event = fact_event(self.state, told, term=self.term, at_s=self.at_s, holder=self.holder)
        return self._append(event)

    def _append(self, event: Event) -> Event:
        self.state = apply(self.state, event)
        self.events.append((event, self.state))
        return event
