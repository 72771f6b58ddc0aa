"""Plans: for each model that waits for room one, with its victims and the bytes promised to it.

Pure. A plan lives as long as its model is wished for: evicting, settling, then the model is placed.
On each node one copy leaves at a time, then the node's memory is measured before another has to go;
none leaves before all that are needed there may. A copy in use takes no new requests first, and is
unloaded when what it answers is done; until then its leaving can be withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.events import EventBody, InstanceDraining, InstanceYields
from master.pool.choice import PoolChoice, Victim
from master.pool.claims import Claim
from master.pool.ledger import Promise

EVICT_DRAIN_S = 3600.0
"""What slipped in while a copy was found idle may finish."""
SETTLE_S = 2.0
"""So long after a copy has left, its node's memory counts as measured at the latest."""
MEASURED_S = 0.25
"""A reading that came so long after a copy has left was measured without it."""
HEARD_S = 0.5
"""Gateways have heard by then that a copy takes no new requests."""
Phase = Literal["waiting", "evicting", "settling"]


@dataclass(slots=True)
class Tenure:
    """What the holder remembers of copies, by its own clock: when each was placed and became ready,
    when each was told to yield, how long models took to load, since when models are wished for,
    and when copies left nodes."""

    placed_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    ready_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    yields_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    load_s: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    wished_at: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    left_at: dict[NodeId, float] = field(default_factory=dict[NodeId, float])

    def placed(self, instance: InstanceId, now: float) -> None:
        """Note that a copy begins to load."""
        self.placed_at[instance] = now
        self.ready_at.pop(instance, None)

    def ready(self, instance: InstanceId, model: ModelId, now: float) -> None:
        """Note that a copy is ready, and how long that took."""
        began_at = self.placed_at.pop(instance, None)
        if began_at is not None:
            self.load_s[model] = now - began_at
        self.ready_at[instance] = now

    def removed(self, instance: InstanceId, nodes: Iterable[NodeId], now: float) -> None:
        """Note that a copy has left its nodes."""
        for known in (self.placed_at, self.ready_at, self.yields_at):
            known.pop(instance, None)
        for node in nodes:
            self.left_at[node] = now

    def is_settled(self, node: NodeId, measured_at: float, now: float) -> bool:
        """Return whether a node's memory was measured since the last copy has left it."""
        left_at = self.left_at.get(node)
        return left_at is None or now - left_at >= SETTLE_S or measured_at >= left_at + MEASURED_S

    def unsettled(
        self, nodes: Iterable[NodeId], measured_at: Callable[[NodeId], float], now: float
    ) -> frozenset[NodeId]:
        """Return those of some nodes whose memory was not measured since a copy has left them."""
        return frozenset(n for n in nodes if not self.is_settled(n, measured_at(n), now))


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What is done for a model that waits. `why` says what it waits for now, `until_at` when that
    is expected to be over; None: that is not known. `load_s` is what loading it takes."""

    claim: Claim
    choice: PoolChoice
    phase: Phase
    why: str
    until_at: float | None
    load_s: float

    def promise(self, state: ClusterState) -> Promise:
        """Return what no other plan may count on: of victims that have left by now the room is
        there, and is the promise's."""
        victims = (one.copy.instance for one in self.choice.victims)
        leaving = tuple(one for one in victims if one.instance in state.instances)
        slots = 0 if self.claim.kind == "lease" else 1
        return Promise(self.claim.model, self.choice.needs, leaving, slots)


