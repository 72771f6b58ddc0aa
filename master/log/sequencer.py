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
from bus.wire.messages.events import Event, EventBody, FactId

Verdict = Literal["known", "next", "early"]


def judge(state: ClusterState, told: TellFact) -> Verdict:
    """Return whether a fact is due now, was taken before, or comes too early."""
    fact = told.fact_id
    if is_known(state, fact):
        return "known"
    boot, last = state.facts.get(f"{fact.node}/{fact.process}", ("", 0))
    expected = last + 1 if boot == fact.boot else 1
    return "next" if fact.seq == expected else "early"


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

    def add(
        self,
        body: EventBody,
        command_id: CommandId | None = None,
        *,
        fact: FactId | None = None,
    ) -> Event:
        """Append the event of `body` and return it. `fact` is what it was told as, where it is one
        that `judge` calls `next`."""
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
