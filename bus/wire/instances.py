"""The life of an instance: a loaded copy of a model, in numbered generations.

Pure. A generation is one attempt to hold the model: new processes, new ports, new group. A
fact about an older generation changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.kv import KvKind
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.weights import Quantizing
from bus.wire.messages.wire import Message

Status = Literal["placed", "ready", "draining", "failed"]
Signal = Literal["all_ready", "rank_lost", "reopened", "drain", "gave_up"]

LEAST_IDLE_S = 3.0
"""A copy idles at least so long before it is unloaded: longer than readings take to come, so that
a use is heard of before it is judged."""

NEXT: Mapping[Status, Mapping[Signal, Status]] = {
    "placed": {
        "all_ready": "ready",
        "rank_lost": "placed",
        "reopened": "placed",
        "drain": "draining",
        "gave_up": "failed",
    },
    "ready": {
        "rank_lost": "placed",
        "reopened": "placed",
        "drain": "draining",
        "gave_up": "failed",
    },
    "draining": {},
    "failed": {"reopened": "placed", "drain": "draining"},
}
"""`placed` waits for its ranks; `draining` ends only by removal."""


MAX_WHY = 500
"""So many characters of what a runner said last are remembered of each node."""
DRAIN_S = 60.0
"""The ordinary time that a copy which is let go has for its open requests."""
Sharding = Literal["none", "pipeline", "tensor"]


class Shard(Message):
    """One rank's part: layers [first_layer, last_layer) on one node, all of them under tensor
    sharding. `backend` is the resolved `<engine>-<compute>` tag."""

    rank: int
    node: NodeId
    first_layer: int
    last_layer: int
    bytes_reserved: int
    backend: str = "mlx-cpu"


class Conditions(Message):
    """Under what an instance was asked for, so that it can be placed again under the same.

    `layers` by node, in the order of the stages: a split by hand.
    """

    context_tokens: int | None = None
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = Field(default=1, ge=1)
    sharding: Literal["pipeline", "tensor"] | None = None
    layers: dict[str, int] = {}
    kv: KvKind | None = None


class RankSeat(Message):
    """Where one rank of a group sits. `ring` are the `ip:port`s that its end of MLX's ring
    listens on (best first), `plans` the ZeroMQ addresses of the lead's socket for step plans
    (rank 0 only). Layers are [first_layer, last_layer); all of them under tensor sharding.
    `rdma` (JACCL only) are the devices by which it reaches each rank, in rank order, "" itself."""

    rank: int
    node: NodeId
    first_layer: int
    last_layer: int
    ring: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()


class RankReady(Message):
    """What a rank announced when it was ready. `addresses` are candidates, best first."""

    rank: int
    node: NodeId
    process: str
    addresses: tuple[str, ...]
    pid: int


class Instance(Message):
    """Desired state of one loaded copy, and what is known of its ranks.

    `context_tokens` was computed once, at placement; every rank and gateway reads it
    here. `seats` are where the ranks of a group of this generation are met, as their workers
    said. `keep_alive_s`: idle seconds before unloading, below 0 means never. `failures` are the
    endings of past generations, newest last, at most eight. `backend` is that of rank 0;
    `collectives` is what joins the ranks. `kv`, how what grows of its KV is held, was decided at
    placement, too. `place_again`: it was given up, and is to be placed
    anew under these conditions; `elsewhere`: at once, on nodes where it has not failed. `unmet`
    says which of its conditions it does not meet, and why: it was placed anew for a lost node.
    `test`: it holds no model, its ranks test their collectives.
    `quantizes`: it makes `model`, which is not there before it has ended, of another.
    `yields_to` is the model that it makes way for: it is given no new requests, and is unloaded
    when those that it has are done, unless that is withdrawn; `yields_urgently`: gateways take back
    what waits there, and what of batch requests runs. `pinned`: it was placed for the preload list,
    or as a pinned copy. `replica` says why it came as a further copy of a model that had another;
    empty for others. `priority` says nothing any more; it is in older logs.
    """

    instance: InstanceId
    model: ModelId
    shards: tuple[Shard, ...]
    sharding: Sharding = "none"
    backend: str = "mlx-cpu"
    generation: int = 1
    status: Status = "placed"
    context_tokens: int
    keep_alive_s: float
    pinned: bool = False
    priority: int = 10
    seats: tuple[RankSeat, ...] = ()
    ready: tuple[RankReady, ...] = ()
    failures: tuple[str, ...] = ()
    drain_deadline_s: float | None = None
    why: str = ""
    collectives: Literal["ring", "jaccl"] = "ring"
    conditions: Conditions = Conditions()
    place_again: Conditions | None = None
    elsewhere: bool = False
    unmet: str = ""
    test: CollectiveTest | None = None
    yields_to: str = ""
    yields_urgently: bool = False
    kv: KvKind = "full"
    quantizes: Quantizing | None = None
    replica: str = Field(default="", max_length=200)

    @property
    def serves(self) -> bool:
        """Return whether it is a copy of a model, for requests; not a test, nor work on a model."""
        return self.test is None and self.quantizes is None

    @property
    def reads(self) -> ModelId:
        """Return the model whose files its ranks read."""
        return self.model if self.quantizes is None else self.quantizes.source

    @property
    def lead(self) -> RankReady | None:
        """Return rank 0's announcement, None before every rank is ready."""
        if self.status not in ("ready", "draining"):
            return None
        return next((r for r in self.ready if r.rank == 0), None)

    @property
    def reason(self) -> str:
        """Return why it was given up, or why its last generation ended, the cause alone."""
        last = self.failures[-1].partition(": ")[2] if self.failures else ""
        return self.why or last or "no reason given"

    @property
    def has_ended(self) -> bool:
        """Return whether a rank of this generation has ended, and no other was opened yet."""
        said = f"{ENDING} {self.generation} rank "
        return (
            self.status == "placed" and bool(self.failures) and self.failures[-1].startswith(said)
        )


class NodeSetback(Message):
    """How often a model's runners ended in a row on one node, until when that node does not get the
    model (seconds since 1970), and what the last one said."""

    node: NodeId
    in_a_row: int = Field(ge=1)
    until_s: float
    why: str = Field(default="", max_length=MAX_WHY)


class Setbacks(Message):
    """What each holder remembers of a model whose runners fail. `in_a_row` ended one after the
    other, the last one as this generation of an instance, at the last of the times `failed_at_s`,
    which are those of that instance within a minute. Until `again_at_s` the model is
    not tried again, until `replica_at_s` it gets no replica. `for_want_of` are the nodes of which
    one that turns out lost was the reason; `on` are the nodes on which its runners ended. Times are
    the holder's clock, in seconds since 1970."""

    model: ModelId
    in_a_row: int = Field(default=0, ge=0)
    instance: InstanceId = InstanceId("")
    generation: int = 0
    failed_at_s: tuple[float, ...] = ()
    again_at_s: float = 0.0
    replica_at_s: float = 0.0
    for_want_of: tuple[NodeId, ...] = ()
    on: tuple[NodeSetback, ...] = ()

    @property
    def is_forgotten(self) -> bool:
        """Return whether there is nothing to remember."""
        return not (self.in_a_row or self.replica_at_s)


ENDING = "generation"
"""How each entry of `failures` begins: `generation <n> rank <r>: <what was said>`."""


def signalled(status: Status, signal: Signal) -> Status:
    """Return the next status; a signal that the table does not list changes nothing."""
    return NEXT[status].get(signal, status)
