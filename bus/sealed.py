"""Small state files whose content carries its own checksum, so that no flipped bit passes.

Pure. The form is `<content> crc32:<8 hexadecimal digits>` and a newline; the CRC-32 is that of the
content. A file that an older version wrote has no checksum and is taken where its content has the
older form. A single flipped bit never turns the one form into the other.
"""

from __future__ import annotations

import re
from zlib import crc32

from bus.wire.errors import ShoalError

MARK = " crc32:"
_FORM = re.compile(r"(.*) crc32:([0-9a-f]{8})\n", re.DOTALL)


class Damaged(ShoalError):
    """The content of a file does not match its checksum, or has no form that is known."""


def sealed(content: str) -> bytes:
    """Return a file's bytes: the content with its checksum."""
    data = content.encode()
    return data + f"{MARK}{crc32(data):08x}\n".encode()


def unsealed(data: bytes, *, older: re.Pattern[str] | None = None) -> str:
    """Return the content of a file, which may have the form `older`, without a checksum. Raises
    Damaged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Damaged("it is not text") from None
    found = _FORM.fullmatch(text)
    if found is not None and f"{crc32(found[1].encode()):08x}" == found[2]:
        return found[1]
    if found is None and MARK not in text and older is not None and older.fullmatch(text):
        return text
    raise Damaged("its content does not match its checksum")
