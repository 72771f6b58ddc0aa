"""What one pull is to do, and with what settings a node pulls.

Pure: an order is written by the worker and read by the process that pulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.wire.ids import ModelId, is_model_id
from bus.wire.kv import KvKind
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from worker.pulling.patience import USUAL_TIMING, PullTiming

CONNECTIONS = 4
GO = b"go\n"
"""What is written to a process that holds its pull, to have it go on."""
HERE_ALREADY = "it is here already"
USUAL_HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class PullSettings:
    """`models` is the folder that pulled models go to. `offline`: no hub is asked for anything.
    `float32` and `kv` are how this node has its models in memory. `hub` is the address of the hub
    that its pulls ask."""

    models: Path
    offline: bool = False
    float32: bool = False
    kv: KvKind = "full"
    hub: str = USUAL_HUB


@dataclass(frozen=True, slots=True)
class PullOrder:
    """What to pull, and below which folder it goes. `here` is the folder of a model of this name
    that lies here already ("": none does); `margin_bytes` of the disk are to stay free. `holds`:
    once what would come is told, it is waited for the word to go on (`GO`). `float32` and `kv` are
    how this node has its models in memory."""

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


def order_of(said: dict[str, Any]) -> PullOrder:
    """Return the order that `dataclasses.asdict` made this of."""
    timing: dict[str, Any] = said.pop("timing")
    return PullOrder(**said, timing=PullTiming(**timing))


def hub_of(endpoint: str) -> str:
    """Return the address of the hub that `HF_ENDPOINT` names; empty: the usual one."""
    return endpoint.rstrip("/")[:2048] or USUAL_HUB


def is_repository(model: ModelId) -> bool:
    """Return whether a name is OWNER/NAME, as a hub's repositories are called."""
    return is_model_id(model) and model.count("/") == 1 and ":" not in model
