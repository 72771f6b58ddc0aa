"""The life of an instance: a loaded copy of a model, in numbered generations.

Pure. A generation is one attempt to load the model, with new processes, new ports and a new group
of ranks. A fact about an older generation changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from bus.wire.accelerators import DeviceShare, bytes_on
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.kv import KvKind
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.weights import Quantizing
from bus.wire.messages.wire import Message

Status = Literal["placed", "ready", "draining", "failed"]
Signal = Literal["all_ready", "rank_lost", "reopened", "drain", "gave_up"]
Phase = Literal["idle", "loading", "warming", "ready", "draining", "ended"]
"""Phases of a runner, as it reports them."""

LEAST_IDLE_S = 3.0
"""Minimum number of idle seconds before an instance is unloaded. Readings reach the leader faster
than that, so the leader knows every recent use."""

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
"""The next status for each status and signal. `placed` waits for its ranks; `draining` ends only
when the instance is removed."""


MAX_WHY = 500
"""Maximum characters of a runner's last message that are stored per node."""
DRAIN_S = 60.0
"""Default time that a draining instance has for its open requests."""
Sharding = Literal["none", "pipeline", "tensor"]


class Shard(Message):
    """The part of a model that one rank has: layers [first_layer, last_layer) on one node; with
    tensor sharding, all layers. `backend` is the chosen `<engine>-<compute>` tag. `bytes_reserved`
    contains the memory on GPUs, which `devices` divides over them; the rest is memory of the
    machine."""

    rank: int
    node: NodeId
    first_layer: int
    last_layer: int
    bytes_reserved: int
    backend: str = "mlx-cpu"
    devices: tuple[DeviceShare, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of the machine's memory that the rank reserves."""
        return self.bytes_reserved - bytes_on(self.devices)


class Conditions(Message):
    """The conditions of a placement, stored so that the instance can be placed again under them.
    `layers`: the number of layers by node, in stage order, if the user chose the split."""

    context_tokens: int | None = None
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = Field(default=1, ge=1)
    sharding: Literal["pipeline", "tensor"] | None = None
    layers: dict[str, int] = {}
    kv: KvKind | None = None


class RankSeat(Message):
    """Where one rank of a group is reached. `ring`: the `ip:port`s on which its end of MLX's ring
    listens, best first. `plans`: the ZeroMQ addresses of the socket from which the lead sends step
    plans (rank 0 only). `rdma` (JACCL only): its device towards each rank, in rank order, "" for
    itself. Layers are [first_layer, last_layer); with tensor sharding, all layers."""

    rank: int
    node: NodeId
    first_layer: int
    last_layer: int
    ring: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()


class RankReady(Message):
    """A rank's announcement that it is ready. `addresses`: where its runner may be reached, best
    first."""

    rank: int
    node: NodeId
    process: str
    addresses: tuple[str, ...]
    pid: int


class Instance(Message):
    """Desired state of one instance, and the last known state of its ranks.

    `context_tokens` and `kv` (the format of the part of the KV cache that grows with the tokens)
    were decided at placement; every rank and gateway reads them here. `seats`: the addresses at
    which the ranks of this generation's group connect, as their workers reported. `keep_alive_s`:
    idle seconds before it is unloaded; negative: never. `failures`: how past generations ended,
    newest last, at most eight. `backend` is that of rank 0; `collectives`: how the ranks are
    joined.

    `place_again`: it was given up and is to be placed again under these conditions; `elsewhere`: at
    once, on nodes where it has not failed. `unmet`: the conditions that it does not meet, with the
    reason, after it was placed again because a node was lost. `test`: it has no model; its ranks
    test their collectives. `quantizes`: it makes `model`, which exists only afterwards, from
    another model.

    `yields_to`: the model for which it is evicted. It gets no new requests and is unloaded when its
    open ones are done, unless that is withdrawn. `yields_urgently`: gateways requeue its waiting
    requests and its running batch requests. `pinned`: it was placed for the preload list or for a
    pin. `replica`: why a further instance of the model was loaded; empty for the first. `priority`
    has no effect; older logs have it.
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
        """Return whether the instance serves requests. Tests and quantizations do not."""
        return self.test is None and self.quantizes is None

    @property
    def accepts(self) -> bool:
        """Return whether the instance accepts new requests. An instance that is being evicted does
        not."""
        is_ready = self.status == "ready" and self.lead is not None
        return is_ready and self.serves and not self.yields_to

    @property
    def reads(self) -> ModelId:
        """Return the model whose files its ranks read."""
        return self.model if self.quantizes is None else self.quantizes.source

    @property
    def lead(self) -> RankReady | None:
        """Return rank 0's announcement; None before every rank is ready."""
        if self.status not in ("ready", "draining"):
            return None
        return next((r for r in self.ready if r.rank == 0), None)

    @property
    def reason(self) -> str:
        """Return why the instance was given up, or else why its last generation (attempt to load)
        ended. The text leaves out which rank ended."""
        last = self.failures[-1].partition(": ")[2] if self.failures else ""
        return self.why or last or "no reason given"

    @property
    def has_ended(self) -> bool:
        """Return whether a rank of the current generation (the latest attempt to load) has ended
        and no new generation is open yet."""
        prefix = f"{ENDING} {self.generation} rank "
        return (
            self.status == "placed" and bool(self.failures) and self.failures[-1].startswith(prefix)
        )


class NodeSetback(Message):
    """Failures of a model's runners on one node: how many `in_a_row`, until when the node is
    excluded for this model (seconds since 1970), and the last runner's message."""

    node: NodeId
    in_a_row: int = Field(ge=1)
    until_s: float
    why: str = Field(default="", max_length=MAX_WHY)


class Setbacks(Message):
    """The failure record of a model; every master candidate has it. `in_a_row`: how many runners
    failed one after the other. The last failure ended `generation` of `instance`. `failed_at_s`:
    the times of that instance's failures in the last minute. The model is not loaded again until
    `again_at_s`, and gets no replica until `replica_at_s`. `for_want_of`: if one of these nodes
    turns out to be lost, the last failure is not counted. `on`: the nodes on which its runners
    ended. Times are the leader's clock, in seconds since 1970."""

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
        """Return whether no failure is counted any more, so that the record can be deleted."""
        return not (self.in_a_row or self.replica_at_s)


ENDING = "generation"
"""The beginning of each entry of `failures`, which reads `generation <n> rank <r>: <message>`."""


def signalled(status: Status, signal: Signal) -> Status:
    """Return the status that follows `signal`; a signal that the table `NEXT` does not list for
    `status` changes nothing."""
    return NEXT[status].get(signal, status)


def reachable(lead: RankReady, node: NodeId, hosts: Mapping[NodeId, str]) -> str | None:
    """Return the address at which `node` can dial a lead runner; None if there is none.

    On the runner's own node, the local socket is preferred. On other nodes, the address on the host
    where the runner's node was reached is preferred.
    """
    local = [address for address in lead.addresses if address.startswith("ipc://")]
    abroad = [address for address in lead.addresses if address.startswith("tcp://")]
    if lead.node == node:
        return next(iter([*local, *abroad]), None)
    prefix = f"tcp://{hosts.get(lead.node, '')}:"
    return next(
        (address for address in abroad if address.startswith(prefix)), next(iter(abroad), None)
    )
