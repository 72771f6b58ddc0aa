"""Talks to the disk: the file of one run of tokens, in the safetensors format.

The file has the tokens, the arrays of every layer's KV, and as its last tensor the CRC-32 of the
header and of every other tensor. So it is written in one pass, and a reader notices every wrong bit
and a missing end. The file has a temporary name until it is complete.
"""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from bus.models.kv.files import UNFINISHED
from bus.models.kv.runs import DiskRun
from bus.models.kv.token_chain import TokenChain

FORMAT = "shoal-kv-2"
PIECE_BYTES = 4 << 20
"""After this many bytes, a write or read checks whether its result is still wanted."""
MOST_HEADER_BYTES = 16 << 20
TOKENS, SUMS = "tokens", "sums"
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "U8": 1}


Placed = tuple[str, tuple[int, ...], int, int]
"""A tensor's type, shape, first byte, and the byte after its last."""


class BadRun(Exception):
    """The file is not a valid run: `args[0]` says why."""


class Unwanted(Exception):
    """The read or write was given up, because its result is no longer needed."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One array of a layer's KV. `dtype` is the name of its type in safetensors, such as `BF16`.
    `shape` is (1, heads, tokens, width). `content` has the bytes in row order."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview


@dataclass(frozen=True, slots=True)
class RunHeader:
    """The beginning of a file: its run, and each tensor's (type, shape, start, stop). Offsets count
    from `starts_at`, where the header ends. `sum` is the header's CRC-32."""

    run: DiskRun
    tensors: Mapping[str, Placed]
    starts_at: int
    sum: int


