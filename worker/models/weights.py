"""Talks to the disk: finds the models on this disk and reads the files of each one.

A model is a folder with `config.json` and safetensors. Folders are searched in order, and of
several models with one name the first wins. The order is: the bundled model, `<data>/models/<name>`
and `<owner>/<name>`, folders from the settings, the Hugging Face cache (HF_HUB_CACHE, HF_HOME; read
only, snapshots as they are). Sizes are exact: they come from the safetensors headers. A `card.toml`
beside the weights may add settings (`bus.models.cards`). Nothing is downloaded. Entries that are
not listed are kept with the reason. Folders that have not changed since the last scan are not read
again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from bus.models.cards import CARD_FILE
from bus.models.embedding_models import embedding_model, files_read
from bus.models.embedding_parts import EmbeddingModel
from bus.models.lora import FOLDER
from bus.process.clock import wall
from bus.wire.cards import NAME_CHARACTERS, ModelCard, PassedOver
from bus.wire.ids import ModelId, ids_for
from bus.wire.kv import KvKind
from worker.models.adapters import adapter_marks, adapters_in
from worker.models.files import (
    INDEX,
    ORIGIN_FILE,
    TEMPLATE_FILES,
    Families,
    Origin,
    Tensor,
    config_in,
    gguf_facts_of,
    head_marks,
    header_of,
    lacking_shards,
    links_to_nothing,
    notes_in,
    origin_of,
    reconciled,
    template_in,
    with_head,
)
from worker.models.folders import Entries, Found, folder_of, lying_in, snapshots_in
from worker.models.manifest import belongs
from worker.models.model_card import (
    FoundAdapters,
    embedding_card,
    fast_synch,
    gguf_card,
    kv_notice,
    model_card,
    no_more_context,
    without_lacking,
)
from worker.models.passed_over import (
    ADAPTERS,
    CONFIG,
    Unfit,
    UnfitModel,
    adapter_beside,
    ggufs_among,
    goes_by,
    name_taken,
    notice_of,
    printable,
    still_written,
    too_many,
    unreadable,
    weights_among,
)

MAX_SETTINGS_BYTES = 16 << 20
MOST_LYING = 5_000
"""The most entries of model folders that one scan covers."""
NOT_EMBEDDED = "use a supported embedding model: BERT, RoBERTa or a decoder"
NOT_A_MODEL = "shoal runs language models; if this is one, download its config.json again"


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folders to search for models, and the rules of the search. `bundled` maps names of
    bundled models to folders. `float32`: weights are cast to 32 bits when loaded (without Metal).
    `families` are the supported model families; None: any. `kv` is the KV kind unless a card names
    one, `metal_fast_synch` the operator's setting (None: unset). A folder that a person added is
    listed when its weights have not changed for `still_s` seconds."""

    bundled: Mapping[str, Path]
    folders: tuple[Path, ...]
    hugging_face: Path | None
    float32: bool
    families: Families | None = None
    still_s: float = 0.0
    kv: KvKind = "full"
    metal_fast_synch: bool | None = None


@dataclass(frozen=True, slots=True)
class _Judged:
    """The result of reading one folder: the model's card, or the reason why it has none; the
    notices about a listed model; and its adapters that cannot be applied."""

    mark: tuple[object, ...]
    card: ModelCard | None
    unfit: tuple[Unfit, ...]
    adapters: FoundAdapters = field(default_factory=FoundAdapters)


