from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bus.wire.ids import NodeId
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.peers import Candidacy
from master.consensus.election import stimulate
from master.consensus.types import (
    DOUBT_S,
    HEARTBEAT_S,
    LAPSE_S,
    LOST_PATIENCE_S,
    Beat,
    Election,
    Fitness,
    LogRank,
    MyRank,
    OpenTerm,
    PeersKnown,
    PersistTerm,
    StepDown,
    SwitchboardLost,
    SwitchboardUp,
    Tick,
)
from tests.harness.elections import heard_beat, heard_peer

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def candidate(me: NodeId, *, counter: int = 0, index: int = 0) -> Election:
    return Election(me=me, rank=LogRank(counter, index, 0, me), counter=counter)


def test_a_node_of_its_own_takes_the_term_at_once_and_persists_it_first() -> None:
    election, actions = stimulate(candidate(A, counter=6), SwitchboardUp(), 10.0)
    assert actions == [PersistTerm(7, None), OpenTerm(7), Beat()]
    assert (election.role, election.counter, election.holder) == ("holding", 7, A)


def test_nothing_is_claimed_before_the_own_switchboard_is_up() -> None:
    election, actions = stimulate(candidate(A), Tick(), 100.0)
    assert (election.role, actions) == ("starting", [])


def test_a_holder_beats_twice_a_second() -> None:
    election, _ = stimulate(candidate(A), SwitchboardUp(), 0.0)
    beats = 0
    for step in range(1, 101):
        election, actions = stimulate(election, Tick(), step * 0.1)
        beats += actions.count(Beat())
    assert beats == pytest.approx(10.0 / HEARTBEAT_S, abs=2)


def test_with_rivals_known_a_full_lapse_of_silence_has_to_pass() -> None:
    election, _ = stimulate(candidate(B), PeersKnown(frozenset({A, B})), 0.0)
    election, actions = stimulate(election, SwitchboardUp(), 5.0)
    assert actions == []
    election, actions = stimulate(election, Tick(), 5.0 + LAPSE_S - 0.01)
    assert actions == []
    election, actions = stimulate(election, Tick(), 5.0 + LAPSE_S)
    assert OpenTerm(1) in actions


def test_a_silent_holder_is_challenged_when_its_term_lapses_and_not_before() -> None:
    election, _ = stimulate(candidate(A), PeersKnown(frozenset({B})), 0.0)
    election, _ = stimulate(election, SwitchboardUp(), 0.0)
    election, actions = stimulate(election, heard_beat(B, 4), 1.9)
    assert actions == [PersistTerm(4, None)]
    election, actions = stimulate(election, Tick(), 3.8)
    assert actions == []
    _, actions = stimulate(election, Tick(), 3.9)
    assert actions == [PersistTerm(5, None), OpenTerm(5), Beat()]


def test_the_lower_ranked_leaves_the_claim_to_a_better_one_that_lives() -> None:
    election, _ = stimulate(candidate(A), SwitchboardUp(), 0.0)
    election = replace(election, role="following", holder=None, peers=frozenset({B}))
    election, _ = stimulate(election, heard_peer(LogRank(1, 50, 0, B)), 1.0)
    election, actions = stimulate(election, Tick(), 2.5)
    assert actions == []
    election, actions = stimulate(election, Tick(), 1.0 + LAPSE_S)
    assert OpenTerm(2) in actions, "the better one fell silent"


@pytest.mark.parametrize(("index", "claims"), [(7, True), (8, False)])
def test_one_that_was_only_just_started_is_waited_for_if_its_log_holds_more(
    index: int, claims: bool
) -> None:
    election, _ = stimulate(candidate(A, counter=1, index=7), PeersKnown(frozenset({B})), 0.0)
    election, _ = stimulate(election, SwitchboardUp(), 0.0)
    restarted = heard_peer(LogRank(1, index, 0, B), counter=1, warmed_up=False)
    election, _ = stimulate(election, restarted, LAPSE_S - 0.1)
    _, actions = stimulate(election, Tick(), LAPSE_S)
    assert (OpenTerm(2) in actions) is claims


def just_up(*peers: NodeId, members: tuple[NodeId, ...] = (), index: int = 7) -> Election:
    """A candidate that has met `peers`, whose log names `members`, up since 0.0."""
    election = replace(candidate(B, counter=1, index=index), members=frozenset(members))
    election, _ = stimulate(election, PeersKnown(frozenset(peers)), 0.0)
    return stimulate(election, SwitchboardUp(), 0.0)[0]


