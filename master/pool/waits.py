"""The reason why each model waits, as text, with a bound on the time.

Pure. The bound is a sum. The first term is the time that ageing takes. For each model ahead, and
for the waiting model itself, it adds a minimum residency, a load, and the time until memory is
measured again. The time in which running answers finish is not included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bus.wire.ids import NodeId
from bus.wire.pool import PoolCopy, PoolReading, PoolWait
from master.pool.claims import Claim
from master.pool.plans import SETTLE_S, PlanBook, PoolPlan
from master.pool.settings import PoolSettings
from master.pool.turns import FIRST_USE_S, NORMAL, Copy, is_in_use, turn_ends_at

SPARE_S = 2.0
"""Upper bound for the messages and decisions of one swap (an eviction and a load)."""
MOST_TOLD = 100


def pool_reading(
    node: NodeId,
    term: int,
    book: PlanBook,
    copies: Sequence[Copy],
    settings: PoolSettings,
    now: float,
) -> PoolReading:
    """Return the leader's reading of its pool."""
    turns_s = [settings.turn_of(copy.load_s) for copy in copies]
    loads_s = [copy.load_s for copy in copies]
    waits: list[PoolWait] = []
    for plan in book.plans.values():
        swap_s = max(turns_s, default=settings.turn_s) + SETTLE_S + SPARE_S
        swap_s += max([*loads_s, plan.load_s])
        waits.append(_planned(plan, len(waits), swap_s, copies, settings, now))
    for claim, why, is_hopeless in book.refused.values():
        phase = "hopeless" if is_hopeless else "refused"
        waits.append(_wait(claim, phase, why, len(waits), settings, now))
    readings = tuple(_copy_reading(copy, settings, now) for copy in copies)
    return PoolReading(node=node, term=term, waits=tuple(waits[:MOST_TOLD]), copies=readings)


def bound_s(
    claim: Claim, ahead: int, swap_s: float, serves: int, settings: PoolSettings, now: float
) -> float | None:
    """Return the maximum wait in seconds of a claim with `ahead` claims before it, not counting the
    running answers. None if the requests being served stay more urgent than this claim."""
    passes_at = claim.passes_at(serves, settings.ageing_per_s)
    if math.isinf(passes_at):
        return None
    return max(0.0, passes_at - now) + (ahead + 1) * swap_s + FIRST_USE_S


def _planned(
    plan: PoolPlan,
    ahead: int,
    swap_s: float,
    copies: Sequence[Copy],
    settings: PoolSettings,
    now: float,
) -> PoolWait:
    victims = [victim.copy for victim in plan.choice.victims]
    uses = [copy.use for copy in victims if copy.use is not None and copy.use.open_requests]
    serves = min((NORMAL if u.best_priority is None else u.best_priority for u in uses), default=99)
    ready_in_s = None
    if plan.until_at is not None:
        ready_in_s = max(0.0, plan.until_at - now) + SETTLE_S + plan.load_s
    wait = _wait(plan.claim, plan.phase, plan.why, ahead, settings, now)
    more = {
        "victims": tuple(copy.instance.instance for copy in victims),
        "nodes": tuple(plan.choice.needs),
        "ready_in_s": ready_in_s,
        "within_s": bound_s(plan.claim, ahead, swap_s, serves, settings, now),
    }
    return wait.model_copy(update=more)


def _wait(
    claim: Claim, phase: str, why: str, ahead: int, settings: PoolSettings, now: float
) -> PoolWait:
    return PoolWait.model_validate(
        {
            "model": claim.model,
            "kind": claim.kind,
            "priority": claim.priority,
            "standing": claim.standing(settings.ageing_per_s, now),
            "waited_s": max(0.0, now - claim.since_at),
            "phase": phase,
            "why": why,
            "ahead": ahead,
        }
    )


def _copy_reading(copy: Copy, settings: PoolSettings, now: float) -> PoolCopy:
    ready = copy.instance.status == "ready"
    in_use = ready and is_in_use(copy, now)
    keeps = in_use and not copy.replica
    return PoolCopy(
        instance=copy.instance.instance,
        model=copy.instance.model,
        in_use=in_use,
        turn_left_s=max(0.0, turn_ends_at(copy, settings, now) - now) if keeps else 0.0,
        load_s=copy.load_s,
        yields_to=copy.instance.yields_to,
        pinned_by=copy.pinned_by,
        replica=copy.replica,
        leaves=copy.instance.why if copy.instance.status == "draining" else "",
    )
