# pyright: reportUnknownMemberType=false
"""Talks to the disk: whether a model's files are what MLX can load, in words that name the file.

MLX says of a file that is cut, or is none, what is wrong with it and not which it is. So headers
are read here before, without the weights: some kilobytes of each file.
"""

from __future__ import annotations

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
"""A value of each type that MLX reads from safetensors."""
ANEW = "fetch it anew from where the model came from"


def problem_of(folder: Path) -> str | None:
    """Return what is wrong with the files of a model, and what to do; None where they are sound, as
    far as their headers tell."""
    try:
        family = _family(folder / "config.json")
    except FileNotFoundError:
        return f"config.json is missing; {ANEW}"
    except (OSError, ValueError, RecursionError) as error:
        return f"config.json cannot be read ({error}); {ANEW}"
    if not family:
        return f"config.json names no family (model_type); {ANEW}"
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            why = _wrong(path)
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
        if why is not None:
            return f"{path.name} {why}; {ANEW}"
    return None


def unknown_family(folder: Path) -> str | None:
    """Return that mlx-lm does not know a model's family, for one that it did not open; None where
    it knows it. The folder's `config.json` can be read."""
    family = _family(folder / "config.json")
    name = MODEL_REMAPPING.get(family, family)
    named = re.fullmatch(r"[A-Za-z0-9_-]+", name) is not None
    if named and importlib.util.find_spec(f"mlx_lm.models.{name}") is not None:
        return None
    text = f"mlx-lm {version('mlx-lm')}, which is installed, knows no family '{family}'"
    return f"{text}; a later one may, or take another model"


def _family(config: Path) -> str:
    said: Any = json.loads(config.read_text())
    if not isinstance(said, dict):
        raise ValueError("it is no JSON object")
    family = cast(dict[str, Any], said).get("model_type")
    return family if isinstance(family, str) else ""


def _wrong(path: Path) -> str | None:
    """Return what is wrong with a safetensors file; None where header and size fit each other.
    Raises OSError."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        begin = file.read(LENGTH_BYTES)
        length = struct.unpack("<Q", begin)[0] if len(begin) == LENGTH_BYTES else 0
        if not 0 < length <= MAX_HEADER_BYTES:
            return "is empty or cut" if size <= LENGTH_BYTES else "is no safetensors file"
        header = file.read(length)
    if len(header) < length:
        return f"is cut: {size:,} of {LENGTH_BYTES + length:,} bytes or more"
    try:
        entries = cast(dict[str, Any], json.loads(header))
        entries.pop("__metadata__", None)
        ends = [int(one["data_offsets"][1]) for one in entries.values()]
        odd = next((text for name, one in entries.items() if (text := _odd(name, one))), None)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "is no safetensors file, or its header is spoilt"
    whole = LENGTH_BYTES + length + max(ends, default=0)
    return f"is cut: {size:,} of {whole:,} bytes" if size < whole else odd


def _odd(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a tensor's place in its file; None where it is as it has to be.
    Raises KeyError, TypeError or ValueError for what is no such entry."""
    dtype, (first, last) = str(entry["dtype"]), entry["data_offsets"]
    if dtype not in BYTES_OF:
        return f"has {name} in a type that MLX does not read ({dtype[:40]})"
    wanted = math.prod(map(int, entry["shape"])) * BYTES_OF[dtype]
    return (
        f"has {last - first:,} bytes for {name}, not {wanted:,}" if wanted != last - first else None
    )