def unled(
    node: NodeId, index: int = 7, *, eligible: bool = True, has_holder: bool = False
) -> Candidacy:
    return heard_peer(
        LogRank(1, index, 0, node), eligible, counter=1, has_holder=has_holder, warmed_up=False
    )


def test_when_all_that_are_known_have_no_holder_either_the_best_waits_no_longer() -> None:
    election, _ = stimulate(just_up(A, members=(A,)), unled(A), 0.3)
    _, actions = stimulate(election, Tick(), 0.4)
    assert OpenTerm(2) in actions


@pytest.mark.parametrize(
    ("members", "heard"),
    [
        ((A, C), [unled(A)]),
        ((A,), []),
        ((A,), [unled(A, has_holder=True)]),
        ((A,), [unled(A, 8)]),
        ((A, C), [unled(A), unled(C)]),
        ((A,), [unled(A), heard_beat(A, 1)]),
    ],
    ids=["one unheard", "none heard", "led", "better", "as good with a better name", "a holder"],
)
def test_otherwise_a_starting_candidate_waits_a_lapse(
    members: tuple[NodeId, ...], heard: list[Candidacy | TermHeartbeat]
) -> None:
    election = just_up(A, members=members)
    for stimulus in heard:
        election, _ = stimulate(election, stimulus, 0.3)
    assert stimulate(election, Tick(), 0.4)[1] == []


def test_one_that_cannot_be_relied_on_does_not_go_first() -> None:
    worse, _ = stimulate(just_up(A), Fitness(False), 0.1)
    worse, _ = stimulate(worse, unled(A, 3), 0.3)
    assert stimulate(worse, Tick(), 0.4)[1] == []


@pytest.mark.parametrize(("index", "claims"), [(0, True), (3, False)])
def test_one_whose_journal_is_damaged_leaves_the_term_to_any_but_an_empty_one(
    index: int, claims: bool
) -> None:
    damaged, _ = stimulate(just_up(A), Fitness(False, lost=True), 0.1)
    for at in range(1, int(LOST_PATIENCE_S) + 1):
        assert stimulate(damaged, Tick(), at - 0.1)[1] == [], "another may still start"
        damaged, _ = stimulate(damaged, heard_peer(LogRank(1, index, 0, A)), at - 0.1)
    _, actions = stimulate(damaged, Tick(), LOST_PATIENCE_S)
    assert (OpenTerm(2) in actions) is claims


def test_alone_one_whose_journal_is_damaged_goes_on_at_once() -> None:
    election, _ = stimulate(candidate(A, counter=1, index=7), Fitness(False, lost=True), 0.0)
    _, actions = stimulate(election, SwitchboardUp(), 0.1)
    assert OpenTerm(2) in actions


def test_who_had_a_holder_and_lost_it_waits_a_lapse() -> None:
    election, _ = stimulate(just_up(A), heard_beat(A, 1), 0.1)
    election = replace(election, holder=None)
    election, _ = stimulate(election, unled(A), 0.3)
    assert stimulate(election, Tick(), 0.4)[1] == []


def test_a_longer_log_ranks_above_priority_and_priority_above_the_name() -> None:
    assert LogRank(2, 1, 0, A) > LogRank(1, 99, 9, B) > LogRank(1, 98, 10, C)
    assert LogRank(1, 1, 5, A) > LogRank(1, 1, 4, C)


def test_a_holder_that_hears_of_a_higher_term_steps_down_before_all_else() -> None:
    election, _ = stimulate(candidate(A), SwitchboardUp(), 0.0)
    election, actions = stimulate(election, heard_beat(B, 2), 0.2)
    assert isinstance(actions[0], StepDown)
    assert actions[1:] == [PersistTerm(2, None)]
    assert (election.role, election.holder) == ("following", B)


def test_a_lower_term_and_the_own_echo_change_nothing() -> None:
    election, _ = stimulate(candidate(C, counter=4), SwitchboardUp(), 0.0)
    for beat in (heard_beat(B, 4), heard_beat(C, 5), heard_beat(C, 9), heard_beat(B, 5)):
        election, actions = stimulate(election, beat, 0.1)
        assert actions == []
        assert (election.role, election.counter, election.holder) == ("holding", 5, C)


def test_a_holder_that_slept_through_its_own_term_steps_down_before_it_claims_anew() -> None:
    election, _ = stimulate(candidate(A), SwitchboardUp(), 0.0)
    _, actions = stimulate(election, Tick(), 100.0)
    assert isinstance(actions[0], StepDown)
    assert actions[1:] == [PersistTerm(2, None), OpenTerm(2), Beat()], "alone: nobody to wait for"
    rivals, _ = stimulate(election, PeersKnown(frozenset({B})), 0.1)
    rivals, actions = stimulate(rivals, Tick(), 100.0)
    assert len(actions) == 1 and isinstance(actions[0], StepDown)
    assert rivals.role == "following"


