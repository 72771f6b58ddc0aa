"""Talks to the system's resolver: finds the addresses of host names in threads, so that no loop
waits for a name server.

A name server that does not answer blocks a lookup for seconds. ZeroMQ looks names up in the thread
that serves all sockets of a process, so one unknown name would stop every connection (decision
0104).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bus.process.clock import now
from bus.process.endpoints import host_of
from bus.wire.ids import NodeId
from bus.wire.topology import ip_in

AGAIN_S = 10.0
"""A name is looked up again if its last lookup began this long ago: its machine may have another
address now."""
FIRST_S = 0.02
"""How long a new connection to a name waits for the name's first address."""
Resolve = Callable[[str], tuple[str, ...]]


def resolve(host: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name in the resolver's order; none if it has none. Blocks."""
    try:
        rows = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(row[4][0]) for row in rows))


def has_name(address: str) -> bool:
    """Return whether `tcp://host:port` has a host name, and not an IP address."""
    return address.startswith("tcp://") and ip_in(host_of(address)) is None


@dataclass(slots=True)
class _Lookup:
    """The addresses that the last successful lookup of a name returned; empty before that. `thread`
    runs, or ran, the latest lookup."""

    began_at: float = float("-inf")
    addresses: tuple[str, ...] = ()
    thread: threading.Thread | None = None


class HostNames:
    """The addresses of the names that a process uses. One lookup per name runs at a time, in a
    thread of its own."""

    def __init__(self, resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._lookups: dict[str, _Lookup] = {}
        self._lock = threading.Lock()

    def addresses(self, host: str, wait_s: float = 0.0) -> tuple[str, ...]:
        """Return the last addresses of a name; none if there are none yet.

        Starts a lookup if the last one is old. `wait_s` is how long to wait for the first result.
        Any thread may call this.
        """
        with self._lock:
            lookup = self._lookups.setdefault(host, _Lookup())
            is_running = lookup.thread is not None and lookup.thread.is_alive()
            if not is_running and now() - lookup.began_at >= AGAIN_S:
                lookup.began_at = now()
                lookup.thread = threading.Thread(
                    target=self._look, args=(host, lookup), name=f"lookup {host}", daemon=True
                )
                lookup.thread.start()
        if lookup.thread is not None and not lookup.addresses and wait_s > 0:
            lookup.thread.join(wait_s)
        return lookup.addresses

    def _look(self, host: str, lookup: _Lookup) -> None:
        """Look a name up. A lookup without a result keeps the last addresses."""
        addresses = self._resolve(host)
        if addresses:
            lookup.addresses = addresses


@dataclass(slots=True)
class _NamedServer:
    """A server that a link connects to by name. `peer` is the node expected there. `host` is the IP
    address that the link is connected to; empty until the name has an address."""

    peer: NodeId | None
    host: str = ""


class NamedServers:
    """The servers that one link connects to by name. `connect` and `disconnect` are called with
    addresses that have an IP address instead of the name."""

    def __init__(
        self,
        names: HostNames,
        connect: Callable[[str, NodeId | None], None],
        disconnect: Callable[[str], None],
    ) -> None:
        self._names = names
        self._connect = connect
        self._disconnect = disconnect
        self._servers: dict[str, _NamedServer] = {}

    def __len__(self) -> int:
        """Return the number of servers."""
        return len(self._servers)

    def add(self, address: str, peer: NodeId | None) -> None:
        """Connect to a server by name: at once if the name gets an address within `FIRST_S`, else
        in a later `follow`."""
        self._servers[address] = _NamedServer(peer)
        self.follow(FIRST_S)

    def drop(self, address: str) -> None:
        """Disconnect from a server; an unknown one is ignored."""
        server = self._servers.pop(address, None)
        if server is not None and server.host:
            self._disconnect(_at(server.host, address))

    def follow(self, wait_s: float = 0.0) -> None:
        """Connect each server whose name got its first address or moved to another one. Wait at
        most `wait_s` for the first address of a name."""
        for address, server in self._servers.items():
            hosts = self._names.addresses(host_of(address), wait_s)
            if hosts and server.host not in hosts:
                if server.host:
                    self._disconnect(_at(server.host, address))
                server.host = hosts[0]
                self._connect(_at(server.host, address), server.peer)


def _at(host: str, address: str) -> str:
    return f"tcp://{host}:{address.rpartition(':')[2]}"
