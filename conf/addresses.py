"""Talks to the operating system: the addresses under which others may reach this machine."""

from __future__ import annotations

import socket

import psutil

from bus.process.endpoints import WILDCARDS
from conf.settings import Settings


def machine_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of all interfaces that are up, but loopback and link-local ones."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        one.address
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for one in addresses
        if name in up and one.family == socket.AF_INET
    ]
    return tuple(one for one in found if not one.startswith(("127.", "169.254.")))


def announced_hosts(settings: Settings) -> tuple[str, ...]:
    """Return the hosts that other nodes are told to dial, best first; none where none may join."""
    cluster = settings.cluster
    if cluster.addresses or not cluster.listen:
        return cluster.addresses
    return machine_addresses() if cluster.listen in WILDCARDS else (cluster.listen,)
