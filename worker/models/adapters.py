"""Talks to the disk: the adapters in a model's folder, and why some cannot be applied.

An adapter is a folder in the model's `adapters/`, as mlx-lm's trainer or PEFT writes it. Requests
name it after the model: `MODEL:NAME`. The adapter's files are checked by the same rules as in the
runner. Only the beginning of the weights is read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path

from bus.models.lora import (
    CONFIG_FILE,
    FOLDER,
    MAX_ADAPTERS,
    MAX_CONFIG_BYTES,
    MAX_HEADER_BYTES,
    WEIGHTS_FILES,
    AdapterFiles,
    BadAdapter,
    adapter_files,
    config_in,
    is_adapter_name,
    shapes_in,
    stacked_bytes,
)
from bus.wire.cards import AdapterCard
from worker.models.model_card import FoundAdapters
from worker.models.passed_over import Unfit, bad_adapter, unreadable

DIGESTED_BYTES = 1 << 20
"""The digest of an adapter covers its header and this many bytes after it, to distinguish adapters
of equal shapes."""


def adapters_in(
    folder: Path, *, float32: bool, embeds: bool = False, only: Collection[str] | None = None
) -> FoundAdapters:
    """Return the adapters in a model's folder. `embeds`: an embedding model, which has none.
    `only`: just the adapters with these names; None: all."""
    cards: list[AdapterCard] = []
    files: list[AdapterFiles] = []
    unfit: list[tuple[Path, Unfit]] = []
    for place in _places(folder):
        if only is not None and place.name not in only:
            continue
        try:
            if embeds:
                raise BadAdapter("embedding models cannot have adapters")
            if not is_adapter_name(place.name):
                raise BadAdapter(
                    "requests cannot use this name; use letters, digits, '.', '_' and '-'"
                )
            if len(cards) == MAX_ADAPTERS:
                raise BadAdapter(f"a model has at most {MAX_ADAPTERS} adapters")
            card, read = _read(place)
        except BadAdapter as error:
            unfit.append((place, bad_adapter(str(error))))
        except OSError as error:
            unfit.append((place, unreadable(error)))
        else:
            cards.append(card)
            files.append(read)
    return FoundAdapters(tuple(cards), tuple(unfit), stacked_bytes(files, float32=float32))


def adapter_marks(folder: Path) -> Iterable[tuple[object, ...]]:
    """Yield values that change whenever an adapter in the folder changes."""
    for place in _places(folder):
        yield (str(place),)
        for name in (CONFIG_FILE, *WEIGHTS_FILES):
            try:
                stat = os.stat(place / name)
            except OSError:
                continue
            yield name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


def _places(folder: Path) -> list[Path]:
    try:
        inside = sorted((folder / FOLDER).iterdir())
        return [path for path in inside if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        return []


def _read(folder: Path) -> tuple[AdapterCard, AdapterFiles]:
    """Return the card of the adapter in `folder`, and the facts that its files state. Raises
    BadAdapter, OSError."""
    if not (folder / CONFIG_FILE).is_file():
        raise BadAdapter(f"{CONFIG_FILE} is missing")
    with open(folder / CONFIG_FILE, "rb") as file:
        config_bytes = file.read(MAX_CONFIG_BYTES + 1)
    config = config_in(config_bytes)
    path = next((folder / name for name in WEIGHTS_FILES if (folder / name).is_file()), None)
    if path is None:
        raise BadAdapter(f"neither {' nor '.join(WEIGHTS_FILES)} is in its folder")
    with open(path, "rb") as file:
        seen = os.fstat(file.fileno())
        begin = file.read(8)
        head = begin + file.read(min(int.from_bytes(begin, "little"), MAX_HEADER_BYTES))
        digest = sha256(config_bytes + head + file.read(DIGESTED_BYTES)).hexdigest()
    files = adapter_files(config, shapes_in(head, seen.st_size))
    card = AdapterCard(
        name=folder.name,
        rank=files.rank,
        size_bytes=seen.st_size,
        digest=digest,
        modified_at_s=int(seen.st_mtime),
    )
    return card, files
