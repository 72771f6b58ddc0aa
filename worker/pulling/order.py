"""What one pull is to do. Pure: it is written by the worker and read by the process that pulls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bus.wire.ids import ModelId
from bus.wire.kv import KvKind
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from worker.pulling.patience import USUAL_TIMING, PullTiming

CONNECTIONS = 4
GO = b"go\n"
"""What is written to a process that holds its pull, to have it go on."""
HERE_ALREADY = "it is here already"


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
