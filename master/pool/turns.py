"""Decides when an instance in memory may be evicted for a waiting claim; it then yields to the
claim.

Pure. The minimum residency protects instances in use: an idle instance yields at once. An instance
in use stays for its minimum residency. Then it yields to a claim whose standing is no worse than
that of its requests. Urgent claims do not wait for the residency. A pinned instance never yields; a
replica does at once, because its model has another instance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bus.wire.instances import Instance
from master.pool.claims import URGENT, Claim
from master.pool.settings import PoolSettings

IN_USE_S = 0.3
"""An instance counts as in use for this many seconds after a request. A client that sends its next
request at once has sent it by then."""
FIRST_USE_S = 3.0
"""A new instance that no request has used yet counts as in use for this many seconds. Requests that
waited for it reach it within this time."""
NORMAL = 10
"""The priority class that running requests are assumed to have if their runner does not report
it."""


@dataclass(frozen=True, slots=True)
class CopyUse:
    """The use of an instance, as its lead runner reported at `heard_at`. `idle_s`: how long it has
    been idle now, 0 while a request is open. `idle_then_s`: how long it had been idle at the
    report; a moment between two requests does not count as idle. `best_priority`: the most urgent
    class of the open requests."""

    open_requests: int
    idle_s: float
    best_priority: int | None
    heard_at: float
    idle_then_s: float


@dataclass(frozen=True, slots=True)
class Copy:
    """An instance in memory or loading. `use` None: unknown. `ready_at` None: not ready yet.
    `load_s`: its load time. `waiting`: the claim of the requests that wait for its model at
    gateways. `replica`: why it was added as a replica; empty for others."""

    instance: Instance
    use: CopyUse | None
    ready_at: float | None
    load_s: float
    pinned_by: str | None = None
    waiting: Claim | None = None
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Yielding:
    """From when an instance may be evicted for a claim (another model's demand for memory), and why
    not before. `at`: seconds on the leader's clock; infinity: unknown. `leaves`: it is being
    unloaded; `idle`: it serves no request; `ever`: False if it is pinned, so that it never
    yields."""

    at: float
    why: str = ""
    leaves: bool = False
    idle: bool = False
    ever: bool = True


def is_in_use(copy: Copy, now: float) -> bool:
    """Return whether a ready instance serves a request, served one a moment ago, or is about to
    serve one."""
    use = copy.use
    if use is None or use.open_requests:
        return True
    ready_s = math.inf if copy.ready_at is None else now - copy.ready_at
    is_unused = use.idle_s + 0.05 >= ready_s
    return use.idle_then_s < IN_USE_S or (is_unused and ready_s < FIRST_USE_S)


def yielding(copy: Copy, claim: Claim, settings: PoolSettings, now: float) -> Yielding:
    """Return when an instance may be evicted for a claim (another model's demand for memory)."""
    instance = copy.instance
    model = instance.model
    if instance.status == "draining":
        return Yielding(now, f"{model} is being unloaded", leaves=True)
    if not instance.serves:
        what = "a collective test" if instance.test else f"the quantization to {model}"
        return Yielding(math.inf, f"{what} uses the memory")
    if copy.pinned_by is not None:
        return Yielding(math.inf, f"{model} is pinned by {copy.pinned_by}", ever=False)
    if instance.status != "ready":
        if copy.replica:
            return Yielding(now, idle=True)
        return Yielding(math.inf, f"{model} is loading")
    if copy.use is None:
        return Yielding(math.inf, f"the use of {model} is not reported yet")
    rival = None if copy.replica else copy.waiting
    if rival is not None and rival.is_urgent and not claim.is_urgent:
        return Yielding(math.inf, f"urgent requests wait for {model}")
    if instance.yields_to:
        return Yielding(now, f"{model} is finishing its requests", leaves=True)
    if not is_in_use(copy, now):
        return Yielding(now, idle=True)
    if copy.replica:
        return Yielding(now, f"a replica of {model} is finishing its requests")
    return _after_its_turn(copy, copy.use, claim, settings, now)


def turn_ends_at(copy: Copy, settings: PoolSettings, now: float) -> float:
    """Return when an instance's minimum residency ends."""
    ready_at = now if copy.ready_at is None else copy.ready_at
    return ready_at + settings.turn_of(copy.load_s)


def _after_its_turn(
    copy: Copy, use: CopyUse, claim: Claim, settings: PoolSettings, now: float
) -> Yielding:
    model = copy.instance.model
    serves = NORMAL if use.best_priority is None else use.best_priority
    if claim.is_urgent and serves > URGENT:
        return Yielding(now, f"{model} is finishing its requests")
    passes_at = claim.passes_at(serves, settings.ageing_per_s)
    if passes_at == math.inf:
        return Yielding(math.inf, f"{model} is serving urgent requests")
    turn_at = turn_ends_at(copy, settings, now)
    at = max(turn_at, passes_at, now)
    if at <= now:
        return Yielding(now, f"{model} is finishing its requests")
    why = f"{model} is in use; its minimum residency ends in {at - now:.0f} s"
    if passes_at > turn_at:
        why = f"{model} is serving more urgent requests for up to {at - now:.0f} s more"
    return Yielding(at, why)
