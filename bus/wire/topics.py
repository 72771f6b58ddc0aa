"""The table of topics: what travels where, of which type, with which promise.

Pure. A topic is `prefix` or `prefix.rest`; the longest prefix in the table rules. Control
topics are never dropped knowingly (gaps are repaired from the log); telemetry is lossy, the
latest value wins, and where `retained` the switchboard gives it to each new subscriber.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.wire.accelerators import HardwareReading
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.gateways import (
    CancelAnswered,
    CancelAsked,
    RecordAnswered,
    RecordAsked,
)
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    KeyUseReading,
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
    """One row of the table. `ttl_s`: how long a value is retained, 0 where none is. What is
    `on_demand` is published only while a client subscribes to it by name."""

    prefix: str
    plane: Plane
    message: type[Message]
    promise: str
    ttl_s: float = 0.0
    on_demand: bool = False

    @property
    def retained(self) -> bool:
        """Return whether the switchboard keeps values and gives them to new subscribers."""
        return self.ttl_s > 0


def _said(prefix: str, message: type[Message], promise: str) -> Topic:
    return Topic(prefix, "control", message, promise)


def _kept(prefix: str, ttl_s: float, message: type[Message], promise: str) -> Topic:
    return Topic(prefix, "telemetry", message, promise, ttl_s)


# fmt: off
TABLE: tuple[Topic, ...] = (
    _said("event", Event, "ordered by index; journalled, then published; gaps asked for again"),
    Topic("term", "control", TermHeartbeat, "every 0.5 s from the holder: last index, digest", 2.0),
    _said("cancel.asked", CancelAsked, "to the gateways named; repeated for 5 s or till answered"),
    _said("cancel.answered", CancelAnswered, "to the gateways that asked; one for each time heard"),
    _said("record.asked", RecordAsked, "to the gateways named; repeated for 5 s or till answered"),
    _said("record.answered", RecordAnswered, "to the gateways that asked; a piece for each time"),
    _said("pull.asked", PullAsked, "to the worker named; each second while a client waits"),
    _said("verify.asked", VerifyAsked, "to the worker named; each second while a client waits"),
    _said("purge.asked", PurgeAsked, "to the worker named; each second while a client waits"),
    _said("keep.asked", KeepAsked, "to the worker named; twice a second for 6 s or till answered"),
    _said("keep.answered", KeepAnswered, "to the worker that asked; one for each time heard"),
    _kept("card", 120.0, CardReading, "strictly newer wins; every 30 s; on change"),
    _kept("reading.node", 15.0, NodeReading, "every second"),
    _kept("reading.hardware", 15.0, HardwareReading, "every 2 s where figures change, else 6 s"),
    _kept("reading.runner", 15.0, RunnerReading, "every second"),
    _kept("reading.demand", 15.0, DemandReading, "every second while there is any; on change"),
    _kept("reading.pool", 15.0, PoolReading, "every second from the holder; on change"),
    _kept("reading.peers", 15.0, PeersReading, "every second; on change"),
    _kept("reading.link", 600.0, LinkReading, "measured while idle; believed for its time"),
    _kept("reading.weights", 15.0, WeightsReading, "every second of a fetch; on change"),
    _kept("reading.pulls", 15.0, PullReading, "twice a second of a pull; on change"),
    _kept("reading.verifies", 15.0, VerifyReading, "twice a second of one; on change"),
    _kept("reading.storage", 120.0, StorageReading, "every 30 s; on change"),
    _kept("reading.undone", 86_400.0, UndoneReading, "when a log took the place of another"),
    _kept("reading.keys", 604_800.0, KeyUseReading, "every second of use; on change"),
    _kept("reading.collective", 600.0, CollectiveReading, "every second of a test"),
    Topic("token", "telemetry", TokenTap, "only while somebody subscribes to it", on_demand=True),
)
# fmt: on
_LONGEST_FIRST = sorted(TABLE, key=lambda row: -len(row.prefix))


def rule_for(topic: str) -> Topic | None:
    """Return the row that rules `topic`, None for a topic that may not be published."""
    for row in _LONGEST_FIRST:
        if topic == row.prefix or topic.startswith(row.prefix + "."):
            return row
    return None


def event_topic(kind: str) -> str:
    """Return `event.<kind of the body>`."""
    return f"event.{kind}"


def reading_topic(kind: str, node: str, process: str | None = None) -> str:
    """Return `reading.<kind>.<node>[.<process>]`; a process name's colon is kept."""
    return f"reading.{kind}.{node}" + (f".{process}" if process else "")
