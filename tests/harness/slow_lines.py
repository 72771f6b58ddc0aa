"""A way between two processes that delays every byte, in both directions."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator
from queue import SimpleQueue


@contextlib.contextmanager
def slow_line(to: str, delay_s: float) -> Generator[str]:
    """An address of ZeroMQ that leads to `to`, another one of TCP or ipc; what is sent arrives
    `delay_s` later, and so do its answers."""
    door, ends = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()
    server = threading.Thread(target=_serve, args=(door, to, delay_s, ends), daemon=True)
    server.start()
    try:
        yield f"tcp://127.0.0.1:{door.getsockname()[1]}"
    finally:
        _hung_up(door)  # which wakes its thread
        server.join(10.0)
        for end in ends:
            _hung_up(end)


def _serve(door: socket.socket, to: str, delay_s: float, ends: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = door.accept()
            ends.append(near)
            far = _dialled(to)
            ends.append(far)
            for source, sink in ((near, far), (far, near)):
                sink_of: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=_read, args=(source, sink_of, delay_s), daemon=True).start()
                threading.Thread(target=_write, args=(sink, sink_of), daemon=True).start()


def _dialled(to: str) -> socket.socket:
    scheme, _, where = to.partition("://")
    if scheme == "ipc":
        far = socket.socket(socket.AF_UNIX)
        far.connect(where)
        return far
    host, _, port = where.rpartition(":")
    far = socket.create_connection((host, int(port)))
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return far


def _read(source: socket.socket, into: SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            into.put((time.monotonic() + delay_s, data))
    into.put((time.monotonic() + delay_s, b""))


def _write(sink: socket.socket, of: SimpleQueue[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):
        while True:
            at, data = of.get()
            time.sleep(max(at - time.monotonic(), 0.0))
            if not data:
                sink.shutdown(socket.SHUT_RDWR)
                return
            sink.sendall(data)


def _hung_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