@dataclass(slots=True)
class PlanBook:
    """The open plans, in the order in which they were pursued this time, and what those models wait
    for that have none: `refused`, by model, with whether that is in vain."""

    plans: dict[ModelId, PoolPlan] = field(default_factory=dict[ModelId, PoolPlan])
    refused: dict[ModelId, tuple[Claim, str, bool]] = field(
        default_factory=dict[ModelId, tuple[Claim, str, bool]]
    )

    def promises_beside(self, model: ModelId | None, state: ClusterState) -> tuple[Promise, ...]:
        """Return what is promised to other models than this."""
        return tuple(plan.promise(state) for name, plan in self.plans.items() if name != model)

    def begin(self) -> None:
        """Begin to go through what is wished for, most urgent first."""
        self.plans, self.refused = {}, {}

    def refuse(self, claim: Claim, why: str, *, in_vain: bool) -> None:
        """Note why a wish has no plan, and whether it waits in vain."""
        self.refused[claim.model] = (claim, why, in_vain)

    def pursue(
        self,
        claim: Claim,
        choice: PoolChoice,
        tenure: Tenure,
        unsettled: frozenset[NodeId],
        now: float,
    ) -> list[EventBody]:
        """Open a model's plan or go on with it; return the events that are due."""
        found: list[EventBody] = []
        phase: Phase = "waiting"
        whys: list[str] = []
        until_at: float | None = now
        for node in choice.needs:
            mine = [
                one
                for one in choice.victims
                if any(shard.node == node for shard in one.copy.instance.shards)
            ]
            leaving = [one for one in mine if one.yielding.leaves]
            held = [one for one in mine if one.yielding.at > now]
            if leaving:
                phase = "evicting"
                found += _emptied(claim, leaving, tenure, now)
                whys += [one.yielding.why for one in leaving]
                until_at = None
            elif node in unsettled:
                phase = "settling" if phase == "waiting" else phase
                whys.append("what was freed is being measured")
            elif held:
                whys += [one.yielding.why for one in held]
                latest = max(one.yielding.at for one in held)
                until_at = None if until_at is None or latest == float("inf") else latest
            elif mine:
                phase = "evicting"
                found.append(_first_step(claim, mine[0]))
                whys.append(f"{mine[0].copy.instance.model} makes way")
        why = "; ".join(dict.fromkeys(whys)) or "memory is short for a moment"
        load_s = tenure.load_s.get(claim.model, choice.load_s)
        self.plans[claim.model] = PoolPlan(claim, choice, phase, why, until_at, load_s)
        return [body for n, body in enumerate(found) if body not in found[:n]]

    def withdrawn(self, state: ClusterState) -> list[EventBody]:
        """Return the withdrawal of each yielding that no plan needs any more."""
        needed = {
            one.copy.instance.instance
            for plan in self.plans.values()
            for one in plan.choice.victims
            if one.yielding.leaves
        }
        return [
            InstanceYields(instance=one.instance, why="what it made way for is not wanted any more")
            for one in state.instances.values()
            if one.status == "ready" and one.yields_to and one.instance not in needed
        ]


def _first_step(claim: Claim, victim: Victim) -> EventBody:
    """Return how a victim begins to leave: an idle one is unloaded, one in use yields."""
    name, why = victim.copy.instance.instance, f"makes way for {claim.model}"
    if victim.yielding.idle:
        return InstanceDraining(instance=name, deadline_s=EVICT_DRAIN_S, why=why)
    return InstanceYields(instance=name, to=claim.model, why=why, urgently=claim.is_urgent)


def _emptied(claim: Claim, leaving: list[Victim], tenure: Tenure, now: float) -> list[EventBody]:
    """Return the unloading of yielding copies that have nothing left to answer."""
    found: list[EventBody] = []
    for one in leaving:
        instance, use = one.copy.instance, one.copy.use
        if instance.status != "ready":
            continue
        hurries = claim.is_urgent and not instance.yields_urgently
        if instance.yields_to != claim.model or hurries:
            why, urgently = f"makes way for {claim.model}", claim.is_urgent
            name, to = instance.instance, claim.model
            found.append(InstanceYields(instance=name, to=to, why=why, urgently=urgently))
        if use is None:
            continue
        told_at = tenure.yields_at.setdefault(instance.instance, now)
        if not use.open_requests and use.heard_at >= told_at + HEARD_S:
            why = f"makes way for {claim.model}"
            found.append(
                InstanceDraining(instance=instance.instance, deadline_s=EVICT_DRAIN_S, why=why)
            )
    return found
