"""What is told of models on nodes' disks, as types.

Pure. The OpenAPI document shows these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from bus.wire.messages.readings import HealthFinding
from bus.wire.messages.weights import StoredModel
from gateway.dialects.encode import Dump

StoredTold = Annotated[dict[str, Any], Dump(StoredModel)]


class NodeNamed(TypedDict):
    """A node, and its name."""

    node: str
    name: str


class BytesByKind(TypedDict):
    """Bytes of models, by where they come from."""

    fetched: int
    put: int
    made: int
    bundled: int


class NodeStorage(NodeNamed):
    """What lies on a node's disk. `store_bytes` limits what is fetched (below 0: nothing does), of
    which `over_bytes` are too many; `next` would go first, null where nothing may go."""

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
    """What lies on the disks of all nodes."""

    nodes: list[NodeStorage]


class NodeStoreHealth(NodeNamed):
    """Whether there is room for models on a node, and what is wrong."""

    status: Literal["ok", "warn", "error"]
    disk_free_bytes: int
    findings: list[Annotated[dict[str, Any], Dump(HealthFinding, without=frozenset({"node"}))]]


class StoreHealthAnswer(TypedDict):
    """Whether there is room for models; `status` is the worst of all nodes'."""

    status: Literal["ok", "warn", "error"]
    nodes: list[NodeStoreHealth]


class CopyOnNode(NodeNamed):
    """A node's copy of a model; `stored` is what its worker says of it, null where"""

    whole: bool
    origin: str
    sources: list[str]
    stored: StoredTold | None


class RegisteredModel(TypedDict):
    """A model, and where it lies."""

    model: str
    digest: str
    size_bytes: int
    quantization: str
    made_from: str
    nodes: list[CopyOnNode]


class RegistryAnswer(TypedDict):
    """The models on any node's disk, by name."""

    models: list[RegisteredModel]


class FileOnDisk(TypedDict):
    """A file of a model; `hash` is what it came with, empty for none."""

    path: str
    size_bytes: int
    hash: str


class ModelInStoreAnswer(RegisteredModel):
    """A model, why it cannot be deleted now (empty: it can), and its files on this node."""

    held: str
    files_here: list[FileOnDisk]


class PurgedNode(NodeNamed):
    """What went of a node's disk, would go, or stays."""

    let_go: list[StoredTold]
    would_go: list[StoredTold]
    stays: list[StoredTold]
    bytes: int


class PurgeAnswer(TypedDict):
    """What came of letting go what may go."""

    dry_run: bool
    nodes: list[PurgedNode]
