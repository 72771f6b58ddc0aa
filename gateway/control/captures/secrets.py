"""Secrets to remove from each file of a capture, in plain text and in base64.

Pure. The code that collects a capture already leaves secrets out. This module also removes a secret
that a log line or an error message contains by mistake. Values shorter than `LEAST` characters
stay, because such short texts occur everywhere.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

LEAST = 6
LEAST_OF_FILE = 16
"""A word in a key file counts as a secret from this many characters on. Shorter words only describe
the file."""
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
    """Return the secrets: values of variables whose names say so (whole and in parts), passwords in
    URLs, and the long words of key files."""
    secrets: set[str] = set()
    for name, value in environment.items():
        secrets.update(text for text in _IN_URL.findall(value))
        if _TELLING.search(name) and not _PLACE.search(name):
            secrets.update((value.strip(), *_BETWEEN.split(value)))
    for text in key_files:
        words = _BETWEEN_WORDS.split(text)
        secrets.update(word for word in words if len(word) >= LEAST_OF_FILE)
    return frozenset(text for text in secrets if len(text) >= LEAST)


class Remover:
    """Replaces secrets in bytes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)

    def cleaned(self, content: bytes) -> bytes:
        """Return the content with `[removed]` in place of each secret."""
        for form in self._forms:
            if form in content:
                content = content.replace(form, REMOVED)
        return content


def _forms(secret: str) -> Iterator[bytes]:
    """Yield the forms that a value may have in a file: plain, JSON, URL-quoted and base64."""
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
    """Return the characters of an encoded value that do not depend on the bytes before and after
    it."""
    end = len(encoded) - (0, 3, 2)[(offset + length) % 3]
    return encoded[(0, 2, 3)[offset] : end]
