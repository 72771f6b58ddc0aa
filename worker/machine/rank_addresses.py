"""Choose the address of this node at which other ranks of a group connect.

Pure: time arrives as `now`. In MLX's ring rank i connects to rank i + 1 and the last to the first,
so only the left neighbour connects to a rank's address. Each pair of neighbours uses its own best
path. Only paths by which the neighbour was observed to reach this node are considered. Only names
and IPv4 addresses count: MLX's ring has no IPv6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bus.hardware.observed_links import reaches
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import LinkReading
from bus.wire.messages.wire import Message
from bus.wire.topology import NodeAddress, Reach, observed_address

PEERS_READING_S = 15.0
LINK_READING_S = 600.0


class RankAddresses:
    """The latest reports of other nodes about the paths by which they reach this node (`me`)."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.peers: dict[NodeId, tuple[PeersReading, float]] = {}
        self.links: dict[NodeId, tuple[LinkReading, float]] = {}

    def hear(self, message: Message, now: float) -> None:
        """Store another node's report about the path by which it reaches this node. Messages of
        other kinds are ignored."""
        if isinstance(message, PeersReading):
            self.peers[message.node] = (message, now)
        elif isinstance(message, LinkReading):
            self.links[message.node] = (message, now)

    def host_for(self, other: NodeId, ips: Sequence[NodeAddress], now: float) -> str | None:
        """Return the best address at which `other` was seen to reach this node; None if there is
        none. `ips` are this node's own addresses."""
        best = observed_address(other, self.me, self._seen(other, ips, now))
        return None if best is None else best.ip

    def shared_host(
        self, others: Sequence[NodeId], ips: Sequence[NodeAddress], now: float
    ) -> str | None:
        """Return the best address at which all of `others` were seen to reach this node; None if
        there is none."""
        if not others:
            return None
        seen = [self._seen(other, ips, now) for other in others]
        shared = set[str].intersection(*({way.ip for way in ways} for ways in seen))
        best = observed_address(others[0], self.me, (way for way in seen[0] if way.ip in shared))
        return None if best is None else best.ip

    def hosts_for(
        self, others: Iterable[NodeId], ips: Sequence[NodeAddress], now: float
    ) -> tuple[str, ...]:
        """Return, for each of the other nodes, the address at which it was seen to reach this node.
        Each address is returned once. A node without such an address is skipped."""
        hosts = (self.host_for(other, ips, now) for other in others)
        return tuple(dict.fromkeys(host for host in hosts if host is not None))

    def _seen(self, other: NodeId, ips: Sequence[NodeAddress], now: float) -> list[Reach]:
        peers, links = self.peers.get(other), self.links.get(other)
        seen = reaches(
            other,
            self.me,
            ips,
            peers=peers[0] if peers and now - peers[1] <= PEERS_READING_S else None,
            links=links[0] if links and now - links[1] <= LINK_READING_S else None,
        )
        return [way for way in seen if ":" not in way.ip]
