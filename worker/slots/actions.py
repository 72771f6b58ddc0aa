"""What the worker's shell may be asked to do.

Pure. Every action is idempotent in its effect: done twice, it changes nothing the second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.events import Fact
from worker.models.layer_bytes import Layers
from worker.slots.table import Task


@dataclass(frozen=True, slots=True)
class StartSlot:
    """Have supervisord start the slot's process, which is to become `task`."""

    slot: str
    task: Task


@dataclass(frozen=True, slots=True)
class GiveSpec:
    """Send the slot its `RunnerSpec`."""

    slot: str
    task: Task
    instance: Instance
    shard: Shard


@dataclass(frozen=True, slots=True)
class SeatRank:
    """Choose fresh ports for a rank of a group, and tell where it will be met. `nodes` are those
    of all ranks, in their order."""

    task: Task
    shard: Shard
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class DrainSlot:
    """Send the slot a `SlotDrain`."""

    slot: str
    task: Task
    deadline_s: float
    why: str


@dataclass(frozen=True, slots=True)
class RefuseSlot:
    """Send the slot a `SlotRefused`; it ends itself."""

    slot: str
    message: str


@dataclass(frozen=True, slots=True)
class StopSlot:
    """Have supervisord stop the slot (SIGTERM, then SIGKILL)."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True)
class KillSlot:
    """SIGKILL, now."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Put the fact into the outbox."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Get the weights from another node; `layers`: only what those need."""

    model: ModelId
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Give a fetch up (what came stays for another time), or forget how it ended."""

    model: ModelId


SlotAction = StartSlot | GiveSpec | SeatRank | DrainSlot | RefuseSlot | StopSlot | KillSlot | Tell
Action = SlotAction | FetchModel | CancelFetch
