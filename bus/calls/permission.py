"""Decides which nodes can be called, and which calls of other nodes are permitted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bus.calls.table import TypedCall
from bus.wire.api_keys import ApiKey
from bus.wire.ids import NodeId
from bus.wire.messages.gateways import CallRefusal
from bus.wire.messages.peers import PeersReading


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of another node, as this node sees it. `down` is the reason why the node is not
    connected; it is empty if the node may be connected."""

    name: str
    down: str = ""


def standing_of(
    node: NodeId, *, own: NodeId, names: Mapping[NodeId, str], peers: Iterable[PeersReading]
) -> Standing | None:
    """Return a node's state, from the switchboard's reading of this node; None for an unknown node.
    `names` maps the ids of the cluster's nodes to their names."""
    for reading in peers:
        if reading.node != own:
            continue
        for peer in reading.peers:
            if peer.node == node:
                down = "" if peer.status == "linked" else (peer.why or peer.status)
                return Standing(peer.name or names.get(node) or node, down)
    return Standing(names[node] or node) if node in names else None


def refusal_of(
    call: TypedCall[Any, Any],
    asker: Standing | None,
    key: str,
    keys: Mapping[str, ApiKey],
    wall_s: float,
) -> CallRefusal | None:
    """Return the reason why a node may not make a call; None if it may.

    `asker` is the calling node, None if it is unknown. `key` is the API key behind the call, "" for
    the calling node's owner; `keys` are the cluster's keys by id.
    """
    if call.right == "process":
        return _forbidden(f"{call.name} is only for the HTTP processes of this node")
    if asker is None:
        return _forbidden("the calling node is not part of this cluster")
    if call.right == "peer" or not key:
        return None
    record = keys.get(key)
    if record is None or record.is_expired(wall_s):
        return _forbidden(f"{call.name} was called with an API key that is not valid here")
    if record.scope != "admin":
        return _forbidden(
            f"{call.name} needs an API key with the scope 'admin'; '{record.name}' has "
            f"'{record.scope}'"
        )
    return None


def _forbidden(message: str) -> CallRefusal:
    return CallRefusal(message=message, status=403, code="forbidden")
