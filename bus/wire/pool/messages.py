"""The state of the cluster's shared memory (the pool) as the leader reports it: the pins, the
models that wait for memory and why, and the instances in memory.

Pure. Pins are part of the cluster's state; the rest is a reading, which is never part of that
state.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.wire import Message

MAX_PINS = 256


class Pin(Message):
    """A pin: a request to keep a model in memory. If the model is unloaded, it is loaded again
    wherever memory is free. `by`: the user who pinned it, for display; `at_s`: when, in seconds
    since 1970."""

    model: ModelId
    by: str = Field(default="", max_length=64)
    at_s: float = 0.0


class PoolWait(Message):
    """A model, or a lease by its id, that waits for memory. `kind`: the source of the demand.
    `standing`: its priority after aging. `why`: the reason for the wait. `victims`: the instances
    to be evicted. `ready_in_s`: expected time until it is ready; None: it depends on answers of
    unknown length, or on pins. `within_s`: the maximum wait, not counting the running answers;
    None: the instances in its way are urgent or pinned. `hopeless`: it can never get the memory.
    `ahead`: how many models come first."""

    model: ModelId
    kind: Literal["demand", "asked", "pin", "preload", "again", "lease"]
    priority: int
    standing: float
    waited_s: float
    phase: Literal["waiting", "evicting", "settling", "refused", "hopeless"]
    why: str
    ahead: int = 0
    victims: tuple[InstanceId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    ready_in_s: float | None = None
    within_s: float | None = None


class PoolCopy(Message):
    """The state of an instance in memory. `turn_left_s`: the rest of its minimum residency. Until
    that has passed, a model that is not more urgent can't evict the instance while it is in use.
    `load_s`: the measured or expected time to load it. `replica`: why it was loaded as a replica;
    empty for others. `leaves`: why it is being unloaded."""

    instance: InstanceId
    model: ModelId
    in_use: bool
    turn_left_s: float
    load_s: float
    yields_to: str = ""
    pinned_by: str | None = None
    replica: str = ""
    leaves: str = ""


class PoolReading(Message):
    """The leader's report on the cluster's shared memory: the models that wait, most urgent first,
    and the instances."""

    kind: Literal["pool_reading"] = "pool_reading"
    node: NodeId
    term: int
    waits: tuple[PoolWait, ...] = ()
    copies: tuple[PoolCopy, ...] = ()
