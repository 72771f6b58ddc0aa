"""Which node verifies and which node proposes for speculative decoding, by the nodes' cards.

Pure. Every node that has the same cards and measurements makes the same plan, in any order of them.
A card says what its models can do, so roles need no field of their own: a model that generates text
in MLX verifies. A smaller one with as many tokens in its vocabulary proposes for it. The n-gram
proposer needs no weights, and is part of every runner that verifies.

Drafts cost speed, never text, so the plan is a choice of speed only. Speeds are measured ones; a
model that was never measured comes last. A proposer on another node works if the verifier's card
names it as its draft model (decision 0105). `choose_proposer` picks one of its ready instances.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import LinkReading

Role = Literal["verifier", "proposer", "embedder", "tool"]
NGRAM = ModelId("ngram")
"""The name of the n-gram proposer in plans."""
NEAR_S = 0.015
"""A proposer within this round trip is preferred to one on the verifier's node."""
FAR_S = 0.1
"""A proposer beyond this round trip is refused."""
RoundTrips = Mapping[frozenset[NodeId], float]


@dataclass(frozen=True, slots=True)
class RoleSeat:
    """A model in a role on a node. `tokens_per_s`: measured there; None: not measured."""

    node: NodeId
    name: str
    model: ModelId
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class RolePlan:
    """A verifier and its proposer. `colocated`: both on one node. `round_trip_s`: measured between
    the two nodes; None if colocated."""

    verifier: RoleSeat
    proposer: RoleSeat
    colocated: bool
    round_trip_s: float | None
    why: str


@dataclass(frozen=True, slots=True)
class MissingRole:
    """No node can take the role. `model`: the model that was asked for; None: any."""

    role: Role
    model: ModelId | None
    why: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    card: NodeCard
    model: ModelCard

    @property
    def order(self) -> tuple[float, int, NodeId, ModelId]:
        """Return the sort key of this candidate. The fastest comes first, then the node with the
        most memory, then the smallest ids."""
        return (
            -self.model.tokens_per_s,
            -self.card.memory_bytes,
            self.card.node,
            self.model.model,
        )

    @property
    def seat(self) -> RoleSeat:
        speed = self.model.tokens_per_s or None
        return RoleSeat(self.card.node, self.card.name, self.model.model, speed)


def roles_of(model: ModelCard, targets: Iterable[ModelCard] = ()) -> tuple[Role, ...]:
    """Return the roles that a model can take; `targets`: the models that it may propose for."""
    if model.makes != "text":
        return ("embedder",)
    roles: list[Role] = ["verifier"] if _verifies(model) else []
    if any(can_propose(model, target) for target in targets):
        roles.append("proposer")
    if "tools" in model.capabilities:
        roles.append("tool")
    return tuple(roles)


def can_propose(model: ModelCard, target: ModelCard) -> bool:
    """Return whether a model may propose for another one: it is smaller, and its vocabulary has the
    same size. A card does not say whether the tokens are the same ones."""
    return (
        _verifies(model)
        and _verifies(target)
        and model.vocabulary == target.vocabulary
        and model.weights_bytes < target.weights_bytes
    )


def plan_roles(
    cards: Collection[NodeCard],
    round_trips: RoundTrips,
    *,
    verifier: ModelId | None = None,
    proposer: ModelId | None = None,
) -> RolePlan | MissingRole:
    """Return the verifier and the proposer that these cards allow. `verifier` and `proposer`
    are the ids of required models. `round_trips`: measured, by pair of nodes."""
    able = [_Candidate(card, model) for card in cards if can_run(card) for model in card.models]
    verifiers = [c for c in able if _verifies(c.model) and verifier in (None, c.model.model)]
    if not verifiers:
        which = "a text model" if verifier is None else f"the text model {verifier!r}"
        why = f"no node has {which} for MLX"
        return MissingRole("verifier", verifier, why)
    chosen = min(verifiers, key=lambda candidate: candidate.order)
    drafts = [
        c for c in able if can_propose(c.model, chosen.model) and proposer in (None, c.model.model)
    ]
    near, refusals = _within_reach(chosen, drafts, round_trips)
    if near and proposer != NGRAM:
        return _with_model(chosen, min(near, key=lambda c: (c[0], c[1].order))[1], round_trips)
    if proposer in (None, NGRAM):
        return _with_ngrams(chosen, proposer, refusals)
    if not drafts:
        refusals = [
            f"no node has a model {proposer!r} that is smaller than {chosen.model.model} and has "
            f"a vocabulary of {chosen.model.vocabulary} tokens"
        ]
    return MissingRole("proposer", proposer, "; ".join(refusals))


def round_trips_of(readings: Iterable[LinkReading]) -> dict[frozenset[NodeId], float]:
    """Return the measured round trip of each pair of nodes, over the faster of several addresses.
    If both ends measured it, the longer one counts."""
    trips: dict[frozenset[NodeId], float] = {}
    for reading in readings:
        fastest: dict[NodeId, float] = {}
        for link in reading.links:
            if link.round_trip_s > 0:
                before = fastest.get(link.peer, link.round_trip_s)
                fastest[link.peer] = min(before, link.round_trip_s)
        for peer, seconds in fastest.items():
            pair = frozenset((reading.node, peer))
            trips[pair] = max(seconds, trips.get(pair, 0.0))
    return trips


