"""Talks to the disk: which models lie here, and what each is, read from its own files.

A model is a folder with `config.json` and safetensors. Folders are searched in this order, the
first of a name wins: the bundled model, `<data>/models/<name>` and `<owner>/<name>`, folders
from the settings, the Hugging Face cache (HF_HUB_CACHE, HF_HOME; read only, snapshots as they
lie). Bytes are exact: they come from the safetensors headers. A `card.toml` beside them may say
more (`bus.wire.model_cards`). Nothing is fetched. What lies there and is not taken is
kept with the reason; what has not changed since the last look, good or bad, is not read again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from bus.process.clock import wall
from bus.wire.cards import NAME_CHARACTERS, ModelCard, PassedOver
from bus.wire.embedding_models import EmbeddingModel, embedding_model, files_read
from bus.wire.ids import ModelId, ids_for
from bus.wire.kv import KvKind
from bus.wire.model_cards import CARD_BYTES, CARD_FILE, BadCard, Notes, read_card
from worker.models.adapters import adapter_marks, adapters_in
from worker.models.embedding_card import embedding_card
from worker.models.files import (
    INDEX,
    ORIGIN_FILE,
    Families,
    Origin,
    Tensor,
    config_in,
    header_of,
    json_object,
    lacking_shards,
    links_to_nothing,
    origin_of,
    reconciled,
    refused,
)
from worker.models.folders import Entries, Found, folder_of, lying_in, snapshots_in
from worker.models.manifest import belongs
from worker.models.model_card import (
    FoundAdapters,
    fast_synch,
    kept_in_full,
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
    goes_by,
    name_taken,
    printable,
    said_of,
    still_written,
    too_many,
    unreadable,
    weights_among,
)

MAX_SETTINGS_BYTES = 16 << 20
MOST_LYING = 5_000
"""Folders and files that one look takes in."""
TEMPLATE_CHARACTERS = 1 << 20
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
NOT_EMBEDDED = "take an embedding model of another kind: BERT and RoBERTa run, and decoders"
NOT_A_MODEL = "shoal runs language models; if it is one, fetch its config.json anew"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where to look. `bundled` maps names to folders; `float32` says that weights are cast to
    32 bits when they are loaded (without Metal). `families` are those that can be loaded; None:
    any. `kv` is how KV is held unless a card says it, `metal_fast_synch` what the operator says of
    that (None: nothing). A folder that a person put there is taken
    once its weights are as they were `still_s` ago.
    """

    bundled: Mapping[str, Path]
    folders: tuple[Path, ...]
    hugging_face: Path | None
    float32: bool
    families: Families | None = None
    still_s: float = 0.0
    kv: KvKind = "full"
    metal_fast_synch: bool | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """A folder as it was read last: its card, or why it has none, what is to be said of a model
    that is taken, and which of its adapters cannot be applied."""

    mark: tuple[object, ...]
    card: ModelCard | None
    unfit: tuple[Unfit, ...]
    adapters: FoundAdapters = field(default_factory=FoundAdapters)


