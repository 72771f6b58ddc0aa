"""Talks to this node's disk: reads what a model's own files say about the model.

Serving a model needs none of this information. A file that is missing, broken or too large is left
out. So is a link that leads out of the model's folder and its cache. Every function blocks, so it
belongs in a thread.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import orjson

from bus.wire.messages.weights import ORIGIN_FILE

CONFIG_BYTES, TEXT_BYTES, TOKENIZER_BYTES = 1 << 20, 1 << 20, 4 << 20
HEADERS_BYTES = 4 << 20
"""The most bytes of the headers of all a model's weight files, enough for some 40,000 tensors. If
the headers are longer, no tensor is listed. Parsing this many bytes blocks the process for some 20
ms."""
MOST_FILES = 1_000
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor, as its file describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Contents of a model's folder: its configuration, chat template, license and tensors. A
    missing or unreadable part is empty."""

    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str = ""
    license: str = ""
    tensors: tuple[StoredTensor, ...] = ()


def read_model_files(folder: Path, *, with_tensors: bool) -> ModelFiles:
    """Read a model's folder. `with_tensors`: also read the tensors' names and shapes."""
    return ModelFiles(
        config=_config(folder),
        template=_template(folder),
        license=_license(folder),
        tensors=_tensors(folder) if with_tensors else (),
    )


def files_on_disk(folder: Path) -> list[dict[str, str | int]]:
    """Return the files of a model's folder, by path. Each file has its bytes and the hash that it
    had when it was downloaded ("" if unknown). Empty if the folder does not exist any more. At most
    `MOST_FILES` paths are visited."""
    hashes: dict[str, Any] = {}
    with contextlib.suppress(orjson.JSONDecodeError, KeyError):
        hashes = _object(
            _object(orjson.loads(_bytes(folder, ORIGIN_FILE, TOKENIZER_BYTES)))["files"]
        )
    files: list[dict[str, str | int]] = []
    with contextlib.suppress(OSError):
        for path in islice(sorted(folder.rglob("*")), MOST_FILES):
            name = str(path.relative_to(folder))
            file = None if _is_hidden(name) else _inside(folder, name)
            if file is not None:
                size, came_with = file.stat().st_size, hashes.get(name)
                hash_text = came_with if isinstance(came_with, str) else ""
                plain = name.encode(errors="backslashreplace").decode()
                files.append({"path": plain, "size_bytes": size, "hash": hash_text})
    return files


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _template(folder: Path) -> str:
    text = _text(folder, "chat_template.jinja", TEXT_BYTES)
    if text:
        return text
    for name in ("tokenizer_config.json", "chat_template.json"):
        with contextlib.suppress(orjson.JSONDecodeError):
            template = _object(orjson.loads(_bytes(folder, name, TOKENIZER_BYTES))).get(
                "chat_template"
            )
            if isinstance(template, str) and template:
                return template
    return ""


def _license(folder: Path) -> str:
    texts = (_text(folder, name, TEXT_BYTES) for name in LICENSES)
    text = next(filter(None, texts), "")
    if text:
        return text
    with contextlib.suppress(tomllib.TOMLDecodeError):
        license_name = tomllib.loads(_text(folder, "card.toml", TEXT_BYTES)).get("license")
        return license_name if isinstance(license_name, str) else ""
    return ""


def _tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of all weight files, file by file. If one header cannot be read, return
    none."""
    tensors: list[StoredTensor] = []
    left = HEADERS_BYTES
    for path in sorted(folder.glob("*.safetensors")):
        header = _header(folder, path.name, left)
        left -= len(header)
        try:
            tensors += [
                StoredTensor(name, _word(entry["dtype"]), _shape(entry["shape"]))
                for name, entry in orjson.loads(header).items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()
    return tuple(tensors)


def _shape(sizes: list[int]) -> tuple[int, ...]:
    """Return a tensor's shape. Raises ValueError if a size is out of range."""
    shape = tuple(map(int, sizes))
    if not all(0 <= size < 2**63 for size in shape):
        raise ValueError("a size out of range")
    return shape


def _word(value: object) -> str:
    """Return `value` if it is a string. Raises TypeError for any other value."""
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def _header(folder: Path, name: str, most: int) -> bytes:
    """Return the header of a weight file. Empty if the header is missing or larger than `most`
    bytes."""
    path = _inside(folder, name)
    if path is None:
        return b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(length) if length <= most else b""
    return b""


def _config(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        # not orjson: configurations may contain infinities
        return _object(json.loads(_bytes(folder, "config.json", CONFIG_BYTES)))
    return {}


def _object(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text(folder: Path, name: str, most: int) -> str:
    return _bytes(folder, name, most).decode(errors="replace")


def _bytes(folder: Path, name: str, most: int) -> bytes:
    """Return a file's bytes; empty if it is missing or larger than `most` bytes."""
    path = _inside(folder, name)
    if path is None:
        return b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        read = file.read(most + 1)
        return read if len(read) <= most else b""
    return b""


def _inside(folder: Path, name: str) -> Path | None:
    """Return a regular file of the folder, resolved; None if it is missing or lies outside.

    Files of a cache's snapshot (`<repository>/snapshots/<revision>`) may lie anywhere in the
    repository.
    """
    base = folder.resolve()
    home = base.parent.parent if base.parent.name == "snapshots" else base
    with contextlib.suppress(OSError, RuntimeError):
        path = (base / name).resolve()
        if path.is_relative_to(home) and path.is_file():
            return path
    return None
