"""What candidates say to each other of the election, and what an election hears of it.

Pure: an election in, a message out; a message in, a stimulus out. The wire's words are translated
here and nowhere else.
"""

from __future__ import annotations

from bus.wire.messages.control import AppendAck, AskVote, Candidacy, TermHeartbeat, Vote
from bus.wire.messages.wire import Message
from master.consensus.types import (
    AckHeard,
    AskVotes,
    Election,
    GiveVote,
    HeardBeat,
    HeardPeer,
    LogRank,
    Stimulus,
    VoteAsked,
    VoteHeard,
)


def stimulus_of(message: Message) -> Stimulus | None:
    """Return what an election hears in a message; None where it is no word of an election."""
    match message:
        case TermHeartbeat():
            return HeardBeat(
                message.holder,
                message.counter,
                frozenset(message.voters),
                message.index,
                message.followers,
            )
        case Candidacy():
            rank = LogRank(message.last_term, message.last_index, message.priority, message.node)
            return HeardPeer(rank, message.fit, message.counter, message.led, message.settled)
        case AskVote():
            log = (message.last_term, message.last_index)
            voters = frozenset(message.voters)
            return VoteAsked(message.node, message.counter, message.trial, log, voters)
        case Vote():
            return VoteHeard(
                message.node,
                message.counter,
                message.trial,
                message.granted,
                message.known_counter,
            )
        case AppendAck():
            return AckHeard(message.node, message.counter)
        case _:
            return None


def candidacy_of(election: Election, addresses: tuple[str, ...], now: float) -> Candidacy:
    """Return how good a candidate is and where it is reached, for every other one."""
    rank = election.rank
    return Candidacy(
        node=election.me,
        last_term=rank.last_term,
        last_index=rank.last_index,
        priority=rank.priority,
        counter=election.counter,
        fit=election.eligible,
        led=election.has_holder(now),
        settled=election.warmed_up(now),
        addresses=addresses,
    )


def question_of(election: Election, ask: AskVotes) -> AskVote:
    """Return the question for a vote in the term that `ask` names."""
    return AskVote(
        node=election.me,
        counter=ask.counter,
        trial=ask.trial,
        last_term=election.rank.last_term,
        last_index=election.rank.last_index,
        voters=tuple(sorted(election.voters)),
    )


def vote_of(election: Election, given: GiveVote) -> Vote:
    """Return the answer to a candidate that asked for a vote."""
    return Vote(
        node=election.me,
        counter=given.counter,
        trial=given.trial,
        granted=given.granted,
        known_counter=max(election.counter, election.seen),
    )
