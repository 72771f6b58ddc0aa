"""Lists who has access to what on a node with default settings: HTTP routes, calls from other
nodes, topics of the bus.

Pure. The row of a route says who can use the route (`Route.who`; by default only the node's owner).
`CALLS` has the calls that other nodes' gateways can make. A process that answers a call which is
missing in `CALLS` does not start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.wire.topics import TABLE as TOPICS
from gateway.access import is_open
from gateway.http.openapi import Route

CALLS: Mapping[str, str] = {
    "answer": "find, label, list, remove, stop",
    "capture": "fetched, take",
    "conversation": "add, drop, end, find, items, label, named, page, remove",
    "delete_model": "",
    "diagnostics": "node, process, runners",
    "job": "body, find, list, more, position, remove, stop",
    "node": "restart",
    "read_card": "",
    "remove_card": "",
    "runner": "cancel",
    "settings": "change, read",
    "trace": "find, latest, remove",
    "write_card": "",
}
"""The calls between gateways of two nodes. A verb has two words: the keys are first words, the
values the second words."""
KEYLESS: Mapping[str, str] = {
    "anyone": "anybody on this machine",
    "pulls": "the owner; anybody with `http_anyone_pulls`",
    "owner": "the owner",
}
NODES = "this user's processes; nodes with its machine key or the cluster key"


def verbs() -> frozenset[str]:
    """Return the verbs in `CALLS`."""
    return frozenset(
        f"{first}.{second}" if second else first
        for first, seconds in CALLS.items()
        for second in seconds.split(", ")
    )


def check_verbs(answered: Collection[str]) -> None:
    """Raise LookupError if a verb in `answered` has no row in `CALLS`."""
    if missing := sorted(set(answered) - verbs()):
        raise LookupError(f"no row in CALLS says who may ask: {', '.join(missing)}")


def with_a_key(route: Route) -> str:
    """Return the scope that a route requires on a node with API keys, as text."""
    if is_open(route.path.partition("{")[0]):
        return "nothing"
    return f"`{route.scope}`"


def topics() -> list[str]:
    """Return the topic prefixes of the bus."""
    return [row.prefix for row in TOPICS]
