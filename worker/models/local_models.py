"""Talks to the disk: the models on this node, complete or in part.

A partly fetched model stays in its staging folder, or in the folder of its pull, where the file
`stage.json` lists the complete layers. If a model has several such folders, the folder to which
layers were added last counts. An incomplete pull is reported as a model that is not listed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.models.model_folders import STAGING
from bus.wire.cards import ModelCard, PartialModel, PassedOver
from bus.wire.ids import ModelId, is_model_id
from worker.models.files import FILES, CommandEngines, grown_bytes, is_locked
from worker.models.last_used import LastUsed
from worker.models.layer_bytes import Range
from worker.models.passed_over import being_pulled, notice_of, pulled_in_part
from worker.models.weights import Weights

GROWN_RATIO = 1.05
"""A measured size is stored if it exceeds the stored one by this factor."""
PULLING = ".pulling"
"""The folder, below the models folder, of incomplete pulls from a hub. Incomplete copies from other
nodes are in `STAGING`."""
STAGE_FILE = "stage.json"
"""The file that lists the complete layers of a partial model."""


@dataclass(frozen=True, slots=True)
class DiskLook:
    """The result of one scan of the disk: complete models, partial models with their cards, and the
    entries that are not listed as models."""

    cards: Mapping[ModelId, ModelCard]
    parts: Mapping[ModelId, PartialModel]
    part_cards: Mapping[ModelId, ModelCard]
    passed_over: tuple[PassedOver, ...]


class LocalModels:
    """The models of the last accepted scan: `cards` describes complete models, `parts` partial
    ones. Partial models grow below `folder`. `load_s` maps models to the seconds of their last
    load. `engines_file` has the programs that serve models, `environments` the folder of
    environments that they run in, `engines_memory` the memory that these programs used at earlier
    loads. `scan` may run in another thread."""

    def __init__(
        self,
        weights: Weights,
        folder: Path,
        load_s: Mapping[ModelId, float] | None = None,
        engines_file: Path | None = None,
        engines_memory: LastUsed | None = None,
        environments: Path | None = None,
    ) -> None:
        self.cards: Mapping[ModelId, ModelCard] = {}
        self.parts: Mapping[ModelId, PartialModel] = {}
        self.passed_over: tuple[PassedOver, ...] = ()
        self._part_cards: Mapping[ModelId, ModelCard] = {}
        self._weights = weights
        self.folder = folder
        self._load_s: Mapping[ModelId, float] = {} if load_s is None else load_s
        self._engines = CommandEngines(engines_file, environments)
        self._engines_memory = engines_memory
        self._measured = {} if engines_memory is None else engines_memory.read()

    def card(self, model: ModelId) -> ModelCard:
        """Return the card for loading a model, with its folder. Raises KeyError if no part of the
        model is on this node."""
        return self.cards.get(model) or self._part_cards[model]

    def take(self, seen: DiskLook) -> None:
        """Replace the known models by the result of a new scan of the disk."""
        self.cards, self.parts = seen.cards, seen.parts
        self._part_cards, self.passed_over = seen.part_cards, seen.passed_over

    def measured(self, model: ModelId, used_bytes: int) -> None:
        """Record how much memory a program of `engines.toml` uses, if it is more than before."""
        card = self.cards.get(model)
        before = self._measured.get(model, 0)
        if card is None or card.origin != "engine" or used_bytes <= GROWN_RATIO * before:
            return
        self._measured = {**self._measured, model: used_bytes}
        if self._engines_memory is not None:
            self._engines_memory.keep(self._measured)

    def scan(self) -> DiskLook:
        of_files = {card.model: card for card in self._weights.look()}
        engines = self._engines.look(of_files, self._measured)
        cards = {card.model: self._timed(card) for card in (*of_files.values(), *engines.cards)}
        passed_over = (*self._weights.passed_over, *pulled_parts(self.folder), *engines.notices)
        parts: dict[ModelId, PartialModel] = {}
        part_cards: dict[ModelId, ModelCard] = {}
        for part in sorted(parts_held(self.folder), key=lambda part: _kept_ns(Path(part.path))):
            if part.model not in cards:
                card = self._weights.card(part.model, files_of(Path(part.path)))
                if card is not None:
                    part_cards[part.model] = card
                    parts[part.model] = part.model_copy(update={"card": card})
        return DiskLook(cards, parts, part_cards, passed_over)

    def _timed(self, card: ModelCard) -> ModelCard:
        seconds = self._load_s.get(card.model)
        return card if seconds is None else card.model_copy(update={"load_s": seconds})


def parts_held(models: Path) -> tuple[PartialModel, ...]:
    """Return the partial models below `models`, copied or pulled, by model."""
    parts: list[PartialModel] = []
    for stage in (*stages_of(models), *pulls_in(models)):
        layers, name = held_layers(stage), staged_model(stage)
        if layers and is_model_id(name):
            with contextlib.suppress(FileNotFoundError):  # it is being completed or removed
                parts.append(_part(stage, ModelId(name), layers))
    return tuple(sorted(parts, key=lambda part: (part.model, part.path)))


def pulled_parts(models: Path) -> Iterator[PassedOver]:
    """Yield a notice for each incomplete or running pull below `models`. A pull that has some
    layers completely is a partial model."""
    for folder in pulls_in(models):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it went meanwhile
            model = str(json.loads((folder / "pull.json").read_text())["model"])
            if is_locked(folder):
                yield notice_of(model, str(folder), being_pulled())
            elif not held_layers(folder):
                unfit = pulled_in_part(model, *grown_bytes(folder))
                yield notice_of(model, str(folder), unfit)


def pulls_in(models: Path) -> Iterator[Path]:
    """Yield the folder of each pull below the models folder, in order."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted((models / PULLING).iterdir())


def stages_of(models: Path) -> Iterator[Path]:
    """Yield each staging folder below the models folder, in order."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted((models / STAGING).iterdir())


def files_of(stage: Path) -> Path:
    """Return the folder, inside a staging folder, from which the model is loaded."""
    return stage / FILES


def staged_model(stage: Path) -> str:
    """Return the name of the model in a staging folder; empty if its `stage.json` cannot be
    read."""
    try:
        return str(_note(stage)["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def held_layers(stage: Path) -> tuple[Range, ...]:
    try:
        return tuple((int(first), int(last)) for first, last in _note(stage)["layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _note(stage: Path) -> Any:
    return json.loads((stage / STAGE_FILE).read_text())


def _kept_ns(stage: Path) -> int:
    """Return when layers were last added to a partial model; 0 if it was deleted meanwhile."""
    with contextlib.suppress(OSError):
        return (stage / STAGE_FILE).stat().st_mtime_ns
    return 0


def _part(stage: Path, model: ModelId, layers: tuple[Range, ...]) -> PartialModel:
    have, size = grown_bytes(stage)
    return PartialModel(
        model=model, layers=layers, have_bytes=have, size_bytes=size, path=str(stage)
    )
