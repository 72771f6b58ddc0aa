"""Talks to the gateways of nodes: lists nodes, and makes a client's call to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from falcon.asgi import Request

from bus.calls import WHOLE_S, TypedCall
from bus.wire.errors import BadRequest
from bus.wire.ids import NodeId
from bus.wire.messages.wire import Message
from gateway.cluster import Cluster
from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.callers import key_behind

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


def names_of(cluster: Cluster) -> dict[NodeId, str]:
    """Return the names of the cluster's nodes, by id; a node without a name has its id."""
    names = {card.node: card.name for card in cluster.readings.cards(cluster.reactor.now())}
    names |= {NodeId(node_id): facts.name for node_id, facts in cluster.bus.state.nodes.items()}
    names[cluster.options.node] = cluster.options.node_name
    return {node: names.get(node) or node for node in cluster.calls.nodes()}


def chosen(names: Mapping[NodeId, str], wanted: Sequence[str], field: str) -> list[NodeId]:
    """Return the `wanted` nodes (ids or names), each once, sorted; all nodes if `wanted` is empty.
    Raises BadRequest with the field for an unknown node."""
    nodes: list[NodeId] = []
    for word in wanted:
        matches = [node for node, name in names.items() if word in (node, name)]
        if not matches:
            there = ", ".join(sorted(set(names.values())))
            raise bad_field(field, f"the cluster has no node {word!r}; it has {there}")
        nodes += [node for node in matches if node not in nodes]
    return sorted(nodes) or sorted(names)


def node_named(cluster: Cluster, name: str) -> NodeId:
    """Return the node of an id or name; "" is this node. Raises HttpFaultRaised (404) for an
    unknown node."""
    if not name:
        return cluster.options.node
    try:
        return chosen(names_of(cluster), [name], "node")[0]
    except BadRequest as error:
        raise HttpFaultRaised(HttpFault(404, "node_not_found", str(error))) from error


async def ask_node(
    cluster: Cluster,
    req: Request,
    node: NodeId,
    call: TypedCall[Q, R],
    request: Q,
    within_s: float = WHOLE_S,
) -> R:
    """Return a node's reply to a call that the client of `req` makes. Raises HttpFaultRaised with
    the error that the node sent, or if the node was not reached."""
    return await cluster.calls.ask(node, call, request, key=key_behind(req), within_s=within_s)
