"""The election of the leader: by rank, or by votes if voters are configured.

Pure: it takes stimuli and returns actions; time arrives as `now`. A term is (counter, node id), and
a higher counter wins. A leader that is silent for `LAPSE_S` (2 s, called *a lapse* below) has
lapsed. Then the best-ranked living candidate goes first (rank: last term and index in its journal,
configured priority, node id).

With three or more voters (`master.consensus.votes`) a majority elects the leader, one vote each. A
leader that a majority does not answer within a lapse steps down. Without voters the best candidate
claims the term (bully algorithm: Garcia-Molina 1982), at once if it knows no other candidate. If
two candidates claim it, the claimant that more candidates follow wins; if equal, the higher
counter; if equal, the longer log. So a node that was cut off follows when it returns, however high
its counter: the leader sees that counter and takes a higher one. A candidate that is not `eligible`
(its journal cannot be written, is damaged or was lost) neither votes nor leads while another can.

A leader whose node shuts down in order hands its term over (Raft's leadership transfer, Ongaro
2014, 3.10) to a candidate with all of its log. It steps down first; the other asks for votes or
claims at once, and followers of the old term do not wait for that leader's silence.

A connection to another candidate that is made or lost is no stimulus. A changed set of peers, a
message and time are stimuli, and so is our own switchboard coming up or going down. A candidate
claims only after its own switchboard has been up for a full lapse, unless all known candidates
report that they have no leader. It leads at most one lapse without its switchboard. Order promised
to the shell: `PersistTerm` before the `OpenTerm`, question or vote that follows it, and `StepDown`
before anything is done for another leader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from bus.wire.ids import NodeId
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.peers import AppendAck, AskVote, Candidacy, HandOver, Vote
from master.consensus import types
from master.consensus.types import LAPSE_S, Action, Election, Outcome, PersistTerm, Send, StepDown
from master.consensus.votes import answer_ask, campaign, opened, reached, stand, voice


def stimulate(election: Election, stimulus: types.Stimulus, now: float) -> Outcome:
    """Return the election after `stimulus`, and the actions for the shell, in order."""
    match stimulus:
        case types.SwitchboardUp():
            if election.up_at is not None:
                return replace(election, lost_at=None), []
            return _tick(replace(election, up_at=now, heard_at=now, role="following"), now)
        case types.SwitchboardLost():
            before = election.up_at is not None and election.lost_at is None
            return (replace(election, lost_at=now) if before else election), []
        case TermHeartbeat():
            return _beat(election, stimulus, now)
        case types.PeersKnown(nodes=nodes):
            others = nodes - {election.me}
            living = {node: seen for node, seen in election.living.items() if node in others}
            expects_peers = election.expects_peers or bool(others)
            after = replace(election, peers=others, living=living, expects_peers=expects_peers)
            return _tick(after, now)
        case Candidacy():
            return _peer(election, stimulus, now)
        case types.MyRank(rank=rank, gone=gone):
            return replace(election, rank=rank, gone=gone), []
        case types.Fitness():
            return _fitness(election, stimulus)
        case AskVote():
            return answer_ask(election, stimulus, now)
        case Vote():
            return voice(election, stimulus, now)
        case AppendAck(node=node, counter=counter):
            if election.role != "holding" or counter != election.counter:
                return election, []
            return replace(election, acked_at={**election.acked_at, node: now}), []
        case HandOver():
            return _handed(election, stimulus, now)
        case types.HandOn(to=to):
            return _hand_on(election, to, now)
        case types.Leave():
            return replace(election, leaving=True), []
        case types.Tick():
            return _tick(election, now)
        case _:
            assert_never(stimulus)


def _beat(election: Election, beat: TermHeartbeat, now: float) -> Outcome:
    if beat.holder == election.me or _is_of_handed(election, beat):
        return election, []
    election = replace(election, seen=max(election.seen, beat.counter), expects_peers=True)
    if election.voted and beat.holder not in election.voters:
        return election, []
    if beat.voters and not election.voted:
        return _enrolled(election, beat, now)
    handed = beat.handed is not None and beat.handed == election.term
    if not election.voted and beat.holder != election.holder and not handed:
        weight = election.weight(now)
        if weight is not None and beat.followers < weight:
            return election, []
        if election.role == "holding" and weight is not None and beat.followers > weight:
            return _outweighed(election, beat, now)
    if beat.counter < election.counter or _ties(election, beat, now):
        return election, []
    actions: list[Action] = []
    if election.role == "holding":
        actions.append(StepDown(f"{beat.holder} leads in the higher term {beat.counter}"))
    if beat.counter > election.counter:
        actions.append(PersistTerm(beat.counter, None))
        election = replace(election, voted_for=None)
    after = replace(
        election,
        role=election.idle_role,
        counter=beat.counter,
        holder=beat.holder,
        heard_at=now,
        tries=0,
        followers=beat.followers,
        peers=election.peers | {beat.holder},
        handed=None,
    )
    return after, actions


def _is_of_handed(election: Election, beat: TermHeartbeat) -> bool:
    """Return whether a heartbeat comes too late: its leader has already handed that term over to
    us."""
    given = election.handed
    return given is not None and (given.counter, given.holder) == (beat.counter, beat.holder)


def _outweighed(election: Election, beat: TermHeartbeat, now: float) -> Outcome:
    """Step down in favour of a leader that more candidates follow. If its counter is lower than
    ours, we cannot follow it yet. Our next message then says that we have no leader, and so that
    leader takes a higher counter."""
    why = f"{beat.followers} candidates follow {beat.holder}, {election.weight(now)} follow us"
    given = replace(election, role="following", holder=None, heard_at=now)
    after, actions = (given, []) if beat.counter < election.counter else _beat(given, beat, now)
    return after, [StepDown(why), *actions]


def _ties(election: Election, beat: TermHeartbeat, now: float) -> bool:
    """Return whether another candidate's claim has the same counter as ours and is not better. If
    two leaders have the same counter, the one with the shorter log yields. A follower keeps its
    leader until that leader is silent."""
    if beat.counter != election.counter or beat.holder == election.holder:
        return False
    if election.role == "holding":
        return (beat.index, beat.holder) < (election.rank.last_index, election.me)
    return election.has_holder(now)


def _enrolled(election: Election, beat: TermHeartbeat, now: float) -> Outcome:
    """Learn from a leader's heartbeat that this cluster has voters, and that we are not one of
    them. Step down if we lead, and follow the elected leaders without a vote from now on."""
    actions: list[Action] = []
    if election.role == "holding":
        actions.append(StepDown(f"{beat.holder} was elected by {len(beat.voters)} voters"))
    learned = replace(
        election,
        role=election.idle_role,
        voters=frozenset(beat.voters),
        may_vote=False,
        holder=None,
        heard_at=now,
    )
    after, more = _beat(learned, beat, now)
    return after, [*actions, *more]


def _peer(election: Election, candidacy: Candidacy, now: float) -> Outcome:
    node = candidacy.node
    if node == election.me:
        return election, []
    rank = types.LogRank(candidacy.last_term, candidacy.last_index, candidacy.priority, node)
    seen = types.PeerState(rank, candidacy.fit, now, candidacy.settled, candidacy.led)
    election = replace(
        election,
        living={**election.living, node: seen},
        peers=election.peers | {node},
        seen=max(election.seen, candidacy.counter),
        expects_peers=True,
    )
    if election.role != "holding":
        return election, []
    if not election.eligible and candidacy.fit and rank.log >= election.rank.log:
        after = replace(election, role="following", holder=None, heard_at=now)
        return after, [StepDown(f"this node cannot write its journal; {node} can lead instead")]
    if candidacy.led or candidacy.counter <= election.counter:
        return election, []
    return _outbid(election, now)


def _outbid(election: Election, now: float) -> Outcome:
    """Take a term with a higher counter, because a candidate without a leader has a higher counter
    than our term and so cannot follow us."""
    down = StepDown(
        f"a candidate cannot follow term {election.counter}; starting a term above {election.seen}"
    )
    if election.voted:
        after, actions = campaign(election, now)
    else:
        claimed, actions = _claim(replace(election, handed=None), now)
        after = replace(claimed, acked_at=election.acked_at)
    return after, [down, *actions]


def _fitness(election: Election, fitness: types.Fitness) -> Outcome:
    after = replace(election, eligible=fitness.eligible, lost=fitness.lost)
    if fitness.eligible or not election.voted or election.role in ("starting", "following"):
        return after, []
    down: list[Action] = []
    if election.role == "holding":
        down.append(StepDown("this node's journal is no longer reliable"))
    return replace(after, role="following", holder=None), down


def _hand_on(election: Election, to: NodeId, now: float) -> Outcome:
    """Step down in favour of another candidate and tell it. Repeated calls repeat the message."""
    if not election.leaving:
        return election, []
    term, actions = election.handed, list[Action]()
    if election.role == "holding":
        term = election.term
        actions.append(StepDown(f"this node is shutting down; the term passes to {to}"))
        election = replace(
            election, role=election.idle_role, holder=None, heard_at=now, handed=term
        )
    if term is None or election.holder is not None:
        return election, []
    over = HandOver(term=term, index=election.rank.last_index)
    return election, [*actions, Send(to, over)]


def _handed(election: Election, over: HandOver, now: float) -> Outcome:
    """Claim a new term immediately if we follow the leader that hands its term over. If we already
    stood for that term and were not elected, try again."""
    is_current = over.term in (election.term, election.handed)
    able = election.eligible and not election.leaving and election.lost_at is None
    if not (is_current and able and election.role == "following"):
        return election, []
    if over.index > election.rank.last_index:
        return election, []
    heir = replace(election, holder=None, handed=over.term)
    if not election.voted:
        return _claim(heir, now)
    if election.me not in election.electors or not election.may_vote:
        return election, []
    return stand(heir, now)


def _tick(election: Election, now: float) -> Outcome:
    if election.up_at is None:
        return election, []
    if election.lost_at is not None and now - election.lost_at >= LAPSE_S:
        down = (
            [StepDown("the switchboard of this node does not answer")]
            if election.role == "holding"
            else []
        )
        holder = None if down else election.holder
        after = replace(election, role="starting", up_at=None, lost_at=None, holder=holder)
        return after, [*down]
    if election.role == "holding":
        return _renew(election, now)
    if election.leaving:
        return election, []
    if election.voted:
        return _stand(election, now)
    patience_s = types.LOST_PATIENCE_S if election.lost else LAPSE_S
    is_due = now - election.heard_at >= patience_s and _is_best(election, now)
    if is_due or not election.expects_peers or _is_awaited(election, now):
        return _claim(replace(election, handed=None), now)
    return election, []


def _renew(election: Election, now: float) -> Outcome:
    late_s = now - election.beaten_at
    if late_s >= LAPSE_S:
        # We slept through our own term; whoever claimed meanwhile must be heard first.
        fresh = replace(election, role="following", holder=None, heard_at=now)
        after, actions = _tick(fresh, now)
        return after, [
            StepDown(f"no heartbeat was sent for {late_s:.1f} s; the term has lapsed"),
            *actions,
        ]
    if election.voted:
        here = reached(election.acked_at, election, now)
        if here < election.majority:
            why = f"only {here} of {len(election.electors)} voters answer"
            after = replace(election, role="following", holder=None, heard_at=now)
            return after, [StepDown(why)]
    if late_s < types.HEARTBEAT_S:
        return election, []
    return replace(election, beaten_at=now), [types.Beat()]


def _stand(election: Election, now: float) -> Outcome:
    """Ask for votes if we are a voter without a leader and it is our turn."""
    if election.me not in election.electors or not election.may_vote or not election.eligible:
        return election, []
    if election.role in ("asking", "campaigning"):
        if now - election.asked_at < election.patience_s:
            return election, []
        tries = election.tries + 1
        election = replace(election, role="following", tries=tries, waits_from=now)
    lapses_at = election.heard_at + LAPSE_S
    if now < max(lapses_at, election.waits_from) + election.backoff_s(_ahead(election, now)):
        return election, []
    return campaign(election, now)


def _claim(election: Election, now: float) -> Outcome:
    counter = max(election.counter, election.seen) + 1
    after = opened(replace(election, counter=counter, voted_for=None), now)
    return after, [PersistTerm(counter, None), types.OpenTerm(counter), types.Beat()]


def _ahead(election: Election, now: float) -> int:
    """Return the number of living voters that rank above us."""
    return sum(
        election.outranked_by(seen, now)
        for node, seen in election.living.items()
        if node in election.electors and seen.eligible
    )


def _is_awaited(election: Election, now: float) -> bool:
    """Return whether every known candidate is alive, reports no leader and ranks no better than
    us, so that we need not wait. False after any heartbeat since our switchboard came up."""
    others = election.peers | election.members
    if not others or election.holder is not None or election.heard_at != election.up_at:
        return False
    heard = [election.living.get(node) for node in others]
    return all(
        seen is not None
        and now - seen.heard_at < LAPSE_S
        and not seen.has_holder
        and seen.standing < election.standing
        for seen in heard
    )


def _is_best(election: Election, now: float) -> bool:
    return not any(election.outranked_by(seen, now) for seen in election.living.values())