def write_run(
    path: Path, run: DiskRun, how: str, parts: Sequence[StoredPart], wanted: Callable[[], bool]
) -> int:
    """Write a run; return the size of its file. Raises OSError, Unwanted; no file is left then.

    The data is not forced to the disk (fsync): after a power cut a file may be torn, and its sums
    show that when it is read.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    tokens = StoredPart("I32", (len(run.tokens),), memoryview(run.tokens.tobytes()))
    named = {TOKENS: tokens} | {f"part.{at}": part for at, part in enumerate(parts)}
    header = _header(run, how, named)
    sums = array("I", [crc32(header)])
    try:
        opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with FileIO(opened, "w") as file:
            _write(file, memoryview(header), wanted)
            for part in named.values():
                sums.append(_write(file, part.content, wanted))
            _write(file, memoryview(sums.tobytes()), wanted)
            size = file.tell()
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return size


def read_header(file: BufferedReader, name: str, how: str) -> RunHeader:
    """Return the header of an open file that should have the run `name`, computed in this way. The
    tokens are read too. Raises OSError, BadRun."""
    length = struct.unpack("<Q", _exactly(file, 8))[0]
    if length > MOST_HEADER_BYTES:
        raise BadRun("the file's header is too long")
    text = _exactly(file, length)
    try:
        fields = cast("dict[str, Any]", json.loads(text))
        about = fields.pop("__metadata__")
        tensors = {name: _placed(at) for name, at in fields.items()}
        seed, adapter = bytes.fromhex(about["seed"]), str(about["adapter"])
        written_for = (about["format"], about["how"], about["name"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRun(f"the file's header cannot be read ({type(error).__name__})") from error
    if written_for != (FORMAT, how, name):
        raise BadRun("the file was written for another model or version")
    _check(tensors)
    size = 8 + length + max(stop for *_, stop in tensors.values())
    if os.fstat(file.fileno()).st_size != size:
        raise BadRun("the file is truncated")
    tokens = array("i")
    tokens.frombytes(_exactly(file, tensors[TOKENS][3]))
    run = DiskRun(name, seed, tokens, adapter, size)
    head = crc32(text, crc32(struct.pack("<Q", length)))
    return RunHeader(run, tensors, 8 + length, head)


def read_parts(
    file: BufferedReader, header: RunHeader, wanted: Callable[[], bool]
) -> list[StoredPart]:
    """Return the arrays of the layers, in order, from an open file whose header was read. Every sum
    is checked. Raises OSError, BadRun, Unwanted."""
    tensors = header.tensors
    whole = memoryview(bytearray(max(stop for *_, stop in tensors.values())))
    file.seek(header.starts_at)
    for at in range(0, len(whole), PIECE_BYTES):
        if not wanted():
            raise Unwanted
        piece = whole[at : at + PIECE_BYTES]
        if file.readinto(piece) != len(piece):
            raise BadRun("the file is truncated")
    sums = array("I", bytes(_cut(whole, tensors, SUMS)))
    computed = [header.sum]
    parts: list[StoredPart] = []
    for name, (dtype, shape, start, stop) in tensors.items():
        if name == SUMS:
            continue
        content = whole[start:stop]
        computed.append(crc32(content))
        if name != TOKENS:
            parts.append(StoredPart(dtype, shape, content))
    if computed != list(sums) or bytes(_cut(whole, tensors, TOKENS)) != header.run.tokens.tobytes():
        raise BadRun("the checksums differ: the file is damaged")
    return parts


def check_run(path: Path, name: str, how: str, wanted: Callable[[], bool]) -> DiskRun:
    """Return the run in a file, after its header, its name and all its sums were checked, without
    holding its arrays in memory. Raises OSError, BadRun, Unwanted."""
    with path.open("rb") as file:
        header = read_header(file, name, how)
        run = header.run
        if TokenChain(run.tokens, seed=run.seed).run_name(len(run.tokens)) != name:
            raise BadRun("the file's tokens do not match its name")
        computed = [header.sum]
        file.seek(header.starts_at)
        for tensor, (*_, start, stop) in header.tensors.items():
            if tensor == SUMS:
                break
            total = 0
            for at in range(start, stop, PIECE_BYTES):
                if not wanted():
                    raise Unwanted
                total = crc32(_exactly(file, min(PIECE_BYTES, stop - at)), total)
            computed.append(total)
        start, stop = header.tensors[SUMS][2:]
        if array("I", _exactly(file, stop - start)).tolist() != computed:
            raise BadRun("the checksums differ: the file is damaged")
    return run


def _header(run: DiskRun, how: str, parts: Mapping[str, StoredPart]) -> bytes:
    """Return the length and the text of the header."""
    about = {
        "format": FORMAT,
        "how": how,
        "name": run.name,
        "seed": run.seed.hex(),
        "adapter": run.adapter,
    }
    fields: dict[str, Any] = {"__metadata__": about}
    start = 0
    for name, part in parts.items():
        stop = start + len(part.content)
        fields[name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": (start, stop)}
        start = stop
    count = len(parts) + 1
    fields[SUMS] = {"dtype": "U32", "shape": (count,), "data_offsets": (start, start + 4 * count)}
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _placed(at: Mapping[str, Any]) -> Placed:
    start, stop = at["data_offsets"]
    return str(at["dtype"]), tuple(map(int, at["shape"])), int(start), int(stop)


def _check(tensors: Mapping[str, Placed]) -> None:
    """Raise BadRun unless the tensors lie one after the other, first the tokens, last the sums, and
    every shape fits its bytes."""
    names = list(tensors)
    if names[:1] != [TOKENS] or names[-1:] != [SUMS]:
        raise BadRun("the file's tensors are not those of a run of KV")
    expected = 0
    for dtype, shape, start, stop in tensors.values():
        size = WIDTHS.get(dtype, 0)
        for length in shape:
            size *= length
        if start != expected or stop - start != size or size <= 0:
            raise BadRun("the shapes of the file's tensors contradict each other")
        expected = stop
    dtype, shape, *_ = tensors[TOKENS]
    if dtype != "I32" or len(shape) != 1:
        raise BadRun("the file's tokens are not a list of numbers")
    length = shape[0]
    for _dtype, shape, *_ in (tensors[name] for name in names[1:-1]):
        if len(shape) != 4 or shape[0] != 1 or shape[2] != length:
            raise BadRun("the file's arrays do not have one column for each token")
    if tensors[SUMS][:2] != ("U32", (len(names),)):
        raise BadRun("the file's checksums are incomplete")


def _cut(whole: memoryview, tensors: Mapping[str, Placed], name: str) -> memoryview:
    _, _, start, stop = tensors[name]
    return whole[start:stop]


def _exactly(file: BufferedReader, length: int) -> bytes:
    content = file.read(length)
    if len(content) != length:
        raise BadRun("the file is truncated")
    return content


def _write(file: FileIO, content: memoryview, wanted: Callable[[], bool]) -> int:
    """Write all of `content`; return its CRC-32. Raises OSError, Unwanted."""
    total = 0
    for at in range(0, len(content), PIECE_BYTES):
        piece = content[at : at + PIECE_BYTES]
        total = crc32(piece, total)
        while piece:
            if not wanted():
                raise Unwanted
            piece = piece[file.write(piece) :]
    return total
