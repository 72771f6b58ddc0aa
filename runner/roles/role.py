"""The seam between a runner's shell and the part that it plays: lead, alone or of a group, or
follower.

Pure. The shell speaks with the worker and knows the phase; the part has the engine, and serves
whoever it serves. A part never ends the process: it asks its `RoleHost` to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bus.wire.errors import FailReason
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.control import GroupSpec, Phase, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.engine import Engine, EngineFacts, EngineMemory, FollowingEngine, LoadProgress
from runner.group.collectives import Exchanges
from runner.group.lockstep import RankContext
from runner.lifecycle import Signal
from runner.text.prepared import TextWorks

Progressed = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class Factories:
    """How a part comes by what it needs. `load_engine`, `load_follower` and `open_exchanges`
    (for a test) are called in the engine's thread, `form_group` (group, own rank, seconds it
    may take) in the main thread."""

    load_engine: Callable[[RunnerSpec, RankContext | None, Progressed], Engine]
    load_follower: Callable[[RunnerSpec, RankContext, Progressed], FollowingEngine]
    load_text: Callable[[RunnerSpec], TextWorks]
    form_group: Callable[[GroupSpec, int, float], None]
    open_exchanges: Callable[[RunnerSpec, RankContext], Exchanges]


class RoleHost(Protocol):
    """What the shell is to its part."""

    @property
    def phase(self) -> Phase: ...

    def signal(self, signal: Signal) -> None: ...

    def leave(self, code: int, reason: FailReason, message: str) -> None:
        """End the process soon; the first caller decides the code."""
        ...


class EngineStatus(Protocol):
    """What reports tell of an engine's thread."""

    progress: LoadProgress
    memory: EngineMemory

    @property
    def steps_done(self) -> int: ...


class Role(Protocol):
    """Called from the main thread alone."""

    facts: EngineFacts | None

    @property
    def works(self) -> EngineStatus: ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where gateways find it; none for a follower."""
        ...

    @property
    def open_requests(self) -> int: ...

    @property
    def is_empty(self) -> bool:
        """Nothing keeps a draining runner any longer."""
        ...

    def begin(self) -> None:
        """Form the group, where there is one, and load."""
        ...

    def watch(self, now: float) -> None:
        """Four times a second: whoever is silent or stuck is seen here."""
        ...

    def entered(self, phase: Phase) -> None: ...

    def reading(self, now: float) -> RunnerReading | CollectiveReading | None: ...

    def fail_all(self, reason: FailReason, message: str) -> None:
        """Whoever is owed something hears of the end."""
        ...

    def say_goodbye(self, message: str) -> None: ...

    def stop(self, timeout_s: float) -> None:
        """Give the engine a moment to end its step."""
        ...
