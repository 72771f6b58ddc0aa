"""The answer of `GET /state`, as types.

Pure. If a node of another version sends an unknown value, `parse_state` raises a `CliError` that
names the field; it never guesses.
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
    parts_text,
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
    """One node's health: a status, a message and a remedy."""

    status: str
    code: str = ""
    message: str = ""
    remediation: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of loading an instance."""

    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cluster as one node, `node`, sees it. `peers` maps each node to the peers that it knows;
    `processes` are those of `node`."""

    state: ClusterState
    live: bool
    runners: tuple[RunnerReading, ...]
    cards: tuple[NodeCard, ...]
    health: Mapping[str, HealthSummary]
    peers: Mapping[str, PeersReading]
    holder: str | None
    node: str
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
        """Return the instances by model, then by id."""
        return sorted(
            self.state.instances.values(), key=lambda instance: (instance.model, instance.instance)
        )

    @property
    def models(self) -> dict[str, ModelCard]:
        """Return the models on the disks of all nodes, by name. If several nodes have a model,
        return the model card of the first one."""
        return dict(sorted(models_of(self.cards).items()))

    @property
    def names(self) -> dict[str, str]:
        """Return the nodes' names, by id."""
        return {card.node: card.name for card in self.cards}

    @property
    def parts(self) -> list[tuple[str, PartialModel]]:
        """Return (node name, partially downloaded model), by model."""
        parts = [(card.name, part) for card in self.cards for part in card.parts]
        return sorted(parts, key=lambda row: (row[1].model, row[0]))

    @property
    def passed_over(self) -> list[tuple[str, PassedOver]]:
        """Return (node name, entry) for each entry of a model folder that is not a model or has no
        effect. Sorted by node name and path."""
        entries = [(card.name, entry) for card in self.cards for entry in card.passed_over]
        return sorted(entries, key=lambda row: (row[0], row[1].path))

    def reading_of(self, instance: Instance) -> RunnerReading | None:
        """Return the reading of the instance's lead runner (rank 0), from the latest start of the
        instance's runners. Return None if no such reading arrived."""
        return next((reading for reading in self.ranks_of(instance) if reading.rank == 0), None)

    def ranks_of(self, instance: Instance) -> list[RunnerReading]:
        """Return the readings of the instance's runners, by rank. Readings from an earlier start of
        the instance's runners are left out."""
        mine = [runner for runner in self.runners if runner.instance == instance.instance]
        newest = max((reading.generation for reading in mine), default=0)
        return sorted(
            (reading for reading in mine if reading.generation == newest),
            key=lambda reading: reading.rank,
        )

    def progress_of(self, instance: Instance) -> Progress:
        """Return the progress of an instance.

        While nodes fetch its weights, that is the progress of the slowest node. After that it is
        the progress of its lead runner.
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
            slowest: FetchReading = min(under_way, key=lambda fetch: fetch.done_bytes)
            return Progress("fetching", slowest.done_bytes, slowest.total_bytes)
        reading = self.reading_of(instance)
        if reading is None:
            return Progress("starting", 0, 0)
        return Progress(reading.phase, reading.done_bytes, reading.total_bytes)

    def nodes_of(self, model: str) -> list[str]:
        """Return the names of the nodes that have the model on disk."""
        return [c.name for c in self.cards if any(m.model == model for m in c.models)]

    def on_disk(self, name: str) -> ModelCard | PartialModel:
        """Return the model with that name on this node's disk, complete or in part.

        If this node has none, return the result of `find_model`.
        """
        return self.lies_here(name) or self.find_model(name)

    def lies_here(self, name: str) -> ModelCard | PartialModel | None:
        """Return the model with that name on this node's disk, complete or in part; None if the
        disk has no such model."""
        names, here = (name, name.removesuffix(":latest")), self.here
        lying = (*(m for c in here for m in c.models), *(p for c in here for p in c.parts))
        return next((model for model in lying if model.model in names), None)

    @property
    def here(self) -> list[NodeCard]:
        """Return this node's card in a list; the list is empty if the node has no card."""
        return [card for card in self.cards if card.node == self.node]

    def derived_for(self, name: str) -> DerivedModel | None:
        """Return the derived model with this name. None if a model on disk has the name, or no
        derived model has it."""
        return None if name in self.models else derived_named(name, self.state.derived)

    def resolve(self, name: str) -> str:
        """Return the full name of the model on disk that serves a request for `name`. If no model
        does, return `name` itself. In `name`, the owner (`OWNER/MODEL`) may be missing and the case
        may differ; `name` may also be a derived model's."""
        derived = self.derived_for(name)
        model = model_named(
            name if derived is None else derived.base, {ModelId(model) for model in self.models}
        )
        return name if model is None else str(model)

    def answering(self, name: str) -> ModelCard:
        """Return the model on disk that answers a request for this name. For the name of an
        adapter, that is the adapter's base model. Raises CliError, which lists the names of all
        models."""
        model = self.resolve(name)
        beside = None if model in self.models else adapter_named(self, model)
        return self.find_model(model) if beside is None else beside[0]

    def find_model(self, name: str) -> ModelCard:
        """Return the model with that name. Raises CliError, which lists the names of all models."""
        models = self.models
        plain = name.removesuffix(":latest")
        aliases = {str(alias): model for model, card in models.items() for alias in card.aliases}
        candidates = (name, plain, str(sayable(plain)), aliases.get(plain, ""))
        card = next((models[other] for other in candidates if other in models), None)
        if card is None:
            ignored = passed_over_named(plain, self.passed_over)
            if ignored is not None:
                node, entry = ignored
                text = f"{entry.path} on {node} is not a model: {entry.why}"
                if entry.taken:
                    text = f"no model {name!r}: {not_in_force(entry, node)}"
                raise CliError(text, remedy=entry.remedy, code=NOT_FOUND)
            if held := parts_text(ModelId(plain), self.cards):
                remedy = f"pull the other layers, or the whole model with `shoal pull {plain}`"
                raise CliError(f"no model {name!r}: {held}", remedy=remedy, code=NOT_FOUND)
            there = ", ".join(models) or "none"
            raise CliError(f"no model {name!r}", remedy=f"models here: {there}", code=NOT_FOUND)
        return card

    def loaded_on(self, model: str) -> list[str]:
        """Return the names of the nodes that have a rank of the model in memory."""
        ready = (
            instance
            for instance in self.instances
            if instance.model == model and instance.status == "ready"
        )
        nodes = {shard.node for instance in ready for shard in instance.shards}
        return sorted(self.names.get(node, node) for node in nodes)

    def last_used_s(self, model: str) -> int:
        """Return when a node last used the model, in seconds since the epoch. The latest use on any
        node counts; 0 means unknown."""
        cards = (card for node in self.cards for card in node.models if card.model == model)
        return max((card.last_used_at_s for card in cards), default=0)

    @property
    def derived(self) -> list[DerivedModel]:
        """Return the derived models, by name."""
        return [self.state.derived[name] for name in sorted(self.state.derived)]

    @property
    def unlisted_count(self) -> int:
        """Return how many passed-over entries of models folders are missing from the node cards.
        The length of a card is limited, so a card may leave entries out."""
        return sum(max(0, card.passed_over_count - len(card.passed_over)) for card in self.cards)