class Weights:
    """The models on this disk. `passed_over` are the entries that the last scan did not list."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._results: dict[Path, _Judged] = {}
        self._used: set[Path] = set()
        self.passed_over: tuple[PassedOver, ...] = ()

    def look(self) -> tuple[ModelCard, ...]:
        """Scan the folders and return every model found, by name."""
        self._results = {path: self._results[path] for path in self._used & self._results.keys()}
        self._used = set()
        cards: dict[ModelId, ModelCard] = {}
        notices: list[PassedOver] = []
        lying = tuple(islice(self._lying(), MOST_LYING + 1))
        if len(lying) > MOST_LYING:
            notices.append(_passed_over(lying[-1], too_many(MOST_LYING)))
        ids = ids_for(entry.name for entry in lying[:MOST_LYING])
        for entry in lying[:MOST_LYING]:
            model = ids[entry.name]
            first = cards.get(model)
            if first is not None:
                if not entry.cached:
                    notices.append(_passed_over(entry, name_taken(first.path)))
                continue
            judged = self._judged(entry)
            card, unfit = judged.card, judged.unfit
            taken = card is not None
            if card is not None:
                cards[model] = _named(card, model, entry)
                unfit = (*unfit, goes_by(entry.name, model)) if model != entry.name else unfit
            notices += [_passed_over(entry, problem, taken=taken) for problem in unfit]
            notices += [
                _passed_over(replace(entry, name=f"{model}:{path.name}", path=path), problem)
                for path, problem in judged.adapters.unfit
            ]
        cards, more = reconciled(cards)
        by_model = {ids[entry.name]: entry for entry in reversed(lying[:MOST_LYING])}
        notices += [_passed_over(by_model[model], unfit, taken=True) for model, unfit in more]
        self.passed_over = tuple(notices)
        return tuple(cards[name] for name in sorted(cards))

    def _judged(self, entry: Found) -> _Judged:
        """Return the card of a folder's model, with the notices about it and its adapters. While
        the weights of a known model are being written, its earlier result stays."""
        if entry.unfit is not None:
            return _Judged((), None, (entry.unfit,))
        before = self._results.get(entry.path)
        if (writing := self._still_written(entry)) is not None:
            self._used.add(entry.path)
            card = before.card if before is not None else None
            return _Judged((), card, () if card is not None else (writing,))
        return self._read_or_known(entry)

    def _still_written(self, entry: Found) -> Unfit | None:
        if self._shelf.still_s <= 0 or entry.bundled or ORIGIN_FILE in entry.entries:
            return None
        changed_s, size_bytes = 0.0, 0
        for name in weights_among(entry.entries):
            with contextlib.suppress(OSError):
                seen = os.stat(entry.entries[name].path)
                changed_s, size_bytes = max(changed_s, seen.st_mtime), size_bytes + seen.st_size
        is_fresh = 0 <= wall() - changed_s < self._shelf.still_s
        return still_written(size_bytes) if is_fresh else None

    def card(self, model: ModelId, folder: Path) -> ModelCard | None:
        """Return the card of the model in a folder, which may have only some of its layers; None if
        it cannot be read."""
        entry = folder_of(model, folder)
        if entry.unfit is not None or CONFIG not in entry.entries:
            return None
        return self._read_or_known(entry).card

    def _lying(self) -> Iterator[Found]:
        for name, folder in self._shelf.bundled.items():
            yield folder_of(name, folder, bundled=True)
        for folder in self._shelf.folders:
            yield from lying_in(folder)
        if self._shelf.hugging_face is not None:
            yield from snapshots_in(self._shelf.hugging_face)

    def _read_or_known(self, entry: Found) -> _Judged:
        mark = (*_mark(entry.entries), *adapter_marks(entry.path), *head_marks(entry.entries))
        self._used.add(entry.path)
        result = self._results.get(entry.path)
        if result is None or result.mark != mark:
            try:
                result = _Judged(mark, *self._read(entry))
            except UnfitModel as error:
                result = _Judged(mark, None, (error.unfit,))
            except OSError as error:
                result = _Judged(mark, None, (unreadable(error),))
            self._results[entry.path] = result
        return result

    def _read(self, entry: Found) -> tuple[ModelCard, tuple[Unfit, ...], FoundAdapters]:
        """Return the card, the notices about the model, and its adapters. Raises OSError,
        UnfitModel."""
        folder, weights = entry.path, weights_among(entry.entries)
        if files := ggufs_among(entry.entries):
            return (*_gguf_model(entry, files), FoundAdapters())
        if (beside := adapter_beside(entry.entries)) is not None:
            raise UnfitModel(*beside)
        if (dead := links_to_nothing(folder, filter(belongs, entry.entries))) is not None:
            raise UnfitModel(*dead)
        config = config_in(folder)
        tensors: list[Tensor] = []
        digest = sha256((folder / CONFIG).read_bytes())
        embeds = _embeds(entry, config, digest.update)
        families = self._shelf.families
        if embeds is None and families is not None and (strange := families.unfit(config)):
            raise UnfitModel(*strange)
        for name in weights:
            header, inside = header_of(folder / name)
            digest.update(header)
            tensors += inside
        if (lacking := lacking_shards(folder, entry.entries.keys(), tensors)) is not None:
            raise UnfitModel(*lacking)
        notes, written_s, bad_card = notes_in(folder)
        float32, is_text = self._shelf.float32, embeds is None
        adapters = adapters_in(folder, float32=float32, embeds=not is_text, only=notes.adapters)
        notes, lacking = without_lacking(notes, adapters)
        files = [entry.entries[name].stat() for name in weights]
        try:
            card = model_card(
                ModelId(entry.name),
                path=str(folder),
                config=config,
                tensors=tensors,
                template=template_in(folder),
                notes=notes,
                adapters=adapters,
                size_bytes=sum(file.st_size for file in files),
                digest=digest.hexdigest(),
                modified_at_s=int(max(file.st_mtime for file in files)),
                float32=float32,
                bundled=entry.bundled,
                kv=self._shelf.kv,
            )
        except KeyError as error:
            raise UnfitModel(
                "bad_config", f"{CONFIG} has no {error.args[0]}", NOT_A_MODEL
            ) from error
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise UnfitModel("bad_config", f"{CONFIG}: {error}", NOT_A_MODEL) from error
        if embeds is not None:
            card = embedding_card(card, embeds)
        facts = fast_synch(notes, self._shelf.metal_fast_synch)
        card = _dated(card.model_copy(update=facts), entry, written_s)
        notices = [bad_card, lacking, no_more_context(notes, card)]
        if is_text:
            card, headless = with_head(card, notes, tensors, float32=float32)
            notices += [headless, kv_notice(notes, card, self._shelf.kv)]
        return card, _listed(*notices), adapters


def hugging_face_cache() -> Path:
    """Return the cache folder of the Hugging Face libraries."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"


