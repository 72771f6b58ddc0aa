"""Reads the header of a GGUF file: the metadata and the table of tensors (ggml's `docs/gguf.md`).

Pure: it reads from a stream that the caller opened, in order. Versions 2 and 3, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

from bus.models.gguf.tensors import TYPES, GgufTensor

MAGIC: Final = b"GGUF"
VERSIONS = (2, 3)
MOST_BYTES = 128 << 20
"""The limit on the size of a header. With a vocabulary of 260,000 tokens it has 16 MB."""
READ_BYTES = 1 << 20
MOST_PAIRS, MOST_TENSORS = 1 << 16, 1 << 17
MOST_NAME_BYTES, MOST_TEXT_BYTES = (1 << 16) - 1, 8 << 20
MOST_DIMENSIONS = 4
MOST_ALIGNMENT = 1 << 16
SHORT = 1_024
"""Arrays with at most this many elements are always kept."""
MOST_ELEMENTS = 1 << 22
"""The limit on the elements of an array. A vocabulary of 260,000 tokens has 520,000 merges."""
MOST_DEPTH = 2
_TEXT, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Types of metadata values other than texts and arrays, as formats of `struct`."""


class BadGguf(ValueError):
    """A file whose header is invalid, or that shoal cannot use; the text says why."""


class CutGguf(BadGguf):
    """A file that ends too early."""


class OtherGguf(BadGguf):
    """A valid file that shoal cannot serve, for example a part of a model or an adapter. `remedy`
    says what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class LongArray:
    """A long array in the metadata that was skipped: only its number of elements is known."""

    count: int


Value = str | int | float | bool | LongArray | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a file. `data_at` is the offset of the first tensor's data in the file."""

    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]
    data_at: int


