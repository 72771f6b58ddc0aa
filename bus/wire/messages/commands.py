"""Commands want. Each is sent to the holder and answered once: acknowledged or refused.

Pure. A command carries its own id and may be repeated safely: the holder answers a repeat
with the first answer.
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
    """A model that is not on any disk yet, as if it were on that node's."""

    node: NodeId
    card: ModelCard


class PlaceModel(Message):
    """Load a copy of a model. With `dry_run` nothing changes and the plan is answered.

    `if_absent`: an existing placed or ready instance of the model is the answer instead.
    `sharding` is forced where given. `layers` by node (id or name), in the order of the stages,
    is a split by hand. `previews`: a dry run's plan tells of every candidate; with `supposed` it is
    reckoned as if a node had the model already. `kv` None: as the model's card has it.
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
    """Drain, then unload. Open requests may finish for `drain_s` seconds, then they end with
    a terminal error; nothing is cut without one."""

    kind: Literal["delete_instance"] = "delete_instance"
    command_id: CommandId
    instance: InstanceId
    drain_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    why: str = "asked to"


class KeepAlive(Message):
    """Change how long an idle instance stays; below 0 means for ever."""

    kind: Literal["keep_alive"] = "keep_alive"
    command_id: CommandId
    instance: InstanceId
    keep_alive_s: float


class PinModel(Message):
    """Have a model stay in memory, whichever node it is on, and loaded where it is not (`pinned`);
    or let it go again. `by` is who says so, for people."""

    kind: Literal["pin_model"] = "pin_model"
    command_id: CommandId
    model: ModelId
    pinned: bool = True
    by: str = Field(default="", max_length=64)
    at_s: float = 0.0


class TakeLease(Message):
    """Keep memory of a node (None: the one where that costs least) for something other than a
    model; models that may make way do. It is answered when the memory is there. A lease of that id
    that there is already is the answer instead."""

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
        """Return the name by which the pool knows it, among models."""
        return ModelId(self.lease)


class RenewLease(Message):
    """Say that a lease is still needed, and how much of it is used by now; None: that is not known,
    so that all of it is kept free."""

    kind: Literal["renew_lease"] = "renew_lease"
    command_id: CommandId
    lease: LeaseId
    used_bytes: int | None = Field(default=None, ge=0)


class AskLeaseBack(Message):
    """Ask who has a lease to give it back. `by` is who says so, for people."""

    kind: Literal["ask_lease_back"] = "ask_lease_back"
    command_id: CommandId
    lease: LeaseId
    by: str = Field(default="", max_length=64)


class EndLease(Message):
    """Let a lease's memory be others' again, or have it wait for memory no longer."""

    kind: Literal["end_lease"] = "end_lease"
    command_id: CommandId
    lease: LeaseId
    why: str = "given back"


class RenameNode(Message):
    """Call a node by another name, which goes before that of its own settings."""

    kind: Literal["rename_node"] = "rename_node"
    command_id: CommandId
    node: NodeId
    name: str = Field(min_length=1, max_length=64)


class DrainNode(Message):
    """Give a node no new work and let what it holds go elsewhere (`draining`), or undo it."""

    kind: Literal["drain_node"] = "drain_node"
    command_id: CommandId
    node: NodeId
    draining: bool = True
    drain_s: float = Field(default=DRAIN_S, ge=0.0, le=3600.0)


class ForgetNode(Message):
    """Have a node that is gone no longer belong to the cluster (`forgotten`), or let a
    forgotten one come back. A node that lives is not forgotten."""

    kind: Literal["forget_node"] = "forget_node"
    command_id: CommandId
    node: NodeId
    forgotten: bool = True


class RunCollectiveTest(Message):
    """Test the collectives between nodes, one rank on each, in the order given (none: every
    node that may have new work). The answer names the instance, which removes itself when it
    is done. `backend` None: JACCL where the nodes are a full RDMA mesh, else the ring.
    `memory_bytes`: no rank takes more, even where there is more room."""

    kind: Literal["run_collective_test"] = "run_collective_test"
    command_id: CommandId
    nodes: tuple[NodeId, ...] = ()
    mode: Mode = "standard"
    backend: Backend | None = None
    memory_bytes: int | None = Field(default=None, ge=1)


class QuantizeModel(Message):
    """Make a model called `name` of another in fewer bits, on a node that has that whole: `node`,
    or one that the holder chooses. The answer names the instance, which removes itself when it is
    done; deleted before, nothing of it is left."""

    kind: Literal["quantize_model"] = "quantize_model"
    command_id: CommandId
    name: ModelId
    quantizing: Quantizing
    node: NodeId | None = None


class DeriveModel(Message):
    """Let requests for a name be answered by another model, with defaults; in the place of what the
    name stood for before."""

    kind: Literal["derive_model"] = "derive_model"
    command_id: CommandId
    derived: DerivedModel


class ForgetDerived(Message):
    """Let a derived model's name stand for nothing."""

    kind: Literal["forget_derived"] = "forget_derived"
    command_id: CommandId
    name: ModelId


class AddApiKey(Message):
    """Let who has a key ask over HTTP, on every node."""

    kind: Literal["add_api_key"] = "add_api_key"
    command_id: CommandId
    key: ApiKey


class RotateApiKey(Message):
    """Take another secret for a key; the one of before is taken until `old_until_s` as well
    (seconds since 1970; 0: not any more). Its id, name, scope and limits stay."""

    kind: Literal["rotate_api_key"] = "rotate_api_key"
    command_id: CommandId
    key_id: str
    hash: str = Field(pattern=HASH_PATTERN)
    old_until_s: float = 0.0


class RemoveApiKey(Message):
    """Take a key no longer, on any node."""

    kind: Literal["remove_api_key"] = "remove_api_key"
    command_id: CommandId
    key_id: str


class SetTracing(Message):
    """Trace this share of all requests (0: none, 1: each) on every node; None: as each node's own
    settings say."""

    kind: Literal["set_tracing"] = "set_tracing"
    command_id: CommandId
    ratio: float | None = Field(default=None, ge=0.0, le=1.0)


class AllowCloudFallback(Message):
    """Let providers' models answer for a task where those before them fail (`allowed`), or not; on
    every node."""

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
    """The command's effect has this place in the log. `durability` says what that is worth:
    `majority`, `replicated`, `local` (this node's disk) or `volatile` (journal degraded)."""

    kind: Literal["acknowledged"] = "acknowledged"
    command_id: CommandId
    term: int
    index: int
    durability: Durability
    instance: InstanceId | None = None
    plan: dict[str, Any] | None = None


class CommandRefused(Message):
    """The command changed nothing, and why."""

    kind: Literal["command_refused"] = "command_refused"
    command_id: CommandId
    refusal: Refusal
