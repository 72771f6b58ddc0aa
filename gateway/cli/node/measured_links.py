"""The measured links from the answering node to other nodes: medium, latency, rate and age.

Pure: `now_s` is the wall clock. Each node measures its own links. A reading contains the age that
each measurement had when the reading was made.
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
    "maybe_ethernet": "possibly Ethernet",
    "wifi": "Wi-Fi",
    "vpn": "VPN",
    "unknown": "kind unknown",
}
RESTS = {
    "new": "not yet",
    "busy_here": "not while this node is busy",
    "busy_there": "not while that node is busy",
    "unanswered": "no answer",
}


def measurements(state: NodeState, node: str, now_s: float) -> list[dict[str, Any]]:
    """Return the measurements of the link to `node`, one for each of that node's addresses."""
    reading = state.links.get(state.node)
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


def why_unmeasured(state: NodeState, node: str) -> str:
    """Return why the answering node does not measure its link to `node` now; empty if it does."""
    reading, membership = state.links.get(state.node), state.peers.get(state.node)
    peers = membership.peers if membership else ()
    if not any(peer.node == node and peer.status == "linked" for peer in peers):
        return ""
    if reading is None:
        return RESTS["new"]
    if not reading.latency_every_s:
        return "measure_links is off"
    return next((RESTS[pause.why] for pause in reading.resting if pause.peer == node), "")


def kind_of(state: NodeState, node: str, host: str) -> str:
    """Return the medium of a node's address. It is one of `KINDS`."""
    cards = (card for card in state.cards if card.node == node)
    medium = next((ip.medium for card in cards for ip in card.ips if ip.ip == host), "")
    address = ip_in(host)
    return medium or ("loopback" if address is not None and address.is_loopback else "unknown")


def best_way(ways: list[dict[str, Any]], host: str) -> dict[str, Any] | None:
    """Return the measurement of the address in use (`host`). If that address was not measured,
    return the fastest measurement; None if there are no measurements."""
    return max(ways, key=lambda way: (way["host"] == host, way["bytes_per_s"]), default=None)


def links_of(state: NodeState, now_s: float) -> list[dict[str, Any]]:
    """Return the links from the answering node to each node that it knows."""
    membership = state.peers.get(state.node)
    links: list[dict[str, Any]] = []
    for peer in () if membership is None else membership.peers:
        way = best_way(measurements(state, peer.node, now_s), peer.host) or {}
        numbers = ("latency_s", "latency_age_s", "bytes_per_s", "at_least", "age_s")
        links.append(
            {
                "node": peer.node,
                "name": peer.name or state.names.get(peer.node, peer.node),
                "status": peer.status,
                "silent_s": peer.silent_s,
                "host": peer.host,
                "kind": kind_of(state, peer.node, peer.host),
                "round_trip_s": peer.round_trip_s,
                **{name: way.get(name) for name in numbers},
                "unmeasured": "" if way else why_unmeasured(state, peer.node),
            }
        )
    return links


def in_a_line(link: dict[str, Any]) -> str:
    """Return the text of one line about a link of `links_of`."""
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
    """Return the latency and the rate of a measurement, for people. A `+` after the rate means that
    the link may be faster than measured."""
    more = "+" if way["at_least"] else ""
    return f"{way['latency_s'] * 1e6:.0f} us", f"{size(int(way['bytes_per_s']))}/s{more}"
