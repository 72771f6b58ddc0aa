"""What nodes say to each other: their switchboards, and their candidates about the term.

Pure. A node dials the `peers` port of others, says `PeerHello` once a second and is answered
each time with `PeerWelcome` or `PeerRefused`. Addresses are `host:port` of a node's `peers`
port, best first; the planes and the candidate listen on the same host at the ports given.

Nodes of any two versions can say hello, refuse and say goodbye: for `FIRST_WORDS` the envelope, its
version and the fields below stay what they are (decision 0015). All else is said between nodes of
one protocol version alone.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import Boot, NodeId
from bus.wire.messages.wire import Message

FIRST_WORDS = frozenset({"peer_hello", "peer_refused", "peer_goodbye"})
"""What nodes say before they know that they speak one version, or because they do not."""
FIRST_WORDS_PROTOCOL = 1
"""The version in the envelopes of `FIRST_WORDS`, whatever else a build speaks."""


class PeerPorts(Message):
    """TCP ports of a node beside the one that was dialled; 0 where nothing listens."""

    control: int = Field(ge=0, le=65535)
    telemetry: int = Field(ge=0, le=65535)
    candidate: int = Field(ge=0, le=65535)


class KnownPeer(Message):
    """A node that another node may want to know."""

    node: NodeId
    addresses: tuple[str, ...]


class PeerHello(Message):
    """Here I am. `addresses` are those under which the speaker can be dialled back;
    `protocol_min` to `protocol_max` is what it speaks with other nodes."""

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
    """You are one of us. `protocol` is the version that both speak; `others` are the peers
    that the speaker is linked with; `wall_s` is the speaker's clock (0: it does not say)."""

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
    """You are not one of us, and why. `reason` is stable, `message` is for people."""

    kind: Literal["peer_refused"] = "peer_refused"
    node: NodeId
    reason: Literal["namespace", "protocol", "duplicate", "forgotten", "full"]
    message: str


class PeerGoodbye(Message):
    """The speaker's node is being taken down in good order."""

    kind: Literal["peer_goodbye"] = "peer_goodbye"
    node: NodeId
    boot: Boot


class LinkEcho(Message):
    """Part of a measurement: some bytes for nothing. The one with `answer` set is answered with
    its `serial` when all before it have arrived."""

    kind: Literal["link_echo"] = "link_echo"
    node: NodeId
    serial: int = Field(ge=0)
    answer: bool
    filling: bytes = Field(default=b"", max_length=48 << 10)


class LinkEchoed(Message):
    """All up to `serial` has arrived at `node`."""

    kind: Literal["link_echoed"] = "link_echoed"
    node: NodeId
    serial: int = Field(ge=0)


PeerStatus = Literal["linked", "silent", "left", "refused"]
FoundBy = Literal["", "peers", "mdns", "memory", "others", "hello"]
"""How a node first learnt of a peer: from its settings, an advert on the local network, an
earlier life, other peers, or because the peer called; empty where an older version says nothing."""


class PeerReading(Message):
    """One peer as a node sees it. `host` is where it was reached, `silent_s` how long ago it
    last spoke, `round_trip_s` the latest hello's; `why` is said of peers that are not linked.
    `clock_offset_s` is by how much the peer's clock is ahead, true to half the round trip."""

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
    """All peers that a node knows, each second and on change. `strangers` are addresses that
    were dialled and where no node of this cluster answered, with what was heard there."""

    kind: Literal["peers_reading"] = "peers_reading"
    node: NodeId
    peers: tuple[PeerReading, ...] = ()
    strangers: tuple[str, ...] = ()


# --- between candidates --------------------------------------------------------------


class HandedTerm(Message):
    """A term that its holder hands on, because its node is going down."""

    counter: int
    holder: NodeId


class Candidacy(Message):
    """A candidate lives, and how good it is: where its journal ends, its configured priority,
    the counter of its term. `fit` False: its journal only counts or was lost, so it neither
    votes nor holds while another can. `led`: it holds the term or hears who does. `settled`: it
    has been up for a lapse and may claim. `addresses` are those of its ROUTER, best first. To every
    other candidate, every 0.5 s."""

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
    """Give me the term `counter`: my journal ends at (last_term, last_index). A `trial` binds
    no voter; it only asks whether the vote would be given (Raft's pre-vote). `handed` is the term
    that its holder has handed on to me: that holder need not fall silent first."""

    kind: Literal["ask_vote"] = "ask_vote"
    node: NodeId
    counter: int
    trial: bool
    last_term: int
    last_index: int
    voters: tuple[NodeId, ...]
    handed: HandedTerm | None = None


class Vote(Message):
    """The answer. `counter` and `trial` are those of the question; `known_counter` is the
    highest that the voter knows."""

    kind: Literal["vote"] = "vote"
    node: NodeId
    counter: int
    trial: bool
    granted: bool
    known_counter: int


class AppendAck(Message):
    """To the holder of the term `counter`: I hear you, and its log is on my disk up to `index`
    (0: not known to be the same log yet). After each heartbeat and whenever the journal grew."""

    kind: Literal["append_ack"] = "append_ack"
    node: NodeId
    counter: int
    index: int


class HandOver(Message):
    """From the holder of `term`, whose node is going down, to the candidate that is to follow it:
    my log ends at `index` and you have all of it, so take a term of your own now."""

    kind: Literal["hand_over"] = "hand_over"
    term: HandedTerm
    index: int
