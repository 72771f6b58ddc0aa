"""The table of topics: their message types, planes and guarantees.

Pure. A topic is `prefix` or `prefix.rest`; the longest prefix in the table applies. Control
messages are never dropped on purpose; missing events are fetched from the log. Telemetry is lossy:
the latest value wins. The switchboard sends a `retained` value to each new subscriber.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.wire.accelerators import HardwareReading
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.gateways import CallAnswered, CallAsked, KeyUseReading
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    LinkReading,
    NodeReading,
    PullReading,
    RunnerReading,
    TokenTap,
    UndoneReading,
    WeightsReading,
)
from bus.wire.messages.weights import (
    KeepAnswered,
    KeepAsked,
    PullAsked,
    PurgeAsked,
    StorageReading,
    VerifyAsked,
    VerifyReading,
)
from bus.wire.messages.wire import Message
from bus.wire.pool import PoolReading

Plane = Literal["control", "telemetry"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of the table. `ttl_s`: how long a value is retained; 0: not at all. An `on_demand`
    topic is published only while a client subscribes to it by name."""

    prefix: str
    plane: Plane
    message: type[Message]
    promise: str
    ttl_s: float = 0.0
    on_demand: bool = False

    @property
    def retained(self) -> bool:
        """Return whether the switchboard stores values and sends them to new subscribers."""
        return self.ttl_s > 0


def _control(prefix: str, message: type[Message], promise: str) -> Topic:
    return Topic(prefix, "control", message, promise)


def _retained(prefix: str, ttl_s: float, message: type[Message], promise: str) -> Topic:
    return Topic(prefix, "telemetry", message, promise, ttl_s)


RELAYED = "relayed"
"""The topic of cards that a node passes on: `relayed.<node>`."""
# fmt: off
TABLE: tuple[Topic, ...] = (
    _control("event", Event, "in index order; published after it is journalled; gaps are filled"),
    Topic("term", "control", TermHeartbeat,
        "sent by the leader every 0.5 s, with its last index and digest", 2.0),
    _control("call.asked", CallAsked, "sent to the named node's gateways until they answer"),
    _control("call.answered", CallAnswered,
        "sent to the asking gateways, one piece of the answer per message"),
    _control("pull.asked", PullAsked, "sent to the named worker every second while a client waits"),
    _control("verify.asked", VerifyAsked,
        "sent to the named worker every second while a client waits"),
    _control("purge.asked", PurgeAsked,
        "sent to the named worker every second while a client waits"),
    _control("keep.asked", KeepAsked, "sent to the named worker twice a second, for up to 6 s"),
    _control("keep.answered", KeepAnswered, "sent to the asking worker, once for each question"),
    _retained("card", 120.0, CardReading,
        "sent every 30 s and on change; only a newer card replaces it"),
    _retained(RELAYED, 120.0, CardReading,
        "cards of other nodes, passed on to peers that are not linked with these nodes"),
    _retained("reading.node", 15.0, NodeReading,
        "every second on change, else every 2 s"),
    _retained("reading.hardware", 15.0, HardwareReading, "every 2 s on change, else every 6 s"),
    _retained("reading.runner", 15.0, RunnerReading,
        "every second; every 2 s without requests"),
    _retained("reading.demand", 15.0, DemandReading,
        "every second while there is demand, and on change"),
    _retained("reading.pool", 15.0, PoolReading, "sent by the leader on change, else every 3 s"),
    _retained("reading.peers", 15.0, PeersReading,
        "every second, and on change; every 5 s without peers"),
    _retained("reading.link", 600.0, LinkReading,
        "measured while the node is idle; valid for its TTL"),
    _retained("reading.weights", 15.0, WeightsReading,
        "every second during a fetch, and on change"),
    _retained("reading.pulls", 15.0, PullReading, "twice a second during a pull, and on change"),
    _retained("reading.verifies", 15.0, VerifyReading,
        "twice a second during a check, and on change"),
    _retained("reading.storage", 120.0, StorageReading, "every 30 s, and on change"),
    _retained("reading.undone", 86_400.0, UndoneReading,
        "sent when another log replaced this node's log"),
    _retained("reading.keys", 604_800.0, KeyUseReading,
        "every second while a key is used, and on change"),
    _retained("reading.collective", 600.0, CollectiveReading, "every second during a test"),
    Topic("token",
        "telemetry", TokenTap, "sent only while a client subscribes to it", on_demand=True),
)
# fmt: on
_LONGEST_FIRST = sorted(TABLE, key=lambda row: -len(row.prefix))


def rule_for(topic: str) -> Topic | None:
    """Return the row that applies to `topic`; None for a topic that may not be published."""
    for row in _LONGEST_FIRST:
        if topic == row.prefix or topic.startswith(row.prefix + "."):
            return row
    return None


def event_topic(kind: str) -> str:
    """Return `event.<kind of the body>`."""
    return f"event.{kind}"


def reading_topic(kind: str, node: str, process: str | None = None) -> str:
    """Return `reading.<kind>.<node>[.<process>]`; a process name keeps its colon."""
    return f"reading.{kind}.{node}" + (f".{process}" if process else "")
