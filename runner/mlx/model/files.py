# pyright: reportUnknownMemberType=false
"""Talks to the disk: checks whether MLX can load a model's files, and names a bad file.

MLX's errors about truncated or invalid files do not name the file. So the headers of the files are
checked first. They have some kilobytes each; the weights are not read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import re
import struct
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from runner.library import MODEL_REMAPPING

MAX_HEADER_BYTES = 100 << 20
LENGTH_BYTES = 8
BYTES_OF = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "C64": 8,
}  # fmt: skip
"""The size in bytes of one value, for each data type that MLX reads from safetensors files."""
ANEW = "download it again"
TOKENIZER = "tokenizer.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""The errors that reading a tokenizer file may raise."""


def problem_of(folder: Path) -> str | None:
    """Return what is wrong with a model's files and what the user must do; None if config.json and
    the headers of the weights files are valid."""
    try:
        family = _family(folder / "config.json")
    except FileNotFoundError:
        return f"config.json is missing; {ANEW}"
    except (OSError, ValueError, RecursionError) as error:
        return f"config.json cannot be read ({error}); {ANEW}"
    if not family:
        return f"config.json has no model_type; {ANEW}"
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            why = wrong_file(path)
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
        if why is not None:
            return f"{path.name} {why}; {ANEW}"
    return None


def unknown_family(folder: Path) -> str | None:
    """Return an error text if mlx-lm does not support the family of a model that it could not open;
    None if it does. The folder's `config.json` must be readable."""
    family = _family(folder / "config.json")
    name = MODEL_REMAPPING.get(family, family)
    named = re.fullmatch(r"[A-Za-z0-9_-]+", name) is not None
    if named and importlib.util.find_spec(f"mlx_lm.models.{name}") is not None:
        return None
    text = f"mlx-lm {version('mlx-lm')} (installed) does not support the model family '{family}'"
    return f"{text}; a later version of mlx-lm may support it; otherwise use another model"


def other_vocabulary(folder: Path, target: Path) -> str | None:
    """Return why the token ids of two models do not have the same meaning; None if they have."""
    contents: list[Any] = []
    for place in (folder, target):
        try:
            contents.append(_tokens_in(place))
        except UNREADABLE as error:
            return f"{place.name}/{TOKENIZER} cannot be compared ({type(error).__name__}: {error})"
    return None if contents[0] == contents[1] else "its tokenizer has another vocabulary"


def vocabulary_digest(folder: Path) -> str:
    """Return a digest of the vocabulary, which is equal for models whose token ids have the same
    meaning. It is empty if the tokenizer file cannot be read. For a large vocabulary, this takes
    some tenths of a second."""
    try:
        text = json.dumps(_tokens_in(folder), sort_keys=True)
    except UNREADABLE:
        return ""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _tokens_in(folder: Path) -> Any:
    """Return the vocabulary in a model's tokenizer file, and the added tokens. Raises one of the
    errors in `UNREADABLE`."""
    content = json.loads((folder / TOKENIZER).read_bytes())
    added = {entry["content"]: entry["id"] for entry in content.get("added_tokens") or ()}
    return content["model"]["vocab"], added


def _family(config: Path) -> str:
    content: Any = json.loads(config.read_text())
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    family = cast(dict[str, Any], content).get("model_type")
    return family if isinstance(family, str) else ""


def wrong_file(path: Path) -> str | None:
    """Return what is wrong with a safetensors file, as text that follows the file's name; None if
    the file's header and size agree. Raises OSError."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        begin = file.read(LENGTH_BYTES)
        length = struct.unpack("<Q", begin)[0] if len(begin) == LENGTH_BYTES else 0
        if not 0 < length <= MAX_HEADER_BYTES:
            return "is empty or truncated" if size <= LENGTH_BYTES else "is not a safetensors file"
        header = file.read(length)
    if len(header) < length:
        return f"is truncated: {size:,} of at least {LENGTH_BYTES + length:,} bytes"
    try:
        entries = cast(dict[str, Any], json.loads(header))
        entries.pop("__metadata__", None)
        ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
        odd = next((text for name, entry in entries.items() if (text := _odd(name, entry))), None)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "is not a safetensors file, or its header is corrupt"
    whole = LENGTH_BYTES + length + max(ends, default=0)
    return f"is truncated: {size:,} of {whole:,} bytes" if size < whole else odd


def _odd(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a tensor's entry in the header, as text that follows the file's
    name; None if the entry is valid. Raises KeyError, TypeError or ValueError for a malformed
    entry."""
    dtype, (first, last) = str(entry["dtype"]), entry["data_offsets"]
    if dtype not in BYTES_OF:
        return f"stores {name} in a type that MLX does not read ({dtype[:40]})"
    wanted = math.prod(map(int, entry["shape"])) * BYTES_OF[dtype]
    return (
        f"has {last - first:,} bytes for {name}; {wanted:,} are required"
        if wanted != last - first
        else None
    )
