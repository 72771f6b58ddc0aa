"""Talks to this node's disk: what a model's own files say to those who ask about the model.

Nothing of it is needed to serve: what is missing, broken, too large, or a link that leads out of
the model's folder (and its cache) is left out. To be called from a thread.
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
"""Of all headers of a model's weights together, some 40,000 tensors; beyond it none is listed.
Parsing lets nothing else run: of that many bytes it takes some 20 ms."""
MOST_FILES = 1_000
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model's folder says: its configuration, chat template, license, tensors. Empty: it is
    not said, or could not be read."""

    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str = ""
    license: str = ""
    tensors: tuple[StoredTensor, ...] = ()


def read_model_files(folder: Path, *, with_tensors: bool) -> ModelFiles:
    """Read a model's folder; the tensors' names and shapes only where they are asked for."""
    return ModelFiles(
        config=_config(folder),
        template=_template(folder),
        license=_license(folder),
        tensors=_tensors(folder) if with_tensors else (),
    )


def files_on_disk(folder: Path) -> list[dict[str, str | int]]:
    """Return the files of a model's folder, by path, with their bytes and the hash that each came
    with; "" for one that came with none. Nothing where the folder is gone."""
    said: dict[str, Any] = {}
    with contextlib.suppress(orjson.JSONDecodeError, KeyError):
        said = _object(_object(orjson.loads(_bytes(folder, ORIGIN_FILE, TOKENIZER_BYTES)))["files"])
    found: list[dict[str, str | int]] = []
    with contextlib.suppress(OSError):
        for path in islice(sorted(folder.rglob("*")), MOST_FILES):
            name = str(path.relative_to(folder))
            file = None if _is_hidden(name) else _inside(folder, name)
            if file is not None:
                size, came_with = file.stat().st_size, said.get(name)
                known = came_with if isinstance(came_with, str) else ""
                plain = name.encode(errors="backslashreplace").decode()
                found.append({"path": plain, "size_bytes": size, "hash": known})
    return found


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _template(folder: Path) -> str:
    found = _text(folder, "chat_template.jinja", TEXT_BYTES)
    if found:
        return found
    for name in ("tokenizer_config.json", "chat_template.json"):
        with contextlib.suppress(orjson.JSONDecodeError):
            template = _object(orjson.loads(_bytes(folder, name, TOKENIZER_BYTES))).get(
                "chat_template"
            )
            if isinstance(template, str) and template:
                return template
    return ""


def _license(folder: Path) -> str:
    found = (_text(folder, name, TEXT_BYTES) for name in LICENSES)
    text = next(filter(None, found), "")
    if text:
        return text
    with contextlib.suppress(tomllib.TOMLDecodeError):
        said = tomllib.loads(_text(folder, "card.toml", TEXT_BYTES)).get("license")
        return said if isinstance(said, str) else ""
    return ""


def _tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of all weights, file by file; none where one header cannot be read."""
    found: list[StoredTensor] = []
    left = HEADERS_BYTES
    for path in sorted(folder.glob("*.safetensors")):
        header = _header(folder, path.name, left)
        left -= len(header)
        try:
            found += [
                StoredTensor(name, _word(entry["dtype"]), _shape(entry["shape"]))
                for name, entry in orjson.loads(header).items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()
    return tuple(found)


def _shape(said: list[int]) -> tuple[int, ...]:
    """Return a shape. Raises ValueError for what is none."""
    shape = tuple(map(int, said))
    if not all(0 <= size < 2**63 for size in shape):
        raise ValueError("a size out of range")
    return shape


def _word(said: object) -> str:
    """Return a text. Raises TypeError for what is none."""
    if not isinstance(said, str):
        raise TypeError("not text")
    return said


def _header(folder: Path, name: str, most: int) -> bytes:
    """Return the header of a file of weights; empty for one of over `most` bytes."""
    path = _inside(folder, name)
    if path is None:
        return b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(length) if length <= most else b""
    return b""


def _config(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        # not orjson: configurations may hold infinities
        return _object(json.loads(_bytes(folder, "config.json", CONFIG_BYTES)))
    return {}


def _object(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text(folder: Path, name: str, most: int) -> str:
    return _bytes(folder, name, most).decode(errors="replace")


def _bytes(folder: Path, name: str, most: int) -> bytes:
    """Return a file's bytes; none without a file, and of one of over `most` bytes."""
    path = _inside(folder, name)
    if path is None:
        return b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        read = file.read(most + 1)
        return read if len(read) <= most else b""
    return b""


def _inside(folder: Path, name: str) -> Path | None:
    """Return a regular file of the folder, resolved; None for none, or one that lies elsewhere.

    Files of a cache's snapshot (`<repository>/snapshots/<revision>`) lie in its repository.
    """
    base = folder.resolve()
    home = base.parent.parent if base.parent.name == "snapshots" else base
    with contextlib.suppress(OSError, RuntimeError):
        path = (base / name).resolve()
        if path.is_relative_to(home) and path.is_file():
            return path
    return None
