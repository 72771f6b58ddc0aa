"""Talks to the system: whether the other end of a connection is a process of this very user.

HTTP on loopback asks for no key, so every user of the machine may come in there. What only the
owner of the node's files may do asks here first.
"""

from __future__ import annotations

import contextlib
import os

import psutil

MAPPED = "::ffff:"
"""Begins an IPv4 address that a socket of IPv6 has."""


def is_own_process(host: str, port: int, server_port: int) -> bool:
    """Return whether a process of this user holds the end `host`:`port` of a TCP connection to
    `server_port`. It looks through all of the user's processes: to be called from a thread."""
    mine = os.getuid()
    for process in psutil.process_iter():
        # one that ends meanwhile, or that the system hides, is not shown to be ours
        with contextlib.suppress(psutil.Error):
            if process.uids().effective == mine and _holds(process, host, port, server_port):
                return True
    return False


def _holds(process: psutil.Process, host: str, port: int, server_port: int) -> bool:
    return any(
        (found.laddr.ip.removeprefix(MAPPED), found.laddr.port) == (host.removeprefix(MAPPED), port)
        and found.raddr
        and found.raddr.port == server_port
        for found in process.net_connections("tcp")
        if found.laddr
    )
