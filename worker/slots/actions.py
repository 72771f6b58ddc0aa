"""The actions of the worker's shell.

Pure. Every action is idempotent. After an action was done, `SlotTable.note` records it in its slot,
or `Reported.note` records it for its task.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.events import Fact
from worker.models.layer_bytes import Layers


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """A runner's task: one rank of an instance, in one `generation` (attempt to load the
    instance)."""

    instance: InstanceId
    generation: int
    rank: int


@dataclass(frozen=True, slots=True)
class AssignSlot:
    """Note in the table that a waiting slot gets `task` (None: it belongs to no instance)."""

    slot: str
    task: Task | None


@dataclass(frozen=True, slots=True)
class StartSlot:
    """Make supervisord start the slot's process, which will become `task` (None: a *spare* for the
    next task that needs a slot, with its libraries already imported)."""

    slot: str
    task: Task | None


@dataclass(frozen=True, slots=True)
class GiveSpec:
    """Send the slot's runner its `RunnerSpec`."""

    slot: str
    task: Task
    instance: Instance
    shard: Shard


@dataclass(frozen=True, slots=True)
class SeatRank:
    """Choose fresh ports for a rank of a group, and announce its address."""

    task: Task
    instance: Instance
    shard: Shard

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        ranks = sorted(self.instance.shards, key=lambda shard: shard.rank)
        return tuple(shard.node for shard in ranks)


@dataclass(frozen=True, slots=True)
class DrainSlot:
    """Ask the slot's runner to finish its requests and exit (`SlotDrain`)."""

    slot: str
    task: Task
    deadline_s: float
    why: str


@dataclass(frozen=True, slots=True)
class RefuseSlot:
    """Refuse the slot's runner (`SlotRefused`); it then exits."""

    slot: str
    message: str


@dataclass(frozen=True, slots=True)
class StopSlot:
    """Make supervisord stop the slot (SIGTERM, then SIGKILL)."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True)
class KillSlot:
    """Send SIGKILL to the slot's process immediately."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Report the fact about `task` to the leader, through the outbox. `boot` is set if the fact is
    that a runner is ready; every other fact says that the task has ended."""

    fact: Fact
    task: Task
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Fetch the weights from other nodes. With `layers`, fetch only what these layers need."""

    model: ModelId
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Cancel a fetch (its files so far are kept), or drop its result."""

    model: ModelId


SlotAction = AssignSlot | StartSlot | GiveSpec | DrainSlot | RefuseSlot | StopSlot | KillSlot
Action = SlotAction | SeatRank | Tell | FetchModel | CancelFetch