def test_a_holder_outlives_its_switchboard_for_a_lapse_and_no_longer() -> None:
    election, _ = stimulate(candidate(A), SwitchboardUp(), 0.0)
    heard = {1.0: SwitchboardLost(), 2.5: SwitchboardUp()}
    for now in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5):
        election, _ = stimulate(election, heard.get(now, Tick()), now)
    assert election.role == "holding", "it came back in time"
    election, _ = stimulate(election, SwitchboardLost(), 4.0)
    for now in (4.5, 5.0, 5.5):
        election, _ = stimulate(election, Tick(), now)
    election, actions = stimulate(election, Tick(), 4.0 + LAPSE_S)
    assert [type(action) for action in actions] == [StepDown]
    election, actions = stimulate(election, Tick(), 60.0)
    assert (election.role, actions) == ("starting", [])
    _, actions = stimulate(election, SwitchboardUp(), 61.0)
    assert OpenTerm(2) in actions


def test_of_two_claims_to_one_counter_the_one_with_more_in_its_log_stays() -> None:
    for me, other, index, holds in ((A, B, 3, False), (A, B, 2, True), (B, A, 3, False)):
        election, _ = stimulate(candidate(me), SwitchboardUp(), 0.0)
        election, _ = stimulate(election, MyRank(LogRank(1, 2 if index == 3 else 3, 0, me)), 0.1)
        election, _ = stimulate(election, heard_beat(other, 1, index=index), 0.2)
        assert (election.role == "holding") is holds
        assert election.holder == (me if holds else other)


def test_who_follows_one_of_two_claims_stays_until_that_is_silent() -> None:
    election, _ = stimulate(candidate(A), PeersKnown(frozenset({B, C})), 0.0)
    election, _ = stimulate(election, SwitchboardUp(), 0.0)
    election, _ = stimulate(election, heard_beat(B, 1), 0.1)
    election, _ = stimulate(election, heard_beat(C, 1, index=9), 0.2)
    assert election.holder == B
    election, _ = stimulate(election, heard_beat(C, 1, index=9), 0.1 + LAPSE_S)
    assert election.holder == C


def test_one_that_has_ever_had_company_waits_a_lapse_before_it_claims() -> None:
    election, _ = stimulate(replace(candidate(A), expects_peers=True), SwitchboardUp(), 0.0)
    election, actions = stimulate(election, PeersKnown(frozenset()), 0.1)
    assert actions == [], "nobody is in reach yet, which says nothing so early"
    _, actions = stimulate(election, Tick(), LAPSE_S)
    assert OpenTerm(1) in actions


def test_a_holder_raises_its_term_above_one_whose_candidate_cannot_follow_it() -> None:
    election, _ = stimulate(candidate(A), SwitchboardUp(), 0.0)
    election, actions = stimulate(election, heard_peer(LogRank(0, 0, 0, B), counter=9), 0.1)
    assert actions == [], "it has a holder: that one's heartbeat will decide"
    _, actions = stimulate(
        election, heard_peer(LogRank(0, 0, 0, B), counter=9, has_holder=False), 0.2
    )
    assert isinstance(actions[0], StepDown)
    assert actions[1:] == [PersistTerm(10, None), OpenTerm(10), Beat()]


def test_a_holder_whose_journal_only_counts_gives_way_once_another_has_its_log() -> None:
    election, _ = stimulate(candidate(A, index=5), SwitchboardUp(), 0.0)
    election, actions = stimulate(election, Fitness(False), 0.1)
    assert actions == [], "alone it goes on"
    behind, level = LogRank(0, 4, 0, B), LogRank(0, 5, 0, B)
    election, actions = stimulate(election, heard_peer(behind, counter=1), 0.2)
    assert actions == []
    election, actions = stimulate(election, heard_peer(level, eligible=False, counter=1), 0.3)
    assert actions == [], "that one is no better"
    election, actions = stimulate(election, heard_peer(level, counter=1), 0.4)
    assert [type(action) for action in actions] == [StepDown]
    election, _ = stimulate(election, heard_peer(level, counter=1), 2.3)
    _, actions = stimulate(election, Tick(), 3.0)
    assert actions == [], "it leaves the term to the other"


