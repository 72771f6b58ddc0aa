"""Find this node's RDMA devices and the node at the other end of each cable, from the output of
tools.

Pure: the function that runs tools is an argument. macOS names a device after its interface
(`rdma_en2` of `en2`). `networksetup` names the interface after a receptacle (`Thunderbolt 2`).
`system_profiler` lists the UUIDs of the Thunderbolt domains at both ends. Each node announces its
ports' domains. Two ports are the ends of one cable if each lists the other's domain as its peer. A
Mac that is connected through a dock does not count as a neighbour. If a tool is missing or fails,
there is no RDMA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from bus.hardware import thunderbolt
from bus.hardware.rdma_ports import ACTIVE, rdma_ports
from bus.wire.ids import NodeId
from bus.wire.topology import RdmaPort, ports_in

Ask = Callable[..., str]
"""Runs a command, given as its arguments, and returns its output; empty if the command cannot run
or fails."""


def find_ports(ask: Ask) -> tuple[RdmaPort, ...]:
    """Return this node's RDMA ports, by device; none if RDMA is disabled."""
    states = states_in(ask("ibv_devinfo"))
    for device in devices_in(ask("ibv_devices")):
        states.setdefault(device, "")
    if not states or not may_be_enabled(ask("rdma_ctl", "status")):
        return ()
    receptacles = ports_in(ask("networksetup", "-listallhardwareports"))
    domains = domains_in(ask("system_profiler", "SPThunderboltDataType", "-json"))
    ports: list[RdmaPort] = []
    for device, state in sorted(states.items()):
        receptacle = receptacles.get(device.removeprefix("rdma_"), "")
        here, there = domains.get(receptacle, ("", ""))
        ports.append(
            RdmaPort(device=device, active=state == ACTIVE, domain=here, peer_domain=there)
        )
    return tuple(ports)


def devices_in(text: str) -> tuple[str, ...]:
    """Return the devices in the table of `ibv_devices`: name and GUID below a ruled heading."""
    return tuple(re.findall(r"^\s*(\w+)\s+[0-9a-fA-F]{16}\s*$", text, flags=re.MULTILINE))


def states_in(text: str) -> dict[str, str]:
    """Return the port state of each device, from `ibv_devinfo`. If a device has several ports, an
    active one counts."""
    states: dict[str, str] = {}
    for port in rdma_ports(text):
        if states.get(port.device) != ACTIVE:
            states[port.device] = port.state
    return states


def may_be_enabled(text: str) -> bool:
    """Return whether `rdma_ctl status` allows RDMA; if that tool does not exist, RDMA cannot be
    switched off."""
    return text.strip().lower() in ("", "enabled")


def domains_in(text: str) -> dict[str, tuple[str, str]]:
    """Return two domain UUIDs for each receptacle (`Thunderbolt 2`): that of its own bus and that
    of the machine cabled to it directly (empty: none). The text is the output of `system_profiler
    SPThunderboltDataType -json`."""
    return {
        f"Thunderbolt {port.receptacle}": (port.domain.upper(), "".join(port.peers[:1]).upper())
        for port in thunderbolt.ports_in(text)
        if port.receptacle and port.domain
    }


def devices_to(
    mine: Sequence[RdmaPort], others: Mapping[NodeId, Sequence[RdmaPort]]
) -> dict[str, str]:
    """Return for each peer the device whose active port leads to that peer. If there are several
    cables, the first device counts."""
    ends = {
        (port.domain, port.peer_domain): node
        for node, ports in others.items()
        for port in ports
        if port.domain and port.peer_domain
    }
    devices: dict[str, str] = {}
    for port in mine:
        node = ends.get((port.peer_domain, port.domain))
        if port.active and node is not None:
            devices.setdefault(node, port.device)
    return devices


def device_row(
    order: Sequence[NodeId], node: NodeId, devices: Mapping[str, str]
) -> tuple[str, ...] | NodeId:
    """Return a node's row of JACCL's device matrix: the device to each rank's node, "" to its own.
    If no device leads to a node, return that node instead."""
    missing = next((peer for peer in order if peer != node and peer not in devices), None)
    if missing is not None:
        return missing
    return tuple("" if peer == node else devices[peer] for peer in order)