def read_header(stream: BinaryIO, size_bytes: int, keep: Collection[str] = ()) -> GgufHeader:
    """Return the header of a file of `size_bytes` bytes; `stream` is at its beginning. Long arrays
    are skipped unless their keys are in `keep`. Raises BadGguf; OSError of the stream."""
    source = _Source(stream, size_bytes)
    if (magic := source.read(4)) != MAGIC:
        raise BadGguf(f"the file begins with {magic!r}, not with {MAGIC!r}")
    version = source.number("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise BadGguf("the file is big-endian; only little-endian files are supported")
        raise BadGguf(f"the file's version is {version}; the supported versions are 2 and 3")
    tensors, pairs = source.number("Q"), source.number("Q")
    if tensors > MOST_TENSORS:
        raise BadGguf(f"the file has {tensors:,} tensors; the limit is {MOST_TENSORS:,}")
    if pairs > MOST_PAIRS:
        raise BadGguf(f"the file has {pairs:,} metadata entries; the limit is {MOST_PAIRS:,}")
    metadata: dict[str, Value] = {}
    for _ in range(pairs):
        key = source.name("a metadata key")
        if key in metadata:
            raise BadGguf(f"the file's metadata has {key[:80]!r} twice")
        metadata[key] = _value(source, source.number("I"), key, keep=key in keep)
    table = tuple(_tensor(source) for _ in range(tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= MOST_ALIGNMENT:
        raise BadGguf(f"general.alignment is {_shown(alignment)}; it must be 1 to {MOST_ALIGNMENT}")
    data_at = -(-source.at // alignment) * alignment
    _check_places(table, alignment, size_bytes - data_at, size_bytes)
    return GgufHeader(metadata, table, data_at)


class _Source:
    """Reads a stream in blocks. `at` is the offset of the next byte. No more than `MOST_BYTES`
    bytes are read, and none beyond the stated end of the file."""

    def __init__(self, stream: BinaryIO, size_bytes: int) -> None:
        self.at = 0
        self._stream = stream
        self._size = size_bytes
        self._data = bytearray()

    def skip(self, count: int) -> int:
        """Pass over `count` bytes; return the offset of the first."""
        first, end = self.at, self.at + count
        if end > self._size:
            raise CutGguf(
                f"the file is truncated: the header needs {end:,} of {self._size:,} bytes"
            )
        if end > MOST_BYTES:
            raise BadGguf(f"the file's header is larger than {MOST_BYTES >> 20} MiB")
        while len(self._data) < end:
            data = self._stream.read(max(READ_BYTES, end - len(self._data)))
            if not data:
                raise CutGguf(f"the file is truncated after {len(self._data):,} bytes")
            self._data += data
        self.at = end
        return first

    def read(self, count: int) -> bytes:
        first = self.skip(count)
        return bytes(self._data[first : self.at])

    def number(self, form: str) -> int:
        """Return the next whole number; `form` is a format of `struct`."""
        return int(self.numbers(form, 1)[0])

    def numbers(self, form: str, count: int) -> tuple[int | float | bool, ...]:
        form = f"<{count}{form}"
        return struct.unpack_from(form, self._data, self.skip(struct.calcsize(form)))

    def name(self, what: str) -> str:
        return self.text(what, MOST_NAME_BYTES)

    def text(self, what: str, most_bytes: int = MOST_TEXT_BYTES) -> str:
        data = self.read(self.length(what, most_bytes))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BadGguf(f"{what} is not UTF-8") from error

    def length(self, what: str, most_bytes: int) -> int:
        """Return the length of the next text. Raises BadGguf if it is too long."""
        length = self.number("Q")
        if length > most_bytes:
            raise BadGguf(f"{what} has {length:,} bytes; the limit is {most_bytes:,}")
        return length


def _value(source: _Source, kind: int, key: str, *, keep: bool, depth: int = 0) -> Value:
    what = f"the value of {key[:80]!r}"
    if kind in _NUMBERS:
        return source.numbers(_NUMBERS[kind], 1)[0]
    if kind == _TEXT:
        return source.text(what)
    if kind != _ARRAY:
        raise BadGguf(f"{what} has the unknown type {kind}")
    if depth == MOST_DEPTH:
        raise BadGguf(f"{what} is nested too deeply")
    kind, count = source.number("I"), source.number("Q")
    most = SHORT if kind == _ARRAY else MOST_ELEMENTS
    if count > most:
        raise BadGguf(f"{what} has {count:,} elements; the limit is {most:,}")
    is_kept = keep or count <= SHORT
    if kind in _NUMBERS:
        if is_kept:
            return source.numbers(_NUMBERS[kind], count)
        source.skip(count * struct.calcsize(f"<{_NUMBERS[kind]}"))
        return LongArray(count)
    if is_kept:
        return tuple(_value(source, kind, key, keep=keep, depth=depth + 1) for _ in range(count))
    for _ in range(count):
        source.skip(source.length(what, MOST_TEXT_BYTES))
    return LongArray(count)


def _tensor(source: _Source) -> GgufTensor:
    name = source.name("a tensor's name")
    what = f"the tensor {name[:80]!r}"
    dimensions = source.number("I")
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise BadGguf(f"{what} has {dimensions} dimensions; it must have 1 to {MOST_DIMENSIONS}")
    shape = tuple(map(int, source.numbers("Q", dimensions)))
    number, offset = source.number("I"), source.number("Q")
    kind = TYPES.get(number)
    if kind is None:
        raise BadGguf(f"{what} has the type {number}, which shoal does not know")
    count = 1
    for side in shape:
        count *= side
        if not 0 < count < 1 << 62:
            raise BadGguf(f"{what} has an impossible shape: {shape}")
    if shape[0] % kind.values:
        raise BadGguf(
            f"{what} has rows of {shape[0]} values; {kind.name} stores blocks of {kind.values}"
        )
    return GgufTensor(name, kind.name, count, count // kind.values * kind.size_bytes, offset)


def _check_places(
    tensors: Collection[GgufTensor], alignment: int, data_bytes: int, size_bytes: int
) -> None:
    """Raise BadGguf if tensors have equal names, lie beyond the end of the file, are misaligned, or
    overlap."""
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise BadGguf("two of its tensors have the same name")
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        what = f"the tensor {tensor.name[:80]!r}"
        if tensor.offset % alignment:
            raise BadGguf(f"{what} is not aligned to {alignment} bytes")
        if tensor.offset < end:
            raise BadGguf(f"{what} overlaps another tensor")
        end = tensor.offset + tensor.size_bytes
        if end > data_bytes:
            lacking = f"{end - data_bytes:,} bytes of {what} are missing"
            raise CutGguf(f"the file is truncated: {lacking} from its {size_bytes:,} bytes")


def _shown(value: Value) -> str:
    return repr(value)[:80]
