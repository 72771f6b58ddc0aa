"""How nodes reach each other: kinds of network, the estimated cost of a link, and which of a node's
addresses is best.

Pure. Collectives prefer thunderbolt, then maybe_ethernet (an adapter that may be Thunderbolt in
disguise), ethernet, wifi and unknown. They use an overlay network (VPN) only if two nodes have no
local link. Only *observed* connections count: an announced address may be on a network that the
other node does not share.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from bus.wire.ids import NodeId
from bus.wire.messages.wire import Message

Medium = Literal["loopback", "thunderbolt", "maybe_ethernet", "ethernet", "wifi", "unknown", "vpn"]

RANKING: tuple[Medium, ...] = get_args(Medium)
"""Kinds of network, best first. Loopback joins only nodes of one machine."""
_RANK: Mapping[str, int] = {medium: rank for rank, medium in enumerate(RANKING)}
VPN_NETWORKS = (
    ipaddress.ip_network("100.64.0.0/10"),
    ipaddress.ip_network("fd7a:115c:a1e0::/48"),
)
"""Address ranges of overlay networks: carrier-grade NAT and Tailscale's own prefix."""
_TUNNELS = ("tailscale", "utun", "tun", "wg", "zt", "ppp", "ipsec")
_WIRED = ("en", "eth", "em")


class NodeAddress(Message):
    """One IP address of a node, and its medium. `thunderbolt`: the generation (3, 4, 5); 0 if
    unknown."""

    ip: str
    medium: Medium
    interface: str = ""
    thunderbolt: int = Field(default=0, ge=0, le=9)


class RdmaPort(Message):
    """One RDMA device of a node. `active`: its port is PORT_ACTIVE. `domain` and `peer_domain` are
    the Thunderbolt domain UUIDs of this and the other end of its cable; empty if unknown or without
    a cable."""

    device: str
    active: bool
    domain: str = ""
    peer_domain: str = ""


class Reach(Message):
    """`node` was observed to reach `peer` at `ip`: it connected, or a hello arrived."""

    node: NodeId
    peer: NodeId
    ip: str
    medium: Medium


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of a link. `latency_s` is one way, for a small message."""

    latency_s: float
    bytes_per_s: float


THUNDERBOLT_S = 25.5e-6
THUNDERBOLT: Mapping[int, LinkCost] = {
    3: LinkCost(THUNDERBOLT_S, 2.1e9),
    4: LinkCost(THUNDERBOLT_S, 4.5e9),
    5: LinkCost(THUNDERBOLT_S, 8.05e9),
}
PRIORS: Mapping[Medium, LinkCost] = {
    "loopback": LinkCost(27e-6, 2.0e9),
    "thunderbolt": THUNDERBOLT[3],
    "maybe_ethernet": LinkCost(200e-6, 0.117e9),
    "ethernet": LinkCost(200e-6, 0.117e9),
    "wifi": LinkCost(3e-3, 0.040e9),
    "unknown": LinkCost(1e-3, 0.050e9),
    "vpn": LinkCost(20e-3, 0.010e9),
}
"""Estimated costs of links that are not measured yet. Thunderbolt of unknown generation counts as
Thunderbolt 3, ethernet as one gigabit. The latency of loopback is half of a two-rank sum over MLX's
ring, which took 54 us."""


def prior(address: NodeAddress) -> LinkCost:
    """Return the estimated cost of a link over this address."""
    if address.medium == "thunderbolt":
        return THUNDERBOLT.get(address.thunderbolt, PRIORS["thunderbolt"])
    return PRIORS[address.medium]


def ip_in(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address in a text; None if the text is not exactly one IP address."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_overlay(host: str) -> bool:
    """Return whether a host is an address of an overlay network."""
    address = ip_in(host.partition("%")[0])
    return address is not None and any(address in network for network in VPN_NETWORKS)


def medium_of(ip: str, interface: str, hardware_port: str = "") -> Medium:
    """Return the medium of an address. `hardware_port` is macOS's name of the interface's port
    (`networksetup -listallhardwareports`), or `Wi-Fi` if the system reports it as wireless.

    Raises ValueError if `ip` is not an address.
    """
    address = ipaddress.ip_address(ip.partition("%")[0])
    if address.is_loopback:
        return "loopback"
    if is_overlay(ip) or interface.startswith(_TUNNELS):
        return "vpn"
    port = hardware_port.lower()
    if "thunderbolt" in port or interface.startswith("thunderbolt"):
        return "thunderbolt"
    if "wi-fi" in port or interface.startswith(("wl", "ath")):
        return "wifi"
    if port in ("ethernet", "lan"):
        return "ethernet"
    if port.startswith(("ethernet adapter", "usb", "ethernet adaptor")) or "lan" in port.split():
        return "maybe_ethernet"
    if port:
        return "unknown"
    return "ethernet" if interface.startswith(_WIRED) else "unknown"


def ports_in(text: str) -> dict[str, str]:
    """Return hardware ports by interface, from macOS's `networksetup -listallhardwareports`."""
    pairs = re.findall(r"^Hardware Port: (.+)\nDevice: (\S+)$", text, flags=re.MULTILINE)
    return {device: port for port, device in pairs}


def ranked(addresses: Iterable[NodeAddress]) -> list[NodeAddress]:
    """Return addresses, best first; equally good ones are sorted by address. Overlay networks are
    included only if there are no other addresses."""
    ordered = sorted(
        addresses, key=lambda address: (_RANK[address.medium], -address.thunderbolt, address.ip)
    )
    local = [address for address in ordered if address.medium != "vpn"]
    return local or ordered


def shared_prior(
    first: Sequence[NodeAddress], second: Sequence[NodeAddress], *, same_machine: bool
) -> LinkCost:
    """Return the estimated cost of the best link that two nodes may share.

    A medium counts if both have it; loopback only on the same machine. Nodes without a common
    medium get the cost of `unknown`.
    """
    if same_machine:
        return PRIORS["loopback"]
    theirs = {address.medium: address for address in reversed(ranked(second))}
    for mine in ranked(first):
        match = theirs.get(mine.medium)
        if match is not None and mine.medium != "loopback":
            return min(prior(mine), prior(match), key=lambda link: link.bytes_per_s)
    return PRIORS["unknown"]


def observed_address(node: NodeId, peer: NodeId, seen: Iterable[Reach]) -> Reach | None:
    """Return the best address at which `node` was observed to reach `peer`; of several equal ones,
    the first. None if there is none. An overlay network counts only if no other network was
    observed."""
    mine = [reach for reach in seen if reach.node == node and reach.peer == peer]
    local = [reach for reach in mine if reach.medium != "vpn"]
    return min(local or mine, key=lambda reach: _RANK[reach.medium], default=None)


def rdma_mesh(order: Sequence[NodeId], devices: Mapping[NodeId, Mapping[str, str]]) -> bool:
    """Return whether each node has an active RDMA device to each other node (JACCL's full mesh).

    `devices[a][b]` is a's device whose active port leads to b.
    """
    return len(order) > 1 and all(
        peer in devices.get(node, {}) for node in order for peer in order if peer != node
    )
