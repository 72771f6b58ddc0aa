"""Talks to psutil: which process listens at which local TCP port."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from bus.process.identity import known_node_id


def listening(pid: int) -> frozenset[int]:
    """Return the ports at which a process listens; none where it is gone, or another user's."""
    with contextlib.suppress(psutil.Error, OSError):
        found = psutil.Process(pid).net_connections("tcp")
        ours = (one for one in found if one.status == psutil.CONN_LISTEN)
        return frozenset(one.laddr.port for one in ours if one.laddr)
    return frozenset()


def port_owner(port: int) -> str | None:
    """Return who uses a local port, `name (pid 123)` or the node that it is; None where the system
    does not tell."""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.laddr and one.laddr.port == port and one.pid:
                return _named(psutil.Process(one.pid))
    return None


def _named(process: psutil.Process) -> str:
    """Return what a process is called; of a node also whose: its processes work in `state/run`."""
    called = f"{process.name()} (pid {process.pid})"
    with contextlib.suppress(psutil.Error, OSError):
        state = Path(process.cwd()).parent
        node = known_node_id(state)
        if node is not None:
            return f"node {node}, whose state is in {state}: {called}"
    return called
