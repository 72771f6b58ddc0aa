"""Weights in transfer: pieces between workers, orders to pull or delete a model, and the order to
quantize one.

Pure. A pull is requested from a worker over the control plane, which may drop messages. Each client
repeats its question while it waits; a pull without clients is stopped. The same holds for a
verification and a purge. `StorageReading` reports the models on a node's disk. Before a node
deletes all files of a model, another node must agree to keep its own copy (`KeepAsked`).

Workers use a DEALER and a ROUTER socket over TCP. The worker that asks keeps a window of
`AskPiece`s open (credit: one answer for each), so the other one never sends more than was
requested. An answer is an envelope; for a piece, a second frame with the bytes follows. If an
answer is lost, the piece is requested again.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.wire import Message

PIECE_BYTES = 1 << 20
"""The unit of transfer: every piece of a file but its last has this length."""
DISK_MARGIN_BYTES = 1 << 30
"""Free disk space, in bytes, that must remain when weights are fetched."""
HASH_BYTES = 32


class FileEntry(Message):
    """One file of a model. `path` is relative to the model's folder. `sha256` is the file's hash in
    hexadecimal. `piece_hashes` has the SHA-256 of each piece, 32 bytes each, concatenated."""

    path: str
    size_bytes: int = Field(ge=0, le=1 << 46)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    piece_hashes: bytes


class AskManifest(Message):
    """Ask for the list of a model's files. The answer is a Manifest; or a ManifestPending, and
    later the Manifest without another question."""

    kind: Literal["ask_manifest"] = "ask_manifest"
    model: ModelId


class Manifest(Message):
    """All files of a model, by path in ascending order. `digest` identifies exactly these files."""

    kind: Literal["manifest"] = "manifest"
    model: ModelId
    digest: str
    files: tuple[FileEntry, ...]


class ManifestPending(Message):
    """The files are still being hashed; sent every second until that is done."""

    kind: Literal["manifest_pending"] = "manifest_pending"
    model: ModelId
    done_bytes: int = Field(ge=0)
    total_bytes: int = Field(ge=0)


class AskPiece(Message):
    """Ask for `length` bytes of a file from `offset` on. `digest` is that of the manifest that
    lists the file."""

    kind: Literal["ask_piece"] = "ask_piece"
    digest: str = Field(max_length=64)
    path: str = Field(max_length=512)
    offset: int = Field(ge=0)
    length: int = Field(ge=1, le=PIECE_BYTES)


class PieceSent(Message):
    """The requested bytes are in the next frame."""

    kind: Literal["piece_sent"] = "piece_sent"
    digest: str
    path: str
    offset: int = Field(ge=0)


class WeightsRefused(Message):
    """The store refuses to send a manifest (if `path` is empty) or a piece, for this reason.
    `unknown_digest`: ask for the manifest again. `busy`: more pieces were requested than the window
    allows."""

    kind: Literal["weights_refused"] = "weights_refused"
    reason: Literal["unknown_model", "unknown_digest", "unreadable", "busy", "bad_request"]
    message: str
    model: ModelId | None = None
    digest: str = ""
    path: str = ""
    offset: int = Field(default=0, ge=0)


class PullAsked(Message):
    """Pull a model to the receiver's disk: from a node that has it, else from the hub. `question`
    is new for each waiting client and the same in its repeats. `revision` empty: the newest.
    `holds`: make the forecast (`PullState.forecast`), then wait with the download until a client
    asks without `holds`. `leaves`: the client no longer waits; partial files are kept. `copies`:
    use only other nodes as sources; no hub is contacted. `background`: once no client
    holds the pull, continue it without clients and after a restart. `layers`: fetch only what a
    pipeline stage with the layers [first, last) needs, from the hub."""

    kind: Literal["pull_asked"] = "pull_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    model: ModelId
    revision: str = Field(default="", max_length=200)
    leaves: bool = False
    holds: bool = False
    copies: bool = False
    background: bool = False
    layers: tuple[int, int] | None = None


class VerifyAsked(Message):
    """Read a model on the receiver's disk and compare it with its original hashes. `question` is an
    id: each waiting client has its own, and repeats of the message have the same id. `leaves`: the
    client no longer waits."""

    kind: Literal["verify_asked"] = "verify_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    model: ModelId
    leaves: bool = False


VerifyPhase = Literal["waiting", "reading", "done", "failed"]


class WrongFile(Message):
    """A damaged file of a model: its path in the model's folder, and the fault."""

    path: str = Field(max_length=700)
    what: str = Field(max_length=700)


