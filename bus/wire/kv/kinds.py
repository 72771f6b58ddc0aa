"""The KV cache formats of a model, and the bytes that each format needs.

Pure. `full`: values have full width, as the model computes them. `8bit`, `4bit`: values are stored
in fewer bits, and a group of them shares a scale and an offset of full width. A group has values of
a single head of a single token. A window (`window:N`): a row keeps only the KV of its first `SINKS`
and its last N tokens, in full width.
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
"""All formats except windows. A window is a format of its own for each number of tokens."""
BITS: Mapping[KvKind, int] = {"8bit": 8, "4bit": 4}
GROUPS = (64, 32)
"""The numbers of values that may share a scale and an offset. The first is preferred, because
larger groups take fewer bytes."""
SINKS = 4
"""How many of a row's first tokens a window keeps. They get much attention although they mean
little, and many models write nonsense without them (StreamingLLM)."""
NOT_HERE: Mapping[str, str] = {
    "rotated": "rotated KV is not supported: it gained nothing on the measured models",
    "window": "a window needs its number of tokens, 16 to 9999999",
}
OTHER_WORDS: Mapping[str, KvKind] = {
    "f16": "full", "fp16": "full", "bf16": "full", "f32": "full", "none": "full", "default": "full",
    "8": "8bit", "q8": "8bit", "q8_0": "8bit", "int8": "8bit", "8-bit": "8bit",
    "4": "4bit", "q4": "4bit", "q4_0": "4bit", "int4": "4bit", "4-bit": "4bit",
}  # fmt: skip
"""Names of KV formats in other servers, each with our name."""


def not_a_kind(word: object) -> str | None:
    """Return why a word is no KV format; None if it is one."""
    text = str(word).lower()
    if word in KINDS or (isinstance(word, str) and re.fullmatch(WINDOW_PATTERN[1:-1], word)):
        return None
    usage = f"use {', '.join(KINDS)} or a window such as window:4096"
    name = text.partition(":")[0]
    if name in NOT_HERE:
        return f"{NOT_HERE[name]}; {usage}"
    if text in OTHER_WORDS:
        return f"{usage}; {word} is called {OTHER_WORDS[text]} here"
    return usage


def window_of(kind: KvKind) -> int:
    """Return how many tokens a `window` format keeps, without the sinks; 0 for other formats."""
    name, _, tokens = kind.partition(":")
    return int(tokens) if name == "window" else 0


def kind_for(wanted: KvKind, group: int, *, windows: bool) -> KvKind:
    """Return the KV format for a load that requests `wanted`. It is `full` if the values cannot be
    grouped (`group` 0), or if a window is requested and the model allows none (`windows` False)."""
    if window_of(wanted):
        return wanted if windows else "full"
    return wanted if group else "full"


def group_of(*widths: int) -> int:
    """Return how many values of one head share a scale and an offset, for heads of these widths.
    Return 0 if no number in `GROUPS` divides all of the widths."""
    return next((group for group in GROUPS if all(w and w % group == 0 for w in widths)), 0)


def held_bytes(full_bytes: int, kind: KvKind, value_bytes: int, group: int) -> int:
    """Return the bytes in this format, scales and offsets included, of KV that takes `full_bytes`
    in full width; rounded up. `value_bytes`: the size of one value in full width. `group`: the
    values per group; 0: they stay in full width. Return 0 for a window, because it does not grow
    with the tokens; see `window_bytes`."""
    if window_of(kind):
        return 0
    if kind not in BITS or not group or not value_bytes:
        return full_bytes
    values = full_bytes // value_bytes
    return -(-values * BITS[kind] // 8) + 2 * value_bytes * (values // group)


def window_bytes(full_bytes: int, kind: KvKind, context_tokens: int) -> int:
    """Return the maximum bytes that a window keeps of one row; 0 for the other formats.
    `full_bytes`: the bytes of one token. A row has at most `context_tokens`."""
    window = window_of(kind)
    return full_bytes * min(window + SINKS, context_tokens) if window else 0
