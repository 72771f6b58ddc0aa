"""What comes back: whether its type is read, unpacked within bounds, and in which letters.

Pure. Only gzip and deflate are asked for, and unpacked a bounded piece at a time: a bomb costs what
the largest page costs.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from fnmatch import fnmatchcase

from gateway.fetching.refusals import FetchRefused

ACCEPTED_ENCODINGS = "gzip, deflate"
MOST_RATIO = 200
"""Unpacked bytes for one packed, from `RATIO_FROM_BYTES` on; text gives 3 to 20."""
RATIO_FROM_BYTES = 1 << 20
_PIECE_BYTES = 256 << 10
_KNOWN_CODECS = re.compile(
    r"ascii|utf-(8|16|32)(-[a-z]+)?|iso8859-\d+|cp\d+|koi8-\w+|gb\w+|big5\w*|shift_jis\w*|euc_\w+"
    r"|iso2022_\w+|mac-\w+|tis-620|johab|hz"
)
"""Python's codecs that are character sets of pages, in time that grows with the page: punycode's
does with its square."""


@dataclass(frozen=True, slots=True)
class ContentType:
    """A Content-Type header: the type in lower case, and a charset that Python has, else None."""

    name: str
    charset: str | None

    @property
    def is_html(self) -> bool:
        """Return whether it is read as HTML."""
        return self.name in ("text/html", "application/xhtml+xml")


def read_type(header: str | None) -> ContentType:
    """Return what a Content-Type header says; without one, of bytes."""
    told = Message()
    told["content-type"] = header or "application/octet-stream"
    charset = told.get_param("charset")
    return ContentType(
        told.get_content_type(), known_charset(charset if isinstance(charset, str) else "")
    )


def known_charset(name: str) -> str | None:
    """Return Python's name of a character set, None for what is none."""
    try:
        found = codecs.lookup(name.strip()).name if name.strip() else ""
    except (LookupError, ValueError):
        return None
    return found if _KNOWN_CODECS.fullmatch(found) else None


def check_type(found: ContentType, wanted: Sequence[str]) -> None:
    """Raise FetchRefused for a type that is not read."""
    if not any(fnmatchcase(found.name, one) for one in wanted):
        raise FetchRefused(
            "content_type", f"pages of type '{found.name[:80]}' are not allowed (fetch.types)"
        )


def text_of(body: bytes, charset: str | None) -> str:
    """Return a body as text: by its byte order mark, its charset, or as UTF-8; what is no letter
    becomes a mark."""
    for mark, name in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"),
                       (codecs.BOM_UTF16_BE, "utf-16")):  # fmt: skip
        if body.startswith(mark):
            return body.decode(name, "replace").removeprefix("\ufeff")
    return body.decode(charset or "utf-8", "replace")


class PageBody:
    """A body as it comes: unpacked, and cut at `largest_bytes`."""

    def __init__(self, encoding: str | None, largest_bytes: int) -> None:
        """Raise FetchRefused for an encoding that was not asked for."""
        self._unpack = _unpacker(encoding)
        self._largest = largest_bytes
        self._pieces: list[bytes] = []
        self._packed = self._size = 0
        self.truncated = False

    def add(self, packed: bytes) -> None:
        """Take what came. Raises FetchRefused for what unpacks too well, or not at all."""
        self._packed += len(packed)
        for piece in self._unpack.pieces(packed):
            room = self._largest - self._size
            self.truncated = len(piece) > room
            self._pieces.append(piece[:room])
            self._size += len(self._pieces[-1])
            if self._size > max(RATIO_FROM_BYTES, MOST_RATIO * self._packed):
                raise FetchRefused(
                    "unpacked", f"it decompresses to more than {MOST_RATIO} times its size"
                )
            if self.truncated:
                return

    def read(self) -> bytes:
        """Return all that came."""
        return b"".join(self._pieces)


class _Plain:
    """Bytes as they are."""

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """Yield them."""
        if packed:
            yield packed


class _Zipped:
    """Bytes of gzip or zlib, or of deflate without a header, as some servers send it."""

    def __init__(self, *, may_be_raw: bool) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._may_be_raw = may_be_raw

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """Yield what they unpack to, a bounded piece at a time. Raises FetchRefused."""
        while packed and not self._inner.eof:
            try:
                piece = self._inner.decompress(packed, _PIECE_BYTES)
            except zlib.error as error:
                if not self._may_be_raw:
                    raise FetchRefused("encoding", f"cannot decompress it: {error}") from None
                self._inner, piece = zlib.decompressobj(-zlib.MAX_WBITS), b""
                self._may_be_raw = False
                continue
            self._may_be_raw = False
            if piece:
                yield piece
            packed = self._inner.unconsumed_tail
            if not piece and not packed:
                return


def _unpacker(encoding: str | None) -> _Plain | _Zipped:
    named = (encoding or "identity").strip().lower()
    if named in ("identity", ""):
        return _Plain()
    if named in ("gzip", "x-gzip", "deflate"):
        return _Zipped(may_be_raw=named == "deflate")
    raise FetchRefused("encoding", f"compressed as '{named[:40]}', which was not requested")
