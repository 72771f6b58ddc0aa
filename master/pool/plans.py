"""Plans: one for each model that waits for memory, with the instances to evict (its victims) and
its reservation.

Pure. A plan lives as long as the demand for its model. Its stages are: evicting, waiting for a
measurement of the memory, then placing. On each node one instance is evicted at a time, then memory
is measured before the next; no instance is evicted before all necessary evictions are allowed. An
instance in use first takes no new requests and is unloaded when its answers are done; until then
its eviction can be withdrawn.
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
"""How long, in seconds, a request may still run that reached an idle instance while it was chosen
for eviction."""
SETTLE_S = 2.0
"""This many seconds after an unload, a node's memory counts as measured again, even without a new
reading."""
MEASURED_S = 0.25
"""A reading that arrives this many seconds after an unload was certainly measured without the
instance."""
HEARD_S = 0.5
"""After this many seconds all gateways know that an instance takes no new requests."""
Phase = Literal["waiting", "evicting", "settling"]


@dataclass(slots=True)
class Tenure:
    """The leader's notes on instances, by its own clock. `yields_at`: when an instance stopped
    taking new requests because of its eviction. `load_s`: the last load time of each model.
    `wished_at`: since when each model is in demand. `left_at`: when an instance was last unloaded
    from each node."""

    placed_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    ready_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    yields_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    load_s: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    wished_at: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    left_at: dict[NodeId, float] = field(default_factory=dict[NodeId, float])

    def placed(self, instance: InstanceId, now: float) -> None:
        """Record that an instance begins to load."""
        self.placed_at[instance] = now
        self.ready_at.pop(instance, None)

    def ready(self, instance: InstanceId, model: ModelId, now: float) -> None:
        """Record that an instance is ready, and how long it took to load."""
        began_at = self.placed_at.pop(instance, None)
        if began_at is not None:
            self.load_s[model] = now - began_at
        self.ready_at[instance] = now

    def removed(self, instance: InstanceId, nodes: Iterable[NodeId], now: float) -> None:
        """Record that an instance was unloaded from its nodes."""
        for instants in (self.placed_at, self.ready_at, self.yields_at):
            instants.pop(instance, None)
        for node in nodes:
            self.left_at[node] = now

    def is_settled(self, node: NodeId, measured_at: float, now: float) -> bool:
        """Return whether a node's memory was measured after an instance was last unloaded from
        it."""
        left_at = self.left_at.get(node)
        return left_at is None or now - left_at >= SETTLE_S or measured_at >= left_at + MEASURED_S

    def unsettled(
        self, nodes: Iterable[NodeId], measured_at: Callable[[NodeId], float], now: float
    ) -> frozenset[NodeId]:
        """Return the nodes whose memory was not measured after an instance was last unloaded from
        them."""
        return frozenset(n for n in nodes if not self.is_settled(n, measured_at(n), now))


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The plan of a waiting model. `why`: what it waits for now. `until_at`: when that is expected
    to end; None: unknown. `load_s`: the expected time to load the model."""

    claim: Claim
    choice: PoolChoice
    phase: Phase
    why: str
    until_at: float | None
    load_s: float

    def promise(self, state: ClusterState) -> Promise:
        """Return the reservation of this plan; the memory of a victim counts towards it only while
        the victim is loaded."""
        victims = (victim.copy.instance for victim in self.choice.victims)
        leaving = tuple(victim for victim in victims if victim.instance in state.instances)
        slots = 0 if self.claim.kind == "lease" else 1
        choice = self.choice
        return Promise(self.claim.model, choice.needs, leaving, slots, choice.devices)


