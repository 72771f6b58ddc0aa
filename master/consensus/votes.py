"""Votes: a majority of the configured voters elects the leader, at most one for each counter.

Pure. `master.consensus.election` decides when to start a vote. This is Raft's election with
pre-vote (Ongaro 2014, 9.6). A candidate first runs a trial; so a candidate that was away or has a
bad link raises no counter. A voter gives one vote per counter, to a candidate whose journal ends no
earlier than its own. It gives no vote while it receives heartbeats of another leader, unless that
leader has handed its term over to the candidate.

A voter that was removed from the cluster no longer counts, from the journal entry about it on
(Raft's single-server change, 4.1). Old and new set of voters differ by one voter, so any two
majorities of them overlap. A leader changes the set only after a majority has its whole log on
disk, with an entry of its own term. That avoids the flaw that Ongaro described in 2015: see
`Candidate.unsettled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.peers import AskVote, Vote
from master.consensus import types
from master.consensus.types import LAPSE_S, Action, Election, Outcome, PersistTerm, Send


def campaign(election: Election, now: float) -> Outcome:
    """Start a trial (a pre-vote) for a counter above all counters seen so far."""
    counter = max(election.counter, election.seen) + 1
    after = replace(
        election,
        role="asking",
        holder=None,
        votes=frozenset({election.me}),
        asked_for=counter,
        asked_at=now,
        handed=None,
    )
    return after, _asking(after, trial=True)


def stand(heir: Election, now: float) -> Outcome:
    """Ask for votes without a trial, because the term was handed over to us."""
    counter = max(heir.counter, heir.seen) + 1
    return _for_real(replace(heir, asked_for=counter), now)


def answer_ask(election: Election, ask: AskVote, now: float) -> Outcome:
    """Answer a candidate's question for our vote; a granted vote is persisted first."""
    granted = _may_have(election, ask, now)
    after = replace(election, seen=max(election.seen, ask.counter - (1 if ask.trial else 0)))
    actions: list[Action] = []
    if granted and not ask.trial:
        if (ask.counter, ask.node) != (election.counter, election.voted_for):
            actions.append(PersistTerm(ask.counter, ask.node))
        after = replace(
            after,
            role=election.idle_role,
            holder=None,
            counter=ask.counter,
            voted_for=ask.node,
            heard_at=now,
        )
    answer = Vote(
        node=election.me,
        counter=ask.counter,
        trial=ask.trial,
        granted=granted,
        known_counter=max(after.counter, after.seen),
    )
    return after, [*actions, Send(ask.node, answer)]


def voice(election: Election, vote: Vote, now: float) -> Outcome:
    """Count a voter's answer if it belongs to the current campaign."""
    election = replace(election, seen=max(election.seen, vote.known_counter))
    wanted = {"asking": True, "campaigning": False}.get(election.role)
    if wanted is not vote.trial or vote.counter != election.asked_for or not vote.granted:
        return election, []
    if vote.node not in election.electors:
        return election, []
    election = replace(election, votes=election.votes | {vote.node})
    if len(election.votes & election.electors) < election.majority:
        return election, []
    if election.role == "asking":
        return _for_real(election, now)
    after = opened(election, now)
    return after, [types.OpenTerm(after.counter), types.Beat()]


def opened(election: Election, now: float) -> Election:
    """Return the state of the election after this candidate has become the leader."""
    return replace(
        election,
        role="holding",
        holder=election.me,
        heard_at=now,
        beaten_at=now,
        tries=0,
        acked_at=dict.fromkeys(election.votes, now),
        votes=frozenset(),
    )


def reached(heard_at: Mapping[NodeId, float], election: Election, now: float) -> int:
    """Return how many electors (voters that were not removed) have sent a message within the last
    `LAPSE_S`, ourselves included if we are a voter."""
    others = election.electors - {election.me}
    near = sum(node in heard_at and now - heard_at[node] < LAPSE_S for node in others)
    return near + (election.me in election.electors)


def no_majority(election: Election, here: int, now: float) -> Refusal:
    """Return the refusal while only `here` of the voters are in reach, with the remedy."""
    count = len(election.electors)
    near = {
        node
        for node, seen in election.living.items()
        if seen.eligible and now - seen.heard_at < LAPSE_S
    }
    missing = sorted(election.electors - near - {election.me})
    return Refusal(
        reason="no_majority",
        message=(
            f"{election.me} reaches only {here} of {count} voters; {election.majority} are needed. "
            "Running models keep serving, but nothing can be changed. "
            f"Bring back one of {', '.join(missing)}. If they are gone for good, remove "
            "them from `voters` on every node and restart `master` there (while a majority is "
            "left, `shoal nodes forget` removes one)"
        ),
        retry_after_s=LAPSE_S,
        facts={"reached": here, "voters": count, "needed": election.majority, "missing": missing},
    )


def minority(election: Election, now: float) -> Refusal | None:
    """Return the refusal of all changes because a majority of the voters is out of reach. None if
    there is a leader, or may be one soon."""
    if not election.voted or election.has_holder(now):
        return None
    heard = {node: seen.heard_at for node, seen in election.living.items() if seen.eligible}
    here = reached(heard, election, now)
    return None if here >= election.majority else no_majority(election, here, now)


def voters_unsettled(node: NodeId) -> Refusal:
    """Return the refusal to change voters before a majority has the whole log."""
    return Refusal(
        reason="pending",
        message=(
            f"{node} is a voter, and a majority of the voters does not have the whole log yet; "
            "try again in a moment"
        ),
        retry_after_s=1.0,
    )


def _for_real(election: Election, now: float) -> Outcome:
    counter = election.asked_for
    if counter <= election.counter:
        return replace(election, role="following"), []
    after = replace(
        election,
        role="campaigning",
        counter=counter,
        voted_for=election.me,
        votes=frozenset({election.me}),
        asked_at=now,
    )
    return after, [PersistTerm(counter, election.me), *_asking(after, trial=False)]


def _asking(election: Election, *, trial: bool) -> list[Action]:
    """Return the campaign's questions for votes to all other electors."""
    ask = AskVote(
        node=election.me,
        counter=election.asked_for,
        trial=trial,
        last_term=election.rank.last_term,
        last_index=election.rank.last_index,
        voters=tuple(sorted(election.voters)),
        handed=election.handed,
    )
    return [Send(voter, ask) for voter in sorted(election.electors - {election.me})]


def _may_have(election: Election, ask: AskVote, now: float) -> bool:
    """Return whether this candidate may have our vote in its term."""
    able = election.eligible and election.may_vote and election.me in election.voters
    if not able or frozenset(ask.voters) != election.voters or ask.node not in election.voters:
        return False
    log = (ask.last_term, ask.last_index)
    if log < election.rank.log or ask.counter < election.counter:
        return False
    if ask.counter == election.counter and election.voted_for not in (None, ask.node):
        return False
    if ask.trial and ask.counter == election.counter:
        return False
    return not _hears_another(election, ask, now)


def _hears_another(election: Election, ask: AskVote, now: float) -> bool:
    """Return whether we know another living leader that has not handed its term over to the
    candidate."""
    if election.role == "holding":
        return True
    if ask.handed is not None and ask.handed == election.term:
        return False
    hears_leader = election.holder is not None and election.holder != ask.node
    return hears_leader and now - election.heard_at < types.DOUBT_S
