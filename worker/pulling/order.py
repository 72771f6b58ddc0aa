"""What one pull is to do. Pure: it is written by the worker and read by the process that pulls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bus.wire.ids import ModelId
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from worker.pulling.patience import USUAL_TIMING, PullTiming

CONNECTIONS = 4
HERE_ALREADY = "it is here already"


@dataclass(frozen=True, slots=True)
class PullOrder:
    """What to pull, and below which folder it goes. `here` is the folder of a model of this name
    that lies here already ("": none does); `margin_bytes` of the disk are to stay free."""

    model: ModelId
    revision: str
    models: str
    here: str = ""
    margin_bytes: int = DISK_MARGIN_BYTES
    connections: int = CONNECTIONS
    timing: PullTiming = field(default=USUAL_TIMING)


def order_of(said: dict[str, Any]) -> PullOrder:
    """Return the order that `dataclasses.asdict` made this of."""
    timing: dict[str, Any] = said.pop("timing")
    return PullOrder(**said, timing=PullTiming(**timing))
