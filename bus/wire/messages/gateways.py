"""What gateways of different nodes ask each other: to stop a request, and about records.

Pure. On the control plane, which may drop: the asker repeats a question until it is answered, and
what is asked a second time has the answer of the first.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import NodeId, RequestId
from bus.wire.messages.wire import Message

RECORD_PIECE_BYTES = 256 << 10
"""Of an answer about records so much is said at once: other words of the plane come between."""
RECORD_ANSWER_BYTES = 16 << 20
RECORD_ARGUMENTS_BYTES = 1 << 20


class CancelAsked(Message):
    """Stop a request that the gateway of another node owns. `question` is new for each time
    it is asked and the same in its repeats; the answer goes to the gateways of `asker`."""

    kind: Literal["cancel_asked"] = "cancel_asked"
    question: str
    asker: NodeId
    request: RequestId


class CancelAnswered(Message):
    """The owner's word. `found` False: it was neither open there nor stopped before."""

    kind: Literal["cancel_answered"] = "cancel_answered"
    question: str
    found: bool


class RecordAsked(Message):
    """Ask the gateways of a node about its records: what `verb` makes of `arguments` (plain data in
    msgpack), from byte `offset` of the answer on. `question` is as in `CancelAsked`; `attempt`
    grows where nothing was heard, and says which of the node's HTTP processes is to answer."""

    kind: Literal["record_asked"] = "record_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    verb: str = Field(max_length=64)
    arguments: bytes = Field(max_length=RECORD_ARGUMENTS_BYTES)
    offset: int = Field(default=0, ge=0, le=RECORD_ANSWER_BYTES)
    attempt: int = Field(default=0, ge=0)


class RecordAnswered(Message):
    """A piece of the answer, in msgpack, from `offset` on. `edition` is the same for all pieces
    that belong together. It is empty while the answer is being found; or, with `refused`, there
    is none, and this says why."""

    kind: Literal["record_answered"] = "record_answered"
    question: str = Field(max_length=64)
    edition: str = ""
    offset: int = Field(default=0, ge=0)
    total_bytes: int = Field(default=0, ge=0, le=RECORD_ANSWER_BYTES)
    content: bytes = Field(default=b"", max_length=RECORD_PIECE_BYTES)
    refused: str = ""
