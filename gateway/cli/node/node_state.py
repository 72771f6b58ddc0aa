"""What `GET /state` says, as the types it was made from.

Pure. A node of another version may say things that this version does not know: that is a
`CliError` which names the field, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from bus.replica.state import ClusterState
from bus.wire.accelerators import HardwareReading
from bus.wire.cards import (
    ModelCard,
    NodeCard,
    PartialModel,
    PassedOver,
    model_named,
    models_of,
    not_in_force,
    passed_over_named,
)
from bus.wire.errors import first_problem
from bus.wire.ids import ModelId, NodeId, sayable
from bus.wire.instances import Instance
from bus.wire.messages.derived import DerivedModel, derived_named, plain_name
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    FetchReading,
    LinkReading,
    ProcessReading,
    PullReading,
    RunnerReading,
    ThunderboltReading,
    UndoneReading,
    WeightsReading,
)
from bus.wire.messages.weights import StorageReading
from bus.wire.pool import PoolReading
from gateway.cli.output.errors import NOT_FOUND, CliError

M = TypeVar("M", bound=BaseModel)


class HealthSummary(BaseModel):
    """One node's health in a word, and what to do."""

    status: str
    code: str = ""
    message: str = ""
    remediation: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an instance's loading is."""

    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cluster as one node (`asked`) sees it. `peers` are whom each node knows; `processes` are
    the asked node's own."""

    state: ClusterState
    live: bool
    runners: tuple[RunnerReading, ...]
    cards: tuple[NodeCard, ...]
    health: Mapping[str, HealthSummary]
    peers: Mapping[str, PeersReading]
    holder: str | None
    asked: str
    weights: tuple[WeightsReading, ...] = ()
    pulls: tuple[PullReading, ...] = ()
    pool: tuple[PoolReading, ...] = ()
    storage: tuple[StorageReading, ...] = ()
    undone: tuple[UndoneReading, ...] = ()
    links: Mapping[str, LinkReading] = field(default_factory=dict[str, LinkReading])
    thunderbolt: Mapping[NodeId, ThunderboltReading] = field(
        default_factory=dict[NodeId, ThunderboltReading]
    )
    processes: tuple[ProcessReading, ...] = ()
    hardware: Mapping[str, HardwareReading] = field(default_factory=dict[str, HardwareReading])

    @property
    def instances(self) -> list[Instance]:
        """Return the instances, by model, then by id."""
        return sorted(self.state.instances.values(), key=lambda one: (one.model, one.instance))

    @property
    def models(self) -> dict[str, ModelCard]:
        """Return the models on any disk, the first node's card of each, by name."""
        return dict(sorted(models_of(self.cards).items()))

    @property
    def names(self) -> dict[str, str]:
        """Return what the nodes are called, by their ids."""
        return {card.node: card.name for card in self.cards}

    @property
    def parts(self) -> list[tuple[str, PartialModel]]:
        """Return (node's name, what of a model lies there in part), by model."""
        found = [(card.name, part) for card in self.cards for part in card.parts]
        return sorted(found, key=lambda one: (one[1].model, one[0]))

    @property
    def passed_over(self) -> list[tuple[str, PassedOver]]:
        """Return (node's name, what lies there and is no model, or has no effect), by path."""
        found = [(card.name, one) for card in self.cards for one in card.passed_over]
        return sorted(found, key=lambda one: (one[0], one[1].path))

    def reading_of(self, instance: Instance) -> RunnerReading | None:
        """Return the reading of the instance's lead runner, of its newest generation."""
        return next((one for one in self.ranks_of(instance) if one.rank == 0), None)

    def ranks_of(self, instance: Instance) -> list[RunnerReading]:
        """Return the readings of the instance's ranks, of its newest generation, by rank."""
        mine = [runner for runner in self.runners if runner.instance == instance.instance]
        newest = max((one.generation for one in mine), default=0)
        return sorted((one for one in mine if one.generation == newest), key=lambda one: one.rank)

    def progress_of(self, instance: Instance) -> Progress:
        """Return how far the instance is.

        While a node of it still fetches the weights that is the progress of the node furthest
        behind, else what its runner says.
        """
        nodes = {shard.node for shard in instance.shards}
        under_way = [
            fetch
            for reading in self.weights
            if reading.node in nodes and instance.status == "placed"
            for fetch in reading.fetches
            if fetch.model == instance.model and fetch.phase not in ("done", "failed")
        ]
        if under_way:
            last: FetchReading = min(under_way, key=lambda one: one.done_bytes)
            return Progress("fetching", last.done_bytes, last.total_bytes)
        reading = self.reading_of(instance)
        if reading is None:
            return Progress("starting", 0, 0)
        return Progress(reading.phase, reading.done_bytes, reading.total_bytes)

    def nodes_of(self, model: str) -> list[str]:
        """Return the names of the nodes that have the model on disk."""
        return [c.name for c in self.cards if any(m.model == model for m in c.models)]

    def on_disk(self, name: str) -> ModelCard | PartialModel:
        """Return the model of that name as it lies on the asked node's disk, or a part of it there.

        Where neither is there the answer is `find_model`'s.
        """
        return self.lies_here(name) or self.find_model(name)

    def lies_here(self, name: str) -> ModelCard | PartialModel | None:
        """Return the model of that name on the asked node's disk, or a part of it; or None."""
        names, here = (name, name.removesuffix(":latest")), self.here
        lying = (*(m for c in here for m in c.models), *(p for c in here for p in c.parts))
        return next((one for one in lying if one.model in names), None)

    @property
    def here(self) -> list[NodeCard]:
        """Return the asked node's card, where it is known."""
        return [card for card in self.cards if card.node == self.asked]

    def derived_for(self, name: str) -> DerivedModel | None:
        """Return the derived model that a request for this name means; None where a model on some
        disk has the name, or no model was derived under it."""
        return None if name in self.models else derived_named(name, self.state.derived)

    def meant(self, name: str) -> str:
        """Return the model on disk that a request for this name means, by its own name: without its
        owner, in other letters, or by a name that was made for it; the name itself for none."""
        derived = self.derived_for(name)
        found = model_named(
            name if derived is None else derived.base, {ModelId(model) for model in self.models}
        )
        return name if found is None else str(found)

    def answering(self, name: str) -> ModelCard:
        """Return the model on disk that answers a request for this name, of an adapter the one that
        it lies beside. Raises CliError, naming those there are."""
        model = self.meant(name)
        beside = None if model in self.models else adapter_named(self, model)
        return self.find_model(model) if beside is None else beside[0]

    def find_model(self, name: str) -> ModelCard:
        """Return the model of that name. Raises CliError, naming those there are."""
        known = self.models
        plain = name.removesuffix(":latest")
        aliases = {str(alias): model for model, card in known.items() for alias in card.aliases}
        tried = (name, plain, str(sayable(plain)), aliases.get(plain, ""))
        found = next((known[one] for one in tried if one in known), None)
        if found is None:
            seen = passed_over_named(plain, self.passed_over)
            if seen is not None:
                node, one = seen
                said = f"{one.path} on {node} is not a model: {one.why}"
                if one.taken:
                    said = f"no model {name!r}: {not_in_force(one, node)}"
                raise CliError(said, remedy=one.remedy, code=NOT_FOUND)
            there = ", ".join(known) or "none"
            raise CliError(f"no model {name!r}", remedy=f"models here: {there}", code=NOT_FOUND)
        return found

    def loaded_on(self, model: str) -> list[str]:
        """Return the names of the nodes whose memory holds a rank of the model."""
        held = (
            instance
            for instance in self.instances
            if instance.model == model and instance.status == "ready"
        )
        nodes = {shard.node for one in held for shard in one.shards}
        return sorted(self.names.get(node, node) for node in nodes)

    def last_used_s(self, model: str) -> int:
        """Return when the model was used last on any node, in seconds since 1970; 0: not known."""
        cards = (one for card in self.cards for one in card.models if one.model == model)
        return max((one.last_used_at_s for one in cards), default=0)

    @property
    def derived(self) -> list[DerivedModel]:
        """Return the derived models, by name."""
        return [self.state.derived[name] for name in sorted(self.state.derived)]

    @property
    def not_told(self) -> int:
        """Return how many things that are not taken are not in the nodes' cards, for there are too
        many."""
        return sum(max(0, card.passed_over_count - len(card.passed_over)) for card in self.cards)


