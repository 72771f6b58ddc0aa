"""Events: changes that have happened. The leader gives each event an index; every mirror of the log
applies events in that order.

Pure. A *fact* is an event that a service other than the leader witnessed. It is sent with (node,
process, boot, seq). It stays in the witness's outbox until the witness sees it in the log.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bus.wire.api_keys import ApiKey
from bus.wire.errors import Refusal
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance, RankSeat, Setbacks
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.wire import Message
from bus.wire.pool import Lease, LeaseId, Pin

# --- facts: witnessed by workers -----------------------------------------------------------


class NodeJoined(Message):
    """A node's worker is running. Sent at every start of the worker."""

    kind: Literal["node_joined"] = "node_joined"
    node: NodeId
    name: str
    addresses: tuple[str, ...] = ()


class RankSeated(Message):
    """A worker has reserved a runner slot and addresses for a rank of a group."""

    kind: Literal["rank_seated"] = "rank_seated"
    instance: InstanceId
    generation: int
    seat: RankSeat


class RankNews(Message):
    """A worker's report on one rank of a generation (one attempt to load an instance); each has its
    own `kind`."""

    kind: Any
    instance: InstanceId
    generation: int
    rank: int
    node: NodeId


class RunnerReady(RankNews):
    """A rank has loaded its shard and serves at `addresses` (possible ones, best first)."""

    kind: Literal["runner_ready"] = "runner_ready"
    process: str
    pid: int
    addresses: tuple[str, ...]


class RunnerEnded(RankNews):
    """A rank's process has ended (crash, watchdog, kill), with the reason if known. `found_gone`:
    it was ready before its node was restarted, and its worker did not find it at the start."""

    kind: Literal["runner_ended"] = "runner_ended"
    exit_code: int | None = None
    message: str = ""
    found_gone: bool = False


class LoadRefused(RankNews):
    """The worker refused to load a shard: less memory is free than the placement assumed."""

    kind: Literal["load_refused"] = "load_refused"
    refusal: Refusal


class RunnerUnloaded(RankNews):
    """A draining rank has ended as requested; its memory is free."""

    kind: Literal["runner_unloaded"] = "runner_unloaded"


Fact = Annotated[
    NodeJoined | RankSeated | RunnerReady | RunnerEnded | LoadRefused | RunnerUnloaded,
    Field(discriminator="kind"),
]


class FactId(Message):
    """The origin of a fact; `seq` grows by one within a boot (one life of the witness's
    process)."""

    node: NodeId
    process: str
    boot: Boot
    seq: int


# --- decisions of the holder ----------------------------------------------------------------


class TermOpened(Message):
    """A candidate became the leader; the following events are of its term."""

    kind: Literal["term_opened"] = "term_opened"
    holder: NodeId
    counter: int


class NodeRenamed(Message):
    """The operator has renamed a node."""

    kind: Literal["node_renamed"] = "node_renamed"
    node: NodeId
    name: str


class NodeDrained(Message):
    """A node gets no new work (`draining`), or may get work again. `wired_bytes`: memory that
    no runner uses and that can't be paged out, if this is the reason or a person accepts it; else
    0."""

    kind: Literal["node_drained"] = "node_drained"
    node: NodeId
    draining: bool
    wired_bytes: int = 0


class NodeForgotten(Message):
    """A node was removed from the cluster: it is refused, and has no vote."""

    kind: Literal["node_forgotten"] = "node_forgotten"
    node: NodeId


class NodeRemembered(Message):
    """A node that was removed from the cluster may join again."""

    kind: Literal["node_remembered"] = "node_remembered"
    node: NodeId


class InstancePlaced(Message):
    """A model is to be loaded as `instance` says."""

    kind: Literal["instance_placed"] = "instance_placed"
    instance: Instance


class GenerationOpened(Message):
    """The instance is to be loaded again, by new processes."""

    kind: Literal["generation_opened"] = "generation_opened"
    instance: InstanceId
    generation: int
    why: str


class InstanceDraining(Message):
    """An instance gets no new work. Its open requests may finish within `deadline_s` after this
    event is received."""

    kind: Literal["instance_draining"] = "instance_draining"
    instance: InstanceId
    deadline_s: float
    why: str


class InstanceYields(Message):
    """An instance gets no new requests, because it is evicted for model `to`. If `to` is empty, the
    eviction is withdrawn. `urgently`: gateways requeue its waiting requests and its running batch
    requests."""

    kind: Literal["instance_yields"] = "instance_yields"
    instance: InstanceId
    to: str = ""
    why: str
    urgently: bool = False