class VerifyState(Message):
    """The progress of a model's verification; if `done`, its result. The files were compared
    `against` their original hashes; if there are none, only the headers of the weights were
    checked. `wrong`: the first of `wrong_count` damaged files. `unlisted` of all `files` have no
    hash. A failure has `reason` and `message`. `questions`: the ids of the waiting clients'
    questions."""

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
    """The models that a node verifies, or verified a moment ago. Sent twice a second during a
    verification, and on change."""

    kind: Literal["verify_reading"] = "verify_reading"
    node: NodeId
    verifications: tuple[VerifyState, ...] = ()


class KeepAsked(Message):
    """A node that wants to delete all its files of a model asks another node that has the model for
    a promise to keep it. `question` is the same in its repeats and different for each node.
    `digest`: the digest of the asking node's model card. `content`: a hash of the original hashes
    of its weights; empty if unknown. `card`: the `card.toml` beside the weights, written at
    `card_at_s`; empty if there is none."""

    kind: Literal["keep_asked"] = "keep_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    model: ModelId
    digest: str = Field(default="", max_length=64)
    content: str = Field(default="", max_length=64)
    card: str = Field(default="", max_length=64)
    card_at_s: float = 0.0


class KeepAnswered(Message):
    """The answer to `KeepAsked`. `keeps`: `node` has all files of the model and keeps them;
    otherwise `why` is the reason."""

    kind: Literal["keep_answered"] = "keep_answered"
    question: str = Field(max_length=64)
    node: NodeId
    keeps: bool
    why: str = Field(default="", max_length=400)


class PurgeAsked(Message):
    """Delete all fetched models on the receiver's disk that may be deleted now. `question` is new
    for each waiting client, and the same in its repeats. `leaves`: the client no longer waits."""

    kind: Literal["purge_asked"] = "purge_asked"
    question: str = Field(max_length=64)
    asker: NodeId
    leaves: bool = False


StoredKind = Literal["fetched", "put", "made", "bundled"]
"""The origin of a stored model: fetched by shoal, added by the user (or by other programs, in their
cache), made on this node by shoal, or bundled with shoal."""


class StoredModel(Message):
    """A model, or some of its layers (`in_part`), on a node's disk. `why`: the reason why it stays;
    empty: it may be deleted. `used_at_s`: its last use on this node, or its arrival, in seconds
    since 1970."""

    model: ModelId
    path: str
    size_bytes: int = Field(ge=0)
    what: StoredKind
    in_part: bool = False
    used_at_s: int = 0
    why: str = Field(default="", max_length=400)


class LetGo(Message):
    """A model that a node deleted from its disk, and why. `kept_by` is the node that had promised
    to keep its own copy; it is empty if only some layers were deleted."""

    model: ModelId
    size_bytes: int = Field(ge=0)
    at_s: float
    why: str = Field(max_length=400)
    kept_by: str = ""


class PurgeState(Message):
    """The progress of a purge: the deleted models (`let_go`), and when it has ended, the fetched
    models that stay, with the reasons. `questions`: the ids of the waiting clients' questions."""

    phase: Literal["waiting", "deleting", "done"]
    note: str = ""
    let_go: tuple[LetGo, ...] = ()
    stays: tuple[StoredModel, ...] = ()
    questions: tuple[str, ...] = ()


class StorageReading(Message):
    """The models on a node's disk. `models`: fetched models come first, in the order of their
    deletion. `limit_bytes`: the limit for fetched models; negative: none. `keeps_all`: this node
    deletes nothing, and others prefer it as a source. `let_go`: the last deleted models."""

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
"""How many weights of a row share a scale and a bias in a quantized model."""
USUAL_GROUP: GroupSize = 64
MADE_FROM = "shoal_made_from"
"""The key in a quantized model's config.json that names its source. It is copied with the model."""
ORIGIN_FILE = ".shoal-origin.json"
"""Name of the file beside the weights of a model that shoal fetched or made. It tells this node
where the model came from."""
UNFINISHED = ".quantizing"
"""Subfolder of the models' folder for incomplete quantized models."""


class Quantizing(Message):
    """Quantize `source`, of which the rank's node has all files, to `bits` bits per weight. It
    marks an instance that serves no requests; the instance's `model` is the new model."""

    source: ModelId
    bits: Bits
    group_size: GroupSize = USUAL_GROUP


def usual_name(source: ModelId, bits: int) -> ModelId:
    """Return the default name of a quantized model. It has no owner of a hub, because that owner
    did not make it."""
    return ModelId(f"{source.rpartition('/')[2]}-{bits}bit")
