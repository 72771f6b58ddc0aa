"""Talks to the disk: the models that lie on this node, whole or in part.

A model that was fetched in part stays in its stage, whose note (`stage.json`) lists the layers of
which all that they need is there. Of several stages of one model the one that has most counts. A
pull that did not end is told as what is not taken.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.model_folders import STAGING
from bus.wire.cards import ModelCard, PartialModel, PassedOver
from bus.wire.ids import ModelId, is_model_id
from worker.models.files import FILES, grown_bytes, is_locked
from worker.models.layer_bytes import Range
from worker.models.passed_over import being_pulled, pulled_in_part, said_of
from worker.models.weights import Weights

PULLING = ".pulling"
"""Below the folder of models: where pulls from a hub grow, as copies from other nodes do in
`STAGING`."""


@dataclass(frozen=True, slots=True)
class DiskLook:
    """What one look saw: whole models, parts of others, their cards, and what is not taken."""

    cards: Mapping[ModelId, ModelCard]
    parts: Mapping[ModelId, PartialModel]
    part_cards: Mapping[ModelId, ModelCard]
    passed_over: tuple[PassedOver, ...]


class LocalModels:
    """What lies here as of the last look that was taken in: `cards` of whole models, `parts` of
    others. Both grow below `folder`. `load_s` says how long their last loads took, as it is then.
    `scan` may run in another thread."""

    def __init__(
        self, weights: Weights, folder: Path, load_s: Mapping[ModelId, float] | None = None
    ) -> None:
        self.cards: Mapping[ModelId, ModelCard] = {}
        self.parts: Mapping[ModelId, PartialModel] = {}
        self.passed_over: tuple[PassedOver, ...] = ()
        self._part_cards: Mapping[ModelId, ModelCard] = {}
        self._weights = weights
        self.folder = folder
        self._load_s: Mapping[ModelId, float] = {} if load_s is None else load_s

    def card(self, model: ModelId) -> ModelCard:
        """Return the card to load a model by, with the folder of what there is of it. Raises
        KeyError when none of it lies here."""
        return self.cards.get(model) or self._part_cards[model]

    def take(self, seen: DiskLook) -> None:
        """Go by what a look saw from now on."""
        self.cards, self.parts = seen.cards, seen.parts
        self._part_cards, self.passed_over = seen.part_cards, seen.passed_over

    def scan(self) -> DiskLook:
        """Return what lies on the disk now."""
        cards = {card.model: self._timed(card) for card in self._weights.look()}
        passed_over = (*self._weights.passed_over, *pulled_parts(self.folder))
        parts: dict[ModelId, PartialModel] = {}
        part_cards: dict[ModelId, ModelCard] = {}
        for part in sorted(parts_held(self.folder), key=lambda part: part.have_bytes):
            if part.model not in cards:
                card = self._weights.card(part.model, files_of(Path(part.path)))
                if card is not None:
                    part_cards[part.model], parts[part.model] = card, part
        return DiskLook(cards, parts, part_cards, passed_over)

    def _timed(self, card: ModelCard) -> ModelCard:
        seconds = self._load_s.get(card.model)
        return card if seconds is None else card.model_copy(update={"load_s": seconds})


def parts_held(models: Path) -> tuple[PartialModel, ...]:
    """Return the parts of models that lie in stages below `models`, by model."""
    found: list[PartialModel] = []
    for stage in stages_of(models):
        layers, name = held_layers(stage), staged_model(stage)
        if layers and is_model_id(name):
            with contextlib.suppress(FileNotFoundError):  # it is being completed or removed
                found.append(_part(stage, ModelId(name), layers))
    return tuple(sorted(found, key=lambda part: (part.model, part.path)))


def pulled_parts(models: Path) -> Iterator[PassedOver]:
    """Yield what is said of each pull below `models` that did not end, or is under way."""
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((models / PULLING).iterdir()):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it went meanwhile
                model = str(json.loads((folder / "pull.json").read_text())["model"])
                if is_locked(folder):
                    yield said_of(model, str(folder), being_pulled())
                else:
                    unfit = pulled_in_part(model, *grown_bytes(folder))
                    yield said_of(model, str(folder), unfit)


def stages_of(models: Path) -> Iterator[Path]:
    """Yield the folder of each stage below the folder of all models, in order."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted((models / STAGING).iterdir())


def files_of(stage: Path) -> Path:
    """Return the folder in a stage from which the model is loaded."""
    return stage / FILES


def staged_model(stage: Path) -> str:
    """Return the name of the model in a stage; empty where its note cannot be read."""
    try:
        return str(_note(stage)["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def held_layers(stage: Path) -> tuple[Range, ...]:
    """Return the layers of which a stage has all that they need."""
    try:
        return tuple((int(first), int(last)) for first, last in _note(stage)["layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _note(stage: Path) -> Any:
    return json.loads((stage / "stage.json").read_text())


def _part(stage: Path, model: ModelId, layers: tuple[Range, ...]) -> PartialModel:
    have, size = grown_bytes(stage)
    return PartialModel(
        model=model, layers=layers, have_bytes=have, size_bytes=size, path=str(stage)
    )
