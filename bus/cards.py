"""Capability cards: what a node can do, and which models lie on its disk.

Pure. A card is a retained reading; the strictly newer one of two wins.
"""

from __future__ import annotations

from pydantic import Field

from bus.ids import ModelId, NodeId
from bus.messages.wire import Message


class ModelCard(Message):
    """One model on disk, with what placement needs to know before it is loaded.

    Bytes are of the weights as they will lie in memory (after the cast to `dtype`).
    `kv_bytes_per_token` is for the whole model; `kv_bytes_fixed` per row. `size_bytes` is on disk.
    """

    model: ModelId
    path: str
    family: str
    layers: int
    weights_bytes: int
    size_bytes: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int = 0
    context_tokens: int
    vocabulary: int
    quantization: str = "none"
    dtype: str = "float32"
    parameters: int = 0
    digest: str = ""
    modified_at_s: int = 0
    capabilities: tuple[str, ...] = ("completion",)
    keep_alive_s: float | None = None
    thinking: bool = False
    bundled: bool = False


class NodeCard(Message):
    """A node's announcement of itself. `ttl_s` > 0; expired strictly after it.

    `weights_addresses` are where its worker gives the files of `models` to other nodes, best
    first; none: it does not.
    """

    node: NodeId
    name: str
    platform: str
    cores: int
    memory_bytes: int
    backends: tuple[str, ...]
    mlx_version: str
    shoal_version: str
    slots: int
    models: tuple[ModelCard, ...] = ()
    weights_addresses: tuple[str, ...] = ()
    announced_at_s: float
    ttl_s: float = Field(default=120.0, gt=0)
