"""Looks for secrets in bytes, files and processes, in whatever form they may stand there.

A secret counts as found where so many of its characters stand in a row: cut, escaped or quoted
ones are found by what is left of them. Looked for are its text, UTF-16, base64 at each of the three
places where it may begin, and hexadecimal digits; within what is packed (gzip, zlib, zstd, bzip2,
xz, zip, tar, base64 of them), in each value of an SQLite file, and, for what is written piece by
piece, in the values of lines of JSON or of server-sent events put together, key by key, and in
lines without their ends.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes

import numpy as np
import psutil
import zstandard

WINDOW = 8
"""Bytes that are compared at once."""
LEAST = {"text": 8, "UTF-16": 16, "base64": 12, "hex": 20}
"""How many bytes of a form in a row are no chance."""
DEEPEST = 4
"""Of packed things within packed things."""
SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, order=True)
class Found:
    """A secret, by its name, in a place; `form` is how it stands there."""

    secret: str
    place: str
    form: str


@dataclass(frozen=True)
class _Form:
    """One way in which a secret may stand somewhere."""

    secret: str
    name: str
    text: bytes


class SecretSearch:
    """Looks for secrets, given by their names. Each has at least 12 characters."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        assert all(len(text) >= 12 for text in secrets.values()), "too short to be told from chance"
        self._forms = [form for name, text in secrets.items() for form in _forms(name, text)]
        places: dict[int, list[tuple[int, int]]] = {}
        for number, form in enumerate(self._forms):
            for at in range(len(form.text) - WINDOW + 1):
                window = int.from_bytes(form.text[at : at + WINDOW], "little")
                places.setdefault(window, []).append((number, at))
        self._places = places
        self._windows = np.array(sorted(places), dtype="<u8")
        self.looked_at = 0
        """How many files were read."""

    def in_bytes(self, content: bytes, place: str, depth: int = 0) -> set[Found]:
        """What stands in bytes, and in what is packed in them."""
        found = self._plain(content, place)
        for name, told in _readings(content):
            found |= self._plain(told, f"{place} ({name})")
        if depth < DEEPEST:
            for name, inner in _packed(content):
                found |= self.in_bytes(inner, f"{place}!{name}", depth + 1)
        return found

    def in_file(self, path: Path) -> set[Found]:
        """What stands in a file, in its name, or in the rows of an SQLite file."""
        found = self._plain(str(path).encode(), f"the name of {path}")
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                return found | self._plain(os.readlink(path).encode(), f"the link {path}")
            if not stat.S_ISREG(mode):
                return found
            content = path.read_bytes()
        except FileNotFoundError:
            return found
        self.looked_at += 1
        found |= self.in_bytes(content, str(path))
        if content.startswith(SQLITE):
            for place, value in _rows(path):
                found |= self.in_bytes(value, f"{path}:{place}", DEEPEST - 1)
        return found

    def in_folder(self, folder: Path, but: Callable[[Path], bool] = lambda _: False) -> set[Found]:
        """What stands in the files of a folder, links and their names included; `but` says which
        paths are not read."""
        found: set[Found] = set()
        for parent, folders, files in os.walk(folder):
            at = Path(parent)
            folders[:] = [one for one in folders if not but(at / one)]
            for name in (*files, *folders):
                if not but(at / name):
                    found |= self.in_file(at / name)
        return found

    def in_processes(self, processes: Iterable[psutil.Process]) -> set[Found]:
        """What stands in the arguments and names of processes, as `ps` shows them."""
        found: set[Found] = set()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                told = "\n".join((process.name(), *process.cmdline()))
                found |= self._plain(told.encode(), f"the arguments of {process.name()}")
        return found

    def _plain(self, content: bytes, place: str) -> set[Found]:
        """The forms of which enough stands in a row in the content, as it is."""
        found: set[Found] = set()
        for at in self._hits(content):
            window = int.from_bytes(content[at : at + WINDOW], "little")
            for number, begin in self._places[window]:
                form = self._forms[number]
                if _in_a_row(content, at, form.text, begin) >= min(
                    LEAST[form.name], len(form.text)
                ):
                    found.add(Found(form.secret, place, form.name))
        return found

    def _hits(self, content: bytes) -> Iterator[int]:
        """Where a window of any form begins."""
        for offset in range(WINDOW):
            count = (len(content) - offset) // WINDOW
            if count <= 0:
                continue
            words = np.frombuffer(content, dtype="<u8", count=count, offset=offset)
            index = np.searchsorted(self._windows, words)
            index[index == len(self._windows)] = 0
            for at in np.flatnonzero(self._windows[index] == words):
                yield int(at) * WINDOW + offset


