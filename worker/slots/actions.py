"""The actions that `reconcile` decides and the executor performs. Pure.

Every action is idempotent. After an action was done, `SlotTable.note` records it in its slot, or
`Reported.note` records it for its task.
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
    """Record that the waiting runner in a slot will get `task`. None: the runner belongs to no
    instance."""

    slot: str
    task: Task | None


@dataclass(frozen=True, slots=True)
class StartSlot:
    """Make supervisord start the process of a slot. The process will get `task`. With None it is a
    *spare*, which imports the libraries and waits for the next task."""

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
    """Make supervisord end the process of the slot: SIGTERM first, then SIGKILL."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True)
class KillSlot:
    """Send SIGKILL to the slot's process immediately."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Report a fact about `task` to the leader. The fact is either that a runner is ready, with its
    `boot` id, or that the task has ended."""

    fact: Fact
    task: Task
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Fetch a model's weights from other nodes. With `layers`, fetch only the pieces that these
    layers need."""

    model: ModelId
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Stop fetching a model; the files that have arrived are kept. If the fetch has ended, drop its
    result."""

    model: ModelId


SlotAction = AssignSlot | StartSlot | GiveSpec | DrainSlot | RefuseSlot | StopSlot | KillSlot
Action = SlotAction | SeatRank | Tell | FetchModel | CancelFetch
