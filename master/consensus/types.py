"""The data of a candidate: the state of its election, the stimuli and the actions.

Pure data. "We" are this candidate. Actions are carried out in their order.
`master.consensus.election` and `master.consensus.votes` have the rules.
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
"""After this many seconds of the leader's silence a voter votes for another candidate. It is
shorter than `LAPSE_S`, so that the first campaign does not come too early."""
FEWEST_VOTERS = 3
"""With fewer voters no majority survives the loss of a node, so votes would not help."""
TURN_S = 0.2
"""Seconds that a voter waits for each living voter of a higher rank, before it asks for votes."""
PATIENCE_S = 0.6
"""A campaign without a result ends after this many seconds."""
HAND_OVER_S = 1.0
"""The maximum time, in seconds, that a leader which shuts down waits for its successor."""
HEIR_S = 0.4
"""If a successor does not take the term within this time, the next one gets the offer."""
LOST_PATIENCE_S = 30.0
"""Without voters, a candidate with a damaged journal waits this long for other candidates before it
claims the term. After a power cut another node may have the whole log."""

Role = Literal["starting", "following", "asking", "campaigning", "holding"]
"""States of a candidate. `asking`: a trial without votes; then `campaigning` for real votes."""


@dataclass(frozen=True, slots=True, order=True)
class LogRank:
    """The rank of a candidate in an election; a higher rank is preferred."""

    last_term: int
    last_index: int
    priority: int
    node: NodeId

    @property
    def log(self) -> tuple[int, int]:
        """Return the end of the candidate's log, (term, index). Voters compare candidates by this
        alone, not by their priority."""
        return self.last_term, self.last_index


Standing = tuple[bool, bool, LogRank]


def standing(eligible: bool, rank: LogRank) -> Standing:
    """Return how well a candidate suits as leader, comparable by order.

    A reliable journal comes before an unreliable one. An empty journal comes last, because it would
    undo everything.
    """
    return rank.last_index > 0, eligible, rank


@dataclass(frozen=True, slots=True)
class PeerState:
    """The last report of another candidate, and its arrival. `warmed_up`: it may claim the term;
    `has_holder`: it knew a leader."""

    rank: LogRank
    eligible: bool
    heard_at: float
    warmed_up: bool = True
    has_holder: bool = True

    @property
    def standing(self) -> Standing:
        """Return how well this candidate suits as leader, comparable by order."""
        return standing(self.eligible, self.rank)


@dataclass(frozen=True, slots=True)
class PersistentState:
    """The stored state of past terms. `began`: the journal once held events; so if it is empty now,
    its events were lost. `garbled`: the file exists but cannot be read."""

    counter: int = 0
    voted_for: NodeId | None = None
    began: bool = False
    garbled: bool = False


# --- stimuli ---


@dataclass(frozen=True, slots=True)
class SwitchboardUp:
    """Our own switchboard answers. From now on, silence of another candidate means that it is
    lost."""


@dataclass(frozen=True, slots=True)
class SwitchboardLost:
    """Our own switchboard no longer answers: our messages reach only other candidates."""


@dataclass(frozen=True, slots=True)
class PeersKnown:
    """The set of other candidates has changed. `nodes` are all that are configured or that sent us
    a message."""

    nodes: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class MyRank:
    """The end of our own journal has changed. `gone`: the nodes that it lists as removed."""

    rank: LogRank
    gone: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True)
class Fitness:
    """Our own journal can be relied on (`eligible`), or no longer. `lost`: the journal was damaged
    or is gone."""

    eligible: bool
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """Our node is shutting down: take no further term."""


@dataclass(frozen=True, slots=True)
class HandOn:
    """Hand over our term to the candidate `to`, which has our whole log."""

    to: NodeId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Said = TermHeartbeat | Candidacy | AskVote | Vote | AppendAck | HandOver
"""Messages between candidates, and the heartbeats of a leader (also our own)."""
Stimulus = (
    Said | SwitchboardUp | SwitchboardLost | PeersKnown | MyRank | Fitness | Leave | HandOn | Tick
)


# --- actions ---


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Write the counter and our vote in it to disk, fsynced, before anything else. With voters, the
    later actions must not be done if this fails."""

    counter: int
    voted_for: NodeId | None


@dataclass(frozen=True, slots=True)
class OpenTerm:
    """We lead: append `TermOpened` and start to send heartbeats."""

    counter: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """We no longer lead: publish nothing more, and answer `NotHolder`."""

    why: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Publish the heartbeat now."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to one other candidate. If it is lost, it is not repeated."""

    to: NodeId
    message: Message


Action = PersistTerm | OpenTerm | StepDown | Beat | Send
"""The actions of an election; `Act` also has the actions of the log."""


@dataclass(frozen=True, slots=True)
class Append:
    """Write the event to the journal; `after` is the state after it."""

    event: Event
    after: ClusterState


@dataclass(frozen=True, slots=True)
class Replace:
    """Restart the journal with this state, because it held another log or was too old. The new log
    lacks `undone`, events of commands, and `let_go`, instances of the old log."""

    state: ClusterState
    undone: tuple[Event, ...] = ()
    let_go: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Mended:
    """Record in the journal, after the pending appends, that it is complete again: all lost events
    were restored."""


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """Publish an appended event."""

    event: Event


@dataclass(frozen=True, slots=True)
class Spread:
    """Send a message to every known candidate."""

    message: Message


@dataclass(frozen=True, slots=True)
class Left:
    """The shutdown of our candidate is done; the process may end."""


