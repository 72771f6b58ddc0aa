"""Commands: requests for a change. Each is sent to the leader and acknowledged or refused once.

Pure. A command carries its own id and may be repeated safely: the leader answers a repeat with
the first answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bus.wire.api_keys import HASH_PATTERN, ApiKey
from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import DRAIN_S
from bus.wire.kv import KvKind
from bus.wire.messages.collectives import Backend, Mode
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.weights import Quantizing
from bus.wire.messages.wire import Message
from bus.wire.pool import (
    LEASE_PATTERN,
    LEAST_TTL_S,
    MOST_BYTES,
    MOST_TTL_S,
    LeaseId,
)


class SupposedModel(Message):
    """A model that is on no disk yet. The placement is planned as if that node had it; with
    `by_layers`, as if each node could fetch the layers of its rank."""

    node: NodeId
    card: ModelCard
    by_layers: bool = False


class PlaceModel(Message):
    """Load an instance of a model. With `dry_run` nothing changes and the reply has the plan.

    `if_absent`: reply with an existing placed or ready instance of the model instead. `sharding`,
    if given, must be used. `layers` by node (id or name), in stage order, is a manual split.
    `previews`: the plan of a dry run lists every possible placement. `supposed`: plan as if a node
    had the model on its disk. `kv` None: as in the model's card.
    """

    kind: Literal["place_model"] = "place_model"
    command_id: CommandId
    model: ModelId
    context_tokens: int | None = Field(default=None, ge=1)
    keep_alive_s: float | None = None
    pinned: bool = False
    priority: int = 10
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = Field(default=1, ge=1)
    if_absent: bool = True
    dry_run: bool = False
    sharding: Literal["pipeline", "tensor"] | None = None
    layers: dict[str, int] = {}
    previews: bool = False
    kv: KvKind | None = None
    supposed: SupposedModel | None = None


class DeleteInstance(Message):
    """Drain an instance, then unload it. Its open requests may finish for `drain_s` seconds; then
    they end with an error."""

    kind: Literal["delete_instance"] = "delete_instance"
    command_id: CommandId
    instance: InstanceId
    drain_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    why: str = "unloading was requested"


class KeepAlive(Message):
    """Change how long an instance stays in memory while it is idle; a negative value means for
    ever."""

    kind: Literal["keep_alive"] = "keep_alive"
    command_id: CommandId
    instance: InstanceId
    keep_alive_s: float


class PinModel(Message):
    """Keep a model in memory on any node, loading it if needed; if `pinned` is False, allow its
    eviction again. `by`: the user, for display."""

    kind: Literal["pin_model"] = "pin_model"
    command_id: CommandId
    model: ModelId
    pinned: bool = True
    by: str = Field(default="", max_length=64)
    at_s: float = 0.0


class TakeLease(Message):
    """Reserve memory of a node (None: the node where that costs least) for something other than a
    model, evicting models if needed. The reply comes when the memory is free. If a lease with that
    id exists, it is returned instead."""

    kind: Literal["take_lease"] = "take_lease"
    command_id: CommandId
    lease: LeaseId = Field(pattern=LEASE_PATTERN)
    size_bytes: int = Field(gt=0, le=MOST_BYTES)
    node: NodeId | None = None
    owner: str = Field(default="", max_length=64)
    priority: int = Field(default=10, ge=0, le=1000)
    ttl_s: float = Field(default=30.0, ge=LEAST_TTL_S, le=MOST_TTL_S)
    at_s: float = 0.0

    @property
    def model(self) -> ModelId:
        """Return the name under which the pool lists this lease among the models."""
        return ModelId(self.lease)


class RenewLease(Message):
    """Renew a lease and report how much memory its owner uses; None: unknown, so all of the memory
    stays reserved."""

    kind: Literal["renew_lease"] = "renew_lease"
    command_id: CommandId
    lease: LeaseId
    used_bytes: int | None = Field(default=None, ge=0)


class AskLeaseBack(Message):
    """Ask the owner of a lease to release it. `by`: the user, for display."""

    kind: Literal["ask_lease_back"] = "ask_lease_back"
    command_id: CommandId
    lease: LeaseId
    by: str = Field(default="", max_length=64)


class EndLease(Message):
    """End a lease, which frees its memory, or withdraw a lease that still waits for memory."""

    kind: Literal["end_lease"] = "end_lease"
    command_id: CommandId
    lease: LeaseId
    why: str = "released"


class RenameNode(Message):
    """Rename a node; this overrides the name in its own settings."""

    kind: Literal["rename_node"] = "rename_node"
    command_id: CommandId
    node: NodeId
    name: str = Field(min_length=1, max_length=64)


class DrainNode(Message):
    """Give a node no new work and move its instances to other nodes; if `draining` is False, undo
    that."""

    kind: Literal["drain_node"] = "drain_node"
    command_id: CommandId
    node: NodeId
    draining: bool = True
    drain_s: float = Field(default=DRAIN_S, ge=0.0, le=3600.0)


class ForgetNode(Message):
    """Remove a stopped node from the cluster; if `forgotten` is False, readmit it. Refused for a
    running node."""

    kind: Literal["forget_node"] = "forget_node"
    command_id: CommandId
    node: NodeId
    forgotten: bool = True


class RunCollectiveTest(Message):
    """Test the collectives between nodes, one rank on each, in the given order (empty: every
    node that takes new work). The reply names the instance, which removes itself when it is
    done. `backend` None: JACCL if the nodes are a full RDMA mesh, else the ring. `memory_bytes`:
    the limit of each rank."""

    kind: Literal["run_collective_test"] = "run_collective_test"
    command_id: CommandId
    nodes: tuple[NodeId, ...] = ()
    mode: Mode = "standard"
    backend: Backend | None = None
    memory_bytes: int | None = Field(default=None, ge=1)


class QuantizeModel(Message):
    """Quantize a model to a new model called `name`. The work runs on a node that has all files of
    the source: `node`, or if that is None, a node that the leader chooses. The reply names the
    instance that does it, which removes itself when it is done. If that instance is deleted before,
    no file of the new model stays."""

    kind: Literal["quantize_model"] = "quantize_model"
    command_id: CommandId
    name: ModelId
    quantizing: Quantizing
    node: NodeId | None = None


class DeriveModel(Message):
    """Define a derived model: a name for which another model answers, with defaults of its own.
    Replaces an earlier definition of the name."""

    kind: Literal["derive_model"] = "derive_model"
    command_id: CommandId
    derived: DerivedModel


class ForgetDerived(Message):
    """Delete a derived model."""

    kind: Literal["forget_derived"] = "forget_derived"
    command_id: CommandId
    name: ModelId


class AddApiKey(Message):
    """Add an API key that is valid on every node."""

    kind: Literal["add_api_key"] = "add_api_key"
    command_id: CommandId
    key: ApiKey


class RotateApiKey(Message):
    """Give an API key a new secret. The old secret stays valid until `old_until_s` (seconds since
    1970; 0: it ends now). Id, name, scope and limits stay."""

    kind: Literal["rotate_api_key"] = "rotate_api_key"
    command_id: CommandId
    key_id: str
    hash: str = Field(pattern=HASH_PATTERN)
    old_until_s: float = 0.0


class RemoveApiKey(Message):
    """Remove an API key from every node."""

    kind: Literal["remove_api_key"] = "remove_api_key"
    command_id: CommandId
    key_id: str


class SetTracing(Message):
    """Trace this share of all requests (0: none, 1: all) on every node; None: each node's own
    setting."""

    kind: Literal["set_tracing"] = "set_tracing"
    command_id: CommandId
    ratio: float | None = Field(default=None, ge=0.0, le=1.0)


class AllowCloudFallback(Message):
    """Allow models of providers as fallback for a task, on every node; if `allowed` is False,
    forbid it."""

    kind: Literal["allow_cloud_fallback"] = "allow_cloud_fallback"
    command_id: CommandId
    allowed: bool


Command = Annotated[
    PlaceModel
    | DeleteInstance
    | KeepAlive
    | PinModel
    | TakeLease
    | RenewLease
    | AskLeaseBack
    | EndLease
    | RenameNode
    | DrainNode
    | ForgetNode
    | RunCollectiveTest
    | QuantizeModel
    | DeriveModel
    | ForgetDerived
    | AddApiKey
    | RotateApiKey
    | RemoveApiKey
    | SetTracing
    | AllowCloudFallback,
    Field(discriminator="kind"),
]


Durability = Literal["majority", "replicated", "local", "volatile"]


class Acknowledged(Message):
    """The command took effect at this index of the log. `durability`: `majority`, `replicated`,
    `local` (this node's disk) or `volatile` (the journal cannot be written)."""

    kind: Literal["acknowledged"] = "acknowledged"
    command_id: CommandId
    term: int
    index: int
    durability: Durability
    instance: InstanceId | None = None
    plan: dict[str, Any] | None = None


class CommandRefused(Message):
    """The command changed nothing, for this reason."""

    kind: Literal["command_refused"] = "command_refused"
    command_id: CommandId
    refusal: Refusal
