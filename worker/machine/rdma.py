"""Which RDMA devices this node has and which node each one's cable leads to, from what tools say.

Pure: what asks the tools is given. macOS names a device after its interface (`rdma_en2` of
`en2`), which `networksetup` names after a receptacle (`Thunderbolt 2`), of which `system_profiler`
tells the UUID of the Thunderbolt domain at either end. Domains are announced, and two ports that
name each other's are the ends of one cable. A Mac behind a dock is no neighbour. A tool that is
missing or fails says nothing, and then there is no RDMA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from bus.hardware import thunderbolt
from bus.hardware.rdma_ports import ACTIVE, rdma_ports
from bus.wire.ids import NodeId
from bus.wire.topology import RdmaPort, ports_in

Ask = Callable[..., str]
"""A command's words to what it printed; empty when it cannot be run or fails."""


def find_ports(ask: Ask) -> tuple[RdmaPort, ...]:
    """Return this node's RDMA ports, by device. None where RDMA is disabled."""
    states = states_in(ask("ibv_devinfo"))
    for device in devices_in(ask("ibv_devices")):
        states.setdefault(device, "")
    if not states or not may_be_enabled(ask("rdma_ctl", "status")):
        return ()
    receptacles = ports_in(ask("networksetup", "-listallhardwareports"))
    domains = domains_in(ask("system_profiler", "SPThunderboltDataType", "-json"))
    found: list[RdmaPort] = []
    for device, state in sorted(states.items()):
        receptacle = receptacles.get(device.removeprefix("rdma_"), "")
        here, there = domains.get(receptacle, ("", ""))
        found.append(
            RdmaPort(device=device, active=state == ACTIVE, domain=here, peer_domain=there)
        )
    return tuple(found)


def devices_in(text: str) -> tuple[str, ...]:
    """Return the devices in the table that `ibv_devices` prints: name and GUID below a ruled
    heading."""
    return tuple(re.findall(r"^\s*(\w+)\s+[0-9a-fA-F]{16}\s*$", text, flags=re.MULTILINE))


def states_in(text: str) -> dict[str, str]:
    """Return by device the state of its port (of several an active one counts), from
    `ibv_devinfo`."""
    found: dict[str, str] = {}
    for one in rdma_ports(text):
        if found.get(one.device) != ACTIVE:
            found[one.device] = one.state
    return found


def may_be_enabled(text: str) -> bool:
    """Return whether `rdma_ctl status` lets RDMA be used; without that tool there is no switch."""
    return text.strip().lower() in ("", "enabled")


def domains_in(text: str) -> dict[str, tuple[str, str]]:
    """Return by receptacle (`Thunderbolt 2`) the domain UUIDs of its own bus and of the machine
    that is cabled to it directly (empty: none), from `system_profiler SPThunderboltDataType
    -json`."""
    return {
        f"Thunderbolt {port.receptacle}": (port.domain.upper(), "".join(port.peers[:1]).upper())
        for port in thunderbolt.ports_in(text)
        if port.receptacle and port.domain
    }


def devices_to(
    mine: Sequence[RdmaPort], others: Mapping[NodeId, Sequence[RdmaPort]]
) -> dict[str, str]:
    """Return by peer the device whose active port leads to it; of several cables the first
    device."""
    ends = {
        (port.domain, port.peer_domain): node
        for node, ports in others.items()
        for port in ports
        if port.domain and port.peer_domain
    }
    found: dict[str, str] = {}
    for port in mine:
        node = ends.get((port.peer_domain, port.domain))
        if port.active and node is not None:
            found.setdefault(node, port.device)
    return found


def device_row(
    order: Sequence[NodeId], node: NodeId, devices: Mapping[str, str]
) -> tuple[str, ...] | NodeId:
    """Return a node's row of JACCL's device matrix: the device to each rank's node, "" to its own.
    The first node to which none leads is the answer instead."""
    missing = next((one for one in order if one != node and one not in devices), None)
    if missing is not None:
        return missing
    return tuple("" if one == node else devices[one] for one in order)
