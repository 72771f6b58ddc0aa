"""What candidates say to each other, in few words: as an election hears it and as it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bus.wire.ids import NodeId
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.peers import AskVote, Candidacy, Vote
from master.consensus.types import Action, Election, LogRank, Send


def heard_beat(
    holder: NodeId,
    counter: int,
    voters: Iterable[NodeId] = (),
    index: int = 0,
    followers: int = 0,
) -> TermHeartbeat:
    """The heartbeat of a holder."""
    return TermHeartbeat(
        holder=holder, counter=counter, index=index, digest=0, addresses=(),
        voters=tuple(sorted(voters)), followers=followers,
    )  # fmt: skip


def heard_peer(
    rank: LogRank,
    eligible: bool = True,
    counter: int = 0,
    has_holder: bool = True,
    warmed_up: bool = True,
) -> Candidacy:
    """Another candidate says how good it is."""
    return Candidacy(
        node=rank.node, last_term=rank.last_term, last_index=rank.last_index,
        priority=rank.priority, counter=counter, fit=eligible, led=has_holder, settled=warmed_up,
    )  # fmt: skip


@dataclass(frozen=True)
class AskVotes:
    """Every other voter was asked for the term."""

    counter: int
    trial: bool


@dataclass(frozen=True)
class GiveVote:
    """A candidate that asked was answered."""

    to: NodeId
    counter: int
    trial: bool
    granted: bool


def in_short(election: Election, actions: list[Action]) -> list[Action | AskVotes | GiveVote]:
    """Actions in which what is said is short, and what is asked of all voters is one of them."""
    short: list[Action | AskVotes | GiveVote] = []
    asked: list[NodeId] = []
    for action in actions:
        if not isinstance(action, Send):
            short.append(action)
        elif isinstance(said := action.message, Vote):
            assert said.node == election.me
            short.append(GiveVote(action.to, said.counter, said.trial, said.granted))
        else:
            assert isinstance(said, AskVote) and set(said.voters) == election.voters
            log = (election.rank.last_term, election.rank.last_index)
            assert (said.node, said.last_term, said.last_index) == (election.me, *log)
            asked.append(action.to)
            if len(asked) == 1:
                short.append(AskVotes(said.counter, said.trial))
    assert not asked or asked == sorted(election.electors - {election.me})
    return short
