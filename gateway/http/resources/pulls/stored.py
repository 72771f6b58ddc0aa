"""The types of answers about the models on nodes' disks.

Pure. The OpenAPI document shows these types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from bus.wire.messages.readings import HealthFinding
from bus.wire.messages.weights import StoredModel
from gateway.dialects.encode import Dump

StoredTold = Annotated[dict[str, Any], Dump(StoredModel)]


class NodeNamed(TypedDict):
    """A node's id and name."""

    node: str
    name: str


class BytesByKind(TypedDict):
    """Bytes of models by origin; `put` models were added by the user."""

    fetched: int
    put: int
    made: int
    bundled: int


class NodeStorage(NodeNamed):
    """The models on a node's disk. `store_bytes` limits the fetched models (below 0: no limit);
    they exceed it by `over_bytes`. `next` is the model to delete next, null if there is none."""

    store_bytes: int
    store: bool
    over_bytes: int
    disk_free_bytes: int
    bytes: BytesByKind
    next: str | None
    models: list[StoredTold]
    more: int
    let_go: list[StoredTold]


class StorageAnswer(TypedDict):
    """The models on the disks of all nodes."""

    nodes: list[NodeStorage]


class NodeStoreHealth(NodeNamed):
    """Whether a node has disk space for models, and its problems."""

    status: Literal["ok", "warn", "error"]
    disk_free_bytes: int
    findings: list[Annotated[dict[str, Any], Dump(HealthFinding, without=frozenset({"node"}))]]


class StoreHealthAnswer(TypedDict):
    """Whether nodes have disk space for models; `status` is the worst of all nodes."""

    status: Literal["ok", "warn", "error"]
    nodes: list[NodeStoreHealth]


class CopyOnNode(NodeNamed):
    """A node's copy of a model; `stored` is its worker's report, null if there is none."""

    whole: bool
    origin: str
    sources: list[str]
    stored: StoredTold | None


class RegisteredModel(TypedDict):
    """A model, and its copies on nodes' disks."""

    model: str
    digest: str
    size_bytes: int
    quantization: str
    made_from: str
    nodes: list[CopyOnNode]


class RegistryAnswer(TypedDict):
    """The models on any node's disk, ordered by name."""

    models: list[RegisteredModel]


class FileOnDisk(TypedDict):
    """A file of a model; `hash` came with the model, empty if it has none."""

    path: str
    size_bytes: int
    hash: str


class ModelInStoreAnswer(RegisteredModel):
    """A model and its files on this node; `held` says why it cannot be deleted now (empty: it
    can)."""

    held: str
    files_here: list[FileOnDisk]


class PurgedNode(NodeNamed):
    """The result of a purge of one node: models deleted (`let_go`), models that a purge without
    `dry_run` would delete, and models that stay."""

    let_go: list[StoredTold]
    would_go: list[StoredTold]
    stays: list[StoredTold]
    bytes: int


class PurgeAnswer(TypedDict):
    """The result of a purge, for each node."""

    dry_run: bool
    nodes: list[PurgedNode]
