"""The words of a candidate: what its election knows and hears, what its shell has to do.

Pure data; what is to be done comes in its order. `master.consensus.election` and
`master.consensus.votes` say what follows from what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from bus.wire.instances import Instance
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.peers import (
    AppendAck,
    AskVote,
    Candidacy,
    HandedTerm,
    HandOver,
    Vote,
)
from bus.wire.messages.wire import Message

LAPSE_S = 2.0
HEARTBEAT_S = 0.5
DOUBT_S = 1.5
"""A voter that has not heard the holder for this long votes for another: sooner than it lapses,
so that the first to campaign does not ask too early."""
FEWEST_VOTERS = 3
"""With fewer no majority survives the loss of one, and votes would only stand in the way."""
TURN_S = 0.2
"""A voter lets each better one that lives have so much of a start."""
PATIENCE_S = 0.6
"""A campaign that has not been decided after this long is over."""
HAND_OVER_S = 1.0
"""A holder that ends in order waits at most so long until another holds the term."""
HEIR_S = 0.4
"""A candidate that was handed the term and has not taken it after this long is given up for the
next one."""
LOST_PATIENCE_S = 30.0
"""Without voters, one whose journal is damaged lets others have so long to start before it claims:
after a power cut the log may be whole on another."""

Role = Literal["starting", "following", "asking", "campaigning", "holding"]
"""`asking` whether votes would be given (a trial), then `campaigning` for them."""


@dataclass(frozen=True, slots=True, order=True)
class LogRank:
    """How good a candidate is; the greatest goes first."""

    last_term: int
    last_index: int
    priority: int
    node: NodeId

    @property
    def log(self) -> tuple[int, int]:
        """Return where its journal ends, (term, index): all that a voter may compare."""
        return self.last_term, self.last_index


Standing = tuple[bool, bool, LogRank]


def standing(eligible: bool, rank: LogRank) -> Standing:
    """Return how good a candidate is as a holder: a journal that can be relied on goes before one
    that cannot, but an empty one, which would undo everything, before none."""
    return rank.last_index > 0, eligible, rank


@dataclass(frozen=True, slots=True)
class PeerState:
    """The last that was heard of another candidate, and when. `warmed_up`: it may claim by now;
    `has_holder`: it knew a holder."""

    rank: LogRank
    eligible: bool
    heard_at: float
    warmed_up: bool = True
    has_holder: bool = True

    @property
    def standing(self) -> Standing:
        """Return how good it is as a holder."""
        return standing(self.eligible, self.rank)


@dataclass(frozen=True, slots=True)
class PersistentState:
    """What the disk keeps of past terms. `began`: the journal has held events, so an empty one
    was lost. `garbled`: there was a file, and it cannot be read."""

    counter: int = 0
    voted_for: NodeId | None = None
    began: bool = False
    garbled: bool = False


# --- stimuli ---


@dataclass(frozen=True, slots=True)
class SwitchboardUp:
    """Our own switchboard answers: from now on silence means something."""


@dataclass(frozen=True, slots=True)
class SwitchboardLost:
    """Our own switchboard answers no more: only candidates can hear us."""


@dataclass(frozen=True, slots=True)
class PeersKnown:
    """The other candidates that are known to exist (configured or met), and no others."""

    nodes: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class MyRank:
    """What our own journal holds has changed; `gone` are the nodes it has forgotten."""

    rank: LogRank
    gone: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True)
class Fitness:
    """Whether our own journal can be relied on; `lost`: because it was damaged or is gone."""

    eligible: bool
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """Our node is going down in order: take no term any more."""


@dataclass(frozen=True, slots=True)
class HandOn:
    """Hand our term on to the candidate `to`, whose log is the whole of ours."""

    to: NodeId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Said = TermHeartbeat | Candidacy | AskVote | Vote | AppendAck | HandOver
"""What candidates say to each other, and a holder (ourselves included) to all."""
Stimulus = (
    Said | SwitchboardUp | SwitchboardLost | PeersKnown | MyRank | Fitness | Leave | HandOn | Tick
)


# --- actions ---


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Put the counter, and whom our vote in it went to, on the disk, fsynced, before anything
    else. With voters, what follows must not be done where this fails."""

    counter: int
    voted_for: NodeId | None


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


@dataclass(frozen=True, slots=True)
class Send:
    """Send to one other candidate; lost is lost."""

    to: NodeId
    message: Message


Action = PersistTerm | OpenTerm | StepDown | Beat | Send
"""What an election wants done; a candidate whole wants what follows, too."""


@dataclass(frozen=True, slots=True)
class Append:
    """Write the event to the journal; `after` is the state behind it."""

    event: Event
    after: ClusterState


@dataclass(frozen=True, slots=True)
class Replace:
    """Begin the journal anew with this state: what it held was of another log, or too old.
    `undone` are those commands' events in it that the new one lacks, `let_go` the copies of models
    that it held and the new one does not."""

    state: ClusterState
    undone: tuple[Event, ...] = ()
    let_go: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Mended:
    """The log, which was lost, is whole again: keep that, behind all that was to be appended."""


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """Publish an event that was appended."""

    event: Event


@dataclass(frozen=True, slots=True)
class Spread:
    """Send to every other candidate that is known."""

    message: Message


@dataclass(frozen=True, slots=True)
class Left:
    """We were told to leave, and there is nothing to wait for any more."""


