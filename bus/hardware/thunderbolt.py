"""Thunderbolt cables, bridges and bridge loops, from the output of macOS's tools.

Pure: it parses the text of the tools and returns facts. `system_profiler SPThunderboltDataType
-json` lists a bus for each port, each with a domain UUID. Below a bus it lists the Mac at the other
end of the cable, with the UUID of its own bus, so two machines' reports can be matched. The
Thunderbolt Bridge joins all ports of a Mac into one Ethernet segment. If more than two Macs are
cabled in a ring and all bridge, frames circulate for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from bus.wire.ids import NodeId
from bus.wire.messages.readings import ThunderboltReading

BRIDGE = "Thunderbolt Bridge"
FEWEST_IN_A_LOOP = 3


@dataclass(frozen=True, slots=True)
class ThunderboltPort:
    """One Thunderbolt port. `domain`: the domain UUID of its bus. `peers`: the domain UUIDs of the
    Macs at the other end of its cable. `gigabits`: the speed of a plugged cable, else 0."""

    receptacle: str
    domain: str
    peers: tuple[str, ...]
    gigabits: int


def ports_in(profile: str) -> tuple[ThunderboltPort, ...]:
    """Return the ports in `system_profiler`'s JSON, in its order; none if the text is not such
    JSON."""
    try:
        buses: Any = json.loads(profile)["SPThunderboltDataType"]
    except (ValueError, KeyError, TypeError):
        return ()
    entries = cast(list[Any], buses) if isinstance(buses, list) else []
    return tuple(_port(cast(dict[str, Any], entry)) for entry in entries if isinstance(entry, dict))


def _port(bus: Mapping[str, Any]) -> ThunderboltPort:
    plug = next((value for key, value in bus.items() if key.startswith("receptacle_")), None)
    receptacle = cast(dict[str, Any], plug) if isinstance(plug, dict) else {}
    joined = receptacle.get("receptacle_status_key") == "receptacle_connected"
    speed = re.search(r"(\d+) Gb/s", str(receptacle.get("current_speed_key", "")))
    items = bus.get("_items")
    below = cast(list[Any], items) if isinstance(items, list) else []
    devices = [cast(dict[str, Any], device) for device in below if isinstance(device, dict)]
    return ThunderboltPort(
        receptacle=str(receptacle.get("receptacle_id_key", "")),
        domain=str(bus.get("domain_uuid_key", "")),
        peers=tuple(
            str(device["domain_uuid_key"]) for device in devices if "domain_uuid_key" in device
        ),
        gigabits=int(speed.group(1)) if joined and speed else 0,
    )


def bridge_service(order: str) -> str | None:
    """Return the name of the Thunderbolt Bridge's network service, from the output of `networksetup
    -listnetworkserviceorder` (an operator may have changed the name). None if there is no such
    service or it is switched off."""
    for mark, name, port in re.findall(
        r"^\((\d+|\*)\) (.+)\n\(Hardware Port: (.+?), Device: \S*\)$", order, flags=re.MULTILINE
    ):
        if port == BRIDGE and mark != "*":
            return name
    return None


def reading_of(profile: str, order: str) -> ThunderboltReading:
    """Return a node's Thunderbolt ports from the output of `system_profiler` and `networksetup`."""
    ports = ports_in(profile)
    return ThunderboltReading(
        bridged=bridge_service(order) is not None,
        domains=tuple(port.domain for port in ports if port.domain),
        peers=tuple(domain for port in ports for domain in port.peers),
    )


def bridge_loops(readings: Mapping[NodeId, ThunderboltReading]) -> tuple[tuple[NodeId, ...], ...]:
    """Return the groups of more than two nodes whose bridges form a ring, or several connected
    rings. The nodes of a group are sorted by id.

    A node with fewer than two bridging neighbours is on no ring. Removing such nodes repeatedly
    leaves the rings (the graph's 2-core) and the nodes between two of them.
    """
    links = _links({node: reading for node, reading in readings.items() if reading.bridged})
    while loose := [node for node, near in links.items() if len(near) < 2]:
        for node in loose:
            for near in links.pop(node):
                links.get(near, set[NodeId]()).discard(node)
    loops: list[tuple[NodeId, ...]] = []
    while links:
        group, fresh = set[NodeId](), {next(iter(links))}
        while fresh:
            node = fresh.pop()
            group.add(node)
            fresh |= links.pop(node) - group
        loops.append(tuple(sorted(group)))
    return tuple(sorted(loop for loop in loops if len(loop) >= FEWEST_IN_A_LOOP))


def _links(readings: Mapping[NodeId, ThunderboltReading]) -> dict[NodeId, set[NodeId]]:
    """Return the neighbours of each node. Two nodes are neighbours if either of them reports the
    cable."""
    owner = {domain: node for node, reading in readings.items() for domain in reading.domains}
    links: dict[NodeId, set[NodeId]] = {node: set() for node in readings}
    for node, reading in readings.items():
        for domain in reading.peers:
            near = owner.get(domain)
            if near is not None and near != node:
                links[node].add(near)
                links[near].add(node)
    return links
