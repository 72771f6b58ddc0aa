"""Messages between nodes: those of their switchboards, and those of their master candidates about
the term.

Pure. A node dials the `peers` port of others, sends `PeerHello` once a second and gets
`PeerWelcome` or `PeerRefused` each time. Addresses are `host:port` of a node's `peers` port,
best first; the planes and the candidate listen on the same host at the ports given.

Nodes of any two versions can say hello, refuse and say goodbye: for `FIRST_WORDS` the envelope,
its version and the fields below never change (decision 0015). All other messages pass only
between nodes of one protocol version.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import Boot, NodeId
from bus.wire.messages.wire import Message

FIRST_WORDS = frozenset({"peer_hello", "peer_refused", "peer_goodbye"})
"""The messages that nodes of any two versions understand. Nodes send them before each knows the
other's version, or if they have no version in common."""
FIRST_WORDS_PROTOCOL = 1
"""The version in the envelopes of `FIRST_WORDS`, whatever version a build speaks otherwise."""


class PeerPorts(Message):
    """TCP ports of a node besides its `peers` port; 0: the node has no such port."""

    control: int = Field(ge=0, le=65535)
    telemetry: int = Field(ge=0, le=65535)
    candidate: int = Field(ge=0, le=65535)


class KnownPeer(Message):
    """A peer that one node reports to another, which may dial it."""

    node: NodeId
    addresses: tuple[str, ...]


class PeerHello(Message):
    """The identity of the node that sends the hello. `addresses`: where it can be dialled back.
    `protocol_min` to `protocol_max`: the versions that it speaks with other nodes."""

    kind: Literal["peer_hello"] = "peer_hello"
    node: NodeId
    name: str
    boot: Boot
    namespace: str
    protocol_min: int
    protocol_max: int
    addresses: tuple[str, ...]
    ports: PeerPorts


class PeerWelcome(Message):
    """The sender of a hello is accepted. `protocol`: the version for both. `others`: the peers that
    the accepting node is linked with. `wall_s`: the accepting node's clock (0: not sent)."""

    kind: Literal["peer_welcome"] = "peer_welcome"
    node: NodeId
    name: str
    boot: Boot
    protocol: int
    addresses: tuple[str, ...]
    ports: PeerPorts
    others: tuple[KnownPeer, ...] = ()
    wall_s: float = 0.0


class PeerRefused(Message):
    """The sender of a hello is refused. `reason` is one of a fixed set; `message` is for people."""

    kind: Literal["peer_refused"] = "peer_refused"
    node: NodeId
    reason: Literal["namespace", "protocol", "duplicate", "forgotten", "full"]
    message: str


class PeerGoodbye(Message):
    """The speaker's node is shutting down in order."""

    kind: Literal["peer_goodbye"] = "peer_goodbye"
    node: NodeId
    boot: Boot


class LinkEcho(Message):
    """Filler bytes, sent to measure a link. If `answer` is set, the receiver answers with this
    `serial` when this message and all messages before it have arrived."""

    kind: Literal["link_echo"] = "link_echo"
    node: NodeId
    serial: int = Field(ge=0)
    answer: bool
    filling: bytes = Field(default=b"", max_length=48 << 10)


class LinkEchoed(Message):
    """The answer to a `LinkEcho`: it and all messages before it have arrived at `node`."""

    kind: Literal["link_echoed"] = "link_echoed"
    node: NodeId
    serial: int = Field(ge=0)


PeerStatus = Literal["linked", "silent", "left", "refused"]
FoundBy = Literal["", "peers", "mdns", "memory", "others", "hello"]
"""How a node first learnt of a peer. `peers`: its settings; `mdns`: an advert on the local network;
`memory`: a previous run of this node; `others`: the report of another peer; `hello`: the peer
dialled this node. Empty: an older version does not report it."""


class PeerReading(Message):
    """One peer as a node sees it. `host`: where it was reached. `silent_s`: time since its last
    message. `round_trip_s`: the round trip of the latest hello. `why`: the reason if the peer is
    not linked. `clock_offset_s`: how far the peer's clock is ahead, accurate to half the round
    trip."""

    node: NodeId
    name: str
    status: PeerStatus
    host: str = ""
    addresses: tuple[str, ...] = ()
    candidate_port: int = 0
    protocol: int = 0
    silent_s: float = 0.0
    round_trip_s: float | None = None
    why: str = ""
    found_by: FoundBy = ""
    clock_offset_s: float | None = None


class PeersReading(Message):
    """All peers of a node. Sent every second and on each change. `strangers`: dialled addresses at
    which no node of this cluster answered or a node refused, with the refusal or `no answer`."""

    kind: Literal["peers_reading"] = "peers_reading"
    node: NodeId
    peers: tuple[PeerReading, ...] = ()
    strangers: tuple[str, ...] = ()


# --- between candidates --------------------------------------------------------------


class HandedTerm(Message):
    """A term that its leader hands over, because its node is shutting down."""

    counter: int
    holder: NodeId


class Candidacy(Message):
    """A candidate's report to the others: the end of its journal, its configured priority, and the
    counter of its term.

    `fit` False: its journal cannot be written or was lost, so it neither votes nor leads while
    another candidate can. `led`: it leads or hears a leader. `settled`: it has been up long enough
    (the time after which a silent term lapses) to claim a term. `addresses`: of its ROUTER, best
    first. Sent to every other candidate every 0.5 s.
    """

    kind: Literal["candidacy"] = "candidacy"
    node: NodeId
    last_term: int
    last_index: int
    priority: int
    counter: int
    fit: bool = True
    led: bool = True
    settled: bool = True
    addresses: tuple[str, ...] = ()


class AskVote(Message):
    """A request for a vote in the term `counter`; the sender's journal ends at (last_term,
    last_index).

    A `trial` binds no voter; it only asks whether the vote would be given (Raft's pre-vote).
    `handed`: the term whose leader has handed it over to the sender. That leader need not be silent
    before a vote is given.
    """

    kind: Literal["ask_vote"] = "ask_vote"
    node: NodeId
    counter: int
    trial: bool
    last_term: int
    last_index: int
    voters: tuple[NodeId, ...]
    handed: HandedTerm | None = None


class Vote(Message):
    """The reply to `AskVote`. `counter` and `trial` are those of the question; `known_counter` is
    the highest term that the voter knows."""

    kind: Literal["vote"] = "vote"
    node: NodeId
    counter: int
    trial: bool
    granted: bool
    known_counter: int


class AppendAck(Message):
    """A follower's message to the leader of the term `counter`: the leader's log is on the
    follower's disk up to `index` (0: not known to be the same log yet). Sent after each heartbeat
    and whenever the journal grew."""

    kind: Literal["append_ack"] = "append_ack"
    node: NodeId
    counter: int
    index: int


class HandOver(Message):
    """The leader of `term`, whose node is shutting down, hands the term over to the receiver. The
    leader's log ends at `index` and the receiver has all of it, so the receiver opens its own term
    now."""

    kind: Literal["hand_over"] = "hand_over"
    term: HandedTerm
    index: int
