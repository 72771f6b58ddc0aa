"""Questions between gateways of different nodes: stop a request, query records. And questions of a
gateway to its own node's worker: search a hub, let a runner end a request.

Pure. Gateways use the control plane, which may drop messages. The asker repeats a question until it
is answered; a repeated question gets the first answer. A worker's socket drops nothing: one
question, one answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId, RequestId
from bus.wire.messages.readings import PullRefusal
from bus.wire.messages.wire import Message

RECORD_PIECE_BYTES = 256 << 10
"""The size of one part of an answer about records, so that other messages of the plane get
through."""
RECORD_ANSWER_BYTES = 16 << 20
RECORD_ARGUMENTS_BYTES = 1 << 20


class CancelAsked(Message):
    """Stop a request that the gateway of another node owns. `question` is new for each question and
    the same in its repeats; the answer goes to the gateways of `asker`."""

    kind: Literal["cancel_asked"] = "cancel_asked"
    question: str
    asker: NodeId
    request: RequestId


class CancelAnswered(Message):
    """The owner's answer. `found` False: the request was neither open there nor stopped before."""

    kind: Literal["cancel_answered"] = "cancel_answered"
    question: str
    found: bool


class RecordAsked(Message):
    """Query the records of a node's gateways: the result of `verb` with `arguments` (plain data in
    msgpack), from byte `offset` of the answer on. `question` is as in `CancelAsked`. `attempt`
    grows when no answer came; it selects the HTTP process that answers."""

    kind: Literal["record_asked"] = "record_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    verb: str = Field(max_length=64)
    arguments: bytes = Field(max_length=RECORD_ARGUMENTS_BYTES)
    offset: int = Field(default=0, ge=0, le=RECORD_ANSWER_BYTES)
    attempt: int = Field(default=0, ge=0)


class RecordAnswered(Message):
    """A part of the answer, in msgpack, from `offset` on. `edition` is the same for all parts of
    one answer; it is empty while the answer is being prepared. `refused`: there is no answer, for
    this reason."""

    kind: Literal["record_answered"] = "record_answered"
    question: str = Field(max_length=64)
    edition: str = ""
    offset: int = Field(default=0, ge=0)
    total_bytes: int = Field(default=0, ge=0, le=RECORD_ANSWER_BYTES)
    content: bytes = Field(default=b"", max_length=RECORD_PIECE_BYTES)
    refused: str = ""


class CancelRow(Message):
    """Let the runner in `slot` end a request, all its rows, as if its client had disconnected. The
    gateway asks the worker, and the worker asks the runner."""

    kind: Literal["cancel_row"] = "cancel_row"
    slot: str = Field(max_length=64)
    request: RequestId = Field(max_length=256)


class RowCancelled(Message):
    """The runner's answer, through its worker. `found` False: the runner had no such open
    request."""

    kind: Literal["row_cancelled"] = "row_cancelled"
    slot: str
    request: RequestId
    found: bool


MOST_FOUND = 50
"""Maximum models of one search."""
WORDS_CHARACTERS = 200


class AskSearch(Message):
    """Search the hub for models whose names contain `words`. `author` empty: of any author."""

    kind: Literal["ask_search"] = "ask_search"
    words: str = Field(max_length=WORDS_CHARACTERS)
    author: str = Field(default="", max_length=WORDS_CHARACTERS)
    limit: int = Field(default=20, ge=1, le=MOST_FOUND)


class FoundModel(Message):
    """A model of a hub that, by the hub's list, runs here. `for_mlx`: it was made for MLX.
    `size_bytes` and `parameters` are those of its weights; 0: unknown. `quantization` is derived
    from the list; empty: unknown. `gated`: the user must accept its license on the hub.
    `changed_at` is a date in ISO 8601; empty: unknown."""

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
    """The models of `hub`, models for MLX first, then by downloads. `left_out`: the number of
    results that do not run here."""

    kind: Literal["search_found"] = "search_found"
    hub: str
    models: tuple[FoundModel, ...] = Field(default=(), max_length=MOST_FOUND)
    left_out: int = Field(default=0, ge=0)


class SearchRefused(Message):
    """The search failed, and why. `retry_after_s`: when to ask again, if known."""

    kind: Literal["search_refused"] = "search_refused"
    reason: PullRefusal
    message: str
    retry_after_s: float | None = None