@dataclass(slots=True)
class PlanBook:
    """The open plans, most urgent first. `refused`: the waiting models without a plan, each with
    its claim (demand for memory), the reason, and whether waiting is in vain."""

    plans: dict[ModelId, PoolPlan] = field(default_factory=dict[ModelId, PoolPlan])
    refused: dict[ModelId, tuple[Claim, str, bool]] = field(
        default_factory=dict[ModelId, tuple[Claim, str, bool]]
    )

    def promises_beside(self, model: ModelId | None, state: ClusterState) -> tuple[Promise, ...]:
        """Return the reservations of all models other than `model`."""
        return tuple(plan.promise(state) for name, plan in self.plans.items() if name != model)

    def begin(self) -> None:
        """Begin a new round of decisions: forget all plans and refusals. The caller then goes
        through all claims, most urgent first."""
        self.plans, self.refused = {}, {}

    def refuse(self, claim: Claim, why: str, *, in_vain: bool) -> None:
        """Record why a claim (a model's demand for memory) has no plan. `in_vain`: waiting cannot
        help."""
        self.refused[claim.model] = (claim, why, in_vain)

    def pursue(
        self,
        claim: Claim,
        choice: PoolChoice,
        tenure: Tenure,
        unsettled: frozenset[NodeId],
        now: float,
    ) -> list[EventBody]:
        """Open a model's plan, or continue it. Return the events that are due."""
        events: list[EventBody] = []
        phase: Phase = "waiting"
        whys: list[str] = []
        until_at: float | None = now
        for node in choice.needs:
            mine = [
                victim
                for victim in choice.victims
                if any(shard.node == node for shard in victim.copy.instance.shards)
            ]
            leaving = [victim for victim in mine if victim.yielding.leaves]
            held = [victim for victim in mine if victim.yielding.at > now]
            if leaving:
                phase = "evicting"
                events += _emptied(claim, leaving, tenure, now)
                whys += [victim.yielding.why for victim in leaving]
                until_at = None
            elif node in unsettled:
                phase = "settling" if phase == "waiting" else phase
                whys.append("the freed memory is being measured")
            elif held:
                whys += [victim.yielding.why for victim in held]
                latest = max(victim.yielding.at for victim in held)
                until_at = None if until_at is None or latest == float("inf") else latest
            elif mine:
                phase = "evicting"
                events.append(_first_step(claim, mine[0]))
                whys.append(f"{mine[0].copy.instance.model} is being evicted")
        why = "; ".join(dict.fromkeys(whys)) or "no memory is free at the moment"
        load_s = tenure.load_s.get(claim.model, choice.load_s)
        self.plans[claim.model] = PoolPlan(claim, choice, phase, why, until_at, load_s)
        return [body for n, body in enumerate(events) if body not in events[:n]]

    def withdrawn(self, state: ClusterState) -> list[EventBody]:
        """Return the events that withdraw evictions which no plan needs any more."""
        needed = {
            victim.copy.instance.instance
            for plan in self.plans.values()
            for victim in plan.choice.victims
            if victim.yielding.leaves
        }
        return [
            InstanceYields(
                instance=instance.instance,
                why="the model that needed its memory is no longer requested",
            )
            for instance in state.instances.values()
            if instance.status == "ready" and instance.yields_to and instance.instance not in needed
        ]


def _first_step(claim: Claim, victim: Victim) -> EventBody:
    """Return the first event of an eviction: an idle instance is drained; an instance in use gets
    no new requests."""
    name, why = victim.copy.instance.instance, f"evicted for {claim.model}"
    if victim.yielding.idle:
        return InstanceDraining(instance=name, deadline_s=EVICT_DRAIN_S, why=why)
    return InstanceYields(instance=name, to=claim.model, why=why, urgently=claim.is_urgent)


def _emptied(claim: Claim, leaving: list[Victim], tenure: Tenure, now: float) -> list[EventBody]:
    """Return the events that unload those victims which get no new requests and have no open
    requests any more."""
    events: list[EventBody] = []
    for victim in leaving:
        instance, use = victim.copy.instance, victim.copy.use
        if instance.status != "ready":
            continue
        hurries = claim.is_urgent and not instance.yields_urgently
        if instance.yields_to != claim.model or hurries:
            why, urgently = f"evicted for {claim.model}", claim.is_urgent
            name, to = instance.instance, claim.model
            events.append(InstanceYields(instance=name, to=to, why=why, urgently=urgently))
        if use is None:
            continue
        told_at = tenure.yields_at.setdefault(instance.instance, now)
        if not use.open_requests and use.heard_at >= told_at + HEARD_S:
            why = f"evicted for {claim.model}"
            events.append(
                InstanceDraining(instance=instance.instance, deadline_s=EVICT_DRAIN_S, why=why)
            )
    return events