class Weights:
    """The models on this disk. `passed_over` is what the last look saw and did not take."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._known: dict[Path, _Known] = {}
        self._used: set[Path] = set()
        self.passed_over: tuple[PassedOver, ...] = ()

    def look(self) -> tuple[ModelCard, ...]:
        """Return every model found, by name."""
        self._known = {path: self._known[path] for path in self._used & self._known.keys()}
        self._used = set()
        cards: dict[ModelId, ModelCard] = {}
        said: list[PassedOver] = []
        lying = tuple(islice(self._lying(), MOST_LYING + 1))
        if len(lying) > MOST_LYING:
            said.append(_passed_over(lying[-1], too_many(MOST_LYING)))
        ids = ids_for(found.name for found in lying[:MOST_LYING])
        for found in lying[:MOST_LYING]:
            model = ids[found.name]
            first = cards.get(model)
            if first is not None:
                if not found.cached:
                    said.append(_passed_over(found, name_taken(first.path)))
                continue
            known = self._judged(found)
            card, unfit = known.card, known.unfit
            taken = card is not None
            if card is not None:
                cards[model] = _named(card, model, found)
                unfit = (*unfit, goes_by(found.name, model)) if model != found.name else unfit
            said += [_passed_over(found, one, taken=taken) for one in unfit]
            said += [
                _passed_over(replace(found, name=f"{model}:{path.name}", path=path), one)
                for path, one in known.adapters.unfit
            ]
        cards, more = reconciled(cards)
        by_model = {ids[found.name]: found for found in reversed(lying[:MOST_LYING])}
        said += [_passed_over(by_model[model], unfit, taken=True) for model, unfit in more]
        self.passed_over = tuple(said)
        return tuple(cards[name] for name in sorted(cards))

    def _judged(self, found: Found) -> _Known:
        """Return the card of what was found, and what is to be said of it and of its adapters.
        While its weights are being written a model that was known stays as it was."""
        if found.unfit is not None:
            return _Known((), None, (found.unfit,))
        known = self._known.get(found.path)
        if (writing := self._still_written(found)) is not None:
            self._used.add(found.path)
            card = known.card if known is not None else None
            return _Known((), card, () if card is not None else (writing,))
        return self._read_or_known(found)

    def _still_written(self, found: Found) -> Unfit | None:
        if self._shelf.still_s <= 0 or found.bundled or ORIGIN_FILE in found.entries:
            return None
        changed_s, size_bytes = 0.0, 0
        for name in weights_among(found.entries):
            with contextlib.suppress(OSError):
                seen = os.stat(found.entries[name].path)
                changed_s, size_bytes = max(changed_s, seen.st_mtime), size_bytes + seen.st_size
        is_fresh = 0 <= wall() - changed_s < self._shelf.still_s
        return still_written(size_bytes) if is_fresh else None

    def card(self, model: ModelId, folder: Path) -> ModelCard | None:
        """Return the card of the model in a folder, which may hold only some of its layers; None
        where it cannot be read."""
        found = folder_of(model, folder)
        if found.unfit is not None or CONFIG not in found.entries:
            return None
        return self._read_or_known(found).card

    def _lying(self) -> Iterator[Found]:
        for name, folder in self._shelf.bundled.items():
            yield folder_of(name, folder, bundled=True)
        for folder in self._shelf.folders:
            yield from lying_in(folder)
        if self._shelf.hugging_face is not None:
            yield from snapshots_in(self._shelf.hugging_face)

    def _read_or_known(self, found: Found) -> _Known:
        mark = (*_mark(found.entries), *adapter_marks(found.path))
        self._used.add(found.path)
        known = self._known.get(found.path)
        if known is None or known.mark != mark:
            try:
                known = _Known(mark, *self._read(found))
            except UnfitModel as error:
                known = _Known(mark, None, (error.unfit,))
            except OSError as error:
                known = _Known(mark, None, (unreadable(error),))
            self._known[found.path] = known
        return known

    def _read(self, found: Found) -> tuple[ModelCard, tuple[Unfit, ...], FoundAdapters]:
        """Return the card, what is to be said of the model, and its adapters. Raises OSError,
        UnfitModel."""
        if (beside := adapter_beside(found.entries)) is not None:
            raise UnfitModel(*beside)
        folder, weights = found.path, weights_among(found.entries)
        if (dead := links_to_nothing(folder, filter(belongs, found.entries))) is not None:
            raise UnfitModel(*dead)
        config = config_in(folder)
        tensors: list[Tensor] = []
        digest = sha256((folder / CONFIG).read_bytes())
        embeds = _embeds(found, config, digest.update)
        families = self._shelf.families
        if embeds is None and families is not None and (strange := families.unfit(config)):
            raise UnfitModel(*strange)
        for name in weights:
            header, inside = header_of(folder / name)
            digest.update(header)
            tensors += inside
        if (lacking := lacking_shards(folder, found.entries.keys(), tensors)) is not None:
            raise UnfitModel(*lacking)
        notes, written_s, bad_card = _notes(folder)
        float32, is_text = self._shelf.float32, embeds is None
        adapters = adapters_in(folder, float32=float32, embeds=not is_text, only=notes.adapters)
        notes, lacking = without_lacking(notes, adapters)
        files = [found.entries[name].stat() for name in weights]
        try:
            card = model_card(
                ModelId(found.name),
                path=str(folder),
                config=config,
                tensors=tensors,
                template=_template(folder),
                notes=notes,
                adapters=adapters,
                size_bytes=sum(file.st_size for file in files),
                digest=digest.hexdigest(),
                modified_at_s=int(max(file.st_mtime for file in files)),
                float32=float32,
                bundled=found.bundled,
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
        origin = _origin(found)
        told = {"origin": origin.how, "sources": origin.sources, "card_at_s": written_s}
        told |= fast_synch(notes, self._shelf.metal_fast_synch)
        card = card.model_copy(update=told)
        said = [bad_card, lacking, no_more_context(notes, card)]
        if is_text:
            said.append(kept_in_full(notes, card, self._shelf.kv))
        return card, tuple(filter(None, said)), adapters


def hugging_face_cache() -> Path:
    """Return where the Hugging Face libraries keep what they fetched."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"


