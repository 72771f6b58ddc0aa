"""Talks to clients, through the HTTP server: answers one request that generates text, embeds texts
or examines a prompt, from its bytes to the bytes of its answer.

A request goes through the table `STAGES`, in that order. Each stage takes a frozen `Flow`, the
facts about the request, and returns it with more. A feature is a stage in a file of its own
(`features`), and a request that does not use it does not enter that file. `Pipeline` runs the
stages. Errors, cancellation and the record of the request each pass through one place there.
"""

from gateway.exchange.errors import call_refusal, fault_of
from gateway.exchange.features import found_answer, named_items, own_model, recall
from gateway.exchange.flow import Asked, ClientWatch, Flow, HttpSide, Running, hung_up
from gateway.exchange.headers import Reply, one_line, tell_ignored
from gateway.exchange.parts import Parts
from gateway.exchange.pipeline import Pipeline
from gateway.exchange.reading import read_aside
from gateway.exchange.record import EndedRequests
from gateway.exchange.stages import STAGES, TAKEN_OVER, Part, StageRow, grouped
from gateway.exchange.streams import (
    TAKEN_OVER_COMMENT,
    EventsGone,
    LastingStream,
    OpenStream,
    OpenStreams,
    StreamFolder,
    StreamHead,
)

__all__ = [
    "STAGES",
    "TAKEN_OVER",
    "TAKEN_OVER_COMMENT",
    "Asked",
    "ClientWatch",
    "EndedRequests",
    "EventsGone",
    "Flow",
    "HttpSide",
    "LastingStream",
    "OpenStream",
    "OpenStreams",
    "Part",
    "Parts",
    "Pipeline",
    "Reply",
    "Running",
    "StageRow",
    "StreamFolder",
    "StreamHead",
    "call_refusal",
    "fault_of",
    "found_answer",
    "grouped",
    "hung_up",
    "named_items",
    "one_line",
    "own_model",
    "read_aside",
    "recall",
    "tell_ignored",
]
