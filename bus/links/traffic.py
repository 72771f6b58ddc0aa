"""Talks to the operating system: counts the bytes that a process sends to other nodes and receives
from them. All processes of the node can read the counts.

The counts cover the frames that pass ZeroMQ's interface and the data that ranks exchange. They
leave out the overhead of encryption, TCP and retransmission. Each process has a small mapped file
with its sums. A count costs one memory write per message, and other processes can read it at any
time. Links within a node are not counted.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bus.process.memory import mapped_file
from bus.wire.ids import NodeId

Plane = Literal[
    "control", "telemetry", "peers", "holder", "data", "weights", "plans", "exchange", "rest"
]
"""Kinds of traffic. `control`, `telemetry`: messages of the bus. `peers`: hellos and measurements
of links. `holder`: questions to the leader and between candidates. `data`: tokens between gateways
and runners. `weights`: files of models. `plans`: plans that the lead of a group of ranks sends.
`exchange`: data between these ranks. `rest`: everything for which the file has no row left
(`ROWS`)."""

ROWS = 256
"""Number of rows in the file. Each row counts one peer on one plane; the last row counts all peers
for which no row was left."""
OTHERS = "others"
MOST_SENDERS = 4_096
_ENDING = ".traffic"
_HEAD = struct.Struct("<64s")
_ROW = struct.Struct("<64s16sQQ")
_COUNT = struct.Struct("<Q")
_SENT_AT = 64 + 16
_RECEIVED_AT = _SENT_AT + _COUNT.size
_FILE_BYTES = _HEAD.size + ROWS * _ROW.size


@dataclass(frozen=True, slots=True)
class Crossed:
    """The bytes that one process sent to `peer`, and received from it, since the process
    started."""

    peer: str
    plane: str
    sent_bytes: int
    received_bytes: int


class Tally(Protocol):
    """Counts the bytes of each message of a link, with all its frames."""

    def sent(self, frames: Sequence[bytes]) -> None:
        """Count a message that the socket accepted."""
        ...

    def received(self, frames: Sequence[bytes]) -> None:
        """Count a received message."""
        ...


class Way:
    """Counts the bytes sent to one peer, and those received from it, on one plane. Only one thread
    may count each direction."""

    __slots__ = ("_at", "_received", "_sent", "_traffic")

    def __init__(self, traffic: Traffic, at: int) -> None:
        self._traffic = traffic
        self._at = at
        self._sent = self._received = 0

    def add_sent(self, count: int) -> None:
        """Count bytes sent to the peer."""
        self._sent += count
        _COUNT.pack_into(self._traffic.shared, self._at + _SENT_AT, self._sent)

    def add_received(self, count: int) -> None:
        """Count bytes received from the peer."""
        self._received += count
        _COUNT.pack_into(self._traffic.shared, self._at + _RECEIVED_AT, self._received)

    def sent(self, frames: Sequence[bytes]) -> None:
        """Count a message to the peer."""
        self.add_sent(sum(map(len, frames)))

    def received(self, frames: Sequence[bytes]) -> None:
        """Count a message from the peer."""
        self.add_received(sum(map(len, frames)))


class Senders:
    """The `Tally` of a ROUTER: the first frame of a message names the peer and is not counted.
    `way_of` returns the counter for a peer, None for a peer that is not counted."""

    def __init__(self, way_of: Callable[[bytes], Way | None]) -> None:
        self._way_of = way_of
        self._ways: dict[bytes, Way | None] = {}

    def sent(self, frames: Sequence[bytes]) -> None:
        """Count a message to the peer that the first frame names."""
        peer = frames[0]
        way = self._ways[peer] if peer in self._ways else self._new_way(peer)
        if way is not None:
            way.add_sent(sum(map(len, frames)) - len(peer))

    def received(self, frames: Sequence[bytes]) -> None:
        """Count a message from the peer that the first frame names."""
        peer = frames[0]
        way = self._ways[peer] if peer in self._ways else self._new_way(peer)
        if way is not None:
            way.add_received(sum(map(len, frames)) - len(peer))

    def _new_way(self, peer: bytes) -> Way | None:
        if len(self._ways) >= MOST_SENDERS:
            self._ways.clear()
        way = self._ways[peer] = self._way_of(peer)
        return way


class Traffic:
    """The byte counts of one process of `node`, from zero; in memory only until `share`. Any thread
    may get a `Way`. Other threads may count during and after `close`."""

    def __init__(self, node: NodeId) -> None:
        self.shared: bytearray | mmap.mmap = bytearray(_FILE_BYTES)
        self._node = node
        self._path: Path | None = None
        self._ways: dict[tuple[str, str], Way] = {}
        self._lock = threading.Lock()

    def share(self, folder: Path, process: str) -> None:
        """Store the counts in `<folder>/<process>.traffic`, which exists until `close`. Call this
        before anything is counted."""
        self._path = folder / f"{process.replace(':', '-')}{_ENDING}"
        self.shared = mapped_file(self._path, _FILE_BYTES)
        _HEAD.pack_into(self.shared, 0, process.encode())

    def way(self, peer: str, plane: Plane) -> Way | None:
        """Return the counter for a peer and a plane; None if the peer is this node itself."""
        if peer == self._node:
            return None
        key = (peer, plane)
        with self._lock:
            if key not in self._ways and len(self._ways) >= ROWS - 1:
                key = (OTHERS, "rest")
            if key not in self._ways:
                self._ways[key] = self._new(*key)
            return self._ways[key]

    def by_identity(self, plane: Plane, *, split: str = "/", part: int = 0) -> Senders:
        """Return the tally of a ROUTER whose peers have identities that contain their node id: the
        part number `part` of the identity, split at `split`. Peers without a node id are not
        counted."""

        def way_of(identity: bytes) -> Way | None:
            """Return the counter for the node in an identity; None for an identity made by
            ZeroMQ."""
            text = identity.decode("ascii", errors="replace")
            parts = text.split(split)
            names = text.isascii() and text.isprintable() and len(parts) > part + 1
            return self.way(parts[part], plane) if names and parts[part] else None

        return Senders(way_of)

    def close(self) -> None:
        """Delete the file; further counts go to memory only."""
        # The file is not closed, because another thread may be about to count: it goes with its
        # last user.
        self.shared = bytearray(_FILE_BYTES)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def crossed(self) -> tuple[Crossed, ...]:
        """Return the current counts."""
        return _rows_of(bytes(self.shared))

    def _new(self, peer: str, plane: str) -> Way:
        at = _HEAD.size + len(self._ways) * _ROW.size
        _ROW.pack_into(self.shared, at, peer.encode(), plane.encode(), 0, 0)
        return Way(self, at)


def open_traffic(folder: str, process: str, node: NodeId) -> Traffic:
    """Return new traffic counters of a process, in a file in `folder` that other processes read."""
    traffic = Traffic(node)
    traffic.share(Path(folder), process)
    return traffic


def read_traffic(folder: Path) -> dict[str, tuple[Crossed, ...]]:
    """Return the traffic of all processes that have a file in a runtime folder, by process name."""
    counts: dict[str, tuple[Crossed, ...]] = {}
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, struct.error, UnicodeDecodeError):
            data = path.read_bytes()
            counts[_text(*_HEAD.unpack_from(data))] = _rows_of(data)
    return counts


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode()


def _rows_of(data: bytes) -> tuple[Crossed, ...]:
    rows: list[Crossed] = []
    for at in range(_HEAD.size, _FILE_BYTES, _ROW.size):
        peer, plane, sent, received = _ROW.unpack_from(data, at)
        if not peer[0]:
            break
        rows.append(Crossed(_text(peer), _text(plane), sent, received))
    return tuple(rows)