def _passed_over(found: Found, unfit: Unfit, *, taken: bool = False) -> PassedOver:
    return said_of(found.name, str(found.path), unfit, taken=taken)


def _named(card: ModelCard, model: ModelId, found: Found) -> ModelCard:
    """Return the card with the id that its model goes by."""
    if model == found.name:
        return card
    defaults = card.defaults
    if defaults is not None:
        defaults = defaults.model_copy(update={"name": model, "base": model})
    name = printable(found.name, NAME_CHARACTERS)
    told = {"model": model, "folder_name": name, "defaults": defaults}
    return card.model_copy(update=told)


def _origin(found: Found) -> Origin:
    if found.bundled or found.cached:
        return Origin("bundled" if found.bundled else "cache")
    return origin_of(found.path) if ORIGIN_FILE in found.entries else Origin()


def _mark(entries: Entries) -> tuple[object, ...]:
    """Return what tells a folder from itself after a change, of the files that are read."""
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
            found = os.stat(path)
            mark.append((path, found.st_mtime_ns, found.st_ctime_ns, found.st_size))
    return tuple(mark)


def _embeds(
    found: Found, config: Mapping[str, Any], told: Callable[[bytes], object]
) -> EmbeddingModel | None:
    """Return what a folder says of itself as an embedding model; None where it is none. `told` is
    given the files that say so. Raises OSError, UnfitModel."""

    def read(name: str) -> object:
        """Return what a JSON file of the folder holds; None where there is none."""
        path = found.path / name
        if not path.is_file():
            return None
        with open(path, "rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
        if len(data) > MAX_SETTINGS_BYTES:
            raise ValueError(f"{name} is larger than {MAX_SETTINGS_BYTES >> 20} MiB")
        said.append(name.encode() + data)
        return json.loads(data)

    said: list[bytes] = []
    try:
        model = embedding_model(config, read)
    except (ValueError, RecursionError) as error:
        raise UnfitModel("bad_config", f"as an embedding model: {error}", NOT_EMBEDDED) from error
    for data in () if model is None else said:
        told(data)
    return model


def _notes(folder: Path) -> tuple[Notes, float, Unfit | None]:
    """Return what `card.toml` says, when it was written, and what is said of one that is refused:
    it says nothing then, as where there is none. Raises OSError."""
    try:
        with open(folder / CARD_FILE, "rb") as file:
            data, written_s = file.read(CARD_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return Notes(), 0.0, None
    try:
        return read_card(data), written_s, None
    except BadCard as error:
        return Notes(), 0.0, refused(error, data)


def _template(folder: Path) -> str:
    """Return the chat template's text, "" without one."""
    with contextlib.suppress(OSError), open(folder / TEMPLATE_FILES[0], errors="replace") as file:
        return file.read(TEMPLATE_CHARACTERS)
    for name in TEMPLATE_FILES[1:]:
        try:
            found: object = json_object(folder / name).get("chat_template")
        except (OSError, ValueError):
            continue
        if isinstance(found, list):
            return json.dumps(found)
        if isinstance(found, str) and found:
            return found
    return ""
