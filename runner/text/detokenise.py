"""Turn token ids into text, one token at a time, without splitting characters.

Pure. A `TokenTable` holds the bytes of every token and is made once per model; each choice has its
own detokeniser, which costs a microsecond to make. An incomplete UTF-8 sequence at the end is held
until it is complete. Invalid bytes become U+FFFD, as in the tokenizer's own decode. The pieces
joined equal the decode of the whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_UTF8 = codecs.getincrementaldecoder("utf-8")
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """`bytes_of[id]` is what the token adds to the output; hidden special tokens add nothing. Ids
    beyond the table (padding of the model's vocabulary) add nothing either. `strips_space`: the
    output's first space belongs to the tokenizer, not to the text."""

    bytes_of: tuple[bytes, ...]
    strips_space: bool = False

    @staticmethod
    def build(
        names: Sequence[str],
        decoder: Mapping[str, Any] | None,
        *,
        added: Mapping[int, bytes],
        hidden: frozenset[int],
    ) -> TokenTable | None:
        """Return the table of a byte-level or byte-fallback vocabulary, from the `decoder` entry of
        its `tokenizer.json`; None for other decoders."""
        kinds = _kinds(decoder)
        if "ByteLevel" in kinds:
            read = _byte_level
        elif "ByteFallback" in kinds and "Replace" in kinds:
            read = _byte_fallback
        else:
            return None
        table = [read(name) for name in names]
        for index, content in added.items():
            table[index] = content
        for index in hidden:
            table[index] = b""
        return TokenTable(tuple(table), strips_space="Strip" in kinds)

    def detokeniser(self, *, begins: bool) -> ByteDetokeniser:
        """Return a new detokeniser. `begins`: the output is a text of its own, not a continuation,
        so a first space that belongs to the tokenizer is dropped."""
        return ByteDetokeniser(self.bytes_of, strips_space=begins and self.strips_space)


class ByteDetokeniser:
    """Turns tokens into text by a table of the tokens' bytes."""

    __slots__ = ("_bytes_of", "_decode", "_decoder", "_strip")

    def __init__(self, bytes_of: tuple[bytes, ...], *, strips_space: bool) -> None:
        self._bytes_of = bytes_of
        self._decoder = _UTF8("replace")
        self._decode = self._decoder.decode
        self._strip = strips_space

    def add(self, token: int) -> str:
        """Return the text that this token completes."""
        table = self._bytes_of
        if not 0 <= token < len(table):
            return ""
        text = self._decode(table[token])
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """Return the text of the bytes that are still held, at the end of the output."""
        return self._decode(b"", True)

    @property
    def is_incomplete(self) -> bool:
        """Return whether bytes of an incomplete character are held."""
        return self._decoder.getstate()[0] != b""


class StreamingDecoder(Protocol):
    """The part of mlx-lm's streaming detokenizers that this module uses."""

    @property
    def last_segment(self) -> str:
        """Return the text that the last call completed."""
        ...

    def add_token(self, token: int) -> object:
        """Add the next token of the output."""
        ...

    def finalize(self) -> object:
        """Process the end of the text."""
        ...


class WholeTextDetokeniser:
    """Turns tokens into text with the model library's own decoder, for vocabularies without a
    `TokenTable`. `is_incomplete`: the last token ended inside a character."""

    __slots__ = ("_decoder", "_hidden", "is_incomplete")

    def __init__(self, decoder: StreamingDecoder, hidden: frozenset[int]) -> None:
        self._decoder = decoder
        self._hidden = hidden
        self.is_incomplete = False

    def add(self, token: int) -> str:
        """Return the text that this token completes."""
        if token in self._hidden:
            return ""
        self._decoder.add_token(token)
        text = self._decoder.last_segment
        self.is_incomplete = not text
        return text

    def flush(self) -> str:
        """Return the text that is still held, at the end of the output."""
        self._decoder.finalize()
        self.is_incomplete = False
        return self._decoder.last_segment


class SentText:
    """The text that an engine itself makes of its tokens. Set `text` before each `add`. `strips`:
    the first space belongs to the tokenizer."""

    __slots__ = ("_strips", "is_incomplete", "text")

    def __init__(self, *, strips: bool = False) -> None:
        self.text = ""
        self.is_incomplete = False
        self._strips = strips

    def add(self, token: int) -> str:
        """Return the text that the engine sent with this token."""
        text, self.text = self.text, ""
        if self._strips and text:
            self._strips = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """Return no text: the engine holds it back itself."""
        return ""


Detokeniser = ByteDetokeniser | WholeTextDetokeniser | SentText
"""Returns the text that each token completes, which may be empty. `flush` ends the text: incomplete
characters become U+FFFD."""


def _kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    parts: Sequence[Mapping[str, Any]] = decoder.get("decoders") or [decoder]
    return {str(part.get("type")) for part in parts}


def _printable_bytes() -> dict[str, int]:
    """Return the byte alphabet of byte-level BPE (GPT-2). A printable Latin-1 character stands for
    its own byte; the other 68 bytes are written as the characters 256, 257, ... in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(plain))
    alphabet = {chr(byte): byte for byte in plain}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _printable_bytes()


def _byte_level(name: str) -> bytes:
    try:
        return bytes([_ALPHABET[letter] for letter in name])
    except KeyError:
        return name.encode()


def _byte_fallback(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace(_SPACE, " ").encode()
