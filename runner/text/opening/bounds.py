"""Talks to the disk: looks at a `tokenizer.json` before a library opens it. Its parts are what a
model's folder says, and twenty of them that each double a text make a megabyte of every
character, of the added tokens already while it is opened.

Lengths are of characters. A part's factor is the most that one of it can do; those of a sequence
are multiplied. What is added to a text once, a prefix, is left out: it is no longer than the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from runner.text.opening.opened import TokenizerError

MOST_BYTES = 256 << 20
"""Several times the largest known."""
MOST_GROWTH = 1_000.0
"""NFKC makes 18 characters of one, and bytes as characters 4; no known tokenizer has more than one
of each."""
FACTORS: Mapping[str, float] = {
    "NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Precompiled": 18, "Nmt": 1, "Prepend": 1,
    "Lowercase": 3, "BertNormalizer": 9, "Strip": 1, "StripAccents": 1, "ByteLevel": 4,
    "Metaspace": 2, "BertPreTokenizer": 1, "Whitespace": 1, "WhitespaceSplit": 1,
    "Punctuation": 1, "Digits": 1, "Split": 1, "CharDelimiterSplit": 1, "UnicodeScripts": 1,
    "FixedLength": 1, "RandomChunk": 1, "WordPiece": 1, "BPEDecoder": 1, "CTC": 1, "Fuse": 1,
    "ByteFallback": 1,
}  # fmt: skip
"""By the type of a part. Of bytes that stand as characters, each character has up to four."""
UNKNOWN = 18.0
_MAY_BE_EMPTY = re.compile(r"[*?^$]|\{[0,]|\\[bBAzZGKyY]|\(\)|\(\||\|\)|\|\||^\||\|$|^$")
_SEQUENCES = ("normalizers", "pretokenizers", "decoders")


class _Parts(msgspec.Struct):
    """What of a `tokenizer.json` changes texts; the rest, nearly all of it, is passed over."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


def check_file(path: Path) -> None:
    """Raise TokenizerError for a `tokenizer.json` that is no JSON, is too large or too deep, or
    makes too much of a text. One that cannot be read is left to who opens it."""
    where = f"{path.parent.name}: {path.name}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TokenizerError(f"{where}: larger than any known tokenizer ({MOST_BYTES:,} bytes)")
        data = path.read_bytes()
    except OSError:
        return
    try:
        parts = msgspec.json.decode(data, type=_Parts)
        reads = growth_of(parts.normalizer) * growth_of(parts.pre_tokenizer)
        grows = max(reads, growth_of(parts.decoder))
    except RecursionError as error:
        raise TokenizerError(f"{where}: its parts are nested too deep") from error
    except msgspec.MsgspecError as error:
        raise TokenizerError(f"{where}: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{where}: a part of it is of no known form") from error
    if grows > MOST_GROWTH:
        raise TokenizerError(
            f"{where}: its parts together may make a text {grows:,.0f} times as long; "
            f"at most {MOST_GROWTH:,.0f} times is taken"
        )


def growth_of(part: Mapping[str, Any] | None) -> float:
    """Return how many characters a part of a `tokenizer.json` may make of one: a normaliser, a
    pre-tokenizer or a decoder. Raises LookupError, TypeError or AttributeError for what is none,
    and RecursionError."""
    return 1.0 if part is None else _growth(part)


def _growth(part: Mapping[str, Any]) -> float:
    # by what a part has, not by its type alone: the library reads old files, which tell no type
    members = next((part[name] for name in _SEQUENCES if name in part), None)
    if members is not None:
        return math.prod(map(_growth, cast("list[Mapping[str, Any]]", members)))
    if "pattern" in part and "content" in part:
        pattern = cast(Mapping[str, str], part["pattern"])
        return _replaced(pattern.get("String"), pattern.get("Regex", ""), len(part["content"]))
    return FACTORS.get(str(part.get("type")), UNKNOWN)


def _replaced(text: str | None, expression: str, content: int) -> float:
    if text:
        return max(1.0, content / len(text))
    if text == "" or _MAY_BE_EMPTY.search(expression):  # it comes between any two characters
        return 1.0 + content
    return max(1.0, float(content))
