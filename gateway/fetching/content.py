"""The body of a fetched page: checks its type, unpacks it within limits and decodes its text.

Pure. Only gzip and deflate are requested. Compressed bytes are unpacked in bounded pieces, so a
compression bomb costs no more than the largest page.
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
"""The maximum number of unpacked bytes per packed byte. The limit applies from `RATIO_FROM_BYTES`
on; text has a ratio of 3 to 20."""
RATIO_FROM_BYTES = 1 << 20
_PIECE_BYTES = 256 << 10
_KNOWN_CODECS = re.compile(
    r"ascii|utf-(8|16|32)(-[a-z]+)?|iso8859-\d+|cp\d+|koi8-\w+|gb\w+|big5\w*|shift_jis\w*|euc_\w+"
    r"|iso2022_\w+|mac-\w+|tis-620|johab|hz"
)
"""Python's codecs for character sets of pages. All take time linear in the page; punycode, for
example, takes quadratic time."""


@dataclass(frozen=True, slots=True)
class ContentType:
    """A Content-Type header: the type in lower case, and the charset, which is None if Python does
    not know it."""

    name: str
    charset: str | None

    @property
    def is_html(self) -> bool:
        """Return whether the page is parsed as HTML."""
        return self.name in ("text/html", "application/xhtml+xml")


def read_type(header: str | None) -> ContentType:
    """Parse a Content-Type header. If there is no header, the type is
    `application/octet-stream`."""
    message = Message()
    message["content-type"] = header or "application/octet-stream"
    charset = message.get_param("charset")
    return ContentType(
        message.get_content_type(), known_charset(charset if isinstance(charset, str) else "")
    )


def known_charset(name: str) -> str | None:
    """Return Python's name of a character set; None if it is unknown."""
    try:
        codec = codecs.lookup(name.strip()).name if name.strip() else ""
    except (LookupError, ValueError):
        return None
    return codec if _KNOWN_CODECS.fullmatch(codec) else None


def check_type(kind: ContentType, patterns: Sequence[str]) -> None:
    """Raise FetchRefused if the type matches none of the patterns."""
    if not any(fnmatchcase(kind.name, pattern) for pattern in patterns):
        raise FetchRefused(
            "content_type", f"pages of type '{kind.name[:80]}' are not allowed (fetch.types)"
        )


def text_of(body: bytes, charset: str | None) -> str:
    """Decode a body. The encoding is that of its byte order mark, else its charset, else UTF-8.
    Invalid bytes become U+FFFD."""
    for mark, name in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"),
                       (codecs.BOM_UTF16_BE, "utf-16")):  # fmt: skip
        if body.startswith(mark):
            return body.decode(name, "replace").removeprefix("\ufeff")
    return body.decode(charset or "utf-8", "replace")


class PageBody:
    """The body of a page, which arrives in pieces. It is unpacked, and truncated at
    `largest_bytes`."""

    def __init__(self, encoding: str | None, largest_bytes: int) -> None:
        """Raise FetchRefused for an encoding that was not requested."""
        self._unpack = _unpacker(encoding)
        self._largest = largest_bytes
        self._pieces: list[bytes] = []
        self._packed = self._size = 0
        self.truncated = False

    def add(self, packed: bytes) -> None:
        """Add received bytes. Raises FetchRefused if they cannot be unpacked, or if the unpacked
        page is too large for its packed size."""
        self._packed += len(packed)
        for piece in self._unpack.pieces(packed):
            room = self._largest - self._size
            self.truncated = len(piece) > room
            self._pieces.append(piece[:room])
            self._size += len(self._pieces[-1])
            if self._size > max(RATIO_FROM_BYTES, MOST_RATIO * self._packed):
                raise FetchRefused(
                    "unpacked", f"the page decompresses to more than {MOST_RATIO} times its size"
                )
            if self.truncated:
                return

    def read(self) -> bytes:
        """Return the unpacked bytes so far."""
        return b"".join(self._pieces)


class _Plain:
    """A body that is not compressed."""

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        if packed:
            yield packed


class _Zipped:
    """Decompresses gzip, zlib, and deflate without a header, which some servers send."""

    def __init__(self, *, may_be_raw: bool) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._may_be_raw = may_be_raw

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """Unpack the bytes and yield bounded pieces. Raises FetchRefused."""
        while packed and not self._inner.eof:
            try:
                piece = self._inner.decompress(packed, _PIECE_BYTES)
            except zlib.error as error:
                if not self._may_be_raw:
                    raise FetchRefused("encoding", f"cannot decompress the page: {error}") from None
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
    raise FetchRefused(
        "encoding", f"the page is compressed as '{named[:40]}', which was not requested"
    )
