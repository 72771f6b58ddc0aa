"""What is taken out of every file of a capture: values that are secret, plain and in base64.

Pure. What is in a capture was made without secrets already; this is for the line of a log or the
message of an error that has one all the same. Values of under `LEAST` characters stay, for they
would be found in everything.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

LEAST = 6
LEAST_OF_FILE = 16
"""Characters of a word in a key file that is secret; the shorter ones say what the file is."""
REMOVED = b"[removed]"
_TELLING = re.compile(
    r"KEY|TOKEN|SECRET|PASS(W|PHRASE)|CREDENTIAL|AUTH|COOKIE|HEADERS", re.IGNORECASE
)
_PLACE = re.compile(r"(_FILE|_PATH|_DIR|_SOCK)$", re.IGNORECASE)
_BETWEEN = re.compile(r"[\s,;\"'\[\]{}()]+")
_BETWEEN_WORDS = re.compile(r"[^A-Za-z0-9+/_.-]+")
_IN_URL = re.compile(r"://[^/@\s]*?:([^@/\s]+)@")
_BASE64_LEAST = 8


def secrets_of(environment: Mapping[str, str], key_files: Iterable[str]) -> frozenset[str]:
    """Return what is secret: the values of variables whose names say so, whole and by their parts,
    passwords in URLs, and the long words of key files."""
    found: set[str] = set()
    for name, value in environment.items():
        found.update(each for each in _IN_URL.findall(value))
        if _TELLING.search(name) and not _PLACE.search(name):
            found.update((value.strip(), *_BETWEEN.split(value)))
    for text in key_files:
        words = _BETWEEN_WORDS.split(text)
        found.update(word for word in words if len(word) >= LEAST_OF_FILE)
    return frozenset(each for each in found if len(each) >= LEAST)


class Remover:
    """What takes secrets out of bytes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)

    def cleaned(self, content: bytes) -> bytes:
        """Return the content with `[removed]` where a secret was."""
        for form in self._forms:
            if form in content:
                content = content.replace(form, REMOVED)
        return content


def _forms(secret: str) -> Iterator[bytes]:
    """Yield the ways in which a value may stand in a file."""
    for text in {secret, unquote(secret)}:
        plain = text.encode()
        yield plain
        yield json.dumps(text)[1:-1].encode()
        yield quote(text, safe="").encode()
        for offset in range(3):
            for encoded in (base64.b64encode, base64.urlsafe_b64encode):
                core = _core(encoded(bytes(offset) + plain), offset, len(plain))
                if len(core) >= _BASE64_LEAST:
                    yield core


def _core(encoded: bytes, offset: int, length: int) -> bytes:
    """Return the characters that do not depend on what stands before and behind the value."""
    end = len(encoded) - (0, 3, 2)[(offset + length) % 3]
    return encoded[(0, 2, 3)[offset] : end]
