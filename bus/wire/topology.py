"""How nodes reach each other: kinds of link, what each is worth until measured, which is best.

Pure. Collectives take thunderbolt before maybe-ethernet (an adapter that may be Thunderbolt
in disguise), ethernet, wifi and unknown; an overlay network (VPN) only where a pair of nodes has
nothing local. Only connections that were *observed* count: an address that a node announces may
be on a network that the other does not share.
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
"""Best first. Loopback joins nodes of one machine and nobody else."""
_RANK: Mapping[str, int] = {medium: rank for rank, medium in enumerate(RANKING)}
VPN_NETWORKS = (
    ipaddress.ip_network("100.64.0.0/10"),
    ipaddress.ip_network("fd7a:115c:a1e0::/48"),
)
"""Carrier-grade NAT space and Tailscale's own prefix: what overlay networks hand out."""
_TUNNELS = ("tailscale", "utun", "tun", "wg", "zt", "ppp", "ipsec")
_WIRED = ("en", "eth", "em")


class NodeAddress(Message):
    """One IP address of a node, and what it lies on. `thunderbolt` is the generation (3, 4, 5)
    where it is known, else 0."""

    ip: str
    medium: Medium
    interface: str = ""
    thunderbolt: int = Field(default=0, ge=0, le=9)


class RdmaPort(Message):
    """One RDMA device of a node. `active`: its port is PORT_ACTIVE. `domain` names this end of
    its cable and `peer_domain` the other (Thunderbolt domain UUIDs; empty: not known, no cable)."""

    device: str
    active: bool
    domain: str = ""
    peer_domain: str = ""


class Reach(Message):
    """`node` was seen to reach `peer` at `ip` (a connection was made, or a hello came)."""

    node: NodeId
    peer: NodeId
    ip: str
    medium: Medium


@dataclass(frozen=True, slots=True)
class LinkCost:
    """What a hop costs. `latency_s` is one way, of a small message."""

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
"""Believed until a link is measured. Thunderbolt of unknown generation counts as the third;
ethernet as one gigabit; loopback as half of a 54 us two-rank sum over MLX's ring."""


def prior(address: NodeAddress) -> LinkCost:
    """Return what a link over this address is believed to be worth."""
    if address.medium == "thunderbolt":
        return THUNDERBOLT.get(address.thunderbolt, PRIORS["thunderbolt"])
    return PRIORS[address.medium]


def ip_in(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is, None where it is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_overlay(host: str) -> bool:
    """Return whether a host is an address that overlay networks hand out."""
    address = ip_in(host.partition("%")[0])
    return address is not None and any(address in network for network in VPN_NETWORKS)


def medium_of(ip: str, interface: str, hardware_port: str = "") -> Medium:
    """Return what an address lies on. `hardware_port` is macOS's name of the interface's port
    (`networksetup -listallhardwareports`), or `Wi-Fi` where the system knows it to be wireless.

    Raises ValueError when `ip` is no address.
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
    """Return addresses, best first, ties by address; overlay networks only without any other."""
    found = sorted(addresses, key=lambda one: (_RANK[one.medium], -one.thunderbolt, one.ip))
    local = [one for one in found if one.medium != "vpn"]
    return local or found


def shared_prior(
    one: Sequence[NodeAddress], other: Sequence[NodeAddress], *, same_machine: bool
) -> LinkCost:
    """Return what the best link that two nodes may share is believed to be worth.

    A medium counts when both have it; loopback only on the same machine. Nothing in common is
    `unknown`.
    """
    if same_machine:
        return PRIORS["loopback"]
    theirs = {address.medium: address for address in reversed(ranked(other))}
    for mine in ranked(one):
        match = theirs.get(mine.medium)
        if match is not None and mine.medium != "loopback":
            return min(prior(mine), prior(match), key=lambda link: link.bytes_per_s)
    return PRIORS["unknown"]


def observed_address(node: NodeId, peer: NodeId, seen: Iterable[Reach]) -> Reach | None:
    """Return the best address at which `node` was seen to reach `peer`, of equals the first; None
    when it never did. An overlay network counts only where nothing else was seen."""
    mine = [one for one in seen if one.node == node and one.peer == peer]
    local = [one for one in mine if one.medium != "vpn"]
    return min(local or mine, key=lambda one: _RANK[one.medium], default=None)


def rdma_mesh(order: Sequence[NodeId], devices: Mapping[NodeId, Mapping[str, str]]) -> bool:
    """Return whether every node has an active RDMA device to every other (JACCL's full mesh).

    `devices[a][b]` is a's device whose active port leads to b.
    """
    return len(order) > 1 and all(
        peer in devices.get(node, {}) for node in order for peer in order if peer != node
    )
