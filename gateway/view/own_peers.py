"""Talks to the system: finds out which user of this machine owns the other end of a connection.

HTTP on loopback needs no key, so every user of the machine can connect. Actions that are reserved
for the node's owner are checked with this module first. Linux reports the user of each socket, by a
query for one socket (sock_diag(7)) or in a table of all sockets. Other systems show only the
sockets of this user's own processes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

import psutil

End = tuple[str, int]
"""One end of a TCP connection: an address and a port."""
MAPPED = "::ffff:"
"""Prefix of an IPv4 address on an IPv6 socket."""
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OWN_END, _OTHER_END, _STATE, _USER, _INODE = 1, 2, 3, 7, 9
"""Columns of the tables `/proc/net/tcp` and `/proc/net/tcp6` (proc_pid_net(5))."""
_LISTENS = 10
_ANSWERS_S = 1.0
_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_HEADER, _QUESTION, _ANSWER = "=IHHII", "=BBBxI", "=BBxx48xIIIII"
"""`struct` formats of a netlink message's header, of a question before its two socket addresses,
and of an answer (sock_diag(7))."""
_ANY_STATE, _NO_COOKIE = 0xFFFFFFFF, b"\xff" * 8


def user_of_end(client: End, server: End) -> int | None:
    """Return the user id that owns the end `client` of a TCP connection to `server`.

    Returns None if the system does not report the user, or if no process has the socket any more.
    Call this in a thread: it may read all sockets or all processes.
    """
    client, server = _plain(client), _plain(server)
    with contextlib.suppress(OSError, ValueError, struct.error):
        return _from_kernel(client, server)
    with contextlib.suppress(OSError, ValueError):
        return _in_tables(client, server)
    return os.getuid() if _is_of_own_processes(client, server) else None


def _plain(end: End) -> End:
    return end[0].removeprefix(MAPPED), end[1]


def _from_kernel(client: End, server: End) -> int | None:
    """Ask the kernel for the user of one socket. Raises OSError if the kernel does not know the
    socket."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        raise OSError("this system has no netlink")
    ends = [ipaddress.ip_address(host).packed for host, _ in (client, server)]
    kind = socket.AF_INET if len(ends[0]) == 4 else socket.AF_INET6
    ports = struct.pack("!HH", client[1], server[1])
    addresses = b"".join(packed.ljust(16, b"\0") for packed in ends)
    question = struct.pack(_QUESTION, kind, socket.IPPROTO_TCP, 0, _ANY_STATE) + ports + addresses
    question += struct.pack("=I", 0) + _NO_COOKIE
    header = struct.calcsize(_HEADER)
    with socket.socket(family, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWERS_S)
        kernel.send(
            struct.pack(_HEADER, header + len(question), _BY_FAMILY, _REQUEST, 1, 0) + question
        )
        answer = kernel.recv(4096)
    if struct.unpack_from(_HEADER, answer)[1] != _BY_FAMILY:
        raise OSError("the kernel does not know this socket")
    _, state, _, _, _, user, inode = struct.unpack_from(_ANSWER, answer, header)
    return user if _is_held(state, inode) else None


def _in_tables(client: End, server: End) -> int | None:
    """Return the user of a socket from the tables in `/proc/net`. Raises OSError on a system
    without these tables."""
    ends = [f"{_as_in_tables(host)}:{port:04X}" for host, port in (client, server)]
    for path in TABLES:
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            columns = line.split()
            if [columns[_OWN_END], columns[_OTHER_END]] == ends:
                is_held = _is_held(int(columns[_STATE], 16), int(columns[_INODE]))
                return int(columns[_USER]) if is_held else None
    if not TABLES[0].exists():
        raise OSError("this system has no tables of sockets")
    return None


def _is_held(state: int, inode: int) -> bool:
    """Return whether a process has the socket in the table. For a closed socket, the system reports
    user 0."""
    return inode != 0 and state != _LISTENS


def _as_in_tables(host: str) -> str:
    """Return an address as the tables in `/proc/net` write it: 32-bit words in the machine's byte
    order, in hexadecimal."""
    packed = ipaddress.ip_address(host).packed
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _is_of_own_processes(client: End, server: End) -> bool:
    mine = os.getuid()
    for process in psutil.process_iter():
        # a process that ends meanwhile, or that the system hides, does not count as ours
        with contextlib.suppress(psutil.Error):
            if process.uids().effective == mine and _holds(process, client, server):
                return True
    return False


def _holds(process: psutil.Process, client: End, server: End) -> bool:
    return any(
        connection.laddr
        and connection.raddr
        and _plain((connection.laddr.ip, connection.laddr.port)) == client
        and _plain((connection.raddr.ip, connection.raddr.port)) == server
        for connection in process.net_connections("tcp")
    )
