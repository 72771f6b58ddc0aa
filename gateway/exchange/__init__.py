"""Talks to clients, through the HTTP server: answers one request that generates text, embeds texts
or asks about a prompt. It begins with the bytes of the body and ends with the bytes of the answer.

A request passes through the stages of the table `STAGES`, in that order. Each stage takes a `Flow`
(the frozen facts about the request) and returns a copy with more facts. `Pipeline` runs the stages,
and is the one place that handles errors and cancellation and records the request. Each feature is a
stage in its own file (`features`); requests that do not use the feature do not enter the file.

The parsed body of a request, once it is submitted to runners or a provider, is called an exchange.
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
