"""Weights on their way: between workers piece by piece, the word that has one pull a model, and the
order to make one in fewer bits.

Pure. A pull is asked of a worker over the control plane, which may drop: the question is repeated
for as long as a client waits, and a pull that no client repeats is stopped. So is a model that is
to be verified, and a purge. What lies on a node's disk is told in a `StorageReading`; before a node
lets a whole copy go, another one has to grant it, which keeps its own (`KeepAsked`).

Between workers: DEALER -> ROUTER, TCP. The asker keeps a window of `AskPiece`s open (credit: one
answer for each), so the server never has more to send than was asked for. An answer is an
envelope; that of a piece is followed by a second frame with the bytes. A lost answer is asked for
again.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.wire import Message

PIECE_BYTES = 1 << 20
"""The unit of transfer: every piece of a file but its last has this length."""
DISK_MARGIN_BYTES = 1 << 30
"""What weights that are fetched leave free on a disk."""
HASH_BYTES = 32


class FileEntry(Message):
    """One file of a model. `path` is relative to the model's folder; `sha256` in hexadecimal;
    `piece_hashes` the SHA-256 of each piece, 32 bytes each, one after the other."""

    path: str
    size_bytes: int = Field(ge=0, le=1 << 46)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    piece_hashes: bytes


class AskManifest(Message):
    """What is this model made of? Answered by a Manifest, or by ManifestPending and later, unasked,
    the Manifest."""

    kind: Literal["ask_manifest"] = "ask_manifest"
    model: ModelId


class Manifest(Message):
    """All files of a model, by path in rising order. `digest` names this very content."""

    kind: Literal["manifest"] = "manifest"
    model: ModelId
    digest: str
    files: tuple[FileEntry, ...]


class ManifestPending(Message):
    """The files are still being hashed; sent each second until that is done."""

    kind: Literal["manifest_pending"] = "manifest_pending"
    model: ModelId
    done_bytes: int = Field(ge=0)
    total_bytes: int = Field(ge=0)


class AskPiece(Message):
    """`length` bytes of a file from `offset` on, as the manifest of that digest has it."""

    kind: Literal["ask_piece"] = "ask_piece"
    digest: str = Field(max_length=64)
    path: str = Field(max_length=512)
    offset: int = Field(ge=0)
    length: int = Field(ge=1, le=PIECE_BYTES)


class PieceSent(Message):
    """The bytes asked for are in the next frame."""

    kind: Literal["piece_sent"] = "piece_sent"
    digest: str
    path: str
    offset: int = Field(ge=0)


class WeightsRefused(Message):
    """No manifest (`path` empty) or no piece, and why. `unknown_digest`: ask for the manifest
    again; `busy`: more was asked for than the window allows."""

    kind: Literal["weights_refused"] = "weights_refused"
    reason: Literal["unknown_model", "unknown_digest", "unreadable", "busy", "bad_request"]
    message: str
    model: ModelId | None = None
    digest: str = ""
    path: str = ""
    offset: int = Field(default=0, ge=0)


class PullAsked(Message):
    """Pull a model to your disk: from a node that has it, else from the hub. `question` is new for
    each client that waits and the same in its repeats; `revision` empty: the newest. `holds`: once
    you have told what would come (`PullState.forecast`), wait with it until a client asks without.
    `leaves`: the client waits no longer, and what came so far is kept. `copies`: from nodes alone;
    no hub is asked."""

    kind: Literal["pull_asked"] = "pull_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    model: ModelId
    revision: str = Field(default="", max_length=200)
    leaves: bool = False
    holds: bool = False
    copies: bool = False


class VerifyAsked(Message):
    """Read a model on your disk, and hold it against the hashes that it came with. `question` is
    new for each client that waits, the same in its repeats. `leaves`: the client waits no longer.
    """

    kind: Literal["verify_asked"] = "verify_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    model: ModelId
    leaves: bool = False


VerifyPhase = Literal["waiting", "reading", "done", "failed"]


class WrongFile(Message):
    """A file of a model that is not as it has to be, by its path in the model's folder, and what is
    wrong with it."""

    path: str = Field(max_length=700)
    what: str = Field(max_length=700)


class VerifyState(Message):
    """How far the reading of a model on a node's disk is, and with `done` what came of it: held
    `against` the hashes that it came with or, where there are none, the headers of its weights
    alone. `wrong` are the first of `wrong_count` files; `unlisted` of all `files` have no hash. A
    failure has `reason` and `message`. `questions` are of those who wait."""

    model: ModelId
    phase: VerifyPhase
    done_bytes: int = Field(default=0, ge=0)
    total_bytes: int = Field(default=0, ge=0)
    bytes_per_s: float = 0.0
    against: Literal["hashes", "headers"] = "headers"
    files: int = Field(default=0, ge=0)
    wrong: tuple[WrongFile, ...] = ()
    wrong_count: int = Field(default=0, ge=0)
    unlisted: int = Field(default=0, ge=0)
    questions: tuple[str, ...] = ()
    reason: Literal["not_here", "busy", "unreadable"] | None = None
    message: str = ""


class VerifyReading(Message):
    """The models that a node verifies, and those that it verified a moment ago. Twice a second
    while there are any, and on change."""

    kind: Literal["verify_reading"] = "verify_reading"
    node: NodeId
    verifications: tuple[VerifyState, ...] = ()


class KeepAsked(Message):
    """May the asker delete its whole copy of a model, as you have another and want not to delete
    that? `question` is the same in its repeats, and another for each node that is asked. `digest`
    is that of the asker's card, `content` of the hashes that its weights came with; empty: not
    known. `card` is of the `card.toml` beside it, written at `card_at_s`; empty: there is none."""

    kind: Literal["keep_asked"] = "keep_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    model: ModelId
    digest: str = Field(default="", max_length=64)
    content: str = Field(default="", max_length=64)
    card: str = Field(default="", max_length=64)
    card_at_s: float = 0.0


class KeepAnswered(Message):
    """Whether `node` grants it, for it has a whole copy and keeps that (`keeps`), and why not."""

    kind: Literal["keep_answered"] = "keep_answered"
    question: str = Field(max_length=64)
    node: NodeId
    keeps: bool
    why: str = Field(default="", max_length=400)


class PurgeAsked(Message):
    """Delete now all that you fetched and may let go. `question` is new for each client that waits,
    the same in its repeats. `leaves`: the client waits no longer."""

    kind: Literal["purge_asked"] = "purge_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    leaves: bool = False


StoredKind = Literal["fetched", "put", "made", "bundled"]
"""What lies in a node's store: fetched by shoal, put there by a person (or by other programs, in
their cache), made here by shoal, brought with shoal."""


class StoredModel(Message):
    """A model, or some layers of it (`in_part`), on a node's disk: its `size_bytes` there, and why
    it stays, empty where it may go. `used_at_s` is its last use there, or when it came, in seconds
    since 1970."""

    model: ModelId
    path: str
    size_bytes: int = Field(ge=0)
    what: StoredKind
    in_part: bool = False
    used_at_s: int = 0
    why: str = Field(default="", max_length=400)


class LetGo(Message):
    """A model that a node let go, why, and which node granted it, by a copy of its own (empty for
    layers alone, which are no copy)."""

    model: ModelId
    size_bytes: int = Field(ge=0)
    at_s: float
    why: str = Field(max_length=400)
    kept_by: str = ""


class PurgeState(Message):
    """How far a purge is: what it `let_go`, and once it is done what `stays` of what was fetched,
    with the reasons. `questions` are of those who wait."""

    phase: Literal["waiting", "deleting", "done"]
    note: str = ""
    let_go: tuple[LetGo, ...] = ()
    stays: tuple[StoredModel, ...] = ()
    questions: tuple[str, ...] = ()


class StorageReading(Message):
    """What lies on a node's disk, and what it would let go next: of `models` what was fetched comes
    first, in the order in which it would go. What was fetched takes `limit_bytes` at most, below 0:
    as much as it takes. `keeps_all`: it lets nothing go, and others copy from it first. `let_go`
    are the last that went."""

    kind: Literal["storage_reading"] = "storage_reading"
    node: NodeId
    limit_bytes: int
    keeps_all: bool = False
    disk_free_bytes: int = Field(default=0, ge=0)
    fetched_bytes: int = Field(default=0, ge=0)
    put_bytes: int = Field(default=0, ge=0)
    made_bytes: int = Field(default=0, ge=0)
    bundled_bytes: int = Field(default=0, ge=0)
    models: tuple[StoredModel, ...] = ()
    more: int = Field(default=0, ge=0)
    let_go: tuple[LetGo, ...] = ()
    purges: tuple[PurgeState, ...] = ()


Bits = Literal[4, 6, 8]
GroupSize = Literal[32, 64, 128]
"""How many weights of a row share a scale and a bias."""
USUAL_GROUP: GroupSize = 64
MADE_FROM = "shoal_made_from"
"""The key of a made model's config.json that names its source: so it goes wherever the model is
copied to."""
ORIGIN_FILE = ".shoal-origin.json"
"""Beside the weights of a model that shoal fetched or made: where it came from, for this node."""
UNFINISHED = ".quantizing"
"""In the folder of all models, where those grow that are not whole yet."""


class Quantizing(Message):
    """Make another model of `source`, which lies whole on the rank's node, in so many bits a
    weight. Stamped on an instance that answers nothing; its `model` is what is made."""

    source: ModelId
    bits: Bits
    group_size: GroupSize = USUAL_GROUP


def usual_name(source: ModelId, bits: int) -> ModelId:
    """Return what a model in fewer bits is called where no name is given: never one of an owner on
    a hub, who has not made it."""
    return ModelId(f"{source.rpartition('/')[2]}-{bits}bit")
