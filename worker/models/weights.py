"""Talks to the disk: which models lie here, and what each is, read from its own files.

A model is a folder with `config.json` and safetensors. Folders are searched in this order, the
first of a name wins: the bundled model, `<data>/models/<name>` and `<owner>/<name>`, folders
from the settings, the Hugging Face cache (HF_HUB_CACHE, HF_HOME; read only, snapshots as they
lie). Bytes are exact: they come from the safetensors headers. A `card.toml` beside them may say
more (`worker.models.model_card.Notes`). Nothing is fetched.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId, is_model_id
from worker.models.model_card import Notes, Tensor, model_card, notes_from, tensors_in

MAX_HEADER_BYTES = 100 << 20
NOTES_FILE = "card.toml"
TEMPLATE_CHARACTERS = 1 << 20
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where to look. `bundled` maps names to folders; `float32` says that weights are cast to
    32 bits when they are loaded (without Metal)."""

    bundled: Mapping[str, Path]
    folders: tuple[Path, ...]
    hugging_face: Path | None
    float32: bool


class Weights:
    """The models on this disk. What has not changed since the last look is not read again."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._known: dict[Path, tuple[tuple[int, ...], ModelCard | None]] = {}
        self.troubles: dict[str, str] = {}

    def look(self) -> tuple[ModelCard, ...]:
        """Return every model found, by name. `troubles` says which folders could not be read."""
        found: dict[ModelId, ModelCard] = {}
        self.troubles = {}
        seen: set[Path] = set()
        for name, folder, bundled in self._candidates():
            seen.add(folder)
            if name in found or not is_model_id(name):
                continue
            card = self.card(ModelId(name), folder, bundled=bundled)
            if card is not None:
                found[card.model] = card
        self._known = {path: known for path, known in self._known.items() if path in seen}
        return tuple(found[name] for name in sorted(found))

    def _candidates(self) -> Iterator[tuple[str, Path, bool]]:
        for name, folder in self._shelf.bundled.items():
            yield name, folder, True
        for folder in self._shelf.folders:
            for name, path in _models_below(folder):
                yield name, path, False
        if self._shelf.hugging_face is not None:
            for name, path in _snapshots(self._shelf.hugging_face):
                yield name, path, False

    def card(self, model: ModelId, folder: Path, *, bundled: bool = False) -> ModelCard | None:
        """Return the card of the model in a folder, which may hold only some of its layers; None
        where it cannot be read."""
        try:
            files = sorted(folder.glob("*.safetensors"))
            if not files or not (folder / "config.json").exists():
                return None
            mark = _mark(folder, files)
            known = self._known.get(folder)
            if known is not None and known[0] == mark:
                return known[1]
            card = self._read(model, folder, files, bundled=bundled)
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            self.troubles[str(folder)] = f"{type(error).__name__}: {error}"
            return None
        self._known[folder] = (mark, card)
        return card

    def _read(self, model: ModelId, folder: Path, files: list[Path], *, bundled: bool) -> ModelCard:
        config = _json(folder / "config.json")
        tensors: list[Tensor] = []
        digest = crc32((folder / "config.json").read_bytes())
        for path in files:
            header = _header(path)
            digest = crc32(header, digest)
            tensors += tensors_in(header)
        return model_card(
            model,
            path=str(folder),
            config=config,
            tensors=tensors,
            template=_template(folder),
            notes=_notes(folder),
            size_bytes=sum(path.stat().st_size for path in files),
            digest=f"{digest:08x}",
            modified_at_s=int(max(path.stat().st_mtime for path in files)),
            float32=self._shelf.float32,
            bundled=bundled,
        )


def hugging_face_cache() -> Path:
    """Return where the Hugging Face libraries keep what they fetched."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"


def _models_below(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in _folders(folder):
        if (path / "config.json").exists():
            yield path.name, path
            continue
        for inner in _folders(path):
            if (inner / "config.json").exists():
                yield f"{path.name}/{inner.name}", inner


def _snapshots(hub: Path) -> Iterator[tuple[str, Path]]:
    for path in _folders(hub):
        kind, _, rest = path.name.partition("--")
        if kind != "models" or not rest:
            continue
        snapshot = _snapshot(path)
        if snapshot is not None:
            yield rest.replace("--", "/", 1), snapshot


def _snapshot(repository: Path) -> Path | None:
    """Return the snapshot that `refs/main` names, else the newest that there is."""
    with contextlib.suppress(OSError):
        named = repository / "snapshots" / (repository / "refs" / "main").read_text().strip()
        if (named / "config.json").exists():
            return named
    found = [p for p in _folders(repository / "snapshots") if (p / "config.json").exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _mark(folder: Path, files: list[Path]) -> tuple[int, ...]:
    mark: list[int] = []
    named = ("config.json", NOTES_FILE, *TEMPLATE_FILES)
    for path in (*(folder / name for name in named), *files):
        try:
            found = path.stat()
        except FileNotFoundError:
            mark += (0, 0)
        else:
            mark += (found.st_mtime_ns, found.st_size)
    return tuple(mark)


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return cast(dict[str, Any], value)


def _header(path: Path) -> bytes:
    """Return the JSON of a safetensors file's header, behind 8 bytes of length. Raises OSError,
    and ValueError for another kind of file or one cut short."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = file.read(length)
    if len(header) != length:
        raise ValueError(f"{path.name} is cut short")
    return header


def _notes(folder: Path) -> Notes:
    """Return what `card.toml` says, no notes where there is none."""
    try:
        found = tomllib.loads((folder / NOTES_FILE).read_text())
    except FileNotFoundError:
        return Notes()
    return notes_from(found)


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