def _passed_over(entry: Found, unfit: Unfit, *, taken: bool = False) -> PassedOver:
    return notice_of(entry.name, str(entry.path), unfit, taken=taken)


def _named(card: ModelCard, model: ModelId, entry: Found) -> ModelCard:
    if model == entry.name:
        return card
    defaults = card.defaults
    if defaults is not None:
        defaults = defaults.model_copy(update={"name": model, "base": model})
    name = printable(entry.name, NAME_CHARACTERS)
    facts = {"model": model, "folder_name": name, "defaults": defaults}
    return card.model_copy(update=facts)


def _gguf_model(entry: Found, files: Sequence[str]) -> tuple[ModelCard, tuple[Unfit, ...]]:
    """Return the card of a folder's GGUF file or its parts, and the notices. Raises OSError,
    UnfitModel."""
    notes, written_s, bad_card = notes_in(entry.path)
    facts, digest = gguf_facts_of([entry.path / file for file in files])
    stats = [entry.entries[file].stat() for file in files]
    card, notices = gguf_card(
        ModelId(entry.name),
        facts,
        path=str(entry.path),
        notes=notes,
        size_bytes=sum(stat.st_size for stat in stats),
        digest=digest,
        modified_at_s=int(max(stat.st_mtime for stat in stats)),
        has_adapters=FOLDER in entry.entries,
    )
    return _dated(card, entry, written_s), _listed(bad_card, *notices)


def _dated(card: ModelCard, entry: Found, written_s: float) -> ModelCard:
    """Return the card with its origin, and with the time at which its `card.toml` was written."""
    origin = _origin(entry)
    facts = {"origin": origin.how, "sources": origin.sources, "card_at_s": written_s}
    return card.model_copy(update=facts)


def _listed(*notices: Unfit | None) -> tuple[Unfit, ...]:
    return tuple(filter(None, notices))


def _origin(entry: Found) -> Origin:
    if entry.bundled or entry.cached:
        return Origin("bundled" if entry.bundled else "cache")
    return origin_of(entry.path) if ORIGIN_FILE in entry.entries else Origin()


def _mark(entries: Entries) -> tuple[object, ...]:
    """Return a value that changes whenever one of the files from which the card is made changes."""
    named = {
        CONFIG,
        CARD_FILE,
        INDEX,
        ORIGIN_FILE,
        *TEMPLATE_FILES,
        *weights_among(entries),
        *files_read(entries),
    }
    mark: list[object] = [name for name in entries if name in ADAPTERS]
    paths = [entries[name].path for name in sorted(named & entries.keys())]
    for path in [*paths, *(f"{entries[name].path}/{CONFIG}" for name in files_read(entries))]:
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            mark.append((path, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size))
    return tuple(mark)


def _embeds(
    entry: Found, config: Mapping[str, Any], note: Callable[[bytes], object]
) -> EmbeddingModel | None:
    """Return a folder's settings as an embedding model; None if it is not one. `note` is called
    with each file from which the settings come. Raises OSError, UnfitModel."""

    def read(name: str) -> object:
        """Return the content of a JSON file in the folder; None if it does not exist."""
        path = entry.path / name
        if not path.is_file():
            return None
        with open(path, "rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
        if len(data) > MAX_SETTINGS_BYTES:
            raise ValueError(f"{name} is larger than {MAX_SETTINGS_BYTES >> 20} MiB")
        contents.append(name.encode() + data)
        return json.loads(data)

    contents: list[bytes] = []
    try:
        model = embedding_model(config, read)
    except (ValueError, RecursionError) as error:
        raise UnfitModel(
            "bad_config", f"the model cannot be loaded as an embedding model: {error}", NOT_EMBEDDED
        ) from error
    for data in () if model is None else contents:
        note(data)
    return model
