"""Talks ZMTP 3.0 as anybody can who reaches a port, without keys; run as a script of its own.

    python -I stranger.py UID PORT ... < questions    (a line of hexadecimal digits for each)

It needs nothing but Python, and becomes the user UID of the machine. For each port it prints the
mechanism that the port asks for, and how many bytes of messages came back: to the questions of a
DEALER, and to a SUB that asks for everything.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
PATIENCE_S = 1.0


def main() -> None:
    """Print what each port said, as one JSON object."""
    user, *ports = map(int, sys.argv[1:])
    if os.getuid() != user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    questions = [bytes.fromhex(line) for line in sys.stdin.read().split()]
    found: dict[str, dict[str, object]] = {}
    for port in ports:
        asked = Talk(port, b"DEALER", questions)
        heard = Talk(port, b"SUB", [b"\x01"])
        said = asked.said + heard.said
        found[str(port)] = {"mechanism": asked.mechanism, "said": said}
    json.dump(found, sys.stdout)


class Talk:
    """One connection: `mechanism` is the other side's, `said` the bytes of its messages."""

    def __init__(self, port: int, kind: bytes, messages: list[bytes]) -> None:
        self.mechanism, self.said = "", 0
        self._ends_at = time.monotonic() + PATIENCE_S
        try:
            with socket.socket() as self._socket:
                self._socket.settimeout(PATIENCE_S)
                self._socket.connect(("127.0.0.1", port))
                self._talk(kind, messages)
        except OSError:
            return

    def _talk(self, kind: bytes, messages: list[bytes]) -> None:
        self._socket.sendall(GREETING)
        self.mechanism = self._take(64)[12:32].rstrip(b"\0").decode()
        ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        self._socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        for message in messages:
            self._socket.sendall(b"\x02" + len(message).to_bytes(8, "big") + message)
        while True:
            (flags,) = self._take(1)
            size = int.from_bytes(self._take(8 if flags & 2 else 1), "big")
            body = self._take(size)
            if not flags & 4:
                self.said += len(body)

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            left_s = self._ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            part = self._socket.recv(size - len(taken))
            if not part:
                raise ConnectionResetError
            taken += part
        return taken


if __name__ == "__main__":
    main()
