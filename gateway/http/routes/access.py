"""Who may use what at a node with default settings: routes, calls of other nodes, topics.

Pure. A route says it in its own row (`Route.who`), where it says nothing it is the owner's; a call
of another node has its row here, and no process that answers one without a row starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.wire.topics import TABLE as TOPICS
from gateway.http.auth import is_open
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
"""What one node asks of another's gateway, by the first word of the verb: the second words."""
KEYLESS: Mapping[str, str] = {
    "anyone": "anybody on this machine",
    "pulls": "the owner; anybody with `http_anyone_pulls`",
    "owner": "the owner",
}
NODES = "this user's processes; nodes with its machine key or the cluster key"


def verbs() -> frozenset[str]:
    """Return the verbs that have a row."""
    return frozenset(
        f"{first}.{second}" if second else first
        for first, seconds in CALLS.items()
        for second in seconds.split(", ")
    )


def check_verbs(answered: Collection[str]) -> None:
    """Raise LookupError for a verb that is answered and has no row."""
    if missing := sorted(set(answered) - verbs()):
        raise LookupError(f"no row in CALLS says who may ask: {', '.join(missing)}")


def with_a_key(route: Route) -> str:
    """Return what a route asks for on a node that asks for keys."""
    if is_open(route.path.partition("{")[0]):
        return "nothing"
    return f"`{route.scope}`"


def topics() -> list[str]:
    """Return what is heard and said on the bus, by the first words of topics."""
    return [row.prefix for row in TOPICS]
