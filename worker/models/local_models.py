"""Talks to the disk: the models that lie on this node, whole or in part.

A model that was fetched in part stays in its stage, whose note (`stage.json`) lists the layers of
which all that they need is there. Of several stages of one model the one that has most counts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bus.wire.cards import ModelCard, PartialModel, PassedOver
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.weights import PIECE_BYTES
from worker.models.layer_bytes import Range
from worker.models.weights import Weights

FOLDER = ".staging"


class LocalModels:
    """What lies here as of the last look: `cards` of whole models, `parts` of others. Parts lie in
    stages below `folder`, which is where models are put. `load_s` says how long their last loads
    took, as it is then."""

    def __init__(
        self, weights: Weights, folder: Path, load_s: Mapping[ModelId, float] | None = None
    ) -> None:
        self.cards: dict[ModelId, ModelCard] = {}
        self.parts: dict[ModelId, PartialModel] = {}
        self._part_cards: dict[ModelId, ModelCard] = {}
        self._weights = weights
        self.folder = folder
        self._load_s: Mapping[ModelId, float] = load_s if load_s is not None else {}

    @property
    def passed_over(self) -> tuple[PassedOver, ...]:
        """Return what lies here and is not taken, or not wholly, and why."""
        return self._weights.passed_over

    def card(self, model: ModelId) -> ModelCard:
        """Return the card to load a model by, with the folder of what there is of it. Raises
        KeyError when none of it lies here."""
        return self.cards.get(model) or self._part_cards[model]

    def look(self) -> None:
        """See what lies on the disk now."""
        self.cards = {card.model: self._timed(card) for card in self._weights.look()}
        self.parts, self._part_cards = {}, {}
        for part in sorted(parts_held(self.folder), key=lambda part: part.have_bytes):
            if part.model not in self.cards:
                card = self._weights.card(part.model, files_of(Path(part.path)))
                if card is not None:
                    self._part_cards[part.model], self.parts[part.model] = card, part

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


def stages_of(models: Path) -> Iterator[Path]:
    """Yield the folder of each stage below the folder of all models, in order."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted((models / FOLDER).iterdir())


def files_of(stage: Path) -> Path:
    """Return the folder in a stage from which the model is loaded."""
    return stage / "files"


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
    sizes = [path.stat().st_size for path in files_of(stage).rglob("*") if path.is_file()]
    missing = sum(note.read_bytes()[:-1].count(0) for note in (stage / "have").iterdir())
    have = max(0, sum(sizes) - missing * PIECE_BYTES)
    return PartialModel(
        model=model, layers=layers, have_bytes=have, size_bytes=sum(sizes), path=str(stage)
    )
