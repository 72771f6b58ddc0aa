"""The files of a GGUF model: one file, or parts of one, as llama.cpp's `llama-gguf-split` writes.

Pure. Part N of M is named `NAME-0000N-of-0000M.gguf`. The header of each part has `split.no`, which
counts from 0, `split.count` and `split.tensors.count`. The first part has the model's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bus.models.gguf.header import BadGguf, GgufHeader

SUFFIX = ".gguf"
NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.I)


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a file that is one part of a model: the name without the number of the part
    (`stem`), that number (from 1), and the number of parts."""

    stem: str
    number: int
    count: int


def is_gguf(name: str) -> bool:
    """Return whether a file is a GGUF file, by its name."""
    return name.lower().endswith(SUFFIX)


def part_name(name: str) -> PartName | None:
    """Return the parsed name of a part; None if `name` has no part number, so the file is a whole
    model."""
    match = _PART.fullmatch(name)
    return None if match is None else PartName(match[1], int(match[2]), int(match[3]))


def weight_files(names: Iterable[str]) -> tuple[str, ...]:
    """Return the GGUF files of a model's folder: one whole file, or all parts of one, in order.
    Return nothing if there are files of several models, or if a part is missing."""
    files = sorted(filter(is_gguf, names))
    if len(files) == 1 and part_name(files[0]) is None:
        return tuple(files)
    parts = _parts_of_one(files)
    return tuple(files) if parts and len(parts) == parts[0].count else ()


def weight_file(names: Iterable[str]) -> str | None:
    """Return the file that an engine opens: a model's only GGUF file, or its first part. None if
    the folder has no complete model, or several."""
    return next(iter(weight_files(names)), None)


def lacking_parts(files: Collection[str]) -> str:
    """Return which parts of the model are missing in `files`, as text; empty if none is, or if
    `files` are not parts of one model."""
    parts = _parts_of_one(files)
    if not parts or len(parts) == parts[0].count:
        return ""
    stem, count = parts[0].stem, parts[0].count
    numbers = {part.number for part in parts}
    first = next(number for number in range(1, count + 1) if number not in numbers)
    name = f"{stem}-{first:05}-of-{count:05}{SUFFIX}"
    more = count - len(parts) - 1
    return f"{name} and {more} more parts are missing" if more else f"{name} is missing"


def joined(headers: Sequence[GgufHeader]) -> GgufHeader:
    """Return one header for a model whose parts have these `headers`, in order: the metadata of the
    first part, and the tensors of all. Raises BadGguf if the numbers in a header do not match its
    place in the list, or if two parts have a tensor of the same name."""
    first, count = headers[0], len(headers)
    if count == 1:
        return first
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    for number, header in enumerate(headers):
        for key, value in ((NUMBER, number), (COUNT, count), (TENSORS, len(tensors))):
            if (stated := header.metadata.get(key)) != value:
                raise BadGguf(
                    f"part {number + 1} of {count} has {key} = {repr(stated)[:80]}; the files here "
                    f"need {value}, so it belongs to another file"
                )
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise BadGguf("two of its parts have a tensor of the same name")
    return GgufHeader(first.metadata, tensors, first.data_at)


def _parts_of_one(files: Collection[str]) -> list[PartName]:
    """Return the names of these parts of one model, in order; empty if they are other files."""
    parts = [part for part in map(part_name, sorted(files)) if part is not None]
    are_one = len(parts) == len(files) and len({(part.stem, part.count) for part in parts}) == 1
    return parts if are_one and all(0 < part.number <= part.count for part in parts) else []
