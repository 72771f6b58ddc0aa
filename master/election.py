"""Who holds the term: candidates in a bully order, a term renewed before it lapses.

Pure: stimuli in, actions out, time arrives as `now`. A term is (counter, node id) and the
higher wins. A holder that falls silent for `LAPSE_S` has lapsed; then the best-ranked living
candidate claims (rank: last term and index in its journal, configured priority, node id), and
one that hears of nobody better than itself is the best. A node that knows no other candidate
claims at once. Churn of connections is no stimulus: only a set of peers that changed, a
heartbeat and time are. Order promised to the shell: `PersistTerm` before `OpenTerm`, and
`StepDown` before anything is done for another holder. (Bully: Garcia-Molina 1982.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from bus.ids import NodeId

LAPSE_S = 2.0
HEARTBEAT_S = 0.5

Role = Literal["starting", "following", "holding"]


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """How good a candidate is; the greatest claims first."""

    last_term: int
    last_index: int
    priority: int
    node: NodeId


# --- stimuli ---


@dataclass(frozen=True, slots=True)
class SwitchboardUp:
    """Our own switchboard answers: from now on silence means something."""


@dataclass(frozen=True, slots=True)
class HeardBeat:
    """A heartbeat of some holder, ourselves included."""

    holder: NodeId
    counter: int


@dataclass(frozen=True, slots=True)
class PeersKnown:
    """The other candidates that are known to exist (configured or met), and no others."""

    nodes: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class HeardPeer:
    """Another candidate lives, and how good it is."""

    rank: Rank


@dataclass(frozen=True, slots=True)
class MyRank:
    """What our own journal holds has grown."""

    rank: Rank


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Stimulus = SwitchboardUp | HeardBeat | PeersKnown | HeardPeer | MyRank | Tick


# --- actions ---


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Put the counter on the disk, fsynced, before anything else."""

    counter: int


@dataclass(frozen=True, slots=True)
class OpenTerm:
    """We hold the term: index `TermOpened`, start to beat."""

    counter: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """We hold it no longer: publish nothing more, answer `NotHolder`."""

    why: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Publish the heartbeat now."""


Action = PersistTerm | OpenTerm | StepDown | Beat


@dataclass(frozen=True, slots=True)
class Election:
    """What one candidate knows.

    `counter` is the highest ever seen and was persisted before it was used. `holder` is whose
    heartbeat was last accepted, at `heard_at`. `up_at` is None until our switchboard is up.
    `beaten_at` is when we last beat, as the holder. `living` maps peers to (rank, heard at).
    """

    me: NodeId
    rank: Rank
    counter: int
    role: Role = "starting"
    holder: NodeId | None = None
    heard_at: float = 0.0
    up_at: float | None = None
    beaten_at: float = 0.0
    peers: frozenset[NodeId] = frozenset()
    living: Mapping[NodeId, tuple[Rank, float]] = field(
        default_factory=dict[NodeId, tuple[Rank, float]]
    )


Outcome = tuple[Election, list[Action]]


def stimulate(election: Election, stimulus: Stimulus, now: float) -> Outcome:
    """What the candidate knows after `stimulus`, and what its shell has to do, in order."""
    match stimulus:
        case SwitchboardUp():
            if election.up_at is not None:
                return election, []
            return _tick(replace(election, up_at=now, heard_at=now, role="following"), now)
        case HeardBeat():
            return _beat(election, stimulus, now)
        case PeersKnown(nodes=nodes):
            others = nodes - {election.me}
            living = {node: seen for node, seen in election.living.items() if node in others}
            return _tick(replace(election, peers=others, living=living), now)
        case HeardPeer(rank=rank):
            if rank.node == election.me:
                return election, []
            living = {**election.living, rank.node: (rank, now)}
            peers = election.peers | {rank.node}
            return replace(election, living=living, peers=peers), []
        case MyRank(rank=rank):
            return replace(election, rank=rank), []
        case Tick():
            return _tick(election, now)
        case _:
            assert_never(stimulus)


def _beat(election: Election, beat: HeardBeat, now: float) -> Outcome:
    if beat.holder == election.me:
        return election, []
    theirs, ours = (beat.counter, beat.holder), (election.counter, election.holder or "")
    if theirs < ours:
        return election, []
    actions: list[Action] = []
    if election.role == "holding":
        actions.append(StepDown(f"{beat.holder} holds the higher term {beat.counter}"))
    if beat.counter > election.counter:
        actions.append(PersistTerm(beat.counter))
    role: Role = "starting" if election.up_at is None else "following"
    after = replace(
        election,
        role=role,
        counter=beat.counter,
        holder=beat.holder,
        heard_at=now,
        peers=election.peers | {beat.holder},
    )
    return after, actions


def _tick(election: Election, now: float) -> Outcome:
    if election.up_at is None:
        return election, []
    if election.role == "holding":
        return _renew(election, now)
    if not election.peers:
        return _claim(election, now)
    silent_s = now - max(election.heard_at, election.up_at)
    if silent_s < LAPSE_S or not _is_best(election, now):
        return election, []
    return _claim(election, now)


def _renew(election: Election, now: float) -> Outcome:
    late_s = now - election.beaten_at
    if late_s >= LAPSE_S:
        # We slept through our own term; whoever claimed meanwhile must be heard first.
        fresh = replace(election, role="following", holder=None, heard_at=now)
        after, actions = _tick(fresh, now)
        return after, [StepDown(f"silent for {late_s:.1f} s, the term has lapsed"), *actions]
    if late_s < HEARTBEAT_S:
        return election, []
    return replace(election, beaten_at=now), [Beat()]


def _claim(election: Election, now: float) -> Outcome:
    counter = election.counter + 1
    after = replace(
        election,
        role="holding",
        counter=counter,
        holder=election.me,
        heard_at=now,
        beaten_at=now,
    )
    return after, [PersistTerm(counter), OpenTerm(counter), Beat()]


def _is_best(election: Election, now: float) -> bool:
    return all(
        rank < election.rank
        for rank, heard_at in election.living.values()
        if now - heard_at < LAPSE_S
    )
