"""Calls between the HTTP processes of one node. Pure. "The process" means the called process."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import RequestId
from bus.wire.messages.wire import Message

KnownBy = Literal["key", "client_id", "address"]
"""How a client is identified: by its API key, by the id that it sends, or by its address."""
ClientUseRow = tuple[KnownBy, str, int, int, int, int, int, float, float]
"""A client: kind, name, requests, refused, failed, prompt tokens, completion tokens, and the wall
clock of the first and the last request."""
WaitingRow = tuple[KnownBy, str, int]
"""A client: kind, name, and the number of its waiting requests."""
RestRow = tuple[KnownBy, str, float, int]
"""A client: kind, name, the end of its cooldown by the monotonic clock of the machine, and the
number of its waiting requests."""


class StopHere(Message):
    """Stop a request that the process serves."""

    request: RequestId


class StopAnswerHere(Message):
    """Stop a request that the process serves and whose answer is to be stored for `owner`."""

    owner: str
    request: RequestId


class ReadStream(Message):
    """Read the next events of a stream that the process serves for `owner`. `reader` names the
    client, which has the events up to number `after`."""

    owner: str
    request: RequestId
    reader: str
    after: int = Field(ge=-1)


class StreamRead(Message):
    """Events of a stream. `is_open`: the process serves the stream. `first`: the first event that
    it still has, if the next event of the client is gone. `last`: the number of the last event that
    the client has after these. `is_over`: the client has all events. `is_taken`: another client
    reads the stream."""

    is_open: bool = False
    first: int | None = None
    events: bytes = b""
    last: int = -1
    is_over: bool = False
    is_taken: bool = False


class ReadOpenRequests(Message):
    """Read the open requests of the process."""


class OpenRequestRow(Message):
    """An open request. `instance` is None while the request waits for an instance, and if a
    provider answers it (`provider`). `spill`: when a waiting request goes to a provider, or why it
    does not; None if nothing is configured."""

    request: str
    model: str
    client: str | None
    priority: int
    instance: str | None
    waiting: bool
    tokens: int
    seconds: float
    provider: str | None = None
    spill: str | None = None


class OpenRequestsRead(Message):
    """The open requests of one process."""

    requests: tuple[OpenRequestRow, ...] = ()


class ReadProblems(Message):
    """Ask which problems of the node's records file the process knows."""


class ProblemsRead(Message):
    """Problems, as texts."""

    problems: tuple[str, ...] = ()


class ReadClients(Message):
    """Read the clients of the process."""


class ClientsRead(Message):
    """The clients of one process. `is_loaded`: the usage includes that of an earlier process with
    the same number, which was stored on disk."""

    is_loaded: bool
    use: tuple[ClientUseRow, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()


class NoteRests(Message):
    """Tell a process which clients are in cooldown, or have waiting requests, at the process
    `number`."""

    number: int = Field(ge=0)
    rows: tuple[RestRow, ...] = ()