Act = Action | Append | Replace | Mended | PublishEvent | Spread | Left


@dataclass(frozen=True, slots=True)
class Election:
    """The state of one candidate's election; all times are on the monotonic clock."""

    me: NodeId
    rank: LogRank
    counter: int
    """The highest term that we took part in; persisted before it is used."""
    role: Role = "starting"
    holder: NodeId | None = None
    """The leader whose heartbeat was last accepted."""
    heard_at: float = 0.0
    """When that leader's last heartbeat arrived, but not before `up_at`."""
    up_at: float | None = None
    """When our switchboard came up; None before."""
    lost_at: float | None = None
    """When the link to our switchboard was lost; None while it is up."""
    beaten_at: float = 0.0
    """When we last sent a heartbeat as the leader."""
    peers: frozenset[NodeId] = frozenset()
    living: Mapping[NodeId, PeerState] = field(default_factory=dict[NodeId, PeerState])
    eligible: bool = True
    """False while our journal cannot be written, or is `lost`."""
    lost: bool = False
    """Our journal was damaged or is gone, and is not known to be complete again."""
    seen: int = 0
    """The highest term in any message."""
    voters: frozenset[NodeId] = frozenset()
    """The configured voters; or, with `may_vote` False, the voters that a leader named."""
    gone: frozenset[NodeId] = frozenset()
    """Nodes that our journal lists as removed; they no longer count as voters."""
    may_vote: bool = True
    voted_for: NodeId | None = None
    """Our vote in the term `counter`; persisted with it."""
    votes: frozenset[NodeId] = frozenset()
    """Votes for us in the current campaign, for the term `asked_for`, since `asked_at`."""
    asked_for: int = 0
    asked_at: float = 0.0
    tries: int = 0
    """Failed campaigns in a row."""
    waits_from: float = 0.0
    """End of the last failed campaign; the next one starts a backoff later."""
    acked_at: Mapping[NodeId, float] = field(default_factory=dict[NodeId, float])
    """When each candidate last acknowledged our heartbeats."""
    followers: int = 0
    """Number of candidates that follow our leader, as it last reported."""
    expects_peers: bool = False
    """False until any other node is known; until then we need not wait for others."""
    members: frozenset[NodeId] = frozenset()
    """The other nodes in our log at our start."""
    leaving: bool = False
    """Our node is shutting down."""
    handed: HandedTerm | None = None
    """The term that was handed over: to us, while we stand for the next term or lead it, or by us
    while we are leaving. Else None."""

    @property
    def decides(self) -> bool:
        """Return whether our log may grow: we lead, and are not about to hand over the term."""
        return self.role == "holding" and not self.leaving

    @property
    def term(self) -> HandedTerm | None:
        """Return the term that we lead or follow; None without a leader."""
        if self.holder is None:
            return None
        return HandedTerm(counter=self.counter, holder=self.holder)

    @property
    def voted(self) -> bool:
        """Return whether voters elect the leader."""
        return len(self.voters) >= FEWEST_VOTERS

    @property
    def idle_role(self) -> Role:
        """Return the role of a candidate that neither leads nor campaigns."""
        return "starting" if self.up_at is None else "following"

    @property
    def electors(self) -> frozenset[NodeId]:
        """Return the voters that our journal does not list as removed (Raft: the latest
        configuration in the log, committed or not)."""
        return self.voters - self.gone

    @property
    def majority(self) -> int:
        """Return how many electors make a majority."""
        return len(self.electors) // 2 + 1

    @property
    def patience_s(self) -> float:
        """Return how many seconds this campaign waits for votes; longer at each try, for slow
        links."""
        return PATIENCE_S * min(1.0 + 0.5 * self.tries, 3.0)

    def warmed_up(self, now: float) -> bool:
        """Return whether we have been up for `LAPSE_S`, so that we may claim the term."""
        return self.up_at is not None and now - self.up_at >= LAPSE_S

    def outranked_by(self, seen: PeerState, now: float) -> bool:
        """Return whether another living candidate goes before us. A candidate that has just started
        goes before us only if its journal holds more than ours."""
        if now - seen.heard_at >= LAPSE_S:
            return False
        if not seen.warmed_up and seen.rank.log <= self.rank.log:
            return False
        return seen.standing > self.standing

    @property
    def standing(self) -> Standing:
        """Return how well we suit as leader."""
        return standing(self.eligible, self.rank)

    def weight(self, now: float) -> int | None:
        """Return the number of candidates that follow our leader, who may be ourselves. None
        without a leader, or after `DOUBT_S` of its silence."""
        if self.role == "holding":
            return sum(now - at < LAPSE_S for at in self.acked_at.values())
        has_leader = self.holder is not None and now - self.heard_at < DOUBT_S
        return self.followers if has_leader else None

    def has_holder(self, now: float) -> bool:
        """Return whether we lead, or received the leader's heartbeat within the last `LAPSE_S`."""
        has_leader = self.holder is not None and now - self.heard_at < LAPSE_S
        return self.role == "holding" or has_leader

    def backoff_s(self, ahead: int) -> float:
        """Return how many seconds to wait for `ahead` better candidates and after failed campaigns.
        The spread depends on our id and the try, so that rivals do not stay in step."""
        spread = crc32(f"{self.me}/{self.counter}/{self.tries}".encode()) % 1000 / 1000
        return ahead * TURN_S + (spread * min(self.tries, 5) * 0.4 if self.tries else 0.0)


Outcome = tuple[Election, list[Action]]
