"""The table of topics: what travels where, of which type, with which promise.

Pure. A topic is `prefix` or `prefix.rest`; the longest prefix in the table rules. Control
topics are never dropped knowingly (gaps are repaired from the log); telemetry is lossy, the
latest value wins, and where `retained` the switchboard gives it to each new subscriber.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.control import CancelAnswered, CancelAsked, TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    LinkReading,
    NodeReading,
    RunnerReading,
    TokenTap,
    WeightsReading,
)
from bus.wire.messages.wire import Message

Plane = Literal["control", "telemetry"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of the table. `ttl_s` 0 on a retained topic means kept until replaced."""

    prefix: str
    plane: Plane
    message: type[Message]
    retained: bool
    ttl_s: float
    on_demand: bool
    promise: str


TABLE: tuple[Topic, ...] = (
    Topic(
        "event",
        "control",
        Event,
        False,
        0,
        False,
        "ordered by index; journalled before published; gaps are asked for again",
    ),
    Topic(
        "term",
        "control",
        TermHeartbeat,
        True,
        2.0,
        False,
        "every 0.5 s while a holder lives; names the last index and a digest",
    ),
    Topic(
        "cancel.asked",
        "control",
        CancelAsked,
        False,
        0,
        False,
        "to the gateways of the node that is named; repeated until answered, for 2 s",
    ),
    Topic(
        "cancel.answered",
        "control",
        CancelAnswered,
        False,
        0,
        False,
        "to the gateways of the node that asked; one for each time it was heard",
    ),
    Topic(
        "card",
        "telemetry",
        CardReading,
        True,
        120.0,
        False,
        "strictly newer wins; every 30 s and on change",
    ),
    Topic("reading.node", "telemetry", NodeReading, True, 15.0, False, "every second"),
    Topic("reading.runner", "telemetry", RunnerReading, True, 15.0, False, "every second"),
    Topic(
        "reading.demand",
        "telemetry",
        DemandReading,
        True,
        15.0,
        False,
        "every second while there is demand, and on change",
    ),
    Topic(
        "reading.peers", "telemetry", PeersReading, True, 15.0, False, "every second and on change"
    ),
    Topic(
        "reading.link",
        "telemetry",
        LinkReading,
        True,
        600.0,
        False,
        "measured while idle; placement believes it for its time, then its priors",
    ),
    Topic(
        "reading.weights",
        "telemetry",
        WeightsReading,
        True,
        15.0,
        False,
        "every second while models are fetched, and on change",
    ),
    Topic(
        "reading.collective",
        "telemetry",
        CollectiveReading,
        True,
        600.0,
        False,
        "every second of a collective test; kept for ten minutes after it",
    ),
    Topic(
        "token", "telemetry", TokenTap, False, 0, True, "published only while somebody subscribes"
    ),
)


def rule_for(topic: str) -> Topic | None:
    """The row that rules `topic`, or None for a topic that nobody may publish."""
    best: Topic | None = None
    for row in TABLE:
        fits = topic == row.prefix or topic.startswith(row.prefix + ".")
        if fits and (best is None or len(row.prefix) > len(best.prefix)):
            best = row
    return best


def event_topic(kind: str) -> str:
    """`event.<kind of the body>`."""
    return f"event.{kind}"


def reading_topic(kind: str, node: str, process: str | None = None) -> str:
    """`reading.<kind>.<node>[.<process>]`; a process name's colon is kept."""
    return f"reading.{kind}.{node}" + (f".{process}" if process else "")
