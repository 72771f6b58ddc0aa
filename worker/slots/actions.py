"""What the worker's shell may be asked to do.

Pure. Every action is idempotent in its effect: done twice, it changes nothing the second time.
An action that was done is noted: by `SlotTable.note` what it makes of a slot, by `Reported.note`
what it says of a task.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.events import Fact
from worker.models.layer_bytes import Layers


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """One rank of one generation: what a runner is."""

    instance: InstanceId
    generation: int
    rank: int


@dataclass(frozen=True, slots=True)
class AssignSlot:
    """Note in the table that a slot that waits is to become `task` (None: of no instance)."""

    slot: str
    task: Task | None


@dataclass(frozen=True, slots=True)
class StartSlot:
    """Have supervisord start the slot's process, which is to become `task` (None: the next
    one that needs a slot, a *spare* that has its libraries imported by then)."""

    slot: str
    task: Task | None


@dataclass(frozen=True, slots=True)
class GiveSpec:
    """Send the slot its `RunnerSpec`."""

    slot: str
    task: Task
    instance: Instance
    shard: Shard


@dataclass(frozen=True, slots=True)
class SeatRank:
    """Choose fresh ports for a rank of a group, and tell where it will be met."""

    task: Task
    instance: Instance
    shard: Shard

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Return the nodes of all ranks, in their order."""
        ranks = sorted(self.instance.shards, key=lambda shard: shard.rank)
        return tuple(shard.node for shard in ranks)


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
    """Put the fact about `task` into the outbox; `boot` is that of a runner that is ready, any
    other fact says that the task has left."""

    fact: Fact
    task: Task
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Get the weights from another node; `layers`: only what those need."""

    model: ModelId
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Give a fetch up (what came stays for another time), or forget how it ended."""

    model: ModelId


SlotAction = AssignSlot | StartSlot | GiveSpec | DrainSlot | RefuseSlot | StopSlot | KillSlot
Action = SlotAction | SeatRank | Tell | FetchModel | CancelFetch
