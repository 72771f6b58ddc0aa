"""Talks to the operating system: the addresses of this machine's interfaces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from bus.process.tools import asked
from bus.wire.topology import NodeAddress, medium_of, ports_in


def addresses_up() -> tuple[NodeAddress, ...]:
    """Return the addresses of all interfaces that are up, by interface, and what each lies on."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return tuple(
        NodeAddress(
            ip=one.address, interface=name, medium=medium_of(one.address, name, _port(name))
        )
        for name, some in sorted(psutil.net_if_addrs().items())
        for one in some
        if name in up and one.family != psutil.AF_LINK
    )


def _port(interface: str) -> str:
    """Return what the system calls the port of an interface; empty where it says nothing."""
    wireless = Path(f"/sys/class/net/{interface}/wireless").exists()
    return _hardware_ports().get(interface, "Wi-Fi" if wireless else "")


@functools.cache
def _hardware_ports() -> Mapping[str, str]:
    if sys.platform != "darwin":
        return {}
    return ports_in(asked("/usr/sbin/networksetup", "-listallhardwareports"))
