"""The links between the asked node and others: what each lies on, and what was measured of it when.

Pure: `now_s` is the wall clock. A node measures its links itself; a reading tells how old a
measurement was when it was told.
"""

from __future__ import annotations

from typing import Any

from bus.wire.topology import ip_in
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size, span

KINDS = {
    "loopback": "this machine",
    "thunderbolt": "Thunderbolt",
    "ethernet": "Ethernet",
    "maybe_ethernet": "Ethernet, perhaps",
    "wifi": "Wi-Fi",
    "vpn": "VPN",
    "unknown": "kind unknown",
}
RESTS = {
    "new": "not yet",
    "busy_here": "not while this node is busy",
    "busy_there": "not while it is busy",
    "unanswered": "no answer",
}


def measured(state: NodeState, node: str, now_s: float) -> list[dict[str, Any]]:
    """Return what the asked node measured towards `node`, at each of its addresses."""
    reading = state.links.get(state.asked)
    if reading is None:
        return []
    since_s = max(0.0, now_s - reading.measured_at_s)
    return [
        {
            **link.model_dump(mode="json", exclude={"peer"}),
            "kind": kind_of(state, node, link.host),
            "age_s": link.age_s + since_s,
            "latency_age_s": link.latency_age_s + since_s,
        }
        for link in reading.links
        if link.peer == node
    ]


def unmeasured(state: NodeState, node: str) -> str:
    """Return why the asked node does not measure its link to `node` now; empty where it does."""
    reading, asked = state.links.get(state.asked), state.peers.get(state.asked)
    peers = asked.peers if asked else ()
    if not any(peer.node == node and peer.status == "linked" for peer in peers):
        return ""
    if reading is None:
        return RESTS["new"]
    if not reading.latency_every_s:
        return "measure_links is off"
    return next((RESTS[one.why] for one in reading.resting if one.peer == node), "")


def kind_of(state: NodeState, node: str, host: str) -> str:
    """Return what an address of a node lies on, one of `KINDS`."""
    cards = (card for card in state.cards if card.node == node)
    found = next((one.medium for card in cards for one in card.ips if one.ip == host), "")
    address = ip_in(host)
    return found or ("loopback" if address is not None and address.is_loopback else "unknown")


def best_way(ways: list[dict[str, Any]], host: str) -> dict[str, Any] | None:
    """Return the way by the address in use, else the fastest; None where none was measured."""
    return max(ways, key=lambda way: (way["host"] == host, way["bytes_per_s"]), default=None)


def links_of(state: NodeState, now_s: float) -> list[dict[str, Any]]:
    """Return the link of the asked node to each other that it knows."""
    asked = state.peers.get(state.asked)
    found: list[dict[str, Any]] = []
    for peer in () if asked is None else asked.peers:
        way = best_way(measured(state, peer.node, now_s), peer.host) or {}
        numbers = ("latency_s", "latency_age_s", "bytes_per_s", "at_least", "age_s")
        found.append(
            {
                "node": peer.node,
                "name": peer.name or state.names.get(peer.node, peer.node),
                "status": peer.status,
                "silent_s": peer.silent_s,
                "host": peer.host,
                "kind": kind_of(state, peer.node, peer.host),
                "round_trip_s": peer.round_trip_s,
                **{name: way.get(name) for name in numbers},
                "unmeasured": "" if way else unmeasured(state, peer.node),
            }
        )
    return found


def in_a_line(link: dict[str, Any]) -> str:
    """Return a link of `links_of` for people."""
    to = f"link to {link['name']}"
    if link["status"] != "linked":
        silent_s = link["silent_s"] if link["status"] == "silent" else 0.0
        return f"{to}: {link['status']}" + (f" for {span(silent_s)}" if silent_s else "")
    where = f"{to}: {KINDS[link['kind']]}, {link['host']}"
    if link["latency_s"] is None:
        return f"{where}; not measured ({link['unmeasured'] or RESTS['new']})"
    latency, rate = figures(link)
    latency_age, age = span(link["latency_age_s"]), span(link["age_s"])
    return f"{where}; {latency} ({latency_age} ago), {rate} ({age} ago)"


def figures(way: dict[str, Any]) -> tuple[str, str]:
    """Return the latency and the rate of a way that was measured, for people; `+`: the rate may be
    higher."""
    more = "+" if way["at_least"] else ""
    return f"{way['latency_s'] * 1e6:.0f} us", f"{size(int(way['bytes_per_s']))}/s{more}"
