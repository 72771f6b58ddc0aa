"""Talks to the disk: which models lie here, and what each is, read from its own files.

A model is a folder with `config.json` and safetensors. Folders are searched in this order, the
first of a name wins: the bundled model, `<data>/models/<name>` and `<owner>/<name>`, folders
from the settings, the Hugging Face cache (HF_HUB_CACHE, HF_HOME; read only, snapshots as they
lie). Bytes are exact: they come from the safetensors headers. A `card.toml` beside them may say
more (`worker.models.model_card.Notes`). Nothing is fetched. What lies there and is not taken is
kept with the reason; what has not changed since the last look, good or bad, is not read again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from bus.wire.cards import ModelCard, PassedOver
from bus.wire.embedding_models import EmbeddingModel, embedding_model, files_read
from bus.wire.ids import ModelId
from bus.wire.kv import KvKind
from worker.models.adapters import adapter_marks, adapters_in
from worker.models.embedding_card import embedding_card
from worker.models.folders import Entries, Found, folder_of, lying_in, snapshots_in
from worker.models.model_card import (
    FoundAdapters,
    Notes,
    Tensor,
    kept_in_full,
    model_card,
    no_more_context,
    notes_from,
    tensors_in,
    unknown_keys,
)
from worker.models.passed_over import (
    ADAPTERS,
    CONFIG,
    Unfit,
    UnfitModel,
    adapter_beside,
    name_taken,
    printable,
    unfit_name,
    unreadable,
    weights_among,
)

MAX_HEADER_BYTES = 100 << 20
MAX_SETTINGS_BYTES = 16 << 20
NOTES_FILE = "card.toml"
TEMPLATE_CHARACTERS = 1 << 20
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")
POINTER = b"version https://git-lfs"
"""How a file begins that Git keeps in place of a large one."""
ANEW = "fetch it anew from where the model came from"
NOT_EMBEDDED = "take an embedding model of another kind: BERT and RoBERTa run, and decoders"
NOT_A_MODEL = "shoal runs language models; if it is one, fetch its config.json anew"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where to look. `bundled` maps names to folders; `float32` says that weights are cast to
    32 bits when they are loaded (without Metal); `kv` how KV is held unless a card says it."""

    bundled: Mapping[str, Path]
    folders: tuple[Path, ...]
    hugging_face: Path | None
    float32: bool
    kv: KvKind = "full"


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
        cards: dict[str, ModelCard] = {}
        said: list[PassedOver] = []
        for found in self._lying():
            first = cards.get(found.name)
            if first is not None:
                if not found.cached:
                    said.append(_passed_over(found, name_taken(first.path)))
                continue
            unfit = found.unfit or unfit_name(found.name)
            if unfit is not None:
                said.append(_passed_over(found, unfit))
                continue
            known = self._read_or_known(found)
            said += [_passed_over(found, one, taken=known.card is not None) for one in known.unfit]
            said += [
                _passed_over(replace(found, name=f"{found.name}:{path.name}", path=path), one)
                for path, one in known.adapters.unfit
            ]
            if known.card is not None:
                cards[found.name] = known.card
        self.passed_over = tuple(said)
        return tuple(cards[name] for name in sorted(cards))

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
        config = _config(folder / CONFIG)
        tensors: list[Tensor] = []
        digest = sha256((folder / CONFIG).read_bytes())
        embeds = _embeds(found, config, digest.update)
        for name in weights:
            header, inside = _header(folder / name)
            digest.update(header)
            tensors += inside
        notes, unknown = _notes(folder)
        float32, is_text = self._shelf.float32, embeds is None
        adapters = adapters_in(folder, float32=float32, embeds=not is_text)
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
            raise UnfitModel(f"{CONFIG} has no {error.args[0]}", NOT_A_MODEL) from error
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise UnfitModel(f"{CONFIG}: {error}", NOT_A_MODEL) from error
        if embeds is not None:
            card = embedding_card(card, embeds)
        said = [unknown, no_more_context(notes, card)]
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
    return PassedOver(
        name=printable(found.name),
        path=printable(str(found.path)),
        why=printable(unfit.why),
        remedy=printable(unfit.remedy),
        taken=taken,
    )


def _mark(entries: Entries) -> tuple[object, ...]:
    """Return what tells a folder from itself after a change, of the files that are read."""
    named = {CONFIG, NOTES_FILE, *TEMPLATE_FILES, *weights_among(entries), *files_read(entries)}
    mark: list[object] = [name for name in entries if name in ADAPTERS]
    paths = [entries[name].path for name in sorted(named & entries.keys())]
    for path in [*paths, *(f"{entries[name].path}/{CONFIG}" for name in files_read(entries))]:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            mark.append((path, found.st_mtime_ns, found.st_ctime_ns, found.st_size))
    return tuple(mark)


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return cast(dict[str, Any], value)


def _config(path: Path) -> dict[str, Any]:
    """Return a model's configuration. Raises OSError, UnfitModel."""
    try:
        return _json(path)
    except (ValueError, RecursionError) as error:
        raise UnfitModel(f"{CONFIG} is broken: {error}", ANEW) from error


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
        raise UnfitModel(f"as an embedding model: {error}", NOT_EMBEDDED) from error
    for data in () if model is None else said:
        told(data)
    return model


def _header(path: Path) -> tuple[bytes, list[Tensor]]:
    """Return the JSON of a safetensors file's header, behind 8 bytes of length, and its tensors.
    Raises OSError, and UnfitModel for another kind of file or one cut short."""
    with open(path, "rb") as file:
        begin, size = file.read(8), os.fstat(file.fileno()).st_size
        if POINTER.startswith(begin) and begin:
            remedy = "`git lfs pull` in its folder fetches it"
            raise UnfitModel(f"{path.name} is a pointer of Git LFS, not the file itself", remedy)
        length = int.from_bytes(begin, "little")
        if length > MAX_HEADER_BYTES:
            raise UnfitModel(f"{path.name} is no safetensors file", ANEW)
        header = file.read(length) if len(begin) == 8 else b""
    try:
        tensors = tensors_in(header) if header and len(header) == length else []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnfitModel(f"{path.name} is no safetensors file: {error}", ANEW) from error
    whole = 8 + length + max((tensor.last for tensor in tensors), default=0)
    if not header or size < whole:
        raise UnfitModel(f"{path.name} is cut short: {size:,} of {whole:,} bytes or more", ANEW)
    return header, tensors


def _notes(folder: Path) -> tuple[Notes, Unfit | None]:
    """Return what `card.toml` says, no notes where there is none, and what is said of keys that it
    may not have. Raises OSError, UnfitModel."""
    try:
        table = tomllib.loads((folder / NOTES_FILE).read_text())
        return notes_from(table), unknown_keys(table)
    except FileNotFoundError:
        return Notes(), None
    except ValueError as error:
        why = str(error).removeprefix(f"{NOTES_FILE}: ")
        raise UnfitModel(f"{NOTES_FILE}: {why}", "mend it, or take it away") from error


def _template(folder: Path) -> str:
    """Return the chat template's text, "" without one."""
    with contextlib.suppress(OSError), open(folder / TEMPLATE_FILES[0], errors="replace") as file:
        return file.read(TEMPLATE_CHARACTERS)
    try:
        found: object = _json(folder / TEMPLATE_FILES[1]).get("chat_template", "")
    except (OSError, ValueError):
        return ""
    if isinstance(found, str):
        return found
    return json.dumps(found) if isinstance(found, list) else ""
