"""What gateways of different nodes ask each other: to stop a request, and about records. And what a
gateway asks the worker of its own node: to search a hub, to have a runner end a request.

Pure. Between nodes on the control plane, which may drop: the asker repeats a question until it is
answered, and what is asked a second time has the answer of the first. A worker's door drops
nothing: one question there, one answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId, RequestId
from bus.wire.messages.readings import PullRefusal
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


class CancelRow(Message):
    """Have the runner in `slot` end a request, all its rows, as if its client had gone. A gateway
    asks the worker, and that the runner."""

    kind: Literal["cancel_row"] = "cancel_row"
    slot: str = Field(max_length=64)
    request: RequestId = Field(max_length=256)


class RowCancelled(Message):
    """The runner's word, through its worker. `found` False: it owed no such request an end."""

    kind: Literal["row_cancelled"] = "row_cancelled"
    slot: str
    request: RequestId
    found: bool


MOST_FOUND = 50
"""Models that one search tells of at most."""
WORDS_CHARACTERS = 200


class AskSearch(Message):
    """Search the hub for models whose names hold `words`, of one `author` (empty: of any)."""

    kind: Literal["ask_search"] = "ask_search"
    words: str = Field(max_length=WORDS_CHARACTERS)
    author: str = Field(default="", max_length=WORDS_CHARACTERS)
    limit: int = Field(default=20, ge=1, le=MOST_FOUND)


class FoundModel(Message):
    """A model of a hub that runs here as far as its list tells. `for_mlx`: it was made for MLX.
    `size_bytes` and `parameters` are of its weights; 0: the hub does not say. `quantization` is as
    near as its list tells (empty: it does not). `gated`: its license has to be accepted there.
    `changed_at` is a date in ISO 8601, empty where it is not told."""

    model: ModelId
    for_mlx: bool
    family: str = Field(default="", max_length=100)
    makes: Literal["text", "embedding"] = "text"
    quantization: str = Field(default="", max_length=100)
    size_bytes: int = Field(default=0, ge=0)
    parameters: int = Field(default=0, ge=0)
    downloads: int = Field(default=0, ge=0)
    likes: int = Field(default=0, ge=0)
    gated: bool = False
    changed_at: str = Field(default="", max_length=40)


class SearchFound(Message):
    """What `hub` has, those for MLX first, then by downloads. `left_out` more were found that do
    not run here."""

    kind: Literal["search_found"] = "search_found"
    hub: str
    models: tuple[FoundModel, ...] = Field(default=(), max_length=MOST_FOUND)
    left_out: int = Field(default=0, ge=0)


class SearchRefused(Message):
    """Nothing was found out, and why; `retry_after_s` says when to ask again, where it is known."""

    kind: Literal["search_refused"] = "search_refused"
    reason: PullRefusal
    message: str
    retry_after_s: float | None = None
