"""How the KV of a model is held: the kinds, and the bytes that each really takes.

Pure. A value of KV is held in full width (as the model computes it), or in 8 or 4 bits of a group
of values that share a scale and an offset, which are as wide as the values were. The groups divide
each head: a value's code then depends on its own head of its own token alone. Or a row keeps, in
full width, its first `SINKS` tokens and its last so many alone: a window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import StringConstraints

_Word = Literal["full", "8bit", "4bit"]
WINDOW_PATTERN = "^window:(?:1[6-9]|[2-9][0-9]|[1-9][0-9]{2,6})$"
KvKind = _Word | Annotated[str, StringConstraints(pattern=WINDOW_PATTERN)]
KINDS: tuple[KvKind, ...] = get_args(_Word)
"""Those beside windows, of which there is one for each number of tokens."""
BITS: Mapping[KvKind, int] = {"8bit": 8, "4bit": 4}
GROUPS = (64, 32)
"""Values that share a scale and an offset, the better first: larger groups take fewer bytes."""
SINKS = 4
"""The first tokens of a row, which a window keeps: much attention rests on them, for
no meaning of theirs, and many a model that misses them talks nonsense (StreamingLLM)."""
NOT_HERE: Mapping[str, str] = {
    "rotated": "rotated KV is not supported: it gained nothing on the measured models",
    "window": "a window needs its number of tokens, 16 to 9999999",
}
OTHER_WORDS: Mapping[str, KvKind] = {
    "f16": "full", "fp16": "full", "bf16": "full", "f32": "full", "none": "full", "default": "full",
    "8": "8bit", "q8": "8bit", "q8_0": "8bit", "int8": "8bit", "8-bit": "8bit",
    "4": "4bit", "q4": "4bit", "q4_0": "4bit", "int4": "4bit", "4-bit": "4bit",
}  # fmt: skip
"""What other servers call the kinds."""


def not_a_kind(word: object) -> str | None:
    """Return what is wrong with a word for a kind of KV; None for one that is a kind."""
    text = str(word).lower()
    if word in KINDS or (isinstance(word, str) and re.fullmatch(WINDOW_PATTERN[1:-1], word)):
        return None
    known = f"use {', '.join(KINDS)} or a window such as window:4096"
    name = text.partition(":")[0]
    if name in NOT_HERE:
        return f"{NOT_HERE[name]}; {known}"
    if text in OTHER_WORDS:
        return f"{known}; {word} is called {OTHER_WORDS[text]} here"
    return known


def window_of(kind: KvKind) -> int:
    """Return the tokens of a window, its sinks not counted; 0 for the other kinds."""
    name, _, tokens = kind.partition(":")
    return int(tokens) if name == "window" else 0


def kind_for(wanted: KvKind, group: int, *, windows: bool) -> KvKind:
    """Return how KV is held where `wanted` was asked for: in full width where there is no `group`
    of values, or where `windows` says that there can be none."""
    if window_of(wanted):
        return wanted if windows else "full"
    return wanted if group else "full"


def group_of(*widths: int) -> int:
    """Return the values of a group for heads of these widths; 0 where none divides all of them."""
    return next((group for group in GROUPS if all(w and w % group == 0 for w in widths)), 0)


def held_bytes(full_bytes: int, kind: KvKind, value_bytes: int, group: int) -> int:
    """Return the bytes in which KV of `full_bytes` is held, scales and offsets included, rounded
    up. Values of `value_bytes` in groups of `group`; 0: it stays in full width. With a window
    nothing grows, and `window_bytes` says what is held."""
    if window_of(kind):
        return 0
    if kind not in BITS or not group or not value_bytes:
        return full_bytes
    values = full_bytes // value_bytes
    return -(-values * BITS[kind] // 8) + 2 * value_bytes * (values // group)


def window_bytes(full_bytes: int, kind: KvKind, context_tokens: int) -> int:
    """Return the most that a window keeps of a row, `full_bytes` being those of a token and
    `context_tokens` the most that a row has; 0 for the other kinds."""
    window = window_of(kind)
    return full_bytes * min(window + SINKS, context_tokens) if window else 0
