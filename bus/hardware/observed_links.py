"""The best working path between two nodes, and its speed.

Pure. A path to an address works if a node answered a hello at it (`PeersReading`) or a measurement
succeeded (`LinkReading`). The other node's card says to which medium the address belongs. The ring
of a group and the placement both use the ranking of `bus.wire.topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import LinkReading, MeasuredLink
from bus.wire.topology import RANKING, LinkCost, NodeAddress, Reach, medium_of, prior

Cards = Mapping[NodeId, Sequence[NodeAddress]]
"""The addresses of each node, as the node itself reports them."""


def address_at(host: str, ips: Iterable[NodeAddress]) -> NodeAddress:
    """Return the address `host` with its medium (such as ethernet), as the address's own node
    reports it. If that node does not report it, the form of the address decides the medium."""
    for address in ips:
        if address.ip == host:
            return address
    try:
        return NodeAddress(ip=host, medium=medium_of(host, ""))
    except ValueError:
        return NodeAddress(ip=host, medium="unknown")


def reaches(
    node: NodeId,
    peer: NodeId,
    ips: Sequence[NodeAddress],
    *,
    peers: PeersReading | None = None,
    links: LinkReading | None = None,
) -> list[Reach]:
    """List the addresses at which `node` has reached `peer`: the address in use first, then the
    measured addresses, fastest first. `ips` are the addresses that `peer` reports."""
    hosts: list[str] = []
    if peers is not None and peers.node == node:
        hosts += [
            entry.host for entry in peers.peers if entry.node == peer and entry.status == "linked"
        ]
    if links is not None and links.node == node:
        fastest = sorted(links.links, key=lambda link: -link.bytes_per_s)
        hosts += [link.host for link in fastest if link.peer == peer]
    return [
        Reach(node=node, peer=peer, ip=host, medium=address_at(host, ips).medium)
        for host in dict.fromkeys(hosts)
        if host
    ]


def measured_links(reading: LinkReading, cards: Cards) -> dict[NodeId, LinkCost]:
    """Return the measured cost of a node's link to each peer, on the path that a ring would use."""
    ways: dict[NodeId, list[tuple[MeasuredLink, NodeAddress]]] = {}
    for link in sorted(reading.links, key=lambda link: -link.bytes_per_s):
        at = address_at(link.host, cards.get(link.peer, ()))
        ways.setdefault(link.peer, []).append((link, at))
    return {peer: believed(*min(some, key=_badness)) for peer, some in ways.items()}


def _badness(way: tuple[MeasuredLink, NodeAddress]) -> int:
    return RANKING.index(way[1].medium)


def believed(measured: MeasuredLink, address: NodeAddress) -> LinkCost:
    """Return the cost of a measured link. A measured bandwidth that is only a lower bound counts
    only if it exceeds the estimate for the medium (`PRIORS`)."""
    rate = measured.bytes_per_s
    if measured.at_least:
        rate = max(rate, prior(address).bytes_per_s)
    return LinkCost(measured.latency_s, rate)
