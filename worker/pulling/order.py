"""The order of one pull, and a node's pull settings.

Pure: an order is written by the worker and read by the process that pulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.models.gguf import canonical, repository_of
from bus.wire.ids import ModelId, is_model_id
from bus.wire.kv import KvKind
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from worker.pulling.patience import USUAL_TIMING, PullTiming

CONNECTIONS = 4
GO = b"go\n"
"""Written to the process of a held pull, which waits after its forecast, to resume it."""
HERE_ALREADY = "the model is already on this node"
USUAL_HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class PullSettings:
    """`models` is the folder of pulled models, `record` the file of background pulls. `offline`: no
    hub is contacted. `float32` and `kv` are how this node loads its models. `hub` is the address of
    the hub for pulls. `memory_bytes`: the node's memory; 0: no limit."""

    models: Path
    record: Path
    offline: bool = False
    float32: bool = False
    kv: KvKind = "full"
    hub: str = USUAL_HUB
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PullOrder:
    """What to pull and to which folder. `here` is the folder of an existing model of this name ("":
    none); `margin_bytes` of the disk stay free. `holds`: after the forecast, wait for `GO`.
    `float32` and `kv` are how this node loads its models. `layers`: fetch only what a pipeline
    stage with the layers [first, last) needs; None: everything. `memory_bytes`: the node's memory,
    by which a GGUF quantisation is chosen; 0: no limit."""

    model: ModelId
    revision: str
    models: str
    here: str = ""
    margin_bytes: int = DISK_MARGIN_BYTES
    connections: int = CONNECTIONS
    timing: PullTiming = field(default=USUAL_TIMING)
    holds: bool = False
    float32: bool = False
    kv: KvKind = "full"
    layers: tuple[int, int] | None = None
    memory_bytes: int = 0


def order_of(fields: dict[str, Any]) -> PullOrder:
    """Return the order from its `dataclasses.asdict` form."""
    timing: dict[str, Any] = fields.pop("timing")
    layers: list[int] | None = fields.pop("layers")
    span = None if layers is None else (layers[0], layers[1])
    return PullOrder(**fields, timing=PullTiming(**timing), layers=span)


def hub_of(endpoint: str) -> str:
    """Return the address of the hub in `HF_ENDPOINT`; empty: the default one."""
    return endpoint.rstrip("/")[:2048] or USUAL_HUB


def is_repository(model: ModelId) -> bool:
    """Return whether a name has the form OWNER/NAME of a hub's repositories, or
    OWNER/NAME:QUANTISATION in its canonical form (`bus.models.gguf.canonical`)."""
    _, tag = repository_of(model)
    return is_model_id(model) and model.count("/") == 1 and tag == canonical(tag)
