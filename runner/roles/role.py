"""The seam between a runner's shell and the role that it plays: lead (alone or of a group),
follower, or one rank of a collective test.

Pure. The shell speaks with the worker and knows the phase; the role has the engine and what it
serves. A role never ends the process: it asks its `RoleHost` to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bus.wire.errors import FailReason
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.control import GroupSpec, Phase, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.engine import Engine, EngineFacts, EngineStatus, FollowingEngine, LoadProgress
from runner.group.collectives import Exchanges
from runner.group.lockstep import RankContext
from runner.lifecycle import Signal
from runner.text import TextWorks

Progressed = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class SlotIdentity:
    """Who speaks, and where in its life it is. `slot` is its two digits, `process` its name."""

    node: NodeId
    process: str
    boot: Boot
    slot: str
    pid: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Factories:
    """How a role comes by what it needs. `load_engine`, `load_follower` and `open_exchanges`
    (for a test) are called in the engine's thread, `load_text` in the text thread, `form_group`
    (group, own rank, seconds it may take; raises CannotForm) in the main thread."""

    load_engine: Callable[[RunnerSpec, RankContext | None, Progressed], Engine]
    load_follower: Callable[[RunnerSpec, RankContext, Progressed], FollowingEngine]
    load_text: Callable[[RunnerSpec], TextWorks]
    form_group: Callable[[GroupSpec, int, float], None]
    open_exchanges: Callable[[RunnerSpec, RankContext], Exchanges]


class RoleHost(Protocol):
    """What the shell is to its role. Called from the main thread."""

    @property
    def phase(self) -> Phase:
        """Return where the runner is in its life."""
        ...

    def identity(self) -> SlotIdentity:
        """Return who speaks, with the phase of now."""
        ...

    def signal(self, signal: Signal) -> None:
        """Tell what happened; the phase changes where `runner.lifecycle.NEXT` says so."""
        ...

    def leave(self, code: int, reason: FailReason, message: str) -> None:
        """End the process soon, with a code of `runner.lifecycle`; the first caller decides."""
        ...


class Role(Protocol):
    """Called from the main thread alone. `begin` comes first, `stop` last; after `fail_all`
    nothing is served any more."""

    @property
    def facts(self) -> EngineFacts | None:
        """Return what is true of the loaded model; None before, and in a collective test."""
        ...

    @property
    def status(self) -> EngineStatus:
        """Return where the engine stands; its thread goes on writing there."""
        ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the sockets where gateways find it; none but a lead has any."""
        ...

    @property
    def open_requests(self) -> int:
        """Return how many requests are owed an end or an answer."""
        ...

    @property
    def is_empty(self) -> bool:
        """Return whether nothing keeps a draining runner any longer."""
        ...

    def begin(self) -> None:
        """Form the group, where there is one, and load."""
        ...

    def watch(self, now: float) -> None:
        """Look for what is silent or stuck, and leave where something is. Called four times a
        second with the monotonic instant."""
        ...

    def entered(self, phase: Phase) -> None:
        """Take note of the runner's new phase."""
        ...

    def reading(self, now: float) -> RunnerReading | CollectiveReading | None:
        """Return what to publish this second; None where the role has nothing to tell."""
        ...

    def fail_all(self, reason: FailReason, message: str) -> None:
        """Tell every open request, and the other ranks, that the runner ends."""
        ...

    def say_goodbye(self, message: str) -> None:
        """Take leave of gateways, after the last entries were sent."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Give the engine a moment to end its step, then drop the links."""
        ...
