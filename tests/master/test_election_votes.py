"""Terms that a majority of configured voters gives, told step by step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from bus.replica.mirror import Mirror
from bus.replica.state import ClusterState
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.messages.commands import ForgetNode, KeepAlive
from bus.wire.messages.peers import AppendAck, AskVote, Vote
from master.consensus.candidate import Candidate
from master.consensus.candidate_log import CandidateLog
from master.consensus.election import stimulate
from master.consensus.types import (
    DOUBT_S,
    LAPSE_S,
    Action,
    Beat,
    Election,
    Fitness,
    LogRank,
    MyRank,
    OpenTerm,
    PersistTerm,
    StepDown,
    Stimulus,
    SwitchboardUp,
    Tick,
)
from master.log.recent_events import RecentEvents
from tests.harness.elections import AskVotes, GiveVote, heard_beat, heard_peer, in_short

A, B, C, X = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("x")
VOTERS = frozenset({A, B, C})
Said = Action | AskVotes | GiveVote


def voter(me: NodeId = A, *, counter: int = 4, log: tuple[int, int] = (4, 10)) -> Election:
    return Election(
        me=me, rank=LogRank(*log, 0, me), counter=counter, voters=VOTERS, expects_peers=True
    )


def up(me: NodeId = A, **fields: object) -> Election:
    return stimulate(replace(voter(me), **fields), SwitchboardUp(), 0.0)[0]  # type: ignore[arg-type]


def told(election: Election, now: float, *stimuli: Stimulus) -> tuple[Election, list[Said]]:
    actions: list[Said] = []
    for stimulus in stimuli:
        election, more = stimulate(election, stimulus, now)
        actions += in_short(election, more)
    return election, actions


def yes(node: NodeId, counter: int, *, trial: bool) -> Vote:
    return voted(node, counter, trial, True)


def voted(node: NodeId, counter: int, trial: bool, granted: bool) -> Vote:
    return Vote(node=node, counter=counter, trial=trial, granted=granted, known_counter=counter)


def acked(node: NodeId, counter: int) -> AppendAck:
    return AppendAck(node=node, counter=counter, index=0)


def ask(
    node: NodeId, counter: int, *, trial: bool = False, log: tuple[int, int] = (4, 10)
) -> AskVote:
    return AskVote(
        node=node, counter=counter, trial=trial, last_term=log[0], last_index=log[1],
        voters=tuple(VOTERS),
    )  # fmt: skip


def holder() -> Election:
    election, _ = told(up(), LAPSE_S, Tick(), yes(B, 5, trial=True), yes(B, 5, trial=False))
    assert election.role == "holding"
    return election


def test_a_term_is_tried_then_asked_for_then_opened_by_a_majority() -> None:
    election, actions = told(up(), LAPSE_S - 0.01, Tick())
    assert actions == [], "a holder may still live"
    election, actions = told(election, LAPSE_S, Tick())
    assert actions == [AskVotes(5, trial=True)]
    assert election.counter == 4, "a trial raises nothing"
    election, actions = told(election, 2.1, yes(B, 5, trial=True))
    assert actions == [PersistTerm(5, A), AskVotes(5, trial=False)]
    election, actions = told(election, 2.2, yes(C, 5, trial=False))
    assert actions == [OpenTerm(5), Beat()]
    assert (election.role, election.holder, election.counter) == ("holding", A, 5)


@pytest.mark.parametrize(
    "vote",
    [
        voted(B, 5, True, False),
        voted(B, 4, True, True),
        voted(B, 5, False, True),
        voted(X, 5, True, True),
        voted(A, 5, True, True),
    ],
    ids=["refused", "of an older try", "not for the trial", "of no voter", "our own again"],
)
def test_what_is_no_vote_for_this_campaign_does_not_count(vote: Vote) -> None:
    asking, _ = told(up(), LAPSE_S, Tick())
    election, actions = told(asking, 2.1, vote)
    assert actions == [] and election.role == "asking"


def test_a_vote_is_persisted_before_it_is_given_and_given_once_a_term() -> None:
    election, actions = told(up(), 0.1, ask(B, 5))
    assert actions == [PersistTerm(5, B), GiveVote(B, 5, False, True)]
    election, actions = told(election, 0.2, ask(C, 5))
    assert actions == [GiveVote(C, 5, False, False)]
    election, actions = told(election, 0.3, ask(B, 5))
    assert actions == [GiveVote(B, 5, False, True)], "a repeat is answered alike"
    _, actions = told(election, 0.4, ask(C, 6))
    assert actions == [PersistTerm(6, C), GiveVote(C, 6, False, True)]


def test_a_trial_binds_nobody() -> None:
    election, actions = told(up(), 0.1, ask(B, 5, trial=True), ask(C, 5, trial=True))
    assert actions == [GiveVote(B, 5, True, True), GiveVote(C, 5, True, True)]
    assert (election.counter, election.voted_for) == (4, None)


@pytest.mark.parametrize(
    ("log", "granted"),
    [((4, 10), True), ((5, 1), True), ((4, 9), False), ((3, 99), False), ((4, 11), True)],
)
def test_a_shorter_log_gets_no_vote(log: tuple[int, int], granted: bool) -> None:
    _, actions = told(up(), 0.1, ask(B, 6, log=log))
    assert actions[-1] == GiveVote(B, 6, False, granted)


def test_priority_and_name_give_no_vote_away() -> None:
    election = replace(up(), rank=LogRank(4, 10, 99, A))
    _, actions = told(election, 0.1, ask(B, 6))
    assert actions[-1] == GiveVote(B, 6, False, True)


def test_while_a_holder_is_heard_nobody_else_gets_a_vote() -> None:
    election, _ = told(up(), 1.0, heard_beat(C, 5, VOTERS))
    _, actions = told(election, 1.0 + DOUBT_S - 0.01, ask(B, 9), ask(B, 9, trial=True))
    assert {a.granted for a in actions if isinstance(a, GiveVote)} == {False}
    _, actions = told(election, 1.0 + DOUBT_S, ask(B, 9))
    assert actions[-1] == GiveVote(B, 9, False, True)
    _, actions = told(election, 1.1, ask(C, 6))
    assert actions[-1] == GiveVote(C, 6, False, True), "the holder itself may raise its term"


def test_one_who_is_no_voter_neither_asks_nor_votes_nor_is_voted_for() -> None:
    outsider = replace(up(), me=X, rank=LogRank(9, 99, 9, X))
    _, actions = told(outsider, 60.0, Tick())
    assert actions == []
    _, actions = told(outsider, 60.0, ask(B, 10, log=(9, 99)))
    assert actions == [GiveVote(B, 10, False, False)]
    _, actions = told(up(), 0.1, ask(X, 9))
    assert actions == [GiveVote(X, 9, False, False)]


def test_candidates_that_count_other_voters_get_no_vote() -> None:
    _, actions = told(up(), 0.1, ask(B, 9).model_copy(update={"voters": (A, B, X)}))
    assert actions == [GiveVote(B, 9, False, False)]


def test_a_holder_that_a_majority_does_not_answer_steps_down() -> None:
    election = holder()
    election, _ = told(election, 3.0, acked(B, 5), Tick())
    election, _ = told(election, 4.5, acked(B, 4), acked(X, 5), Tick())
    assert election.role == "holding"
    election, actions = told(election, 4.9, Tick())
    assert election.role == "holding"
    election, actions = told(election, 3.0 + LAPSE_S, Tick())
    assert actions == [StepDown("only 1 of 3 voters answer")]
    assert (election.role, election.holder) == ("following", None)


def test_a_holder_that_slept_asks_again_instead_of_going_on() -> None:
    election, actions = told(holder(), 500.0, Tick())
    assert [type(action) for action in actions] == [StepDown]
    assert election.role == "following"


def test_a_failed_campaign_raises_no_counter_and_backs_off() -> None:
    election = up()
    asked_at: list[float] = []
    for step in range(2000):
        now = step * 0.05
        election, actions = told(election, now, Tick())
        asked_at += [now for action in actions if isinstance(action, AskVotes)]
    assert election.counter == 4
    gaps = [later - sooner for sooner, later in pairwise(asked_at)]
    assert len(asked_at) > 10 and min(gaps) >= 0.6
    assert max(gaps) < 5.0


def test_the_better_voter_goes_first_and_the_next_when_it_does_not() -> None:
    election, _ = told(
        up(), 0.0, heard_peer(LogRank(4, 11, 0, B)), heard_peer(LogRank(4, 10, 0, C))
    )
    election, _ = told(
        election, 1.5, heard_peer(LogRank(4, 11, 0, B)), heard_peer(LogRank(4, 10, 0, C))
    )
    election, actions = told(election, LAPSE_S + 0.3, Tick())
    assert actions == []
    _, actions = told(election, LAPSE_S + 0.4, Tick())
    assert actions == [AskVotes(5, trial=True)]


def test_one_without_a_sound_journal_does_nothing_and_lets_go() -> None:
    election, actions = told(holder(), 2.1, Fitness(False))
    assert [type(action) for action in actions] == [StepDown]
    _, actions = told(election, 50.0, Tick(), ask(B, 99, log=(9, 99)))
    assert actions == [GiveVote(B, 99, False, False)]


def test_one_that_claimed_alone_yields_to_a_holder_by_votes_whatever_its_counter() -> None:
    alone = Election(me=X, rank=LogRank(0, 0, 0, X), counter=50)
    alone, _ = told(alone, 0.0, SwitchboardUp())
    assert (alone.role, alone.counter) == ("holding", 51)
    alone, actions = told(alone, 0.5, heard_beat(A, 5, VOTERS))
    assert [type(action) for action in actions] == [StepDown]
    assert alone.role == "following" and not alone.has_holder(0.6)
    holds, _ = told(holder(), 2.3, heard_beat(X, 51))
    assert holds.role == "holding", "nobody voted for it"
    holds, actions = told(holds, 2.4, heard_peer(alone.rank, counter=51, has_holder=False))
    assert actions[1:] == [AskVotes(52, trial=True)]
    _, actions = told(alone, 3.0, heard_beat(A, 52, VOTERS))
    assert actions == [PersistTerm(52, None)]
    _, actions = told(alone, 99.0, Tick())
    assert actions == [], "mDNS makes no voter"


# --- voters that the journal has forgotten ---


def test_a_forgotten_voter_neither_counts_nor_is_asked_and_a_majority_is_of_the_others() -> None:
    mine = MyRank(LogRank(4, 10, 0, A), gone=frozenset({C}))
    election, _ = told(up(), 0.1, mine)
    assert (election.electors, election.majority, election.voted) == ({A, B}, 2, True)
    election, _ = told(election, LAPSE_S, Tick(), yes(C, 5, trial=True))
    assert election.role == "asking", "the vote of one that is gone is none"
    election, actions = told(election, LAPSE_S, yes(B, 5, trial=True), yes(B, 5, trial=False))
    assert OpenTerm(5) in actions


def test_a_voter_that_its_own_journal_forgot_does_not_campaign_and_follows() -> None:
    election, _ = told(up(), 0.1, MyRank(LogRank(4, 10, 0, A), gone=frozenset({A})))
    election, actions = told(election, 3 * LAPSE_S, Tick())
    assert actions == []
    election, _ = told(election, 7.0, heard_beat(B, 6, VOTERS, 11))
    assert (election.holder, election.role) == (B, "following")


def test_a_vote_is_given_to_one_that_our_journal_forgot_if_its_log_is_as_good() -> None:
    forgot, _ = told(up(), 0.1, MyRank(LogRank(4, 10, 0, A), gone=frozenset({C})))
    _, (answer,) = told(forgot, 3.0, ask(C, 6, trial=True, log=(4, 9)))
    assert isinstance(answer, GiveVote) and not answer.granted
    _, (answer,) = told(forgot, 3.0, ask(C, 6, trial=True, log=(4, 10)))
    assert isinstance(answer, GiveVote) and answer.granted, "it may have been let back in"


def test_a_majority_is_of_those_that_count_when_a_campaign_has_begun_already() -> None:
    five = frozenset({A, B, C, X, NodeId("y")})
    election = replace(up(), voters=five)
    election, _ = told(election, LAPSE_S, Tick(), yes(C, 5, trial=True))
    election, _ = told(election, LAPSE_S, MyRank(LogRank(4, 10, 0, A), gone=frozenset({C})))
    assert election.majority == 3
    election, actions = told(election, LAPSE_S, yes(B, 5, trial=True))
    assert actions == [], "two of four"
    election, actions = told(election, LAPSE_S, yes(X, 5, trial=True))
    assert AskVotes(5, trial=False) in actions


def test_voters_change_only_once_a_majority_has_the_whole_log() -> None:
    candidate = Candidate(holder(), CandidateLog(Mirror(), RecentEvents()))
    forget = ForgetNode(command_id=CommandId("f"), node=C)
    candidate.log.mirror.state = ClusterState(term=5, index=12)
    candidate.log.acks.opened, candidate.log.acks.durable = 11, 12
    for appended, waits in ((0, True), (11, True), (12, False)):
        candidate.log.acks.appended = {B: appended}
        refusal = candidate.unsettled(forget, 2.1)
        assert (refusal is not None and refusal.reason == "pending") is waits, appended
    candidate.log.acks.appended = {}
    assert candidate.unsettled(forget.model_copy(update={"node": X}), 2.1) is None, "no voter"
    keep = KeepAlive(command_id=CommandId("k"), instance=InstanceId("i"), keep_alive_s=1.0)
    assert candidate.unsettled(keep, 2.1) is None


def test_a_voter_does_not_come_back_where_that_would_take_the_majority_out_of_reach() -> None:
    held = replace(holder(), voters=frozenset({A, B, C, X}), gone=frozenset({X}))
    candidate = Candidate(replace(held, acked_at={B: 2.0}), CandidateLog(Mirror(), RecentEvents()))
    candidate.log.mirror.state = ClusterState(term=5, index=12)
    candidate.log.acks.opened, candidate.log.acks.durable, candidate.log.acks.appended = (
        11,
        12,
        {B: 12},
    )
    back = ForgetNode(command_id=CommandId("r"), node=X, forgotten=False)
    refusal = candidate.unsettled(back, 2.1)
    assert refusal is not None and refusal.reason == "no_majority"
    assert refusal.facts["needed"] == 3
    candidate.election = replace(candidate.election, acked_at={B: 2.0, C: 2.0})
    assert candidate.unsettled(back, 2.1) is None