@pytest.mark.parametrize("seed", range(20))
def test_rivals_that_hear_each_other_converge_on_one_holder(seed: int) -> None:
    """Three candidates, lossy heartbeats for 20 s, then a healed network."""
    chance = random.Random(seed)
    names = [A, B, C]
    peers = PeersKnown(frozenset(names))
    elections = {n: stimulate(candidate(n, index=i), peers, 0.0)[0] for i, n in enumerate(names)}

    def act(name: NodeId, stimulus: object, now: float, *, loss: float) -> None:
        elections[name], actions = stimulate(elections[name], stimulus, now)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, Beat | OpenTerm):
                mine = elections[name]
                beat = heard_beat(name, mine.counter, index=mine.rank.last_index)
                for other in names:
                    if other != name and chance.random() >= loss:
                        act(other, beat, now, loss=loss)

    for name in names:
        act(name, SwitchboardUp(), chance.random(), loss=0.0)
    for step in range(400):
        now, loss = 1 + step * 0.1, (0.6 if step < 200 else 0.0)
        for name in names:
            for other in names:
                if step % 5 == 0 and chance.random() >= loss:
                    act(other, heard_peer(elections[name].rank), now, loss=loss)
            act(name, Tick(), now, loss=loss)
    holders = [n for n in names if elections[n].role == "holding"]
    assert len(holders) == 1
    assert {elections[n].holder for n in names} == set(holders)
    assert len({elections[n].counter for n in names}) == 1


# --- claims that differ in who follows them ---


def holding(followers: int, *, counter: int = 4, index: int = 9) -> Election:
    """A holder whom so many others have just answered, at 1.0."""
    known = candidate(A, counter=counter, index=index)
    acked = {NodeId(f"f{n}"): 1.0 for n in range(followers)}
    return replace(
        known, role="holding", holder=A, up_at=0.0, beaten_at=1.0, heard_at=1.0, acked_at=acked,
        expects_peers=True,
    )  # fmt: skip


def follower(of: NodeId, followers: int) -> Election:
    election, _ = stimulate(candidate(A), PeersKnown(frozenset({B, C})), 0.0)
    election, _ = stimulate(election, SwitchboardUp(), 0.0)
    election, _ = stimulate(election, heard_beat(of, 4, index=9, followers=followers), 1.0)
    assert election.holder == of
    return election


def test_a_holder_gives_way_to_no_higher_claim_that_fewer_follow_but_goes_above_it() -> None:
    election, actions = stimulate(holding(2), heard_beat(B, 7, index=90), 1.1)
    assert (election.role, election.counter, actions) == ("holding", 4, [])
    alone = heard_peer(LogRank(7, 90, 0, B), counter=7, has_holder=False)
    election, actions = stimulate(election, alone, 1.2)
    assert [type(one) for one in actions] == [StepDown, PersistTerm, OpenTerm, Beat]
    assert (election.role, election.counter) == ("holding", 8)
    assert election.weight(1.2) == 2, "who followed it before still does"


def test_a_holder_gives_way_to_a_lower_claim_that_more_follow_and_waits_for_a_higher() -> None:
    election, actions = stimulate(holding(1, counter=7), heard_beat(B, 4, followers=2), 1.1)
    assert [type(one) for one in actions] == [StepDown]
    assert (election.role, election.holder, election.counter) == ("following", None, 7)
    assert not election.has_holder(1.1), "so that the other hears that it has to go above 7"
    election, _ = stimulate(election, heard_beat(B, 8, followers=2), 1.5)
    assert (election.holder, election.counter) == (B, 8)


@pytest.mark.parametrize(("mine", "theirs"), [(0, 0), (1, 1), (1, 3)])
def test_of_claims_that_as_many_or_more_follow_the_higher_is_followed(
    mine: int, theirs: int
) -> None:
    election, actions = stimulate(holding(mine), heard_beat(B, 5, followers=theirs), 1.1)
    assert (election.role, election.holder, election.counter) == ("following", B, 5)
    assert actions[-1] == PersistTerm(5, None)
    assert isinstance(actions[0], StepDown)


def test_a_follower_stays_with_a_holder_that_more_follow_until_it_is_silent() -> None:
    lone = heard_beat(C, 9, followers=0)
    election, _ = stimulate(follower(B, 2), lone, 1.2)
    assert (election.holder, election.counter) == (B, 4)
    election, _ = stimulate(election, lone, 1.0 + DOUBT_S)
    assert (election.holder, election.counter) == (C, 9)


def test_who_answered_long_ago_follows_no_more() -> None:
    election = holding(2)
    assert election.weight(1.0 + LAPSE_S - 0.01) == 2
    assert election.weight(1.0 + LAPSE_S) == 0
    election, _ = stimulate(election, heard_beat(B, 5), 1.0 + LAPSE_S)
    assert election.holder == B
