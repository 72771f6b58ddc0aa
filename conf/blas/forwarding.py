"""Builds a shared library that gives functions of another library their usual names.

Pure. The package scipy-openblas32 has `scipy_cblas_sgemm` where MLX calls `cblas_sgemm`. The
library built here has one jump per function, and names the other library as its dependency. It
needs no compiler, because many machines have none. The format is ELF, 64 bits, for x86-64 and
ARM64; https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html describes it.

The file has two segments. The first is read and executed: headers, hash table, symbols, names,
relocations, jumps. The second is written by the loader: the dynamic section, and the address of
each function.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

PREFIX = "scipy_"
MACHINES = {"x86_64": 62, "aarch64": 183}
"""ELF's number of each machine for which a library can be built."""
BLAS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "cblas_sgemv")
LAPACK = (
    *("sgeqrf_", "dgeqrf_", "sorgqr_", "dorgqr_", "sgetrf_", "dgetrf_", "sgetri_", "dgetri_"),
    *("spotrf_", "dpotrf_", "strtri_", "dtrtri_", "ssyevd_", "dsyevd_", "cheevd_", "sgeev_"),
    *("dgeev_", "cgeev_", "sgesdd_", "dgesdd_", "cgesdd_"),
)
OPENBLAS = ("openblas_set_num_threads", "openblas_get_num_threads", "openblas_get_corename")
NAMES = (*BLAS, *LAPACK, *OPENBLAS)
"""The functions that MLX and this package call."""

_PAGE = 1 << 16
"""The largest page of both machines. The second segment begins on a page of its own."""
_JUMP_BYTES = 16
_ADDRESS_RELOCATION = {"x86_64": 6, "aarch64": 1025}
_SHARED_OBJECT, _LOAD, _DYNAMIC, _STACK = 3, 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_FUNCTION = 0x12
"""A symbol's type and binding: a global function."""


def forwarding_library(library: str, names: Sequence[str], machine: str) -> bytes:
    """Return an ELF library whose functions `names` jump to `PREFIX + name` of `library`.

    `library` is an absolute path. `machine` is a key of `MACHINES`.
    """
    count = len(names)
    texts = _Texts()
    imported = [texts.add(PREFIX + name) for name in names]
    exported = [texts.add(name) for name in names]
    needed, own = texts.add(library), texts.add("libshoal-blas.so")

    hash_at = 64 + 4 * 56
    hashes = _hash_table([*(PREFIX + name for name in names), *names])
    symbols_at = _aligned(hash_at + len(hashes), 8)
    texts_at = symbols_at + 24 * (1 + 2 * count)
    relocations_at = _aligned(texts_at + len(texts.data), 8)
    jumps_at = _aligned(relocations_at + 24 * count, 16)
    read_bytes = jumps_at + _JUMP_BYTES * count
    dynamic_file_at = _aligned(read_bytes, 16)
    dynamic_at = dynamic_file_at + _PAGE
    tags = [
        (1, needed), (14, own), (4, hash_at), (5, texts_at), (6, symbols_at), (10, len(texts.data)),
        (11, 24), (7, relocations_at), (8, 24 * count), (9, 24), (0, 0),
    ]  # fmt: skip
    addresses_at = dynamic_at + 16 * len(tags)
    written_bytes = 16 * len(tags) + 8 * count

    segments = [
        (_LOAD, _READ | _EXECUTE, 0, 0, read_bytes, _PAGE),
        (_LOAD, _READ | _WRITE, dynamic_file_at, dynamic_at, written_bytes, _PAGE),
        (_DYNAMIC, _READ | _WRITE, dynamic_file_at, dynamic_at, 16 * len(tags), 8),
        (_STACK, _READ | _WRITE, 0, 0, 0, 16),
    ]
    kind = _ADDRESS_RELOCATION[machine]
    file = bytearray(dynamic_file_at + written_bytes)
    _put(file, 0, _header(machine, len(segments)))
    _put(file, 64, b"".join(_segment(*segment) for segment in segments))
    _put(file, hash_at, hashes)
    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    symbols += [struct.pack("<IBBHQQ", name, _FUNCTION, 0, 0, 0, 0) for name in imported]
    symbols += [
        struct.pack("<IBBHQQ", name, _FUNCTION, 0, 1, jumps_at + _JUMP_BYTES * i, _JUMP_BYTES)
        for i, name in enumerate(exported)
    ]
    _put(file, symbols_at, b"".join(symbols))
    _put(file, texts_at, bytes(texts.data))
    for i in range(count):
        address = addresses_at + 8 * i
        relocation = struct.pack("<QQq", address, (1 + i) << 32 | kind, 0)
        _put(file, relocations_at + 24 * i, relocation)
        at = jumps_at + _JUMP_BYTES * i
        _put(file, at, _JUMPS[machine](at, address))
    _put(file, dynamic_file_at, b"".join(struct.pack("<QQ", *tag) for tag in tags))
    return bytes(file)


class _Texts:
    """The names of a library: each ends with a zero byte, and is known by its offset."""

    def __init__(self) -> None:
        self.data = bytearray(1)

    def add(self, text: str) -> int:
        """Append a name, and return its offset."""
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _header(machine: str, segments: int) -> bytes:
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    return ident + struct.pack(
        "<HHIQQQIHHHHHH", _SHARED_OBJECT, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, segments, 64,
        0, 0,
    )  # fmt: skip


def _segment(kind: int, flags: int, offset: int, at: int, size: int, alignment: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, at, at, size, size, alignment)


def _hash_table(names: Sequence[str]) -> bytes:
    """Return the table by which the loader finds symbol 1 + i by `names[i]`."""
    size = len(names)
    buckets, chain = [0] * size, [0] * (1 + size)
    for number, name in enumerate(names, start=1):
        bucket = _hash(name) % size
        chain[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{3 + 2 * size}I", size, 1 + size, *buckets, *chain)


def _hash(name: str) -> int:
    """Return ELF's hash of a name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _jump_x86_64(at: int, address: int) -> bytes:
    # endbr64; jmp *[rip + distance]
    return b"\xf3\x0f\x1e\xfa\xff\x25" + struct.pack("<i", address - (at + 10)) + b"\xcc" * 6


def _jump_aarch64(at: int, address: int) -> bytes:
    # bti c; adrp x16, page; ldr x16, [x16, #offset]; br x16
    pages = (address >> 12) - (at + 4 >> 12)
    adrp = 0x90000010 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    ldr = 0xF9400210 | (address & 0xFFF) >> 3 << 10
    return struct.pack("<IIII", 0xD503245F, adrp, ldr, 0xD61F0200)


_JUMPS = {"x86_64": _jump_x86_64, "aarch64": _jump_aarch64}


def _put(file: bytearray, at: int, data: bytes) -> None:
    file[at : at + len(data)] = data


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