class InstanceFailed(Message):
    """An instance was given up, because its runners failed repeatedly or a worker refused it.
    `place_again`: the conditions under which it is to be placed again; None if that is pointless.
    `elsewhere`: it is placed at once, on nodes where it has not failed."""

    kind: Literal["instance_failed"] = "instance_failed"
    instance: InstanceId
    why: str
    place_again: Conditions | None = None
    elsewhere: bool = False


class InstanceRemoved(Message):
    """All ranks of the instance have ended; it is removed from the state."""

    kind: Literal["instance_removed"] = "instance_removed"
    instance: InstanceId
    why: str


class KeepAliveSet(Message):
    """The maximum idle time of the instance has changed."""

    kind: Literal["keep_alive_set"] = "keep_alive_set"
    instance: InstanceId
    keep_alive_s: float


class SetbacksCounted(Message):
    """The failure record of a model has changed; an empty one is deleted."""

    kind: Literal["setbacks_counted"] = "setbacks_counted"
    setbacks: Setbacks


class ModelPinned(Message):
    """A model stays in memory from here on."""

    kind: Literal["model_pinned"] = "model_pinned"
    pin: Pin


class ModelUnpinned(Message):
    """A model may be evicted again."""

    kind: Literal["model_unpinned"] = "model_unpinned"
    model: ModelId


class LeaseGranted(Message):
    """Memory of a node is reserved for something other than a model."""

    kind: Literal["lease_granted"] = "lease_granted"
    lease: Lease


class LeaseAskedBack(Message):
    """The owner of a lease is asked to release it for `to` (empty: no longer asked)."""

    kind: Literal["lease_asked_back"] = "lease_asked_back"
    lease: LeaseId
    to: str = ""
    why: str


class LeaseEnded(Message):
    """A lease has ended; its memory is available again."""

    kind: Literal["lease_ended"] = "lease_ended"
    lease: LeaseId
    why: str


class ModelDerived(Message):
    """From here on, a derived model (a name for another model, with defaults) exists."""

    kind: Literal["model_derived"] = "model_derived"
    derived: DerivedModel


class DerivedForgotten(Message):
    """A derived model is deleted."""

    kind: Literal["derived_forgotten"] = "derived_forgotten"
    name: ModelId


class ApiKeyAdded(Message):
    """A key is valid from here on."""

    kind: Literal["api_key_added"] = "api_key_added"
    key: ApiKey


class ApiKeyChanged(Message):
    """A key has the content of `key` from here on; its id is unchanged."""

    kind: Literal["api_key_changed"] = "api_key_changed"
    key: ApiKey


class ApiKeyRemoved(Message):
    """A key is no longer valid."""

    kind: Literal["api_key_removed"] = "api_key_removed"
    key_id: str


class TracingSet(Message):
    """This share of all requests is traced from here on; None: as each node's settings say."""

    kind: Literal["tracing_set"] = "tracing_set"
    ratio: float | None = Field(default=None, ge=0.0, le=1.0)


class CloudFallbackAllowed(Message):
    """Models of providers may, or may not, be the fallback for a task from here on."""

    kind: Literal["cloud_fallback_allowed"] = "cloud_fallback_allowed"
    allowed: bool


EventBody = Annotated[
    NodeJoined
    | RankSeated
    | RunnerReady
    | RunnerEnded
    | LoadRefused
    | RunnerUnloaded
    | TermOpened
    | NodeRenamed
    | NodeDrained
    | NodeForgotten
    | NodeRemembered
    | InstancePlaced
    | GenerationOpened
    | InstanceDraining
    | InstanceFailed
    | InstanceRemoved
    | KeepAliveSet
    | InstanceYields
    | SetbacksCounted
    | ModelPinned
    | ModelUnpinned
    | LeaseGranted
    | LeaseAskedBack
    | LeaseEnded
    | ModelDerived
    | DerivedForgotten
    | ApiKeyAdded
    | ApiKeyChanged
    | ApiKeyRemoved
    | TracingSet
    | CloudFallbackAllowed,
    Field(discriminator="kind"),
]


class Event(Message):
    """One entry of the log. `index` grows by one. If a service other than the
    leader witnessed the change, `fact` identifies its report, so that the same report sent again is
    not applied twice. `command_id` names the command that caused the event. `at_s` is the
    leader's wall clock, for people only. `holder` is the leader that wrote the event: (term,
    holder, index) identifies one entry of one log."""

    kind: Literal["event"] = "event"
    term: int
    index: int
    at_s: float
    body: EventBody
    fact: FactId | None = None
    command_id: CommandId | None = None
    holder: NodeId | None = None
