"""Calls between gateways of different nodes, and questions of a gateway to its own node's worker:
search a hub, change a pull, let a runner end a request. Also the use of API keys, which gateways
publish for each other.

Pure. Gateways use the control plane, which may drop messages, so a call is repeated until it is
answered (`bus/calls`). A worker's socket drops nothing, so a question to it is sent once.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId, RequestId
from bus.wire.messages.readings import PullRefusal
from bus.wire.messages.wire import Message

CALL_PIECE_BYTES = 256 << 10
"""The size of one piece of a reply. Pieces are small, so that other messages of the control plane
get through."""
CALL_REPLY_BYTES = 16 << 20
CALL_REQUEST_BYTES = 1 << 20


class CallAsked(Message):
    """Call `name` at a node's gateways: return the reply to `request` from byte `offset` on.

    `call_id` is new for each call and the same in its repeats. `bus/calls/table.py` lists the
    names, with the types of `request` and of the reply. `key` is the id of the API key behind the
    call; it is empty if the calling node's owner is behind it. `attempt` grows when no reply came;
    it selects the HTTP process that answers.
    """

    kind: Literal["call_asked"] = "call_asked"
    call_id: str = Field(max_length=64)
    name: str = Field(max_length=64)
    key: str = Field(default="", max_length=64)
    request: bytes = Field(max_length=CALL_REQUEST_BYTES)
    offset: int = Field(default=0, ge=0, le=CALL_REPLY_BYTES)
    attempt: int = Field(default=0, ge=0)


class CallRefusal(Message):
    """Why a call has no reply. `status` and `code` are those of the HTTP error that the calling
    gateway returns to its client; 0 and empty: the calling gateway chooses them. `field` names the
    parameter that is wrong. `retry_after_s`: when to try again, if known."""

    message: str
    status: int = Field(default=0, ge=0, le=599)
    code: str = Field(default="", max_length=64)
    field: str | None = Field(default=None, max_length=64)
    retry_after_s: float | None = None


class CallAnswered(Message):
    """A piece of the reply to a call, from byte `offset` on.

    `edition` is the same for all pieces of one reply; it is empty while the reply is being
    computed. `refused`: there is no reply, for this reason.
    """

    kind: Literal["call_answered"] = "call_answered"
    call_id: str = Field(max_length=64)
    edition: str = Field(default="", max_length=64)
    offset: int = Field(default=0, ge=0)
    total_bytes: int = Field(default=0, ge=0, le=CALL_REPLY_BYTES)
    content: bytes = Field(default=b"", max_length=CALL_PIECE_BYTES)
    refused: CallRefusal | None = None


class CancelRow(Message):
    """Let the runner in `slot` end a request with all its choices, as if its client had
    disconnected. The gateway asks the worker, and the worker asks the runner."""

    kind: Literal["cancel_row"] = "cancel_row"
    slot: str = Field(max_length=64)
    request: RequestId = Field(max_length=256)


class RowCancelled(Message):
    """The runner's answer to `CancelRow`, sent on by its worker. `found` False: the runner had no
    such open request."""

    kind: Literal["row_cancelled"] = "row_cancelled"
    slot: str
    request: RequestId
    found: bool


MOST_QUANTIZATIONS = 60
MOST_FOUND = 50
"""Maximum models that one search returns."""
WORDS_CHARACTERS = 200


class AskSearch(Message):
    """Search the hub for models whose names contain `words`. `author` empty: of any author."""

    kind: Literal["ask_search"] = "ask_search"
    words: str = Field(max_length=WORDS_CHARACTERS)
    author: str = Field(default="", max_length=WORDS_CHARACTERS)
    limit: int = Field(default=20, ge=1, le=MOST_FOUND)


class FoundModel(Message):
    """A model of a hub that can run here, judging by the hub's list. `for_mlx`: it was made for
    MLX. `size_bytes` and `parameters` are those of its weights; 0: unknown. `quantization` is
    derived from the list; empty: unknown. `gated`: the user must accept its license on the hub.
    `changed_at` is a date in ISO 8601; empty: unknown. `quantizations`: those of its GGUF files,
    one of which can be pulled."""

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
    quantizations: tuple[str, ...] = Field(default=(), max_length=MOST_QUANTIZATIONS)


class SearchFound(Message):
    """The models found on `hub`: models for MLX first, then by downloads. `left_out`: the number of
    results that cannot run here."""

    kind: Literal["search_found"] = "search_found"
    hub: str
    models: tuple[FoundModel, ...] = Field(default=(), max_length=MOST_FOUND)
    left_out: int = Field(default=0, ge=0)


class SearchRefused(Message):
    """The search failed, for this reason. `retry_after_s`: when to ask again, if known."""

    kind: Literal["search_refused"] = "search_refused"
    reason: PullRefusal
    message: str
    retry_after_s: float | None = None


class ChangePull(Message):
    """End, pause or resume the node's pulls of a model. `cancel` also deletes the partial files.
    `resume` needs a paused or failed pull that ran in the background."""

    kind: Literal["change_pull"] = "change_pull"
    model: ModelId
    change: Literal["cancel", "pause", "resume"]


class PullChanged(Message):
    """The result of `ChangePull`. `why`: the reason why nothing changed; empty if it did.
    `deleted_bytes`: the size of the deleted partial files."""

    kind: Literal["pull_changed"] = "pull_changed"
    model: ModelId
    deleted_bytes: int = Field(default=0, ge=0)
    why: str = Field(default="", max_length=400)


class KeyUse(Message):
    """The use of one API key at one gateway process: the running requests, the requests of the last
    60 s, and the tokens of the day. `used_at_s`: the last use, in seconds since 1970."""

    key: str
    running: int
    requests: int
    tokens: int
    used_at_s: float


class KeyUseReading(Message):
    """The use of API keys at one gateway process. `day`: UTC days since 1970."""

    kind: Literal["key_use_reading"] = "key_use_reading"
    node: NodeId
    process: str
    day: int
    uses: tuple[KeyUse, ...] = ()
