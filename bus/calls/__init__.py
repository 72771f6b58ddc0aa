"""Typed calls between the gateways of two nodes, and between the HTTP processes of one node.

`table.py` lists every call: its name, the message that it sends, the message that it returns, and
who may make it. Requests and replies are closed messages (`bus/wire/calls`). Everything that calls
have in common is in this room: pieces, repeats, deadlines, permission, and the names of the nodes
that did not answer. A new call is a row in the table, two messages, and a handler.
"""

from bus.calls.failures import CallFailed, CallRefused
from bus.calls.gathering import Gathered, missing_of
from bus.calls.node_calls import NodeCalls
from bus.calls.permission import Standing, standing_of
from bus.calls.process_calls import ProcessCalls
from bus.calls.table import CALLS, Call

__all__ = [
    "CALLS",
    "Call",
    "CallFailed",
    "CallRefused",
    "Gathered",
    "NodeCalls",
    "ProcessCalls",
    "Standing",
    "missing_of",
    "standing_of",
]
