"""Calls between nodes without a bus: each handler runs in the caller's loop.

Requests and replies are packed and read again, as between real nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from bus.calls import CallFailed, NodeCalls, Standing, TypedCall
from bus.calls.node_calls import Around
from bus.wire.codec import pack_body, unpack_body
from bus.wire.ids import NodeId
from bus.wire.messages.gateways import CALL_REPLY_BYTES, CALL_REQUEST_BYTES
from bus.wire.messages.wire import Message

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
DOWN = "silent for 9 s"


def known(standings: Mapping[NodeId, Standing]) -> Around:
    """Return what a process knows whose cluster has these nodes; each may make every call."""
    return Around(standings.get, lambda: standings, lambda *_: None)


class CalledNodes:
    """The nodes of a cluster: those of `down` do not answer."""

    def __init__(self, *names: str, down: str = "") -> None:
        self.down = {NodeId(name) for name in down.split()}
        self.calls = {
            NodeId(name): MemoryCalls(self, NodeId(name)) for name in (*names, *down.split())
        }

    def __getitem__(self, name: str) -> MemoryCalls:
        """Return the calls of a node."""
        return self.calls[NodeId(name)]


class MemoryCalls(NodeCalls):
    """The calls of one node, without a bus."""

    def __init__(self, cluster: CalledNodes, node: NodeId) -> None:
        self.node = node
        self._cluster = cluster
        self._handlers = {}

    def nodes(self) -> list[NodeId]:
        return sorted(self._cluster.calls)

    async def ask(
        self,
        node: NodeId,
        call: TypedCall[Q, R],
        request: Q,
        *,
        key: str | None = None,
        within_s: float = 30.0,
    ) -> R:
        assert (key is None) <= (call.right == "peer"), call.name
        if node in self._cluster.down:
            raise CallFailed(node, "down", f"node {node} is not connected: {DOWN}")
        if node not in self._cluster.calls:
            raise CallFailed(node, "unknown", f"the cluster has no node '{node}'")
        packed = pack_body(request)
        handler = self._cluster.calls[node]._handlers[call.name]
        read = unpack_body(call.request, packed, limit_bytes=CALL_REQUEST_BYTES)
        reply = pack_body(await handler(read))
        return unpack_body(call.reply, reply, limit_bytes=CALL_REPLY_BYTES)
