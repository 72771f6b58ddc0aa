"""A term that its holder hands on, told step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.replica.mirror import Mirror
from bus.wire.ids import NodeId
from bus.wire.messages.peers import AskVote, HandedTerm, HandOver, Vote
from master.consensus.election import stimulate
from master.consensus.types import (
    Beat,
    Election,
    HandOn,
    Leave,
    LogRank,
    OpenTerm,
    PersistTerm,
    Send,
    StepDown,
    SwitchboardUp,
    Tick,
)
from tests.harness.elections import heard_beat

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
VOTERS = frozenset({A, B, C})
TERM = HandedTerm(counter=5, holder=A)
OVER = HandOver(term=TERM, index=10)


def follower(me: NodeId, voters: frozenset[NodeId] = VOTERS, index: int = 10) -> Election:
    """One that heard A, the holder of term 5, at 1.0."""
    fresh = Election(me, LogRank(5, index, 0, me), 5, voters=voters, expects_peers=True)
    election, _ = stimulate(fresh, SwitchboardUp(), 0.0)
    beat = heard_beat(A, 5, voters, index=10, followers=2)
    return stimulate(election, beat, 1.0)[0]


def question(**changes: object) -> AskVote:
    """B, to whom A has handed its term on, asks for the next one."""
    ask = AskVote(
        node=B, counter=6, trial=False, last_term=5, last_index=10, voters=tuple(sorted(VOTERS)),
        handed=TERM,
    )  # fmt: skip
    return ask.model_copy(update=changes)


def granted(election: Election, ask: AskVote) -> bool:
    answers = [one.message for one in stimulate(election, ask, 1.1)[1] if isinstance(one, Send)]
    (vote,) = answers
    assert isinstance(vote, Vote)
    return vote.granted


def test_a_holder_that_leaves_steps_down_before_it_tells_the_next_and_takes_no_term_again() -> None:
    holder = replace(follower(A), role="holding", holder=A, beaten_at=1.0)
    assert stimulate(holder, HandOn(B), 1.1) == (holder, []), "it was not told to leave"
    election, _ = stimulate(holder, Leave(), 1.1)
    election, actions = stimulate(election, HandOn(B), 1.1)
    assert [type(one) for one in actions] == [StepDown, Send]
    assert actions[1] == Send(B, OVER)
    assert stimulate(election, HandOn(C), 1.5)[1] == [Send(C, OVER)], "B did not take it"
    for at in (3.0, 30.0):
        election, actions = stimulate(election, Tick(), at)
        assert actions == []
    assert granted(election, question()), "but it votes"


def test_a_voter_that_was_handed_the_term_asks_for_the_next_one_without_a_trial() -> None:
    election, actions = stimulate(follower(B), OVER, 1.1)
    assert actions == [PersistTerm(6, B), Send(A, question()), Send(C, question())]
    assert stimulate(election, OVER, 1.15)[1] == [], "told again while it stands"
    vote = Vote(node=C, counter=6, trial=False, granted=True, known_counter=6)
    election, actions = stimulate(election, vote, 1.2)
    assert actions == [OpenTerm(6), Beat()] and election.handed == TERM


def test_without_voters_it_is_claimed_at_once_and_those_who_followed_the_last_follow() -> None:
    free = frozenset[NodeId]()
    election, actions = stimulate(follower(B, free), OVER, 1.1)
    assert actions == [PersistTerm(6, None), OpenTerm(6), Beat()] and election.handed == TERM
    claim = heard_beat(B, 6)
    assert stimulate(follower(C, free), claim, 1.2)[0].holder == A, "more follow A"
    handed = claim.model_copy(update={"handed": TERM})
    assert stimulate(follower(C, free), handed, 1.2)[0].holder == B
    late = heard_beat(A, 5, index=10, followers=2)
    assert stimulate(election, late, 1.2)[0].role == "holding", "A beat before it stepped down"
    other = claim.model_copy(update={"handed": HandedTerm(counter=4, holder=A)})
    assert stimulate(follower(C, free), other, 1.2)[0].holder == A, "that was an older term"


@pytest.mark.parametrize(
    ("election", "over"),
    [
        (follower(B), HandOver(term=HandedTerm(counter=4, holder=A), index=10)),
        (follower(B), HandOver(term=HandedTerm(counter=5, holder=C), index=10)),
        (follower(B, index=9), OVER),
        (replace(follower(B), eligible=False), OVER),
        (replace(follower(B), leaving=True), OVER),
        (replace(follower(B), lost_at=1.0), OVER),
        (replace(follower(B), gone=frozenset({B})), OVER),
        (replace(follower(B), role="holding", holder=B), OVER),
    ],
    ids=["an older term", "another's", "less of the log", "its journal only counts",
         "leaves itself", "its switchboard is gone", "forgotten", "holds a term"],
)  # fmt: skip
def test_a_term_that_is_not_for_us_to_take_is_not_taken(election: Election, over: HandOver) -> None:
    assert stimulate(election, over, 1.1) == (election, [])


def test_a_voter_votes_while_it_hears_the_holder_only_for_whom_that_has_chosen() -> None:
    assert granted(follower(C), question())
    assert not granted(follower(C), question(handed=None))
    assert not granted(follower(C), question(handed=HandedTerm(counter=4, holder=A)))
    assert not granted(follower(C, index=11), question()), "its log is the longer one"
    voted, _ = stimulate(follower(C), question(), 1.1)
    assert not granted(voted, question(node=A)), "one vote for each term"
    holding = replace(follower(C), role="holding", holder=C)
    assert not granted(holding, question())


def test_a_mirror_follows_the_next_holder_at_once_whoever_follows_it() -> None:
    claim = heard_beat(B, 6)
    for handed, holder in ((None, A), (TERM, B)):
        mirror = Mirror()
        mirror.heard_heartbeat(heard_beat(A, 5, followers=2), 1.0)
        mirror.heard_heartbeat(claim.model_copy(update={"handed": handed}), 1.1)
        assert mirror.holder == holder
