"""Talks to the disk: reads the configuration, safetensors headers and index of one model's folder.

Finds errors of weights without reading them: a header longer than its file, tensors beyond its end,
an index that names missing files, broken links. Files and headers above a size limit are refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from worker.models.files.tensors import Tensor, tensors_in
from worker.models.passed_over import CONFIG, Unfit, UnfitModel, dead_links, shards_lacking

MAX_HEADER_BYTES = 100 << 20
MAX_JSON_BYTES = 16 << 20
INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs"
"""The beginning of a file that Git LFS stores in place of a large one."""
ANEW = "download it again"
TEMPLATE_CHARACTERS = 1 << 20
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises OSError; ValueError or RecursionError if the file is
    too large or contains no JSON object."""
    with open(path, "rb") as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_JSON_BYTES >> 20} MiB")
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return cast(dict[str, Any], value)


def config_in(folder: Path) -> dict[str, Any]:
    """Return a model's configuration. Raises OSError, UnfitModel."""
    try:
        return json_object(folder / CONFIG)
    except (ValueError, RecursionError) as error:
        raise UnfitModel("bad_config", f"{CONFIG} is invalid: {error}", ANEW) from error


def header_of(path: Path) -> tuple[bytes, list[Tensor]]:
    """Return the JSON of a safetensors file's header, which follows 8 bytes of length, and its
    tensors. Raises OSError, and UnfitModel for another kind of file or a truncated one."""
    with open(path, "rb") as file:
        begin, size = file.read(8), os.fstat(file.fileno()).st_size
        _refuse_pointer(path, begin)
        length = int.from_bytes(begin, "little")
        if length > MAX_HEADER_BYTES:
            raise UnfitModel("bad_weights", f"{path.name} is not a safetensors file", ANEW)
        header = file.read(length) if len(begin) == 8 else b""
    try:
        tensors = tensors_in(header) if header and len(header) == length else []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{path.name} is not a safetensors file: {error}"
        raise UnfitModel("bad_weights", why, ANEW) from error
    whole = 8 + length + max((tensor.last for tensor in tensors), default=0)
    if not header or size < whole:
        why = f"{path.name} is truncated: {size:,} of at least {whole:,} bytes"
        raise UnfitModel("cut", why, ANEW)
    return header, tensors


def refuse_pointer(path: Path) -> None:
    """Raise UnfitModel if a file is a Git LFS pointer. Raises OSError."""
    with open(path, "rb") as file:
        _refuse_pointer(path, file.read(8))


def lacking_shards(folder: Path, here: Collection[str], tensors: Iterable[Tensor]) -> Unfit | None:
    """Return the files that the weights' index names and that are missing; None if there is no
    readable index, or nothing is missing. `here` are the existing files. A missing file does not
    count if another file has its tensors."""
    try:
        named: object = json_object(folder / INDEX).get("weight_map")
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(named, dict):
        return None
    held = {tensor.name for tensor in tensors}
    pairs = cast(Mapping[object, object], named).items()
    lacking = {str(file) for tensor, file in pairs if tensor not in held and file not in here}
    return shards_lacking(INDEX, lacking) if lacking else None


def links_to_nothing(folder: Path, names: Iterable[str]) -> Unfit | None:
    """Return a notice about the entries that are broken links; None if there are none."""
    dead: dict[str, str] = {}
    for name in names:
        path = folder / name
        if path.is_symlink() and not path.exists():
            dead[name] = os.readlink(path)
    return dead_links(dead)


def _refuse_pointer(path: Path, begin: bytes) -> None:
    if begin and POINTER.startswith(begin):
        remedy = "run `git lfs pull` in its folder"
        why = f"{path.name} is a Git LFS pointer, not the file itself"
        raise UnfitModel("lfs_pointer", why, remedy)


def template_in(folder: Path) -> str:
    """Return the text of the chat template; "" if there is none."""
    with contextlib.suppress(OSError), open(folder / TEMPLATE_FILES[0], errors="replace") as file:
        return file.read(TEMPLATE_CHARACTERS)
    for name in TEMPLATE_FILES[1:]:
        try:
            setting: object = json_object(folder / name).get("chat_template")
        except (OSError, ValueError):
            continue
        if isinstance(setting, list):
            return json.dumps(setting)
        if isinstance(setting, str) and setting:
            return setting
    return ""
