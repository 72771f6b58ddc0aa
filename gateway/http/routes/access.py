"""Lists who has access to what on a node with default settings: HTTP routes, calls from other
nodes, topics of the bus.

Pure. The row of a route says who can use the route (`Route.who`; by default only the node's owner).
The row of a call says who can make the call (`TypedCall.right`). A process that does not answer all
calls of the table does not start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.calls import CALLS
from bus.wire.topics import TABLE as TOPICS
from gateway.access import is_open
from gateway.http.openapi import Route

KEYLESS: Mapping[str, str] = {
    "anyone": "anybody on this machine",
    "pulls": "the owner; anybody with `http_anyone_pulls`",
    "owner": "the owner",
}
NODES = "this user's processes; nodes with its machine key or the cluster key"

RIGHTS: Mapping[str, str] = {
    "peer": "nodes of this cluster",
    "admin": "nodes of this cluster, for their owner or for an API key with the scope `admin`",
    "process": "HTTP processes of the same node",
}
"""The callers that each right of a call permits (`TypedCall.right`)."""


def check_calls(answered: Collection[str]) -> None:
    """Raise LookupError unless this process answers exactly the calls of the table."""
    calls = {call.name for call in CALLS.values() if call.right != "process"}
    if missing := sorted(calls ^ set(answered)):
        raise LookupError(f"calls without a handler or without a row: {', '.join(missing)}")


def with_a_key(route: Route) -> str:
    """Return the scope that a route requires on a node with API keys, as text."""
    if is_open(route.path.partition("{")[0]):
        return "nothing"
    return f"`{route.scope}`"


def topics() -> list[str]:
    """Return the topic prefixes of the bus."""
    return [row.prefix for row in TOPICS]
