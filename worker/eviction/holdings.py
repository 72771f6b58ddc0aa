"""Lists the models in a node's store. For each it gives the reason why the model must stay, or that
it may be deleted.

Pure. A model may be deleted if shoal fetched it, nothing uses it, another node has all of it, and
it can be fetched again. It can be fetched from a node that offers it or, if it was pulled, from the
hub.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bus.models.held_models import why_held
from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import PullReading, WeightsReading
from bus.wire.messages.weights import StoredKind
from worker.transfer.sources import is_store_address

FETCHED = ("copied", "pulled")
STAYS: Mapping[str, tuple[StoredKind, str]] = {
    "bundled": ("bundled", "the model is bundled with shoal"),
    "put": ("put", "a person added it"),
    "cache": ("put", "the model is in Hugging Face's cache, which shoal does not manage"),
    "derived": ("made", "the model was made here"),
    "engine": ("put", "the model is a program of engines.toml, not files"),
}
"""Origins of models that are never deleted, each with the reason."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A model on this disk, or some of its layers (`in_part`). `used_at_s` is its last use on
    this node, or its arrival. `why` is the reason why it must stay; if empty, it may be deleted.
    `keepers` are the nodes with the whole model, in the order in which they are asked to keep
    it."""

    model: ModelId
    path: str
    size_bytes: int
    what: StoredKind
    used_at_s: int = 0
    in_part: bool = False
    why: str = ""
    digest: str = ""
    keepers: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts that decide what may be deleted, apart from the models on this disk. `models` is
    this node's folder of models.

    `others` are the cards of other nodes; `stores` are those other nodes that keep everything.
    `seated` are models whose runners still exist; `verifying` are models whose files are being
    verified. `stay_reasons` maps folders to the reason on the disk why they stay.
    """

    models: str
    instances: Collection[Instance] = ()
    pins: Collection[str] = ()
    weights: Collection[WeightsReading] = ()
    pulls: Collection[PullReading] = ()
    others: Mapping[NodeId, NodeCard] = field(default_factory=dict[NodeId, NodeCard])
    stores: Collection[NodeId] = ()
    seated: Collection[ModelId] = ()
    verifying: Collection[ModelId] = ()
    stay_reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    keeps_all: bool = False
    offline: bool = False

    def in_use(self, model: ModelId) -> str:
        """Return why the model must not be deleted now; empty if nothing uses it."""
        if model in self.pins:
            return "the model is pinned"
        names = {str(node): card.name for node, card in self.others.items()}
        held = why_held(model, self.instances, self.weights, self.pulls, names)
        if held is not None:
            return held.message
        if model in self.seated:
            return "a runner of this node that uses it has not ended yet"
        if model in self.verifying:
            return "the model is being verified"
        return ""


def holdings_of(
    cards: Collection[ModelCard],
    parts: Collection[PartialModel],
    used: Mapping[ModelId, int],
    around: Surroundings,
) -> tuple[Holding, ...]:
    """Return the models on this node, each with the reason why it must stay, if any."""
    return (
        *(_whole(card, used.get(card.model, 0), around) for card in cards),
        *(_part(part, used.get(part.model, 0), around) for part in parts),
    )


def _whole(card: ModelCard, used_at_s: int, around: Surroundings) -> Holding:
    what, why = STAYS.get(card.origin, ("fetched", ""))
    if not why and not Path(card.path).is_relative_to(around.models):
        what, why = "put", f"the model is outside {around.models}"
    keepers = tuple(keepers_of(card.model, card.digest, around))
    why = why or around.stay_reasons.get(card.path, "") or _stays(card.model, keepers, around)
    if not why and card.origin != "pulled" and not _is_given(keepers, around):
        why = "no other node offers it"
    elif not why and around.offline and not _is_given(keepers, around):
        why = "no other node offers it, and offline = true forbids the hub"
    return Holding(
        model=card.model,
        path=card.path,
        size_bytes=card.size_bytes + sum(adapter.size_bytes for adapter in card.adapters),
        what=what,
        used_at_s=max(used_at_s, card.modified_at_s),
        why=why,
        digest=card.digest,
        keepers=keepers,
    )


def _part(part: PartialModel, used_at_s: int, around: Surroundings) -> Holding:
    keepers = tuple(keepers_of(part.model, "", around))
    why = _stays(part.model, keepers, around)
    if not why and not Path(part.path).is_relative_to(around.models):
        why = f"the model is outside {around.models}"
    if not why and not _is_given(keepers, around):
        why = "no other node offers it"
    return Holding(
        model=part.model,
        path=part.path,
        size_bytes=part.have_bytes,
        what="fetched",
        used_at_s=used_at_s,
        in_part=True,
        why=why,
        keepers=keepers,
    )


def _stays(model: ModelId, keepers: Collection[NodeId], around: Surroundings) -> str:
    if around.keeps_all:
        return "this node keeps all models (store = true)"
    if using := around.in_use(model):
        return using
    return "" if keepers else "no other connected node has all of its files"


def keepers_of(model: ModelId, digest: str, around: Surroundings) -> Iterator[NodeId]:
    """Yield the nodes with a complete copy of the same content: first nodes that keep everything,
    then nodes that did not fetch it, then the others, by node id."""
    keepers: list[tuple[bool, bool, NodeId]] = []
    for node, card in around.others.items():
        copy = next((card_there for card_there in card.models if card_there.model == model), None)
        if copy is not None and (not digest or not copy.digest or digest == copy.digest):
            keepers.append((node not in around.stores, copy.origin in FETCHED, node))
    yield from (node for _, _, node in sorted(keepers))


def _is_given(keepers: Collection[NodeId], around: Surroundings) -> bool:
    addresses = (address for node in keepers for address in around.others[node].weights_addresses)
    return any(map(is_store_address, addresses))