def parse_state(body: Any) -> NodeState:
    """Parse the JSON of `/state`. Raises CliError if this version cannot read it."""
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
                NodeId(node): ThunderboltReading.model_validate(reading["thunderbolt"])
                for node, reading in cast(dict[str, Any], telemetry["nodes"]).items()
                if reading.get("thunderbolt") is not None
            },
            processes=_all(
                ProcessReading, telemetry["nodes"].get(fields["node"], {}).get("processes", ())
            ),
            hardware=_by_node(HardwareReading, telemetry.get("hardware", {})),
            holder=fields["holder"],
            node=str(fields["node"]),
        )
    except (KeyError, TypeError) as error:
        raise _other_version(f"{error} is missing") from error
    except ValidationError as error:
        raise _other_version(first_problem(error)) from error


def _all(kind: type[M], rows: Any) -> tuple[M, ...]:
    return tuple(kind.model_validate(row) for row in rows)


def _by_node(kind: type[M], rows: Any) -> dict[str, M]:
    return {node: kind.model_validate(row) for node, row in rows.items()}


def _other_version(what: str) -> CliError:
    return CliError(
        f"this version of shoal cannot read the node's state ({what})",
        remedy="use the same version of `shoal` as the node; `shoal status` shows its home",
    )


def adapter_named(state: NodeState, name: str) -> tuple[ModelCard, str] | None:
    """Return (base model, adapter) for a name `MODEL:ADAPTER`; None for another name."""
    base, _, tag = plain_name(name).rpartition(":")
    card = state.models.get(state.resolve(base)) if base else None
    names = () if card is None else (adapter.name for adapter in card.adapters)
    adapter = next((name for name in names if name.casefold() == tag.casefold()), None)
    return None if card is None or adapter is None else (card, adapter)
