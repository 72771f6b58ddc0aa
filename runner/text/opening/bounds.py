"""Talks to the disk: checks a `tokenizer.json` before a library opens it. The file lists processing
parts, and a hostile file could list parts that enlarge texts. Twenty parts that each double a text
would turn one character into a megabyte. For added tokens this would happen as soon as the file is
opened.

Lengths are in characters. A part's factor is its largest possible growth; the factors of a sequence
are multiplied. A prefix that is added once is ignored: it is no longer than the file.
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
"""Maximum size of a `tokenizer.json`: several times that of the largest known file."""
MOST_GROWTH = 1_000.0
"""Maximum growth of a text. NFKC makes up to 18 characters from one, and byte-level encoding up to
4; no known tokenizer does either more than once."""
FACTORS: Mapping[str, float] = {
    "NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Precompiled": 18, "Nmt": 1, "Prepend": 1,
    "Lowercase": 3, "BertNormalizer": 9, "Strip": 1, "StripAccents": 1, "ByteLevel": 4,
    "Metaspace": 2, "BertPreTokenizer": 1, "Whitespace": 1, "WhitespaceSplit": 1,
    "Punctuation": 1, "Digits": 1, "Split": 1, "CharDelimiterSplit": 1, "UnicodeScripts": 1,
    "FixedLength": 1, "RandomChunk": 1, "WordPiece": 1, "BPEDecoder": 1, "CTC": 1, "Fuse": 1,
    "ByteFallback": 1,
}  # fmt: skip
"""Maps the type of a processing part to its growth factor. In byte-level text, each character
becomes up to four."""
UNKNOWN = 18.0
_MAY_BE_EMPTY = re.compile(r"[*?^$]|\{[0,]|\\[bBAzZGKyY]|\(\)|\(\||\|\)|\|\||^\||\|$|^$")
_SEQUENCES = ("normalizers", "pretokenizers", "decoders")


class _Parts(msgspec.Struct):
    """The parts of a `tokenizer.json` that change texts. All other content, nearly the whole file,
    is skipped."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


def check_file(path: Path) -> None:
    """Raise TokenizerError for a `tokenizer.json` that is not JSON, is too large or too deep, or
    enlarges texts too much. An unreadable file is left to its reader."""
    where = f"{path.parent.name}: {path.name}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TokenizerError(
                f"{where}: larger than any supported tokenizer ({MOST_BYTES:,} bytes)"
            )
        data = path.read_bytes()
    except OSError:
        return
    try:
        parts = msgspec.json.decode(data, type=_Parts)
        reads = growth_of(parts.normalizer) * growth_of(parts.pre_tokenizer)
        grows = max(reads, growth_of(parts.decoder))
    except RecursionError as error:
        raise TokenizerError(f"{where}: its parts are nested too deeply") from error
    except msgspec.MsgspecError as error:
        raise TokenizerError(f"{where} is invalid: {error}; download it again") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{where}: one of its parts has a form unknown to shoal") from error
    if grows > MOST_GROWTH:
        raise TokenizerError(
            f"{where}: its parts may make a text {grows:,.0f} times as long; the "
            f"limit is {MOST_GROWTH:,.0f} times"
        )


def growth_of(part: Mapping[str, Any] | None) -> float:
    """Return how many characters a part of a `tokenizer.json` (normaliser, pre-tokenizer or
    decoder) may make from one. Raises LookupError, TypeError or AttributeError for an invalid part,
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