def choose_proposer(
    verifier: Instance,
    draft: ModelId,
    instances: Iterable[Instance],
    round_trips: RoundTrips,
    present: InstanceId | None = None,
) -> Instance | str:
    """Return the ready instance of the draft model to use for a verifier's instance, or why there
    is none. Instances on a near node come first, then those on the verifier's own node, then
    others. The instance `present`, which is in use now, stays unless a better of these classes has
    one. An unmeasured round trip counts as long, but allowed: the verifier's runner measures it,
    too."""
    lead = verifier.lead or (verifier.shards[0] if verifier.shards else None)
    if lead is None:
        return f"the instance of {verifier.model} has no lead runner"
    far: set[str] = set()
    best: tuple[int, bool, float, InstanceId] | None = None
    chosen: Instance | None = None
    for instance in instances:
        at = instance.lead
        if instance.model != draft or instance.status != "ready" or not instance.serves:
            continue
        if at is None or instance.instance == verifier.instance or instance.yields_to:
            continue
        trip_s = 0.0 if at.node == lead.node else round_trips.get(frozenset((lead.node, at.node)))
        if trip_s is not None and trip_s > FAR_S:
            far.add(_too_far(lead.node, at.node, trip_s))
            continue
        order = _class(lead.node, at.node, trip_s), instance.instance != present, trip_s or 0.0
        if best is None or (*order, instance.instance) < best:
            best, chosen = (*order, instance.instance), instance
    if chosen is not None:
        return chosen
    return "; ".join(sorted(far)) or f"no instance of the draft model {draft} is ready"


def can_run(card: NodeCard) -> bool:
    """Return whether runners of a node can compute in MLX, as every role of a plan needs."""
    return not card.cannot_run and any(tag.startswith("mlx-") for tag in card.backends)


def _verifies(model: ModelCard) -> bool:
    """Return whether a model generates text in MLX, whose runners verify drafts."""
    tags = model.compatible_backends
    in_mlx = not tags or any(tag.startswith("mlx-") for tag in tags)
    return model.makes == "text" and model.origin != "engine" and in_mlx


def _within_reach(
    verifier: _Candidate, drafts: Iterable[_Candidate], round_trips: RoundTrips
) -> tuple[list[tuple[int, _Candidate]], list[str]]:
    """Return the drafts that may propose, each with its class (a near node, the verifier's node, a
    node further away), and why others are refused."""
    near: list[tuple[int, _Candidate]] = []
    refusals: set[str] = set()
    home = verifier.card.node
    for draft in drafts:
        node = draft.card.node
        trip_s = 0.0 if node == home else round_trips.get(frozenset((home, node)))
        if trip_s is None:
            refusals.add(f"the round trip between {home} and {node} is not measured")
        elif trip_s > FAR_S:
            refusals.add(_too_far(home, node, trip_s))
        else:
            near.append((_class(home, node, trip_s), draft))
    return near, sorted(refusals)


def _class(home: NodeId, node: NodeId, trip_s: float | None) -> int:
    """Return the rank of a proposer's node, smallest first: near, the verifier's own, others."""
    if node == home:
        return 1
    return 0 if trip_s is not None and trip_s <= NEAR_S else 2


def _too_far(home: NodeId, node: NodeId, trip_s: float) -> str:
    return (
        f"the round trip between {home} and {node} is {trip_s * 1000:.0f} ms; the limit is "
        f"{FAR_S * 1000:.0f} ms"
    )


def _with_model(verifier: _Candidate, draft: _Candidate, round_trips: RoundTrips) -> RolePlan:
    home, node = verifier.card.node, draft.card.node
    colocated = node == home
    trip_s = None if colocated else round_trips[frozenset((home, node))]
    where = "on the same node" if trip_s is None else f"over a round trip of {trip_s * 1000:.1f} ms"
    named = verifier.model.draft
    if colocated:
        is_named = named is not None and named.model == draft.model.model and not named.why_not
        advice = "its card names it" if is_named else "name it in the card key `draft_model`"
        why = f"{draft.model.model} can propose {where}, in the verifier's runner: {advice}"
    else:
        names = named is not None and named.model == draft.model.model
        advice = "" if names else ": name it in the card key `draft_model`"
        why = f"{draft.model.model} can propose {where}, as long as it is loaded there{advice}"
    return RolePlan(verifier.seat, draft.seat, colocated, trip_s, why)


def _with_ngrams(
    verifier: _Candidate, proposer: ModelId | None, refusals: Collection[str]
) -> RolePlan:
    card = verifier.card
    because = "it was requested" if proposer == NGRAM else "no node has a model that could propose"
    if refusals and proposer is None:
        because = "; ".join(refusals)
    seat = RoleSeat(card.node, card.name, NGRAM)
    why = f"the verifier's runner can propose n-grams (setting `speculate`): {because}"
    return RolePlan(verifier.seat, seat, True, None, why)