def parse_state(body: Any) -> NodeState:
    """Return the JSON of `/state` as types. Raises CliError when this version does not know it."""
    try:
        fields = cast(dict[str, Any], body)
        telemetry = cast(dict[str, Any], fields["telemetry"])
        return NodeState(
            state=ClusterState.model_validate(fields["state"]),
            live=bool(fields["live"]),
            runners=_all(RunnerReading, telemetry["runners"]),
            cards=_all(NodeCard, telemetry["cards"]),
            weights=_all(WeightsReading, telemetry.get("weights", ())),
            pool=_all(PoolReading, telemetry.get("pool", ())),
            pulls=_all(PullReading, telemetry.get("pulls", ())),
            storage=_all(StorageReading, telemetry.get("storage", ())),
            undone=_all(UndoneReading, telemetry.get("undone", ())),
            links=_by_node(LinkReading, telemetry.get("links", {})),
            health=_by_node(HealthSummary, fields["nodeHealth"]),
            peers=_by_node(PeersReading, telemetry["peers"]),
            thunderbolt={
                NodeId(node): ThunderboltReading.model_validate(one["thunderbolt"])
                for node, one in cast(dict[str, Any], telemetry["nodes"]).items()
                if one.get("thunderbolt") is not None
            },
            processes=_all(
                ProcessReading, telemetry["nodes"].get(fields["node"], {}).get("processes", ())
            ),
            hardware=_by_node(HardwareReading, telemetry.get("hardware", {})),
            holder=fields["holder"],
            asked=str(fields["node"]),
        )
    except (KeyError, TypeError) as error:
        raise _other_version(f"{error} is missing") from error
    except ValidationError as error:
        raise _other_version(first_problem(error)) from error


def _all(kind: type[M], found: Any) -> tuple[M, ...]:
    return tuple(kind.model_validate(one) for one in found)


def _by_node(kind: type[M], found: Any) -> dict[str, M]:
    return {node: kind.model_validate(one) for node, one in found.items()}


def _other_version(what: str) -> CliError:
    return CliError(
        f"this version of shoal cannot read the node's state ({what})",
        remedy="use the same version of `shoal` as the node; `shoal status` shows its home",
    )


def adapter_named(state: NodeState, name: str) -> tuple[ModelCard, str] | None:
    """Return the model and the adapter beside it that `name` means, `MODEL:ADAPTER`; None for
    another name."""
    base, _, tag = plain_name(name).rpartition(":")
    card = state.models.get(state.meant(base)) if base else None
    own = () if card is None else (adapter.name for adapter in card.adapters)
    found = next((one for one in own if one.casefold() == tag.casefold()), None)
    return None if card is None or found is None else (card, found)
