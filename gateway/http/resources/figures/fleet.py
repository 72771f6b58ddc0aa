"""Talks to clients about the fleet: the cards of all nodes, the roles and measured speeds of their
models, and the plan for speculative decoding over nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from bus.models.role_plan import (
    NGRAM,
    MissingRole,
    Role,
    RoleSeat,
    can_run,
    plan_roles,
    roles_of,
    round_trips_of,
)
from bus.wire.cards import ModelCard, NodeCard, model_named
from bus.wire.ids import ModelId
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.requests import Drafter, ProposerUse
from gateway.http.middleware import Resource, answer_json
from gateway.view.fleet import FleetCard


class FleetModel(TypedDict):
    """A model on a node, or the n-gram proposer, which has no weights. `tokens_per_s`: the measured
    speed of one row on this node; null: not measured. `quantization` is empty for n-grams."""

    model: str
    roles: list[Role]
    quantization: str
    tokens_per_s: float | None


class FleetNode(TypedDict):
    """A node, as its node card describes it. `linked`: the card came from the node itself;
    otherwise other nodes passed the card on. `round_trip_ms`: from this node, as measured; null:
    not measured. `cannot_run`: why no model can run there; empty: models can run."""

    node: str
    name: str
    linked: bool
    age_s: float
    ttl_s: float
    announced_at_s: float
    round_trip_ms: float | None
    platform: str
    backends: list[str]
    memory_bytes: int
    mlx_version: str
    addresses: list[str]
    cannot_run: str
    models: list[FleetModel]


class FleetSeat(TypedDict):
    """A model in a role. `tokens_per_s`: measured on this node; null: not measured."""

    node: str
    name: str
    model: str
    tokens_per_s: float | None


class FleetPlan(TypedDict):
    """The plan for speculative decoding: the model that verifies, and the model that drafts.
    `round_trip_ms`: between their nodes; null if both are on one node (`colocated`)."""

    verifier: FleetSeat
    proposer: FleetSeat
    colocated: bool
    round_trip_ms: float | None
    why: str


class FleetUse(TypedDict):
    """A runner on `verifier_node` that uses, or would use, the draft model `model` in another
    runner, the proposer. `node`: the proposer's node; null: there is no proposer. `state`: none,
    connecting, ready or paused. `reason`: the loss or refusal that paused it. `round_trip_ms`:
    measured by the runner; null: not measured. `questions`: drafts that the runner requested;
    `drafts`: the drafts that came in time. `lost`: how often the proposer was lost."""

    verifier_node: str
    verifier: str | None
    model: str
    node: str | None
    state: str
    reason: str | None
    why: str
    round_trip_ms: float | None
    questions: int
    drafts: int
    lost: int


class FleetDrafter(TypedDict):
    """The verified drafts of one drafter since a model was loaded on `verifier_node`: their number,
    their tokens, and how many of these the model accepted. A `remote` drafter is counted like
    one in the model's runner. `passes` of the drafter's network, and the most bytes that
    one of its proposals took; null for drafters without a network in the runner."""

    verifier_node: str
    verifier: str | None
    drafter: Drafter
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    passes: int | None
    peak_bytes: int | None


class FleetRefusal(TypedDict):
    """No node can take a role. `model`: the model that the client named, else null."""

    role: Role
    model: str | None
    why: str


class FleetAnswer(TypedDict):
    """All nodes, this one first, and the plan; null if it is `refused`. `in_use`: the proposers of
    the loaded models whose cards name a draft model. `drafters`: how many drafted tokens the models
    accepted so far."""

    node: str
    nodes: list[FleetNode]
    in_use: list[FleetUse]
    drafters: list[FleetDrafter]
    plan: FleetPlan | None
    refused: FleetRefusal | None


class Fleet(Resource):
    """`GET /fleet[?model=][&proposer=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the nodes, and the plan for a model or for the fastest one. `model` and
        `proposer` pin the verifier and the proposer; `ngram` names the n-gram proposer."""
        now = self.cluster.reactor.now()
        fleet = self.cluster.fleet.cards(now)
        trips = round_trips_of(self.cluster.readings.links(now))
        cards = [entry.card for entry in fleet]
        names = {model.model for card in cards for model in card.models}
        plan = plan_roles(
            cards,
            trips,
            verifier=_pin(req.get_param("model"), names),
            proposer=_pin(req.get_param("proposer"), names),
        )
        own = self.cluster.options.node
        targets = [model for card in cards for model in card.models]
        nodes = [
            _node(entry, trips.get(frozenset((own, entry.card.node))), targets) for entry in fleet
        ]
        runners = self.cluster.readings.runners(now)
        answer: FleetAnswer = {
            "node": own,
            "nodes": nodes,
            "in_use": [_use(runner, use) for runner in runners if (use := runner.proposer)],
            "drafters": [drafter for runner in runners for drafter in _drafters(runner)],
            "plan": None,
            "refused": None,
        }
        if isinstance(plan, MissingRole):
            answer["refused"] = {"role": plan.role, "model": plan.model, "why": plan.why}
        else:
            answer["plan"] = {
                "verifier": _seat(plan.verifier),
                "proposer": _seat(plan.proposer),
                "colocated": plan.colocated,
                "round_trip_ms": _ms(plan.round_trip_s),
                "why": plan.why,
            }
        answer_json(resp, answer)


def _pin(name: str | None, names: Collection[ModelId]) -> ModelId | None:
    return None if not name else model_named(name, names) or ModelId(name)


def _node(entry: FleetCard, trip_s: float | None, targets: Iterable[ModelCard]) -> FleetNode:
    card = entry.card
    return {
        "node": card.node,
        "name": card.name,
        "linked": entry.linked,
        "age_s": round(entry.age_s, 1),
        "ttl_s": card.ttl_s,
        "announced_at_s": card.announced_at_s,
        "round_trip_ms": _ms(trip_s),
        "platform": card.platform,
        "backends": list(card.backends),
        "memory_bytes": card.memory_bytes,
        "mlx_version": card.mlx_version,
        "addresses": [address.ip for address in card.ips],
        "cannot_run": card.cannot_run,
        "models": _models(card, targets),
    }


def _models(card: NodeCard, targets: Iterable[ModelCard]) -> list[FleetModel]:
    models: list[FleetModel] = [
        {
            "model": model.model,
            "roles": list(roles_of(model, targets)),
            "quantization": model.quantization,
            "tokens_per_s": model.tokens_per_s or None,
        }
        for model in card.models
    ]
    if can_run(card):
        ngrams: FleetModel = {
            "model": NGRAM,
            "roles": ["proposer"],
            "quantization": "",
            "tokens_per_s": None,
        }
        models.append(ngrams)
    return models


def _use(runner: RunnerReading, use: ProposerUse) -> FleetUse:
    return {
        "verifier_node": runner.node,
        "verifier": runner.model,
        "model": use.model,
        "node": use.node,
        "state": use.state,
        "reason": use.reason,
        "why": use.why,
        "round_trip_ms": use.round_trip_ms or None,
        "questions": use.questions,
        "drafts": use.drafts,
        "lost": use.lost,
    }


def _drafters(runner: RunnerReading) -> list[FleetDrafter]:
    return [
        {
            "verifier_node": runner.node,
            "verifier": runner.model,
            "drafter": drafter,
            "drafts": drafts,
            "drafted_tokens": tokens,
            "accepted_tokens": accepted,
            "passes": runner.proposals[drafter][0] if drafter in runner.proposals else None,
            "peak_bytes": runner.proposals[drafter][1] if drafter in runner.proposals else None,
        }
        for drafter, (drafts, tokens, accepted) in runner.drafters.items()
    ]


def _seat(seat: RoleSeat) -> FleetSeat:
    return FleetSeat(**asdict(seat))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
