"""Talks to the gateways of other nodes and to the other processes of this node: typed calls.

`table.py` lists every call: its name, the message that it sends, the message that it returns, and
who may make it. Requests and replies are messages of fixed types (`bus/wire/calls`). This package
has the code that all calls share: it splits long replies into pieces, repeats messages, sets
deadlines, checks permission, and names the nodes that did not answer. A new call is a row in the
table, two messages, and a handler.
"""

from typing import TYPE_CHECKING

from bus.calls.failures import CallFailed, plain_refusal
from bus.calls.gathering import Gathered, missing_of
from bus.calls.node_calls import Around, NodeCalls
from bus.calls.pending import WHOLE_S
from bus.calls.permission import Standing, refusal_of, standing_of
from bus.calls.process_calls import PROCESS_ANSWER_S, ProcessCalls
from bus.calls.service_calls import ask_service
from bus.calls.table import CALLS, TypedCall

if TYPE_CHECKING:
    from bus.calls import table

__all__ = [
    "CALLS",
    "PROCESS_ANSWER_S",
    "WHOLE_S",
    "Around",
    "CallFailed",
    "Gathered",
    "NodeCalls",
    "ProcessCalls",
    "Standing",
    "TypedCall",
    "ask_service",
    "missing_of",
    "plain_refusal",
    "refusal_of",
    "standing_of",
    "table",
]