def _in_a_row(content: bytes, at: int, form: bytes, begin: int) -> int:
    """How many bytes of a form stand around a place."""
    first = 0
    while (
        at - first > 0 and begin - first > 0 and content[at - first - 1] == form[begin - first - 1]
    ):
        first += 1
    last = 0
    most = min(len(content) - at, len(form) - begin)
    while last < most and content[at + last] == form[begin + last]:
        last += 1
    return first + last


def _forms(name: str, text: str) -> Iterator[_Form]:
    plain = text.encode()
    yield _Form(name, "text", plain)
    yield _Form(name, "UTF-16", text.encode("utf-16-le"))
    yield _Form(name, "hex", plain.hex().encode())
    yield _Form(name, "hex", plain.hex().upper().encode())
    for skipped in range(3):
        whole = plain[skipped : skipped + (len(plain) - skipped) // 3 * 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield _Form(name, "base64", encode(whole))


def _readings(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The content as those read it who put pieces together, or take escapes out."""
    if b"%" in content:
        yield "URL", unquote_to_bytes(content)
    if b"\\" in content:
        yield "escapes", re.sub(rb"\\+u00([0-7][0-9a-fA-F])", _unescaped, content)
    if b"\n" in content:
        yield "without line ends", re.sub(rb"[\r\n]+", b"", content)
    values: dict[str, list[str]] = {}
    for line in content.splitlines():
        begin = line.find(b"{")
        if begin >= 0:
            with contextlib.suppress(ValueError, RecursionError):
                _collect(json.loads(line[begin:]), "", values)
    for key, parts in values.items():
        yield f"the values of {key}", "".join(parts).encode("utf-8", "surrogatepass")


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])


def _collect(value: Any, key: str, into: dict[str, list[str]]) -> None:
    """Gather each text of a JSON value by its last key."""
    if isinstance(value, str):
        into.setdefault(key, []).append(value)
    elif isinstance(value, dict):
        for name, inner in cast(dict[str, Any], value).items():
            _collect(inner, name, into)
    elif isinstance(value, list):
        for inner in cast(list[Any], value):
            _collect(inner, key, into)


def _packed(content: bytes) -> Iterator[tuple[str, bytes]]:
    """What is packed in the content: by the content's own first bytes."""
    for name, begins, unpack in _PACKERS:
        if content.startswith(begins):
            with contextlib.suppress(Exception):  # it only looked like one
                yield name, unpack(content)
    if content.startswith(b"PK\3\4"):
        with (
            contextlib.suppress(zipfile.BadZipFile),
            zipfile.ZipFile(io.BytesIO(content)) as zipped,
        ):
            for member in zipped.namelist():
                yield f"{member}", zipped.read(member)
    if content[257:262] == b"ustar":
        with (
            contextlib.suppress(tarfile.TarError),
            tarfile.open(fileobj=io.BytesIO(content)) as tar,
        ):
            for one in tar:
                if (file := tar.extractfile(one)) is not None:
                    yield one.name, file.read()


_PACKERS: tuple[tuple[str, bytes, Callable[[bytes], bytes]], ...] = (
    ("gzip", b"\x1f\x8b", gzip.decompress),
    ("zlib", b"\x78", lambda content: zlib.decompressobj().decompress(content)),
    ("zstd", b"\x28\xb5\x2f\xfd",
     lambda content: zstandard.ZstdDecompressor().stream_reader(
         io.BytesIO(content), read_across_frames=True).read()),
    ("bzip2", b"BZh", bz2.decompress),
    ("xz", b"\xfd7zXZ", lzma.decompress),
    ("base64 of gzip", b"H4sI", lambda content: gzip.decompress(base64.b64decode(content))),
)  # fmt: skip


def _rows(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each value of an SQLite file, and each column put together, of a copy of it with its
    write-ahead log."""
    with tempfile.TemporaryDirectory(prefix="secret-search-") as folder:
        copy = Path(folder) / "copy"
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        with contextlib.closing(sqlite3.connect(copy)) as file:
            file.text_factory = bytes
            tables = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                named = table.decode()
                cursor = file.execute(f'SELECT * FROM "{named}"')
                columns = [one[0] for one in cursor.description]
                together: dict[str, list[bytes]] = {}
                for row in cursor:
                    for column, value in zip(columns, row, strict=True):
                        if isinstance(value, bytes):
                            together.setdefault(column, []).append(value)
                            yield f"{named}.{column}", value
                for column, parts in together.items():
                    yield f"{named}.{column}, all rows", b"".join(parts)
