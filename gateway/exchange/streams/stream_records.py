"""The records in the file of a stream: what another HTTP process needs to continue it.

Pure. A record is its length (4 bytes), its kind (1 byte) and its data. The first record is the
request (`StreamHead`). The others are the runners' messages with the answer, in their order of
arrival, and one mark (`MOVED`) for each process that took the stream over. A process may die during
a write, so an incomplete last record is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from bus.wire.codec import pack_body, unpack_body
from bus.wire.data_frames import pack_to_gateway, unpack_to_gateway
from bus.wire.errors import BadMessage
from bus.wire.ids import RequestId
from bus.wire.messages.tokens import (
    Accepted,
    Begun,
    Entry,
    Failed,
    Finished,
    StepEntries,
    ToGateway,
)
from bus.wire.messages.wire import Message

HEAD_BYTES = 48 << 20
"""Limit of the first record."""
_HEAD, _MOVED, _RUNNER = b"H", b"M", b"R"
_LENGTH = struct.Struct(">I")


class StreamHead(Message):
    """A request whose stream may be read again. `path`: the route to which it was sent. `owner`:
    who may read the stream. `wait_s`: for how many seconds after its client left. `key` is the id
    of the API key, `sharer` the client for fair shares, without its client id. `fingerprint`
    identifies the build that rendered the events."""

    request: RequestId
    path: str
    body: bytes
    created_at_s: float
    fingerprint: str
    owner: str
    wait_s: float
    key: str | None
    sharer: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """The part of an answer that earlier processes received. `moves`: how many processes took the
    request over, including this process. `begun` is None if no runner reported the tokens."""

    moves: int
    prompt_tokens: int = 0
    begun: Begun | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Return whether the answer includes its terminal entry."""
        return bool(self.entries) and isinstance(self.entries[-1], Finished | Failed)


MOVED = _LENGTH.pack(0) + _MOVED
"""The record that a process adds when it takes a stream over."""


def head_record(head: StreamHead) -> bytes:
    """Return the first record of a stream's file."""
    return _record(_HEAD, pack_body(head))


def runner_record(message: ToGateway) -> bytes:
    """Return the bytes that store a runner's message in the file of a stream."""
    return _record(_RUNNER, pack_to_gateway(message))


def read_head(data: bytes) -> StreamHead:
    """Return the request of a stream's file. Raises BadMessage."""
    kind, body, _ = next(_records(data), (b"", b"", 0))
    if kind != _HEAD:
        raise BadMessage("the file has no request")
    return unpack_body(StreamHead, body, limit_bytes=HEAD_BYTES)


def read_records(data: bytes) -> tuple[StreamHead, EarlierAnswer, int]:
    """Return the request of a stream's file, the answer so far, and the number of bytes of the
    complete records. This process is counted in `moves`. Raises BadMessage."""
    head, moves, prompt_tokens, size_bytes = read_head(data), 1, 0, 0
    begun: Begun | None = None
    entries: list[Entry] = []
    for kind, body, end in _records(data):
        size_bytes = end
        if kind == _MOVED:
            moves += 1
        elif kind == _RUNNER:
            match unpack_to_gateway(body):
                case Accepted(prompt_tokens=tokens):
                    prompt_tokens = tokens
                case Begun() as message:
                    begun = message
                case StepEntries(entries=more):
                    entries += more
                case other:
                    raise BadMessage(f"a stream's file has a message {type(other).__name__}")
    return head, EarlierAnswer(moves, prompt_tokens, begun, tuple(entries)), size_bytes


def _record(kind: bytes, data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + kind + data


def _records(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the kind, the data and the end offset of each complete record."""
    start, head = 0, _LENGTH.size + 1
    while start + head <= len(data):
        (size,) = _LENGTH.unpack_from(data, start)
        end = start + head + size
        if end > len(data):
            return
        yield data[start + _LENGTH.size : start + head], data[start + head : end], end
        start = end
