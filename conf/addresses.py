"""Talks to the operating system: the addresses under which others may reach this machine."""

from __future__ import annotations

import socket

import psutil

from bus.process.endpoints import WILDCARDS
from conf.settings import Settings


def machine_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of all interfaces that are up, without loopback and link-local
    addresses."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    hosts = [
        entry.address
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for entry in addresses
        if name in up and entry.family == socket.AF_INET
    ]
    return tuple(entry for entry in hosts if not entry.startswith(("127.", "169.254.")))


def announced_hosts(settings: Settings) -> tuple[str, ...]:
    """Return the hosts that other nodes should connect to, best first; none if the node is closed
    to others."""
    cluster = settings.cluster
    if cluster.addresses or not cluster.listen:
        return cluster.addresses
    return machine_addresses() if cluster.listen in WILDCARDS else (cluster.listen,)
