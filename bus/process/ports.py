"""Talks to the system: which addresses a host stands for here, which process listens at which
local TCP port."""

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
    """Return the addresses to listen at for `host`. `localhost` stands for both loopbacks, because
    programs that ask for that name try either; a machine without IPv6 has only the first."""
    if host.casefold() != "localhost":
        return [host]
    return [address for address in LOOPBACKS if address == LOOPBACKS[0] or _is_here(address)]


def listening(pid: int) -> frozenset[int]:
    """Return the ports at which a process listens; none where it is gone, or another user's."""
    with contextlib.suppress(psutil.Error, OSError):
        found = psutil.Process(pid).net_connections("tcp")
        ours = (one for one in found if one.status == psutil.CONN_LISTEN)
        return frozenset(one.laddr.port for one in ours if one.laddr)
    return frozenset()


def port_owner(port: int, address: str = "") -> str | None:
    """Return who uses a local port, `name (pid 123)` or the node that it is; None where the system
    does not tell. `address`: who keeps others from listening there ("": at any address)."""
    at = None if address in ("", *WILDCARDS) else {address, *WILDCARDS}
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if not one.laddr or one.laddr.port != port or not one.pid:
                continue
            if at is None or one.laddr.ip in at:
                return _named(psutil.Process(one.pid))
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
    """Return what a process is called; of a node also whose: its processes work in `state/run`."""
    called = f"{process.name()} (pid {process.pid})"
    with contextlib.suppress(psutil.Error, OSError):
        state = Path(process.cwd()).parent
        node = known_node_id(state)
        if node is not None:
            return f"node {node}, whose state is in {state}: {called}"
    return called
