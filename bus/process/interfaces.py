"""Talks to the operating system: lists the addresses of this machine's network interfaces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import psutil

from bus.process.tools import asked
from bus.wire.topology import NodeAddress, medium_of, ports_in


def addresses_up() -> tuple[NodeAddress, ...]:
    """Return the addresses of all active network interfaces, sorted by interface, each with its
    medium."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return tuple(
        NodeAddress(
            ip=entry.address, interface=name, medium=medium_of(entry.address, name, _port(name))
        )
        for name, entries in sorted(psutil.net_if_addrs().items())
        for entry in entries
        if name in up and entry.family != psutil.AF_LINK
    )


def reachable_hosts() -> tuple[str, ...]:
    """Return the IPv4 addresses under which others may reach this machine: those of all active
    interfaces, without loopback and link-local addresses."""
    hosts = [ip_address(address.ip) for address in addresses_up() if ":" not in address.ip]
    return tuple(str(host) for host in hosts if not (host.is_loopback or host.is_link_local))


def _port(interface: str) -> str:
    """Return macOS's name of the hardware port of a network interface, for example `Thunderbolt
    Bridge`. On Linux return `Wi-Fi` for a wireless interface. Empty if unknown."""
    wireless = Path(f"/sys/class/net/{interface}/wireless").exists()
    return _hardware_ports().get(interface, "Wi-Fi" if wireless else "")


@functools.cache
def _hardware_ports() -> Mapping[str, str]:
    if sys.platform != "darwin":
        return {}
    return ports_in(asked("/usr/sbin/networksetup", "-listallhardwareports"))