Act = Action | Append | Replace | Mended | PublishEvent | Spread | Left


@dataclass(frozen=True, slots=True)
class Election:
    """What one candidate knows.

    `counter` is that of the highest term taken part in, and was persisted before it was used,
    with `voted_for`, whom our vote in it went to. `seen` is the highest heard of anywhere.
    `holder` is whose heartbeat was last accepted, at `heard_at` (never before we were up).
    `up_at` is None until our switchboard is up, `lost_at` when it was lost since. `beaten_at` is
    when we last beat, as the holder. `voters` are configured or, with `may_vote` False, learned
    from a holder; those that our journal has forgotten, `gone`, count no more. `votes` are those
    of the campaign that began at `asked_at` for `asked_for`; it is the `tries`-th in a row, and
    after one that failed nothing is begun before `waits_from` and some. `acked_at` maps
    candidates to when they last answered our heartbeats; so many `followers` our holder has, by
    its last one. `expects_peers` is False as long as no other node was ever known: then there is
    none to wait for. `members` are the others that our log named when we started. `eligible` is
    False while our journal only counts, or is `lost`: damaged or gone, and not known to be whole.
    `leaving`: our node is going down in order. `handed` is the term that was handed on: to us, who
    stand for the next one or hold it, or, where we are leaving, by us. None for any other term.
    """

    me: NodeId
    rank: LogRank
    counter: int
    role: Role = "starting"
    holder: NodeId | None = None
    heard_at: float = 0.0
    up_at: float | None = None
    lost_at: float | None = None
    beaten_at: float = 0.0
    peers: frozenset[NodeId] = frozenset()
    living: Mapping[NodeId, PeerState] = field(default_factory=dict[NodeId, PeerState])
    eligible: bool = True
    lost: bool = False
    seen: int = 0
    voters: frozenset[NodeId] = frozenset()
    gone: frozenset[NodeId] = frozenset()
    may_vote: bool = True
    voted_for: NodeId | None = None
    votes: frozenset[NodeId] = frozenset()
    asked_for: int = 0
    asked_at: float = 0.0
    tries: int = 0
    waits_from: float = 0.0
    acked_at: Mapping[NodeId, float] = field(default_factory=dict[NodeId, float])
    followers: int = 0
    expects_peers: bool = False
    members: frozenset[NodeId] = frozenset()
    leaving: bool = False
    handed: HandedTerm | None = None

    @property
    def decides(self) -> bool:
        """Return whether our log may grow: we hold the term, and are not about to hand it on."""
        return self.role == "holding" and not self.leaving

    @property
    def term(self) -> HandedTerm | None:
        """Return the term that we hold or whose holder we follow; None without a holder."""
        if self.holder is None:
            return None
        return HandedTerm(counter=self.counter, holder=self.holder)

    @property
    def voted(self) -> bool:
        """Return whether terms are given by votes."""
        return len(self.voters) >= FEWEST_VOTERS

    @property
    def idle_role(self) -> Role:
        """Return the role of a candidate that neither holds the term nor wants it."""
        return "starting" if self.up_at is None else "following"

    @property
    def electors(self) -> frozenset[NodeId]:
        """Return the voters that count, by the journal that we have (Raft: the latest
        configuration in the log, committed or not)."""
        return self.voters - self.gone

    @property
    def majority(self) -> int:
        """Return how many electors make a majority."""
        return len(self.electors) // 2 + 1

    @property
    def patience_s(self) -> float:
        """Return how many seconds this campaign waits for its votes; more at each try, so that
        slow links do in the end."""
        return PATIENCE_S * min(1.0 + 0.5 * self.tries, 3.0)

    def warmed_up(self, now: float) -> bool:
        """Return whether we have been up for so long that we may claim."""
        return self.up_at is not None and now - self.up_at >= LAPSE_S

    def outranked_by(self, seen: PeerState, now: float) -> bool:
        """Return whether to let another go first: it lives and is better. One that just started
        is not waited for, unless its journal holds more than ours."""
        if now - seen.heard_at >= LAPSE_S:
            return False
        if not seen.warmed_up and seen.rank.log <= self.rank.log:
            return False
        return seen.standing > self.standing

    @property
    def standing(self) -> Standing:
        """Return how good we are as a holder."""
        return standing(self.eligible, self.rank)

    def weight(self, now: float) -> int | None:
        """Return how many follow the holder that we are, or hear; None without one, or where it has
        been silent for so long that another may be in its place."""
        if self.role == "holding":
            return sum(now - at < LAPSE_S for at in self.acked_at.values())
        has_leader = self.holder is not None and now - self.heard_at < DOUBT_S
        return self.followers if has_leader else None

    def has_holder(self, now: float) -> bool:
        """Return whether we hold the term, or hear its holder."""
        has_leader = self.holder is not None and now - self.heard_at < LAPSE_S
        return self.role == "holding" or has_leader

    def backoff_s(self, ahead: int) -> float:
        """Return how long to hold back for `ahead` better ones, and after campaigns that failed.
        The spread comes from our name and the try, so that rivals do not stay in step."""
        spread = crc32(f"{self.me}/{self.counter}/{self.tries}".encode()) % 1000 / 1000
        return ahead * TURN_S + (spread * min(self.tries, 5) * 0.4 if self.tries else 0.0)


Outcome = tuple[Election, list[Action]]
