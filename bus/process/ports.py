"""Talks to the system: resolves a host name to addresses of this machine, and finds the process
that listens at a local TCP port."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

import psutil

from bus.process.endpoints import LOOPBACKS, WILDCARDS
from bus.process.identity import known_node_id

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)


def addresses_of(host: str) -> list[str]:
    """Return the addresses to listen at for `host`. For `localhost` these are both loopback
    addresses, because clients of that name try either; on a machine without IPv6, only IPv4's."""
    if host.casefold() != "localhost":
        return [host]
    return [address for address in LOOPBACKS if address == LOOPBACKS[0] or _is_here(address)]


def listening(pid: int) -> frozenset[int]:
    """Return the TCP ports at which a process listens; none if the process is gone, or another
    user's."""
    with contextlib.suppress(psutil.Error, OSError):
        connections = psutil.Process(pid).net_connections("tcp")
        ours = (connection for connection in connections if connection.status == psutil.CONN_LISTEN)
        return frozenset(connection.laddr.port for connection in ours if connection.laddr)
    return frozenset()


def port_owner(port: int, address: str = "") -> str | None:
    """Return which process uses a local port: `name (pid 123)`, with its node if it belongs to one.
    None if the system does not report it. `address`: only find a process that prevents others from
    listening at that address ("": at any address)."""
    at = None if address in ("", *WILDCARDS) else {address, *WILDCARDS}
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if not connection.laddr or connection.laddr.port != port or not connection.pid:
                continue
            if at is None or connection.laddr.ip in at:
                return _named(psutil.Process(connection.pid))
    return None


def _is_here(address: str) -> bool:
    """Return whether this machine has an IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno not in _NO_SUCH_ADDRESS
    return True


def _named(process: psutil.Process) -> str:
    """Return the name of a process, and of its node if it works in a `state/run` folder."""
    called = f"{process.name()} (pid {process.pid})"
    with contextlib.suppress(psutil.Error, OSError):
        state = Path(process.cwd()).parent
        node = known_node_id(state)
        if node is not None:
            return f"node {node}, whose state is in {state}: {called}"
    return called
