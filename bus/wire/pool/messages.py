"""The pool as its holder sees it: pins, what waits for memory and why, and how copies stand.

Pure. Pins are facts of the cluster; the rest is a reading, and never in the state.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.wire import Message

MAX_PINS = 256


class Pin(Message):
    """A model that is to stay in memory, and to come back wherever there is room for it. `by` is
    who pinned it, for people; `at_s` when, in seconds since 1970."""

    model: ModelId
    by: str = Field(default="", max_length=64)
    at_s: float = 0.0


class PoolWait(Message):
    """A model, or a lease by its id, that waits for memory. `kind` says who wants it; `standing` is
    its priority as it has aged. `why` says what it waits for, `victims` who makes way. `ready_in_s`
    is when it is expected to be ready; None: that depends on answers whose length is not known, or
    on pins. `within_s` bounds the wait from now on, beside the answers that run; None: what is in
    its way is urgent or pinned. `hopeless`: it waits in vain. So many models as `ahead` go
    first."""

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
    """How a copy in memory stands. `turn_left_s`: so long it keeps its memory from what is no more
    urgent, as long as it is in use. `load_s` is what loading it took or is expected to take.
    `replica` is why it came as a further copy, and empty for others; `leaves` is why it leaves."""

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
    """The pool of the holder of a term: what waits, most urgent first, and the copies there are."""

    kind: Literal["pool_reading"] = "pool_reading"
    node: NodeId
    term: int
    waits: tuple[PoolWait, ...] = ()
    copies: tuple[PoolCopy, ...] = ()
